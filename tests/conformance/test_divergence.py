"""A difference is named after the first thing that it breaks, in a fixed order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.divergence import GUARDED, KEY_PROPERTIES, Call, Divergence, answer, diagnose, flat
from conformance.lockstep import Lockstep
from conformance.subject import RequestSpec, Snapshot
from conformance.view import Difference
from spec.invariants import REGISTRY
from spec.state import Config, State
from spec.statemachine import Outcome, Refused


class Moment(NamedTuple):
    """One call: its number and arguments, the states around it, what was answered and seen."""

    call: Call
    before: State
    after: State
    result: object
    seen: Snapshot

    def named(
        self,
        result: object = ...,
        expected: object = ...,
        levels: str = "PM",
        **changed: Any,  # noqa: ANN401  # any field of a snapshot
    ) -> Divergence:
        """Return the diagnosis when the answers or some fields of the snapshot are others."""
        results = (
            self.result if expected is ... else expected,
            self.result if result is ... else result,
        )
        seen = replace(self.seen, **changed)
        return diagnose(self.call, self.before, self.after, results, seen, levels)


def moment(pair: Lockstep, verb: str, **args: Any) -> Moment:  # noqa: ANN401  # as the verb's
    """Make a call and return all of it."""
    before = pair.state
    result = getattr(pair, verb)(**args)
    return Moment(Call(pair.calls, verb, args), before, pair.state, result, pair.subject.snapshot())


@pytest.fixture
def pair() -> Lockstep:
    """Return a pair in which blocks 1 and 2 are cached by a request that is gone."""
    pair = Lockstep(Reference(Config(9, 2)))
    pair.add_request("a", RequestSpec([0, 0, 1, 1, 2]))
    pair.allocate_slots("a", 5, (), 0)
    pair.run_step({"a": Outcome()})
    pair.finish("a")
    pair.add_request("b", RequestSpec([0, 0, 1, 1, 3]))
    return pair


@pytest.fixture
def looked_up(pair: Lockstep) -> Moment:
    """Return the look-up of `b`, call 6, which hits blocks 1 and 2."""
    return moment(pair, "get_computed_blocks", rid="b")


@pytest.fixture
def admitted(pair: Lockstep) -> Moment:
    """Return the admission of `b`, call 6, which takes block 4."""
    return moment(pair, "allocate_slots", rid="b", num_tokens=1, hits=(1, 2), num_lookahead=0)


@pytest.fixture
def ended(pair: Lockstep) -> Moment:
    """Return the end of `b`, call 8; the queue is then 5 to 8, 3, 4, 2, 1."""
    pair.allocate_slots("b", 1, (1, 2), 0)
    pair.run_step({"b": Outcome()})
    return moment(pair, "finish", rid="b")


ONE_HIT_LESS = (1,)
WRONG_COUNT = (0, 3, 0, 0, 0, 0, 0, 0, 0)


def test_a_broken_chain_comes_first(looked_up: Moment) -> None:
    """A queue that is no chain explains everything else, so nothing else is named."""
    keys = looked_up.seen.keys
    same = (keys[0], keys[1], keys[1], *keys[3:])
    found = looked_up.named(ONE_HIT_LESS, num_free=7, keys=same, ref_cnts=WRONG_COUNT)
    assert found.property == "the_free_queue_is_a_chain"
    assert found.found == Difference("free counter", None, 8, 7)
    found = looked_up.named(queue_back=looked_up.seen.queue_back[:-1])
    assert (found.property, found.found.what) == (
        "the_free_queue_is_a_chain",
        "queue walked backward",
    )


def test_keys_come_next(looked_up: Moment, admitted: Moment) -> None:
    """Keys that mean other things to the subject are named before what follows from them."""
    keys = looked_up.seen.keys
    same = (keys[0], keys[1], keys[1], *keys[3:])
    found = looked_up.named(ONE_HIT_LESS, keys=same, ref_cnts=WRONG_COUNT)
    assert (found.property, found.found.block) == ("equal_keys_mean_equal_prefixes", 2)
    blocks = admitted.after.pool.blocks
    twice = (blocks[0], blocks[1], blocks[2], blocks[3]._replace(key=blocks[2].key), *blocks[4:])
    after = admitted.after._replace(pool=admitted.after.pool._replace(blocks=twice))
    keys = admitted.seen.keys
    other = (*keys[:3], b"other", *keys[4:])
    found = admitted._replace(after=after).named((), keys=other, ref_cnts=WRONG_COUNT)
    assert (found.property, found.found.block) == ("a_repeated_prompt_hits", 3)


def test_a_property_of_the_call_comes_before_one_of_the_state(looked_up: Moment) -> None:
    """What a call answered wrongly is named before the state that it left."""
    assert looked_up.named(ONE_HIT_LESS).property == "a_repeated_prompt_hits"
    both = looked_up.named(ONE_HIT_LESS, ref_cnts=WRONG_COUNT)
    assert both.property == "a_repeated_prompt_hits"
    state = looked_up.named(ref_cnts=WRONG_COUNT)
    assert state.property == "a_block_is_free_exactly_when_nobody_holds_it"
    assert (state.found.block, state.found.expected, state.found.actual) == (1, 0, 1)


def test_properties_come_in_the_order_of_the_registry(admitted: Moment) -> None:
    """Of two broken properties of a state the first is named."""
    order = list(REGISTRY)
    first, second = "a_block_is_free_exactly_when_nobody_holds_it", "ref_cnt_counts_the_holders"
    assert order.index(first) < order.index(second)
    counts = admitted.seen.ref_cnts
    held_in_the_queue = (*counts[:5], 1, *counts[6:])
    assert admitted.named(ref_cnts=held_in_the_queue).property == first
    held_too_often = (*counts[:2], 3, *counts[3:])
    assert admitted.named(ref_cnts=held_too_often).property == second


def test_refinement_is_what_no_property_forbids(ended: Moment) -> None:
    """A direct caller may release in any order, and another one differs all the same."""
    queue = (5, 6, 7, 8, 3, 2, 4, 1)
    turned = ended.named(queue=queue, queue_back=queue[::-1])
    assert turned.property == "the_tail_is_evicted_before_the_head"
    found = ended.named(queue=queue, queue_back=queue[::-1], levels="P")
    differs = "free queue: expected [3:](8, 3, 4, 2, 1), is [3:](8, 3, 2, 4, 1)"
    assert (found.property, found.found.what) == ("refinement", differs)
    assert differs in found.details
    lost = ended.named(tables={"a": (1,)}, levels="P")
    differs = "table of a: expected (), is (1,)"
    assert (lost.property, lost.found.what, lost.found.block) == ("refinement", differs, 1)


def test_something_is_named_even_when_the_snapshot_agrees(looked_up: Moment) -> None:
    """A subject that looks right as a whole and wrong in detail contradicts itself."""
    found = looked_up.named()
    assert found.property == "refinement"
    assert found.found.what == "what the call touched, as it is looked at"


def test_only_what_holds_at_the_level_is_named(looked_up: Moment) -> None:
    """For a direct caller of the pool the properties of a manager say nothing."""
    assert looked_up.named(ONE_HIT_LESS, levels="P").property == "refinement"
    assert looked_up.named(ONE_HIT_LESS, levels="M").property == "a_repeated_prompt_hits"


def test_what_a_dropped_guard_protects_is_named(admitted: Moment) -> None:
    """A subject that lets pass what a rule forbids breaks what the rule is there for."""
    for rule, violated in GUARDED.items():
        found = admitted.named(expected=Refused(rule))
        assert violated == found.property
        assert found.found == Difference("result", None, f"refused:{rule}", (4,))
    other = admitted.named(expected=Refused("num_tokens_is_below_one"))
    assert other.property == "refinement"


def test_every_name_is_in_the_registry() -> None:
    """What a divergence can be named after can be looked up."""
    assert {*GUARDED.values(), *KEY_PROPERTIES.values(), "the_free_queue_is_a_chain"} <= set(
        REGISTRY
    )


def test_the_line_has_its_documented_form(admitted: Moment) -> None:
    """The line is `kvspec violation:`, what, where, whose and how, each of it one word."""
    assert str(admitted.named(None)) == (
        "kvspec violation: property=admission_is_exact call=6 allocate_slots block=- "
        "expected=1 actual=None holders=- found_by=lockstep"
    )
    counts = admitted.seen.ref_cnts
    assert str(admitted.named(ref_cnts=(*counts[:2], 3, *counts[3:]))) == (
        "kvspec violation: property=ref_cnt_counts_the_holders call=6 allocate_slots block=2 "
        "expected=1 actual=3 holders=b found_by=lockstep"
    )


def test_the_details_say_what_was_called_and_what_differs(admitted: Moment) -> None:
    """Below the line stand the call, up to four differences, the property and its reason."""
    found = admitted.named(None, queue=(3, 5), num_free=2, queue_back=(5, 3))
    call, differs, says, why = found.details.splitlines()
    assert call == "  call 6: allocate_slots(rid=b, num_tokens=1, hits=(1,2), num_lookahead=0)"
    assert differs.startswith("  result: expected (4,), is None; ref_cnt: expected 0, is 1; ")
    assert differs.count("; ") == 3
    assert says == f"  {REGISTRY[found.property].statement}"
    assert why == f"  If it breaks: {REGISTRY[found.property].why}"


def test_an_answer_is_compared_by_what_matters() -> None:
    """Of a refusal that is the rule; a list is as good as a tuple."""
    assert (
        answer(Refused("rule", block=1)) == answer(Refused("rule", text="other")) == "refused:rule"
    )
    assert answer([1, 2]) == (1, 2)
    assert answer(None) is None


def test_a_value_is_one_word() -> None:
    """No value tears the line into more fields than it has."""
    assert flat((1, 2)) == "(1,2)"
    assert flat("one of three") == "oneofthree"
