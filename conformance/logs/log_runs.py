"""What the commands do with an operation log: run it through the specification, or on a manager."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from conformance.lockstep import Check, Divergence, Lockstep
from conformance.logs.oplog import Log
from conformance.logs.playback import Validation
from conformance.program import Factory, Operation, perform

Verdict = Literal["clean", "violation", "interrupted"]


class LogReport(BaseModel):
    """The outcome of a run over a log."""

    model_config = ConfigDict(frozen=True)

    log: str
    subject: str
    calls: int
    """Calls that were read."""
    calls_checked: int
    """Calls that were compared; what lost its meaning on another manager is left out."""
    snapshots: int | None
    """Calls after which the log shows the whole subject; None where the subject was there."""
    seconds: float
    calls_per_second: float
    verdict: Verdict
    violation: str | None = None
    details: str | None = None
    notices: list[str] = []


def validate(
    log: Log, check: Check | None = None, on_progress: Callable[[int], None] = lambda _: None
) -> LogReport:
    """Run a log's calls through the specification and compare what was recorded."""
    pair = Validation(log, check)
    reading = _Reading(on_progress)

    def run() -> None:
        for number in pair.run():
            reading.saw(number)

    return _report(log, pair, reading, run)


def replay_log(
    log: Log,
    make: Factory,
    check: Check = "full",
    on_progress: Callable[[int], None] = lambda _: None,
) -> LogReport:
    """Make a log's calls on a fresh subject in lockstep; what the log answers does not count."""
    pair = Lockstep(make(log.header.settings), check)
    reading = _Reading(on_progress)

    def operations() -> Iterator[Operation]:
        for call in log:
            reading.saw(call.number)
            yield call.operation

    def run() -> None:
        perform(pair, operations())
        pair.sweep()

    return _report(log, pair, reading, run)


class _Reading:
    """Counts the calls that were read, and tells of it now and then."""

    def __init__(self, on_progress: Callable[[int], None]) -> None:
        self.calls = 0
        self.started = time.perf_counter()
        self._on_progress = on_progress

    def saw(self, number: int) -> None:
        self.calls = number
        if number % 256 == 0:
            self._on_progress(number)


def _report(log: Log, pair: Lockstep, reading: _Reading, run: Callable[[], None]) -> LogReport:
    """Run to the end, to the first violation, or to Ctrl-C, and report what happened so far."""
    verdict: Verdict = "clean"
    violation = details = None
    try:
        run()
    except KeyboardInterrupt:
        verdict = "interrupted"
    except Divergence as found:
        verdict, violation, details = "violation", str(found), found.details
    seconds = max(time.perf_counter() - reading.started, 1e-9)
    return LogReport(
        log=log.path.name,
        subject=pair.name,
        calls=max(reading.calls, pair.calls if verdict == "violation" else 0),
        calls_checked=pair.calls,
        snapshots=pair.snapshots if isinstance(pair, Validation) else None,
        seconds=seconds,
        calls_per_second=pair.calls / seconds,
        verdict=verdict,
        violation=violation,
        details=details,
        notices=list(log.notices),
    )
