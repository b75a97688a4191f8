"""A run of 0.33.0's scheduler is written as a log that is judged elsewhere, without vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.logs.oplog_reader import LogError, read_log
from conformance.scheduler import stand_in
from conformance.scheduler.harness import Harness, run
from conformance.scheduler.log import (
    StatesWriter,
    is_states_log,
    record_states,
    validate_states,
)
from conformance.scheduler.log_format import StatesHeader
from conformance.scheduler.script import Script
from conformance.scheduler.search import Aim, drawn

NUM_REQUESTS = 30


@pytest.fixture(autouse=True, scope="module")
def _release() -> None:
    try:
        stand_in.load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    if stand_in.release() != stand_in.RELEASE:
        pytest.skip(f"vLLM {stand_in.RELEASE} is needed, {stand_in.release()} is installed")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_recorded_run_is_clean(kind: str, tmp_path: Path) -> None:
    """Under `fcfs` every moment of the log is judged, and the log is the same every time."""
    logs = [tmp_path / "one", tmp_path / "two"]
    for path in logs:
        moments, steps, interrupted = record_states(path, Aim("fcfs", kind, 5), NUM_REQUESTS)
    report = validate_states(path)
    assert (report.verdict, report.calls) == ("clean", moments)
    assert steps > 0
    assert not interrupted
    assert is_states_log(path)
    assert logs[0].read_text() == logs[1].read_text()


def violating() -> Script:
    """Return the first drawn script that breaks a property under `priority`."""
    numbers = iter(range(200))
    while (performed := drawn(Aim("priority", "sync"), next(numbers))).divergence is None:
        continue
    return performed.script


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, str]:
    """Return the log of a run that breaks a property, and the line that names the violation."""
    script, path = violating(), tmp_path / "log"
    header = StatesHeader.made(script.setting, "vllm", 0)
    with StatesWriter(path, header, stand_in.carried_hash) as writer:
        harness = Harness(script.setting, on_moment=writer.moment)
        for event in script.events:
            for _ in harness.perform(event):
                continue
    return path, str(run(script).divergence)


def test_the_log_shows_the_violation_that_the_run_showed(recorded: tuple[Path, str]) -> None:
    """The same line comes from the log as from the run: nothing is lost on the way."""
    path, line = recorded
    report = validate_states(path)
    assert report.verdict == "violation"
    keys = r"<[^>]*>"
    assert re.sub(keys, "", str(report.violation)) == re.sub(keys, "", line)


DAMAGE: dict[str, Callable[[list[str]], list[str]]] = {
    "log:2: n must be 1, one more than before: 2": lambda lines: [lines[0], *lines[2:]],
    "log:2: n: Field required": lambda lines: [lines[0], "{}\n"],
    "log:2: the line: Invalid JSON": lambda lines: [lines[0], "nonsense\n"],
    "log:1: kind: Input should be": lambda lines: [lines[0].replace('"states"', '"stages"')],
    "log:1: the line: Invalid JSON": lambda lines: lines[:0],
}


@pytest.mark.parametrize("said", DAMAGE)
def test_damage_is_refused_by_its_line(recorded: tuple[Path, str], said: str) -> None:
    """The file, the line, and what is wrong."""
    path, _ = recorded
    path.write_text("".join(DAMAGE[said](path.read_text().splitlines(keepends=True))))
    with pytest.raises(LogError, match=re.escape(said)):
        validate_states(path)


def test_a_torn_last_line_is_noted_and_the_rest_used(recorded: tuple[Path, str]) -> None:
    """A crash while recording costs its last line."""
    path, _ = recorded
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:50])
    report = validate_states(path)
    assert (report.calls, report.verdict) == (3, "clean")
    assert report.notices == [f"{path}:5: the last line is torn and not used"]


def test_what_makes_calls_says_who_reads_such_a_log(recorded: tuple[Path, str]) -> None:
    """A log of states has no calls; the other commands point to the one that judges it."""
    with pytest.raises(LogError, match=r"has no calls to make.*kvspec validate"):
        read_log(recorded[0])


def test_a_changed_pool_is_seen(recorded: tuple[Path, str]) -> None:
    """The judgement comes from what the log shows, not from what the recorder thought."""
    path, _ = recorded
    lines = path.read_text().splitlines(keepends=True)
    fields = json.loads(lines[1])
    fields["snapshot"]["ref_cnts"][1] = 3
    path.write_text(lines[0] + json.dumps(fields) + "\n")
    broken = "property=a_block_is_free_exactly_when_nobody_holds_it call=1 add_request block=1"
    assert broken in str(validate_states(path).violation)
