"""The commands that write and read operation logs: what they print, and how they end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.logs.log_runs import LogReport
from conformance.logs.oplog import Header, LogWriter, read_log, write_program
from conformance.program import FOUND, Operation, Program
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

Command = Callable[..., Any]
LINE = "kvspec violation: property={} call={} {} "


@pytest.fixture
def recorded(kvspec: Command, tmp_path: Path) -> Callable[..., Path]:
    """Return a way to record generated requests."""

    def make(*options: object) -> Path:
        path = tmp_path / "calls.ndjson"
        given = ("--generated", 40, "--blocks", 20, "--block-size", 2, *options)
        result = kvspec("record", "--out", path, *given)
        assert result.exit_code == 0, result.output
        return path

    return make


def doctored(path: Path, call: str, change: Callable[[dict[str, Any]], bool]) -> int:
    """Change the first line of a call that `change` takes, and return its number."""
    lines = path.read_text().splitlines(keepends=True)
    for at, raw in enumerate(lines):
        line = json.loads(raw)
        if line.get("call") == call and change(line):
            lines[at] = json.dumps(line) + "\n"
            path.write_text("".join(lines))
            return int(line["n"])
    raise AssertionError("no line takes the change")


@pytest.mark.slow
def test_help_names_the_commands(kvspec: Command) -> None:
    """Each says what it does and how it ends."""
    assert all(name in kvspec("--help").output for name in ("record", "validate", "shrink"))
    for name in ("record", "validate", "shrink", "replay"):
        result = kvspec(name, "--help")
        assert (result.exit_code, "Exit status: 0 " in result.output) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--batch",), ("--batch", "--window", 5)])
def test_what_is_recorded_validates_and_replays(
    kvspec: Command, recorded: Callable[..., Path], tmp_path: Path, options: tuple[object, ...]
) -> None:
    """On the manager itself and on another one; the report that is written says the same."""
    path = recorded(*options)
    calls = len(list(read_log(path)))
    result = kvspec("validate", path)
    assert result.exit_code == 0
    assert re.search(rf"^snapshots +{calls} *$", result.stdout, re.MULTILINE)
    assert "verdict: clean" in result.stdout
    out = tmp_path / "report.json"
    result = kvspec("replay", path, "--subject", "reference-builtin", "--json", out)
    assert (result.exit_code, "verdict: clean" in result.stdout) == (0, True)
    report = LogReport.model_validate_json(out.read_text())
    assert (report.calls, report.calls_checked, report.snapshots) == (calls, calls, None)
    assert kvspec("replay", path, "--check", "full").exit_code == 0
    assert kvspec("validate", path, "--check", "incremental").exit_code == 0


def more(line: dict[str, Any]) -> bool:
    """Raise the count of the last block in use."""
    counts = line["snapshot"]["ref_cnts"]
    held = [b for b, n in enumerate(counts) if n > 0]
    if held:
        counts[held[-1]] += 1
    return bool(held)


def other_hit(line: dict[str, Any]) -> bool:
    """Name another block as the first hit."""
    if line["answer"]:
        line["answer"][0] = 19 if line["answer"][0] != 19 else 18
    return bool(line["answer"])


def no_room(line: dict[str, Any]) -> bool:
    """Answer that there is no room."""
    had = bool(line["answer"])
    line["answer"] = None
    return had


def refused(line: dict[str, Any]) -> bool:
    """Answer with a rule."""
    line["answer"] = {"refused": "hit_is_stale", "text": "it is"}
    return True


def crashed(line: dict[str, Any]) -> bool:
    """Answer with a crash."""
    line["answer"] = {"raised": "KeyError", "text": "3"}
    return True


def unseen(line: dict[str, Any]) -> bool:
    """Show nothing but why."""
    line["unseen"] = {"raised": "KeyError", "text": "3"}
    return bool(line.pop("snapshot"))


DOCTORED: dict[str, tuple[str, Callable[[dict[str, Any]], bool], str]] = {
    "a count": ("run_step", more, "ref_cnt_counts_the_holders"),
    "a hit": ("get_computed_blocks", other_hit, "equal_keys_mean_equal_prefixes"),
    "an answer": ("allocate_slots", no_room, "admission_is_exact"),
    "a refusal": ("allocate_slots", refused, "admission_is_exact"),
    "a crash": ("finish", crashed, "a_refused_call_changes_nothing"),
    "no look": ("finish", unseen, "refinement"),
}


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_log_is_named(
    kvspec: Command, recorded: Callable[..., Path], name: str, check: str
) -> None:
    """One number, and the violation stands at its call under the name of what it breaks."""
    path = recorded()
    verb, change, violated = DOCTORED[name]
    number = doctored(path, verb, change)
    result = kvspec("validate", path, "--check", check)
    assert result.exit_code == 1
    assert LINE.format(violated, number, verb) in result.stdout
    assert "verdict: violation" in result.stdout


def test_a_log_with_few_snapshots_shows_a_fault_at_the_next_one(
    kvspec: Command, recorded: Callable[..., Path]
) -> None:
    """Answers are compared at each call, all the rest where it is shown."""
    path = recorded("--blocks", 100, "--snapshot-every", 7)
    number = doctored(path, "run_step", lambda line: "snapshot" in line and more(line))
    result = kvspec("validate", path)
    assert (result.exit_code, number % 7) == (1, 0)
    assert LINE.format("ref_cnt_counts_the_holders", number, "run_step") in result.stdout


ARRIVES = Operation("add_request", {"rid": "a", "request": RequestSpec((1, 2))})
TAKES = Operation(
    "allocate_slots", {"rid": "a", "num_tokens": 2, "hits": FOUND, "num_lookahead": 0}
)
IMPOSSIBLE = {
    "finish is called for 'a', which is not there; calls are missing": [
        Operation("finish", {"rid": "a"})
    ],
    "add_request is called for 'a', which is there already; calls are": [ARRIVES, ARRIVES],
    "the hits of 'a' are \"found\", and it was never looked up; name the": [ARRIVES, TAKES],
    "run_step breaks a promise of the driver, a_step_runs_all_that_is_scheduled: ": [
        Operation("run_step", {"outcomes": {"a": Outcome()}})
    ],
}


@pytest.mark.parametrize("problem", IMPOSSIBLE)
def test_calls_that_no_driver_may_make_are_the_logs_fault(
    kvspec: Command, tmp_path: Path, problem: str
) -> None:
    """No manager is blamed for them: the line is named, and the status is that of bad input."""
    path = tmp_path / "log"
    operations = IMPOSSIBLE[problem]
    header = Header.of(Config(5, 1), "reference", None, "a test")
    with LogWriter(path, header, 1_000) as writer:
        for operation in operations:
            writer.begun(operation)
            writer.answered(None, Reference(Config(5, 1)).snapshot)
    result = kvspec("validate", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}:{len(operations) + 1}: {problem}" in result.stderr


def test_what_cannot_be_validated_is_refused(kvspec: Command, tmp_path: Path) -> None:
    """A log without answers, a damaged one, an unknown check."""
    path = tmp_path / "log"
    write_program(path, Program(Config(5, 1), (ARRIVES,)), "reference")
    result = kvspec("validate", path)
    assert result.exit_code == 2
    assert f"{path}:2: call 1 has no answer to compare; replay the log on a" in result.stderr
    path.write_text(path.read_text() + "{}\n")
    for command in ("validate", "replay", "shrink"):
        result = kvspec(command, path)
        shown = "call 1 has" if command == "validate" else f"{path}:3: call is missing: {{}}; add"
        assert (result.exit_code, shown in result.stderr) == (2, True)
    for command in ("validate", "shrink"):
        result = kvspec(command, tmp_path)
        assert (result.exit_code, "is not a regular file" in result.stderr) == (2, True)
    result = kvspec("validate", path, "--check", "off")
    assert (result.exit_code, "'off' is none of full, incremental" in result.stderr) == (2, True)


@pytest.mark.slow
def test_a_torn_log_is_used_and_said_to_be_torn(
    kvspec: Command, recorded: Callable[..., Path]
) -> None:
    """What a crash left is a notice."""
    path = recorded()
    text = path.read_text()
    path.write_text(text[:-40])
    result = kvspec("validate", path)
    assert (result.exit_code, "verdict: clean" in result.stdout) == (0, True)
    assert "the last line is torn and not used: not JSON" in result.stderr
    last = text.splitlines()[-1]
    path.write_text(text[: -len(last) - 1] + last[: last.index(', "answer"')])
    for command in ("validate", "replay"):
        result = kvspec(command, path)
        assert (result.exit_code, "was begun and never answered" in result.stderr) == (0, True)
