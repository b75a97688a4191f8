"""`kvspec record` writes what a driver calls on a manager alone, and says how that ended."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.logs.oplog import Raising, read_log
from conformance.program import FOUND
from spec.state import Config

Command = Callable[..., Any]


def theirs(**changed: Callable[..., Any]) -> type[Reference]:
    """Return a manager of somebody else's that differs from ours in some verbs."""
    return type("Manager", (Reference,), changed)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a way to make such a manager known by a name."""

    def make(**changed: Callable[..., Any]) -> str:
        module = ModuleType("theirs")
        module.Manager = theirs(**changed)  # type: ignore[attr-defined]  # a module made by hand
        monkeypatch.setitem(sys.modules, "theirs", module)
        return "theirs:Manager"

    return make


def test_a_trace_is_recorded(kvspec: Command, trace: Callable[..., Path], tmp_path: Path) -> None:
    """The header says what was driven and how; the log holds its calls."""
    out = tmp_path / "log"
    result = kvspec("record", trace({}, {}), "--out", out, "--blocks", 30, "--snapshot-every", 4)
    assert result.exit_code == 0
    assert re.search(r"^requests +2: 2 served *$", result.stdout, re.MULTILINE)
    log = read_log(out)
    assert (log.header.subject, log.header.seed) == ("reference", None)
    assert log.header.settings == Config(30, 1)
    assert [call.number for call in log if call.snapshot is not None] == [4, 8]
    assert sum(call.operation.args.get("hits") == FOUND for call in log) == 2


@pytest.mark.slow
def test_a_recording_is_a_function_of_its_seed(tmp_path: Path, python: Callable[..., Any]) -> None:
    """Another process and another hash seed write the same bytes."""

    def record(seed: int, hash_seed: str) -> bytes:
        out = tmp_path / f"log{hash_seed}"
        options = f"--generated 60 --seed {seed} --blocks 12 --block-size 2 --batch"
        done = python(
            "-m",
            "conformance.cli",
            "record",
            "--out",
            str(out),
            *options.split(),
            hash_seed=hash_seed,
        )
        assert done.returncode == 0, done.stderr
        return out.read_bytes()

    first = record(5, "1")
    assert first == record(5, "2")
    assert first != record(6, "3")


SMALL = ("--blocks", 40, "--block-size", 4)

WRONG = {
    "neither": ("", "give one of a trace and --generated N"),
    "both": ("{trace} --generated 3", "--generated N, not both"),
    "no requests": ("--generated 0", "0: a recording needs a request"),
    "unknown subject": ("--generated 3 --subject ours", "'ours' is no subject; give one of ref"),
    "no blocks": ("--generated 3 --blocks 1", "1: a pool has null and at least one block to"),
    "no snapshots": ("--generated 3 --snapshot-every 0", "0: a log shows the manager at each so-"),
    "no trace": ("{absent}", "does not exist; give the path of a trace file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_recording_that_makes_no_sense_is_refused(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """With the value and what to give; and no log is written."""
    options, problem = WRONG[name]
    given = options.format(trace=trace({}), absent=tmp_path / "absent").split()
    out = tmp_path / "log"
    result = kvspec("record", "--out", out, *given)
    shown = re.sub(r"[^\w',;:-]+", " ", result.stderr)
    assert (result.exit_code, problem in shown, out.exists()) == (2, True, False)


def test_where_a_log_cannot_be_written_nothing_is_recorded(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path
) -> None:
    """A folder, no folder, and the trace itself."""
    path = trace({})
    for out in (tmp_path, tmp_path / "no" / "log", path):
        assert kvspec("record", path, "--out", out).exit_code == 2
    assert path.read_text().startswith('{"timestamp"')


@pytest.mark.parametrize("options", [(), ("--snapshot-every", 900)])
def test_a_manager_that_crashes_leaves_its_call(
    kvspec: Command, install: Callable[..., str], tmp_path: Path, options: tuple[object, ...]
) -> None:
    """The log ends with the crash, which validating it names, whether all is shown or not."""

    def finish(self: Reference, rid: str) -> None:
        if rid == "r3":
            raise KeyError(rid)
        Reference.finish(self, rid)

    path = tmp_path / "log"
    name = install(finish=finish)
    result = kvspec("record", "--out", path, "--generated", 9, "--subject", name, *SMALL, *options)
    assert result.exit_code == 1
    assert "raised KeyError: 'r3'" in result.stdout
    *_, last = read_log(path)
    assert (last.operation.action, last.answer) == (
        "finish",
        Raising(raised="KeyError", text="'r3'"),
    )
    result = kvspec("validate", path)
    assert result.exit_code == 1
    line = f"kvspec violation: property=refinement call={last.number} finish "
    assert line in result.stdout


def test_a_manager_that_does_not_start_is_refused(
    kvspec: Command, install: Callable[..., str], tmp_path: Path
) -> None:
    """What it says is shown, with the configuration."""

    def start(self: Reference, config: Config) -> None:  # noqa: ARG001  # as it is called
        raise MemoryError("too many blocks")

    name = install(__init__=start)
    result = kvspec(
        "record", "--out", tmp_path / "log", "--generated", 9, "--subject", name, *SMALL
    )
    shown = " ".join(result.stderr.split())
    assert (result.exit_code, "does not start with Config(" in shown) == (2, True)
    assert "MemoryError: too many blocks; give another configuration or subject" in shown


def test_ctrl_c_ends_a_recording_with_what_there_is(
    kvspec: Command, install: Callable[..., str], tmp_path: Path
) -> None:
    """The figures so far are shown, and the log is a good one whose last call was not answered."""

    def finish(self: Reference, rid: str) -> None:
        if rid == "r3":
            raise KeyboardInterrupt
        Reference.finish(self, rid)

    path = tmp_path / "log"
    name = install(finish=finish)
    result = kvspec("record", "--out", path, "--generated", 9, "--subject", name, *SMALL)
    assert result.exit_code == 130
    assert re.search(r"^requests +3: 4 served *$", result.stdout, re.MULTILINE)
    assert "verdict: interrupted" in result.stdout
    result = kvspec("validate", path)
    assert (result.exit_code, "finish, was begun and never answered" in result.stderr) == (0, True)
