"""`kvspec mutants` prints who kills what, and fails for a survivor or an unexplained name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.commands import mutants as command
from conformance.faults import kills
from conformance.faults.kills import Outcome, Trial
from conformance.faults.mutants import MUTANTS, Mutant

Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(kvspec: Callable[..., Any]) -> Said:
    """Return a way to run the command: its exit status and all that it says."""

    def run(*arguments: object) -> tuple[int, str]:
        result = kvspec("mutants", *arguments)
        return result.exit_code, result.output

    return run


def other_faults(monkeypatch: pytest.MonkeyPatch, *mutants: Mutant) -> None:
    """Put other faults in the place of the catalogue, for one process."""
    made: Mapping[str, Mutant] = {mutant.name: mutant for mutant in mutants}
    monkeypatch.setattr(command, "select", lambda _: list(mutants))
    monkeypatch.setattr(
        command,
        "run_trials",
        lambda planned, _: (kills.run_trial(trial, made) for trial in planned),
    )
    monkeypatch.setattr(command, "rows", lambda done: kills.rows(done, made))


def test_a_fault_is_shown_with_its_killer(said: Said, tmp_path: Path) -> None:
    """The table, the verdict and the file say the same; the exit status is 0."""
    file = tmp_path / "out.json"
    status, text = said(
        "--only", "M2", "--layer", "driver", "--seeds", "2", "--jobs", "1", "--json", str(file)
    )
    assert status == 0, text
    assert "forward-release" in text
    assert "2 of 2 trials of 1 faults, 0 survivors, 0 killed under a name" in " ".join(text.split())
    data = json.loads(file.read_text(encoding="utf-8"))
    (row,) = data["rows"]
    assert (row["fault"], row["layer"], row["survived"]) == ("forward-release", "driver", [])
    assert data["layers"]["driver"]["killed"] == 2
    assert len(row["examples"]) == 2


def test_a_survivor_fails(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that changes nothing is named, with what it says and the seeds."""
    edit = ("block_pool:BlockPool.get_usage", "return 1", "return 1 + 0")
    other_faults(monkeypatch, MUTANTS["forward-release"].model_copy(update={"edits": (edit,)}))
    status, text = said("--layer", "driver", "--max-examples", "2", "--seeds", "2")
    assert status == 1
    assert "survived: forward-release under driver with seeds 1, 2" in text
    assert "2 trials of 1 faults, 1 survivors" in text


def test_an_unexplained_name_fails(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill under a name that the catalogue does not explain shows the line of the violation."""
    other = {"caught_by": "positions_never_move", "also": {}}
    other_faults(monkeypatch, MUTANTS["forward-release"].model_copy(update=other))
    status, text = said("--layer", "driver")
    assert status == 1
    assert "unexplained: forward-release is about positions_never_move" in text
    assert "kvspec violation: property=the_tail_is_evicted_before_the_head" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "M21"), "is no fault and no number"),
        (("--layer", "prayer"), "is no layer"),
        (("--seeds", "0"), "give a number from 1 to 1000"),
        (("--max-examples", "0"), "give a number from 1 to 1000000"),
        (("--json", "no/such/folder/x.json"), "does not exist"),
        (("--only", "salt-not-in-key", "--layer", "contract"), "sees none of these"),
    ],
)
def test_bad_input_is_refused(said: Said, arguments: Sequence[str], says: str) -> None:
    """The value, what is wrong with it, and what to give; exit status 2; nothing is run."""
    status, text = said(*arguments)
    assert status == 2
    assert says in " ".join(text.replace("│", " ").split())


def test_an_interrupt_shows_what_ended(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trials that ended are in the table, and the exit status is that of an interrupt."""

    def stopped(planned: Sequence[Trial], _: int) -> Iterator[Outcome]:
        yield Outcome(planned[0], "the_tail_is_evicted_before_the_head", 4, 80, 0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_trials", stopped)
    status, text = said("--layer", "driver")
    assert status == 130
    assert "interrupted" in text


def test_contracts_need_crosshair(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for alone they are refused without it; among others they are left out, with a note."""
    monkeypatch.setattr(command, "installed", lambda: False)
    status, text = said("--layer", "contract")
    assert (status, "not installed" in text) == (2, True)
    planned: list[Trial] = []

    def none(trials: Sequence[Trial], _: int) -> Iterator[Outcome]:
        planned.extend(trials)
        yield from ()

    monkeypatch.setattr(command, "run_trials", none)
    status, text = said("--layer", "all")
    assert {trial.layer for trial in planned} == {"machine", "driver"}
    assert "without contracts" in text
