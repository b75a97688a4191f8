"""`kvspec explore` and `kvspec prove` say what they did, refuse bad input, and exit accordingly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance import cli, output
from conformance.commands import explore as explore_command
from conformance.commands import prove as prove_command
from spec import statemachine as right
from spec.state import State
from spec.worlds import WORLDS, Counts

Command = Callable[..., Any]


@pytest.fixture
def kvspec(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a way to run the command in this process, on a wide terminal without colours."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(output.out, "_width", 200)
    monkeypatch.setattr(output.err, "_width", 200)
    return lambda *args: CliRunner().invoke(cli.app, [str(arg) for arg in args])


def plain(text: str) -> str:
    """Return a message without the box around it and without its line breaks."""
    return re.sub(r"[\s│]+", "", text)


def release_and_forget(s: State, rid: str) -> State:  # noqa: ARG001  # as `free`
    """Let a request go and give nothing back."""
    return s


def test_the_named_worlds_are_listed(kvspec: Command) -> None:
    """Each with its counts and what it is for."""
    result = kvspec("explore", "--list")
    assert result.exit_code == 0
    for name, world in WORLDS.items():
        (row,) = [line for line in result.stdout.splitlines() if line.startswith(f"│ {name} ")]
        assert f" {world.counts.states:,} " in row
        assert f" {world.counts.transitions:,} " in row
        assert world.about in row


def test_a_named_world_is_searched(kvspec: Command) -> None:
    """The counts, the edges, what was seen and what not, the verdict, and exit status 0."""
    result = kvspec("explore", "--config", "pool-3")
    assert result.exit_code == 0
    assert result.stdout.startswith("264 states, 1,631 transitions, depth 9, ")
    assert "\n  FREE_CACHED -> IN_USE_CACHED\n" in result.stdout
    assert re.search(r"^seen: .*a_cached_block_is_evicted", result.stdout, re.MULTILINE)
    assert re.search(r"^not seen in this world: .*three_hold", result.stdout, re.MULTILINE)
    verdict = "verdict: clean, nothing is left to see, and the counts are the frozen ones"
    assert result.stdout.splitlines()[-1] == verdict


def test_a_world_may_be_described(kvspec: Command) -> None:
    """Options make a scope, and its counts are nobody's frozen ones."""
    result = kvspec("explore", "--blocks", 2, "--requests", 1, "--no-symmetry")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "verdict: clean, nothing is left to see"
    pool = kvspec("explore", "--blocks", 3, "--requests", 0, "--free-rule", "unhashed_first")
    assert pool.exit_code == 0
    assert "depth " in pool.stdout


BAD = {
    "unknown world": ("--config pool-99", "'pool-99' is no named world; one of: pool-1, pool-2"),
    "free rule": ("--free-rule lifo", "'lifo' is neither append nor unhashed_first"),
    "one block": ("--blocks 1", "--blocks"),
    "window of one": ("--window 1", "--window"),
    "no job": ("--jobs 0", "--jobs"),
    "too many requests": ("--requests 5", "--requests"),
    "json folder missing": ("--json {there}/absent/out.json", "does not exist; make it first"),
    "json is a folder": ("--json {there}", "is a folder; name a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(kvspec: Command, tmp_path: Path, name: str) -> None:
    """The message names the option or the value, nothing is searched, exit status 2."""
    options, says = BAD[name]
    result = kvspec("explore", *options.format(there=tmp_path).split())
    assert result.exit_code == 2
    assert plain(says) in plain(result.stderr)
    assert result.stdout == ""


def test_the_result_is_written_as_json(kvspec: Command, tmp_path: Path) -> None:
    """The file holds what the terminal shows."""
    out = tmp_path / "out.json"
    assert kvspec("explore", "--config", "pool-2", "--json", out).exit_code == 0
    data = json.loads(out.read_text())
    assert (data["states"], data["transitions"], data["depth"]) == WORLDS["pool-2"].counts
    assert (data["stopped"], data["violation"]) == (None, None)
    assert ["FREE", "IN_USE"] in data["edges"]
    assert data["edges"] == sorted(data["edges"])
    assert "a_reset_succeeds" in data["seen"]
    assert data["memory_bytes"] > 1 << 20
    assert 0 <= data["seconds"] < 60


@pytest.mark.slow
def test_a_limit_exits_with_3(kvspec: Command, tmp_path: Path) -> None:
    """The verdict says what stopped the search, and that what was seen is clean."""
    out = tmp_path / "out.json"
    result = kvspec("explore", "--config", "pool-8", "--max-seconds", 0.1, "--json", out)
    assert result.exit_code == 3
    verdict = "verdict: stopped (time limit of 0.1 s); what was seen is clean"
    assert result.stdout.splitlines()[-1] == verdict
    data = json.loads(out.read_text())
    assert data["stopped"] == "time limit of 0.1 s"
    assert 0 < data["states"] < WORLDS["pool-8"].counts.states
    memory = kvspec("explore", "--config", "pool-8", "--max-memory", 32)
    assert (memory.exit_code, "memory limit of 32 MiB" in memory.stdout) == (3, True)


def test_ctrl_c_exits_with_130(kvspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen until then is shown."""

    def interrupt(_: object) -> Callable[[int, int, int], None]:
        def tell(depth: int, _states: int, _transitions: int) -> None:
            if depth == 3:
                raise KeyboardInterrupt

        return tell

    monkeypatch.setattr(explore_command, "_teller", interrupt)
    result = kvspec("explore", "--config", "pool-3")
    assert result.exit_code == 130
    assert "verdict: stopped (interrupted); what was seen is clean" in result.stdout


def test_a_violation_exits_with_1(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line, the table of a shortest path, and the same in the file."""
    monkeypatch.setattr(right, "free", release_and_forget)
    out = tmp_path / "out.json"
    result = kvspec("explore", "--config", "full-1", "--json", out)
    assert result.exit_code == 1
    line = r"^kvspec violation: property=\w+ block=\S+ expected=.+ actual=.+ found_by=explore$"
    assert re.search(line, result.stdout, re.MULTILINE)
    assert "a shortest path to it" in result.stdout
    assert re.search(r"^│ 1 +│ arrive\(A, prompt 0", result.stdout, re.MULTILINE)
    assert "verdict: clean" not in result.stdout
    violation = json.loads(out.read_text())["violation"]
    assert violation["property"] == "ref_cnt_counts_the_holders"
    assert len(violation["broken"]) == 3
    assert [move.split("(")[0] for move in violation["path"]] == ["arrive", "finish"]


def test_the_line_of_a_violation_is_one_line_on_a_narrow_terminal(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that reads the line finds it whole, as with the other commands."""
    monkeypatch.setattr(right, "get_computed_blocks", lambda _, rid: ())  # noqa: ARG005
    monkeypatch.setattr(output.out, "_width", 80)
    result = kvspec("explore", "--config", "full-1")
    assert result.exit_code == 1
    line = r"^kvspec violation: property=a_repeated_prompt_hits .* found_by=explore$"
    assert re.search(line, result.stdout, re.MULTILINE)


def test_other_counts_than_the_frozen_ones_exit_with_1(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A world that became another one is told, though nothing is broken."""
    wrong = WORLDS["pool-2"]._replace(counts=Counts(48, 222, 6))
    monkeypatch.setitem(WORLDS, "pool-2", wrong)
    result = kvspec("explore", "--config", "pool-2")
    assert result.exit_code == 1
    verdict = "verdict: the frozen counts are Counts(states=48, transitions=222, depth=6)"
    assert result.stdout.splitlines()[-1] == verdict
    assert kvspec("explore", "--config", "pool-2", "--no-symmetry").exit_code == 0


@pytest.mark.slow
def test_more_jobs_give_the_same_counts(kvspec: Command) -> None:
    """Two processes show the frozen counts too."""
    result = kvspec("explore", "--config", "pool-3", "--jobs", 2)
    assert result.exit_code == 0
    assert result.stdout.startswith("264 states, 1,631 transitions, depth 9, ")


def test_missing_solvers_are_told(kvspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install, and the exit status is 2."""
    monkeypatch.setattr(prove_command, "prover", lambda: None)
    result = kvspec("prove")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.endswith("the solvers are not installed; run: pip install -e '.[proof]'")


BAD_PROOFS = {
    "unknown world": ("--bridge pool-99", "'pool-99' is no named world; one of: pool-1, pool-2"),
    "no job": ("--jobs 0", "--jobs"),
    "json folder missing": ("--json {there}/absent/out.json", "does not exist; make it first"),
}


@pytest.mark.parametrize("name", BAD_PROOFS)
def test_bad_input_of_a_proof_is_refused(kvspec: Command, tmp_path: Path, name: str) -> None:
    """The message names what is wrong, nothing is proved, exit status 2."""
    options, says = BAD_PROOFS[name]
    result = kvspec("prove", *options.format(there=tmp_path).split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert plain(says) in plain(result.stderr)
