"""What is known to be wrong with a subject is not asked, not seen, and ends an example quietly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.conforming.known import Fault, Forgiving, Known, all_rules, fault_of, misused
from conformance.lockstep import Divergence, Lockstep
from conformance.machines.machine import MACHINES, run_machine
from conformance.program import Operation, Program, failure
from conformance.subject import Capabilities, Refusal, RequestSpec, Snapshot
from spec.state import Config

SMALL = Config(4, 1)
TAKE = Operation("get_new_blocks", {"n": 1})


class Odd(Reference):
    """Counts the null block, says that half of the pool is held, and dies in two places."""

    def snapshot(self) -> Snapshot:
        """Return everything, with the two observations that are wrong."""
        seen = super().snapshot()
        return replace(seen, usage=0.5, ref_cnts=(7, *seen.ref_cnts[1:]))

    def look(self, ids: Sequence[int]) -> Any:  # noqa: ANN401  # as the reference's
        """Return some blocks, the null block as it is counted."""
        views, *ends = super().look(ids)
        return ([(7, *v[1:]) if b == 0 else v for b, v in zip(ids, views, strict=True)], *ends)

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks; two and three at once are too much."""
        ids = super().get_new_blocks(n)
        assert n != 2, f"two at {object()!r}"
        if n == 3:
            raise AssertionError("three")
        return ids

    def touch(self, ids: Sequence[int]) -> None:
        """Take no notice of a misuse."""
        try:
            super().touch(ids)
        except Refusal:
            return


ALL = Known(masked=frozenset({"usage", "null_count"}))


def diverging(make: Callable[[Config], Any], *operations: Operation) -> Divergence:
    """Return how a program on a small pool fails."""
    found = failure(Program(SMALL, operations), make)
    assert found is not None
    return found


def test_a_mask_hides_one_observation_from_both_checks() -> None:
    """With both masks the subject agrees, and with one of them it does not."""
    for check in ("full", "incremental"):
        assert failure(Program(SMALL, (TAKE,)), ALL.forgiving(Odd), check) is None
    for name, left in (("usage", "the_null_block_is_inert"), ("null_count", "refinement")):
        found = diverging(Known(masked=frozenset({name})).forgiving(Odd), TAKE)
        assert found.property == left or found.found.what.startswith("usage")


def test_a_crash_is_told_by_where_it_was_raised() -> None:
    """Two assertions under one property and call are two faults, with the same name each time."""
    two = Operation("get_new_blocks", {"n": 2})
    three = Operation("get_new_blocks", {"n": 3})
    faults = [fault_of(diverging(ALL.forgiving(Odd), call)) for call in (two, three, two)]
    assert faults[0] == faults[2] != faults[1]
    assert faults[0][:2] == faults[1][:2] == ("a_refused_call_changes_nothing", "get_new_blocks")
    assert faults[0].answer == (
        'raised_AssertionError in test_known.get_new_blocks: assert n != 2, f"two at {object()!r}"'
    )


def test_a_crash_says_the_same_in_every_run() -> None:
    """The address of an object is in neither line nor details, and the line has the name only."""
    found = diverging(ALL.forgiving(Odd), Operation("get_new_blocks", {"n": 2}))
    assert "two at <object object>" in found.details
    assert "0x" not in f"{found}{found.details}"


def test_misuse_that_passes_is_named_and_then_not_made() -> None:
    """The rule is known by verb: the others are asked about it as before."""
    misuse = Operation("touch", {"ids": (1,)})
    found = diverging(ALL.forgiving(Odd), misuse)
    assert misused(found) == "touched_block_is_not_sealed"
    assert fault_of(found) == Fault(
        "only_sealed_blocks_are_shared", "touch", "not touched_block_is_not_sealed"
    )
    known = ALL._replace(misuse=frozenset({("touched_block_is_not_sealed", "touch")}))
    assert failure(Program(SMALL, (misuse,)), known.forgiving(Odd)) is None
    pair = Lockstep(known.forgiving(Odd)(SMALL))
    with pytest.raises(Refusal, match="touched_block_is_not_sealed"):
        pair.touch((1,))
    assert pair.unasked == {"touched_block_is_not_sealed": 1}
    foreign = diverging(known.forgiving(Odd), Operation("touch", {"ids": (9,)}))
    assert misused(foreign) == "block_is_not_of_this_pool"


def test_a_rule_may_be_enforced_by_one_verb_only() -> None:
    """Such a rule stands behind the verb's name."""
    can = Capabilities(rules=frozenset({"a_rule", "touch another"}))
    assert can.enforces("a_rule", "free")
    assert can.enforces("another", "touch")
    assert not can.enforces("another", "free")
    assert Capabilities().enforces("another", "free")


def test_every_rule_is_asked_for_unless_known() -> None:
    """Whatever a subject says of itself; a known rule is left to the other verbs."""

    class Modest(Reference):
        capabilities = Capabilities(rules=frozenset())

    assert Forgiving(Modest(SMALL), Known()).capabilities.rules == all_rules()
    known = Known(misuse=frozenset({("hit_is_stale", "allocate_slots")}))
    can = Forgiving(Modest(SMALL), known).capabilities
    assert not can.enforces("hit_is_stale", "allocate_slots")
    assert can.enforces("hit_is_stale", "touch")
    assert can.enforces("request_is_invalid", "allocate_slots")


def test_what_is_no_misuse() -> None:
    """A request that is too large is an answer to a careful caller, and so is None."""
    found = diverging(
        ALL.forgiving(Waits),
        Operation("add_request", {"rid": "r", "request": RequestSpec([0] * 5)}),
        Operation("allocate_slots", {"rid": "r", "num_tokens": 1, "hits": (), "num_lookahead": 0}),
    )
    assert misused(found) is None
    assert fault_of(found) == Fault(
        "what_cannot_fit_is_refused_at_once", "allocate_slots", "not request_is_too_large"
    )


class Waits(Reference):
    """Answers a request that is too large as one that may fit later."""

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        try:
            return super().allocate_slots(rid, num_tokens, hits, num_lookahead)
        except Refusal:
            return None


def test_an_example_ends_quietly_at_what_is_known() -> None:
    """A machine of which every example fails in a known way has no failure and raises nothing."""
    met: list[Divergence] = []

    def known(divergence: Divergence) -> bool:
        met.append(divergence)
        return True

    run = run_machine(MACHINES["pool"], Odd, max_examples=3, seed=1, shrink=False, known=known)
    assert run.failure is None
    assert met
    unknown = run_machine(MACHINES["pool"], Odd, max_examples=3, seed=1, shrink=False)
    assert unknown.failure is not None
