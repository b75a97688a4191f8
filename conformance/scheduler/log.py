"""A log of what was seen of a scheduler, so that it can be judged elsewhere, without vLLM.

It is a log of kind `states`. The calls that 0.33.0's scheduler makes on its manager have other
arguments and another sense of "computed" than the specification's, so they are not written down as
such. What is written, a line for each moment, is what can be seen: what a step was told to compute,
which blocks were handed out, the facts of each request, and the whole pool. The judgement, and the
ledger of what is written, are worked out from that when the log is validated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

from pydantic import ValidationError

from conformance.divergence import Divergence
from conformance.logs.log_runs import LogReport, Verdict
from conformance.logs.oplog_reader import LogError
from conformance.scheduler import stand_in
from conformance.scheduler.harness import Harness
from conformance.scheduler.judge import Glimpse, Judge
from conformance.scheduler.ledger import UnknownTokenError, Work
from conformance.scheduler.log_format import KIND, StatesHeader, StatesLine
from conformance.scheduler.properties import Moment
from conformance.scheduler.script import Add, Event, Step
from conformance.scheduler.search import Aim
from conformance.scheduler.workload import Client, draw_setting


class StatesWriter:
    """Writes a log of kind `states`. `carried` is the hash of a request's block as blocks show it.

    Hashes are numbered in the order in which they are met, so a log is the same every time; each
    number is kept for good, which costs an entry for each block of tokens that was ever hashed.
    """

    def __init__(
        self, path: Path, header: StatesHeader, carried: Callable[[Any], Hashable]
    ) -> None:
        self.path = path
        self.calls = 0
        self._carried = carried
        self._numbers: dict[Hashable, str] = {}
        try:
            self._file = path.open("w", encoding="ascii", newline="\n", buffering=1)
        except OSError as error:
            raise LogError(path, None, f"cannot be written: {error.strerror}") from error
        self._put(header.model_dump())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def moment(self, moment: Moment, glimpse: Glimpse, token: int | None) -> None:
        """Write one moment."""
        self.calls += 1
        seen, name = glimpse.seen, self._name
        shown = {
            "ref_cnts": seen.ref_cnts,
            "keys": [None if key is None else name(key) for key in seen.keys],
            "queue": seen.queue,
            "queue_back": seen.queue_back,
            "num_free": seen.num_free,
            "index": {name(key): copies for key, copies in seen.index.items()},
            "tables": dict(seen.tables),
            "usage": seen.usage,
            "stray": seen.stray,
        }
        requests = {
            rid: facts._replace(
                tokens=tuple(facts.tokens),
                hashes=[name(self._carried(one)) for one in facts.hashes],
            )._asdict()
            for rid, facts in glimpse.requests.items()
        }
        self._put(
            {
                "n": self.calls,
                "call": moment.action,
                "args": dict(moment.args),
                "work": [one._asdict() for one in moment.work],
                "token": token,
                "result": moment.result,
                "taken": glimpse.taken,
                "requests": requests,
                "snapshot": shown,
            }
        )

    def _name(self, key: Hashable) -> str:
        return self._numbers.setdefault(key, f"k{len(self._numbers) + 1}")

    def _put(self, fields: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(fields, separators=(",", ":")) + "\n")
        except OSError as error:
            problem = f"cannot be written: {error.strerror}; what stands there is kept"
            raise LogError(self.path, None, problem) from error


def is_states_log(path: Path) -> bool:
    """Return whether a file begins like a log of kind `states`; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return KIND.encode() in file.readline(1 << 16)
    except (OSError, ValueError):
        return False


def validate_states(path: Path, on_progress: Callable[[int], None] = lambda _: None) -> LogReport:
    """Judge a log of kind `states` to its end, its first broken property, or Ctrl-C.

    Raises `LogError` for a line that is damaged.
    """
    started, notices = time.perf_counter(), list[str]()
    lines = _lines(path)
    header = _header(path, lines)
    judge = Judge(header.settings)
    verdict: Verdict = "clean"
    violation = details = None
    try:
        for read in _read(path, lines, notices):
            on_progress(read.n)
            broken = _judged(path, judge, read, header.settings.num_gpu_blocks)
            if broken is not None:
                verdict, violation, details = "violation", str(broken), broken.details
                break
    except KeyboardInterrupt:
        verdict = "interrupted"
    seconds = max(time.perf_counter() - started, 1e-9)
    return LogReport(
        log=path.name,
        subject=header.subject,
        calls=judge.calls,
        calls_checked=judge.calls,
        snapshots=judge.calls,
        seconds=seconds,
        calls_per_second=judge.calls / seconds,
        verdict=verdict,
        violation=violation,
        details=details,
        notices=notices,
    )


def _judged(path: Path, judge: Judge, read: StatesLine, num_blocks: int) -> Divergence | None:
    seen, line = read.snapshot, read.n + 1
    if {len(seen.ref_cnts), len(seen.keys)} != {num_blocks}:
        problem = f"shows {len(seen.ref_cnts)} counts and {len(seen.keys)} keys of {num_blocks}"
        raise LogError(path, line, f"{problem} blocks; record again")
    work = tuple([Work(**vars(one)) for one in read.work])
    moment = judge.moment(read.call, read.args, read.glimpse(), work, read.result)
    broken = judge.broken(moment)
    if read.token is not None:
        try:
            judge.run(work, read.token)
        except (UnknownTokenError, KeyError, IndexError) as error:
            problem = f"the step cannot be run: {type(error).__name__}: {error}"
            raise LogError(path, line, f"{problem}; lines were lost, so record again") from error
    return broken


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from enumerate(file, 1)
    except OSError as error:
        raise LogError(path, None, f"cannot be read: {error.strerror}") from error


def _header(path: Path, lines: Iterator[tuple[int, bytes]]) -> StatesHeader:
    number, raw = next(lines, (1, b""))
    try:
        return StatesHeader.model_validate_json(raw)
    except ValidationError as error:
        raise LogError(path, number, _problem(error)) from error


def _read(
    path: Path, lines: Iterator[tuple[int, bytes]], notices: list[str]
) -> Iterator[StatesLine]:
    """Yield the moments; a torn last line is noted and left out, other damage is refused."""
    for expected, (number, raw) in enumerate(lines, 1):
        try:
            read = StatesLine.model_validate_json(raw)
        except ValidationError as error:
            if raw.endswith(b"\n"):
                raise LogError(path, number, _problem(error)) from error
            notices.append(f"{path}:{number}: the last line is torn and not used")
            return
        if read.n != expected:
            problem = f"n must be {expected}, one more than before: {read.n}"
            raise LogError(path, number, f"{problem}; a line was lost or doubled, so record again")
        yield read


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "the line"
    return f"{place}: {first['msg']}: {str(first['input'])[:80]!r}; record again"


def record_states(
    path: Path, aim: Aim, num_requests: int, on_progress: Callable[[int], None] = lambda _: None
) -> tuple[int, int, bool]:
    """Record a scheduler on a drawn workload; return moments, steps, and if Ctrl-C ended it.

    Clients come until there were `num_requests` requests; then all are served to their end. Raises
    `LogError` where the file cannot be written.
    """
    rng = Random(f"{aim.seed}/{aim.policy}/{aim.scheduler}/record")  # noqa: S311  # no secret
    setting = draw_setting(rng, aim.policy, aim.scheduler, aim.num_blocks)
    client, added, interrupted = Client(rng, setting), 0, False
    header = StatesHeader.made(setting, f"vllm-{stand_in.release()}", aim.seed)
    with StatesWriter(path, header, stand_in.carried_hash) as writer:
        harness = Harness(setting, on_moment=writer.moment)
        try:
            while added < num_requests or harness.tokens():
                event: Event = client.next(harness.tokens()) if added < num_requests else Step()
                added += isinstance(event, Add)
                for _ in harness.perform(event):
                    on_progress(writer.calls)
        except KeyboardInterrupt:
            interrupted = True
        return writer.calls, harness.num_steps, interrupted
