"""Faults that the command once had and must not have again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import check as checks
from conformance.adapters.reference import Reference

Command = Callable[..., Any]
Trace = Callable[..., Path]


def test_ctrl_c_in_check_is_no_violation(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch, damaged: Callable[..., type[Reference]]
) -> None:
    """A check that is stopped exits as interrupted, and says nothing against the manager."""

    def stop(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.driving.replay.Reference", damaged("run_step", 3, stop))
    monkeypatch.setattr(checks, "NUM_REQUESTS", 20)
    result = kvspec("check")
    assert result.exit_code == 130
    assert "violation" not in result.stdout


def test_brackets_in_a_path_are_no_markup(kvspec: Command, tmp_path: Path, trace: Trace) -> None:
    """A name is shown as it is, whether the file is there or not."""
    there, absent = trace({}, name="b[bold].jsonl"), tmp_path / "a[" / "nothing].jsonl"
    replayed, refused = kvspec("replay", there), kvspec("replay", absent)
    assert replayed.exit_code == 0
    assert "b[bold].jsonl" in replayed.stdout
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"kvspec: {absent}: ")


def test_brackets_in_a_value_are_no_markup(kvspec: Command, trace: Trace) -> None:
    """A bad value is shown as it stands in the trace."""
    result = kvspec("replay", trace({"input_length": "[/b]"}))
    assert result.exit_code == 2
    assert "'[/b]'" in result.stderr


@pytest.mark.parametrize("out", ["", ".", "/proc/nope", "/dev/full"])
def test_a_report_that_cannot_be_written_is_no_violation(
    kvspec: Command, trace: Trace, out: str
) -> None:
    """Where the report cannot go, the input is bad and the manager is not."""
    assert kvspec("replay", trace({}), "--json", out).exit_code == 2


def test_the_report_does_not_replace_the_trace(kvspec: Command, trace: Trace) -> None:
    """The trace is refused as the place of the report, and stays what it was."""
    path = trace({})
    was = path.read_text()
    assert kvspec("replay", path, "--json", path).exit_code == 2
    assert path.read_text() == was


@pytest.mark.parametrize("option", ["--limit", "--block-size"])
def test_a_huge_number_is_refused(kvspec: Command, trace: Trace, option: str) -> None:
    """A number beyond what a machine can count is bad input, and the option is named."""
    result = kvspec("replay", trace({}), option, 2**64)
    assert result.exit_code == 2
    assert option in result.stderr


def test_a_file_name_need_not_be_text(kvspec: Command, trace: Trace, tmp_path: Path) -> None:
    """A byte that is no character is spelled out in the report."""
    out = tmp_path / "out.json"
    path = trace({}, name="\udcff.jsonl")
    assert kvspec("replay", path, "--json", out).exit_code == 0
    assert json.loads(out.read_text())["workload"] == "\\udcff.jsonl"


def test_a_clean_run_leaves_stderr_empty(kvspec: Command, trace: Trace) -> None:
    """Not even a line feed of the progress bar is left."""
    assert kvspec("replay", trace({})).stderr == ""
