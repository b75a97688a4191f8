"""The catalogue of seeded faults is complete, each fault can be planted, and each is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from pydantic import ValidationError

from conformance.contracts import installed, read_contracts
from conformance.faults.kills import (
    Outcome,
    Trial,
    by_contract,
    rows,
    run_trial,
    run_trials,
    sees,
    trials,
)
from conformance.faults.mutants import MUTANTS, MovedTextError, Mutant, catalogue, planted, select
from kvcache import BlockPool
from spec.invariants import REGISTRY

COLLECTED = [f"M{number}" for number in range(1, 21)]
MORE = {
    "removal-uncounted",
    "second-free-releases",
    "window-counts-scheduled",
    "unwritten-stays-published",
    "unify-takes-the-largest",
    "unify-takes-the-first",
}

ENTRY = """
[[fault]]
name = "one"
says = "Nothing."
edits = [["block_pool:BlockPool.get_usage", "return 1", "return 2"]]
caught_by = "ref_cnt_counts_the_holders"
stories = [{ told = "pool(2)", named = "ref_cnt_counts_the_holders" }]
"""


def with_edits(*edits: tuple[str, str, str]) -> Mutant:
    """Return a fault of some edits."""
    return MUTANTS["forward-release"].model_copy(update={"name": "made", "edits": edits})


def test_every_collected_fault_is_in_the_catalogue() -> None:
    """The numbers M1 to M20, the list behind them, and at least ten of our own."""
    numbers = [mutant.number for mutant in MUTANTS.values()]
    assert set(numbers) == {*COLLECTED, "more", None}
    assert {name for name, mutant in MUTANTS.items() if mutant.number == "more"} == MORE
    assert numbers.count(None) >= 10


def test_no_fault_stands_twice() -> None:
    """Neither a name nor a set of edits occurs twice."""
    edits = [frozenset(mutant.edits) for mutant in MUTANTS.values()]
    assert len(edits) == len(set(edits))


def test_every_fault_is_about_a_property() -> None:
    """What no property speaks of is a difference from the specification, and is explained."""
    for mutant in MUTANTS.values():
        workers = mutant.machine == "workers"
        assert mutant.caught_by in REGISTRY or workers or "refinement" in mutant.also
        assert bool(mutant.stories) != workers
        assert all(len(why) > 20 and why.endswith(".") for why in mutant.also.values())
        assert mutant.says.endswith(".")


def test_every_contract_of_the_catalogue_is_one() -> None:
    """A contract that must be refuted under a fault is confirmed without it."""
    known = {f"{c.module}.{c.name}": c.expected.value for c in read_contracts()}
    named = {name for mutant in MUTANTS.values() for name in mutant.contracts}
    assert {known.get(name) for name in named} <= {"confirmed"}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_planted_and_taken_out(name: str) -> None:
    """While it is planted the functions run other code; afterwards their own, also on an error."""
    targets = {target for target, _, _ in MUTANTS[name].edits}

    def codes() -> dict[str, object]:
        return {t: function_of(t).__code__ for t in targets}

    before = codes()
    with planted(MUTANTS[name]):
        assert all(code is not before[target] for target, code in codes().items())
    assert codes() == before
    with pytest.raises(ZeroDivisionError), planted(MUTANTS[name]):
        raise ZeroDivisionError
    assert codes() == before


def function_of(target: str) -> Any:  # noqa: ANN401  # a function of the production code
    """Return the function of production that an edit names."""
    return resolve_name(f"kvcache.{target}")


def test_whoever_holds_the_function_runs_the_fault() -> None:
    """A reference from before the fault was planted, and a bound method, run the changed code."""
    pool = BlockPool(3)
    held, bound = BlockPool.get_usage, pool.get_usage
    with planted(with_edits(("block_pool:BlockPool.get_usage", "return 1", "return 5"))):
        assert (held(pool), bound(), pool.get_usage()) == (4, 4, 4)
    assert (held(pool), bound(), pool.get_usage()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([("block_pool:BlockPool.get_usage", "no such text", "")], "0 times, not once"),
        ([("block_pool:BlockPool.get_usage", "e", "")], "times, not once"),
        ([("block_pool:BlockPool.no_such", "return", "")], "is no more"),
        ([("no_such_module:f", "return", "")], "is no more"),
        ([("block_pool:logger", "return", "")], "not a function"),
    ],
)
def test_text_that_moved_is_refused(edits: list[tuple[str, str, str]], says: str) -> None:
    """The error names the place and what to do, and nothing is planted, not even a good edit."""
    good = ("block_pool:BlockPool.get_usage", "return 1", "return 5")
    with (
        pytest.raises(MovedTextError, match=says),
        planted(with_edits(*edits)),
    ):
        pytest.fail("it was planted")
    others = [edit for edit in edits if edit[0] != good[0]]
    with pytest.raises(MovedTextError) if others else pytest.raises(ZeroDivisionError):  # noqa: SIM117 (the outer one catches what the inner raises)
        with planted(with_edits(good, *others)):
            raise ZeroDivisionError
    assert BlockPool(3).get_usage() == 0


def test_a_fault_on_a_fault_is_refused() -> None:
    """A function that is changed already is not changed again."""
    mutant = MUTANTS["forward-release"]
    with planted(mutant), pytest.raises(MovedTextError, match="changed already"), planted(mutant):
        pytest.fail("it was planted")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "one"', 'name = "One two"', "String should match"),
        ('says = "Nothing."', 'says = "Nothing."\nsaid = 1', "Extra inputs"),
        ('caught_by = "ref', 'caught_by = "raf', "no property of the registry"),
        ('named = "ref_cnt', 'named = "ref', "say below `also` why"),
        ("edits = [[", "edits = [] # [[", "at least 1"),
        (ENTRY, ENTRY + ENTRY, "stands twice"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    """Each entry is read strictly, and names properties that there are."""
    file = tmp_path / "mutants.toml"
    file.write_text(ENTRY, encoding="utf-8")
    assert list(catalogue(file)) == ["one"]
    file.write_text(ENTRY.replace(old, new), encoding="utf-8")
    with pytest.raises((ValueError, ValidationError), match=says):
        catalogue(file)


def test_faults_are_selected_by_name_and_number() -> None:
    """A number stands for all its variants; a word that names nothing is told."""
    assert select(()) == list(MUTANTS.values())
    assert [m.name for m in select(["M2", "held-hit-unlinked"])] == [
        "forward-release",
        "held-hit-unlinked",
    ]
    assert {m.number for m in select(["M14"])} == {"M14"}
    with pytest.raises(KeyError, match="M21"):
        select(["M21"])


def test_trials_are_those_that_a_layer_can_see() -> None:
    """A contract is tried once; a fault that a layer cannot see is not held against it."""
    planned = trials(MUTANTS.values(), ["machine", "driver", "contract"], 3, 7)
    assert {trial.max_examples for trial in planned} == {7}
    for name, mutant in MUTANTS.items():
        tried = [trial.layer for trial in planned if trial.mutant == name]
        assert [tried.count(layer) for layer in ("machine", "driver", "contract")] == [
            3 * sees(mutant, "machine"),
            3 * sees(mutant, "driver"),
            sees(mutant, "contract"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_killed_in_time_and_under_its_name(name: str) -> None:
    """One seed of the plain driver; the machine where the driver cannot see the fault."""
    mutant = MUTANTS[name]
    layer = "driver" if sees(mutant, "driver") else "machine"
    outcome = run_trial(Trial(name, layer, 1))
    assert outcome.killed_by is not None, "it survived"
    assert mutant.explains(outcome.killed_by), outcome.line
    assert outcome.examples <= outcome.trial.max_examples


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="CrossHair is not installed: .[contracts]")
def test_a_contract_is_refuted_under_its_fault_and_no_other() -> None:
    """The fault is planted in the process of CrossHair; a contract on other code is confirmed."""
    seen = MUTANTS["window-one-early"]
    outcome = by_contract(seen, Trial(seen.name, "contract", 1))
    assert (outcome.killed_by, outcome.examples) == (seen.contracts[0], 1)
    other = MUTANTS["salt-not-in-key"].model_copy(update={"contracts": seen.contracts})
    assert by_contract(other, Trial(other.name, "contract", 1)).killed_by is None


def test_an_outcome_is_a_function_of_its_trial() -> None:
    """All but the seconds comes again, also in other processes."""
    planned = [Trial("forward-release", "driver", seed, 50) for seed in (1, 2)]
    here = [run_trial(trial)._replace(seconds=0) for trial in planned]
    there = [outcome._replace(seconds=0) for outcome in run_trials(planned, 2)]
    assert sorted(there) == here
    assert here[0].examples != here[1].examples or here[0].line != here[1].line


def test_a_change_that_changes_nothing_survives() -> None:
    """It is reported as a survivor: nothing is green for nothing."""
    same = with_edits(("block_pool:BlockPool.get_usage", "return 1", "return 1 + 0"))
    outcome = run_trial(Trial("made", "driver", 1, 3), {"made": same})
    assert (outcome.killed_by, outcome.examples) == (None, 3)
    assert outcome.calls > 0
    (row,) = rows([outcome], {"made": same})
    assert row.survived == [1]


def test_a_kill_under_another_name_is_not_hidden() -> None:
    """A row tells names that the catalogue neither gives nor explains."""
    trial = Trial("double-release", "driver", 1)
    names = ["the_free_queue_is_a_chain", "a_refused_call_changes_nothing", "positions_never_move"]
    outcomes = [Outcome(trial._replace(seed=n), name, n, 9, 0.5) for n, name in enumerate(names, 1)]
    (row,) = rows(outcomes)
    assert row.unexplained == ["positions_never_move"]
    assert row.survived == []
    assert row.spread("examples") == (1, 2, 3)


@pytest.mark.slow
def test_a_module_runs_with_a_fault_planted(python: Callable[..., Any]) -> None:
    """The door for tools that run in a process of their own."""
    program = ("-m", "conformance.faults.mutants", "--planted")
    told: subprocess.CompletedProcess[str] = python(*program, "no-such", "--", "timeit")
    assert (told.returncode, "'no-such' is no fault" in told.stderr) == (2, True)
    assert python(*program, "forward-release").returncode == 2
    asked = "import kvcache.manager as m; print(m.KVCacheManager.free.__code__.co_filename)"
    shown = python(*program, "forward-release", "--", "timeit", "-n1", "-r1", asked)
    assert "<mutant manager:KVCacheManager.free>" in shown.stdout
