"""The command `scheduler` says what is missing, and refuses what makes no sense."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.adapters import sources_0_33_0
from conformance.cli import app
from conformance.scheduler import stand_in

CLEAR = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def test_without_vllm_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 2, `make peers`, and the interpreter that has it."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sources_0_33_0, "version", missing)
    for load in (sources_0_33_0.load, stand_in.load):
        load.cache_clear()
    result = CliRunner().invoke(app, ["scheduler"], env=CLEAR)
    assert result.exit_code == 2
    assert "vLLM is not installed beside" in result.output
    assert "make peers" in result.output
    assert ".venv-peers/bin" in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "lifo"], "'lifo' is none of priority, fcfs, both"),
        (["--scheduler", "none"], "'none' is none of sync, async, both"),
        (["--seconds", "0"], "0: give seconds from 1 to 1000000"),
        (["--blocks", "2"], "2: null, and two that can be handed out; give a number from 3"),
        (["--seed", "-1"], "-1: a seed is a whole number"),
        (["--json", "/no/such/folder/x.json"], "does not exist"),
    ],
)
def test_bad_input_is_refused(args: list[str], said: str) -> None:
    """The value is shown, with what to give instead; nothing runs."""
    result = CliRunner().invoke(app, ["scheduler", *args], env=CLEAR)
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", "").split())


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """Files cannot be written below a file."""
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(app, ["scheduler", "--out", str(file / "below")], env=CLEAR)
    assert result.exit_code == 2
