"""`run_machine`: a run is a function of its seed, and a fault ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.adapters.reference import Reference
from conformance.faults.mutants import MUTANTS, planted
from conformance.fuzzing.findings import Failures, Kept
from conformance.fuzzing.noted import noted
from conformance.machines import strategies
from conformance.machines.machine import MACHINES, Machine, ManagerMachine, PoolMachine, run_machine
from conformance.program import failure
from conformance.subject import Capabilities
from conformance.subjects import find_subject
from spec.registry import Step
from spec.state import Config

FEW = 20

PROGRAM = """
from hashlib import sha256
from conformance.adapters.reference import Reference
from conformance.machines.machine import MACHINES, run_machine

for kind in MACHINES.values():
    steps = []
    def note(step):
        steps.append((step.action, sorted(step.args.items()), step.result))
    run = run_machine(kind, Reference, max_examples=20, seed={seed}, on_step=note)
    print(run.examples, run.calls, run.failure, sha256(repr(steps).encode()).hexdigest())
"""
FAULTS = ("double-release", "forward-release")


@pytest.mark.slow
def test_a_run_is_a_function_of_its_seed(python: Callable[..., str]) -> None:
    """Another process, another hash seed and other modules in memory make the same calls."""
    program = PROGRAM.format(seed=7)
    first = python(program, "0")
    assert first == python(
        f"import conformance.cli, conformance.documents.document\n{program}", "1"
    )
    assert first != python(PROGRAM.format(seed=8), "0")
    assert len(first.splitlines()) == len(MACHINES)


@pytest.mark.slow
def test_a_run_without_a_seed_is_another_one_every_time() -> None:
    """No seed is a random one."""

    def calls() -> list[str]:
        made: list[str] = []
        run_machine(
            PoolMachine,
            Reference,
            max_examples=FEW,
            seed=None,
            on_step=lambda step: made.append(f"{step.action}{step.args}"),
        )
        return made

    assert calls() != calls()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MACHINES.values())
def test_a_run_without_a_failure_makes_all_examples_silently(
    kind: type[Machine], capfd: pytest.CaptureFixture[str]
) -> None:
    """The figures are those of the whole run, and nothing is printed."""
    calls: list[Step] = []
    run = run_machine(kind, Reference, max_examples=FEW, seed=1, on_step=calls.append)
    assert run.machine == kind.__name__
    assert run.failure is None
    assert run.examples >= FEW
    assert FEW < len(calls) <= run.calls
    assert run.seconds > 0
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_made_small(fault: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The first failing program fails again by itself, and so does the smallest one."""
    mutant = MUTANTS[fault]
    make = find_subject(mutant.subject)
    with planted(mutant):
        first, again, small = (
            run_machine(MACHINES[mutant.machine], make, max_examples=500, seed=2, shrink=shrink)
            for shrink in (False, False, True)
        )
        assert first.failure is not None
        assert again.failure is not None
        assert small.failure is not None
        assert again.failure.program == first.failure.program
        assert again[:3] == first[:3]
        assert small.examples == first.examples
        for found in (first.failure, small.failure):
            repeated = failure(found.program, make)
            assert str(repeated) == str(found.divergence)
        assert len(small.failure.program.operations) <= len(first.failure.program.operations)
        assert len(small.failure.program.operations) < 12
    assert failure(small.failure.program, make) is None
    assert tuple(capfd.readouterr()) == ("", "")


def test_examples_end_at_the_first_failure_without_shrinking() -> None:
    """A fault that every program meets ends the run at its first example that makes a call."""
    with planted(MUTANTS["reset-counts-null"]):
        run = run_machine(PoolMachine, Reference, max_examples=500, seed=0, shrink=False)
    assert run.failure is not None
    assert run.failure.divergence.property == "reset_only_when_idle"
    assert run.examples < 100


def test_an_error_that_is_no_divergence_is_raised() -> None:
    """A subject that cannot be made is the caller's affair."""

    def broken(_: Config) -> Reference:
        raise OSError("no such manager")

    with pytest.raises(OSError, match="no such manager"):
        run_machine(PoolMachine, broken, max_examples=2, seed=0)


class Bare(Reference):
    """Our manager as one that can do less."""

    capabilities = Capabilities(
        window=False, lookahead=False, unpublish=False, salts=False, generations=False
    )


@pytest.mark.slow
def test_what_a_subject_cannot_do_is_not_asked() -> None:
    """No window, no look-ahead, no drafts, no unpublishing, no salts and one generation."""
    seen: set[str] = set()

    def note(step: Step) -> None:
        seen.add(step.action)
        assert step.before.config.sliding_window is None
        assert step.args.get("num_lookahead", 0) == 0
        request = step.args.get("request")
        assert request is None or (request.salt, (request.lora or (0, 0))[1]) == (None, 0)

    for kind in MACHINES.values():
        run = run_machine(kind, Bare, max_examples=40, seed=0, on_step=note)
        assert run.failure is None
    assert not {"propose", "unpublish"} & seen
    assert {"add_request", "allocate_slots", "get_new_blocks", "touch"} <= seen


def test_a_subject_without_a_pool_is_refused_by_the_pool_machine() -> None:
    """The error names the subject and what to run instead."""

    class Closed(Reference):
        capabilities = Capabilities(pool_calls=False)

    with pytest.raises(
        ValueError, match="reference takes no calls on its pool; run ManagerMachine"
    ):
        run_machine(PoolMachine, Closed, max_examples=2, seed=0)


def test_no_choice_is_so_wide_that_other_modules_have_a_say_in_it() -> None:
    """Hypothesis prefers numbers of a hundred and more that stand in loaded code."""
    tables = [value for value in vars(strategies).values() if hasattr(value, "elements")]
    assert len(tables) > 5
    assert all(len(table.elements) < 100 for table in tables)


@pytest.mark.slow
def test_a_failure_says_all_there_is_to_say(tmp_path: Path) -> None:
    """The text is the stable line; the notes have the table, the test and the log of the calls."""
    with planted(MUTANTS["forward-release"]):
        found = run_machine(ManagerMachine, Reference, max_examples=200, seed=0).failure
        assert found is not None
        said = noted(found, Reference, "reference", tmp_path)
    assert said is found.divergence
    assert str(said).startswith("kvspec violation: property=the_tail_is_evicted_before_the_head ")
    notes = "\n".join(said.__notes__)
    assert f"def test_{said.property}() -> None:" in notes
    assert "free queue   index" in notes
    (kept,) = Failures(tmp_path).tried_first(["reference"])
    assert isinstance(kept, Kept)
    assert str(kept.path) in notes
    with planted(MUTANTS["forward-release"]):
        assert str(failure(kept.program, Reference)) == str(said)
