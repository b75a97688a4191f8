"""The encoder cache's actions do what they say, and each of its predicates can say no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spec.encoder_cache import (
    ABSENT,
    HELD,
    IDLE,
    SHARED,
    EncoderCache,
    EncoderStep,
    Entry,
    Media,
    allocate,
    can_allocate,
    empty,
    entry_state,
    free,
    free_encoder_input,
    get_cached_input_ids,
    get_freed,
    has_cache,
    perform,
)
from spec.encoder_properties import ENCODER_REGISTRY, broken_in_encoder
from spec.invariants import REGISTRY
from spec.pool import Refused
from spec.registry import Property
from spec.state import Frozen

Facts = Mapping[str, Any]

A = Media("A", (("a", 1), ("b", 1), ("a", 1)))
B = Media("B", (("c", 2), ("a", 1), ("d", 9), ("a", 2)))
STRANGER = Media("A", (("a", 1),), 1)

BASE = EncoderCache(
    size=3,
    entries=Frozen({"a": Entry(1, 1), "b": Entry(1)}),
    holders=frozenset({(A, 0)}),
    idle=("b",),
    num_free=1,
    num_freeable=2,
    stored=frozenset({"a", "b"}),
)
"""`a` is held by A's first input, `b` is idle, and one token is free."""

BROKEN_STATES: Mapping[str, tuple[Facts, ...]] = {
    "the_encoder_budget_is_never_overdrawn": (
        {"num_free": -1},
        {"num_freeable": 4},
        {"num_free": 3},
    ),
    "what_an_input_holds_is_cached": (
        {"entries": Frozen({"b": Entry(1)})},
        {"entries": Frozen({"a": Entry(2, 1), "b": Entry(1)})},
    ),
    "one_request_holds_under_a_name": ({"holders": BASE.holders | {(STRANGER, 0)}},),
    "an_entry_counts_the_inputs_that_hold_it": (
        {"entries": BASE.entries.set("a", Entry(1, 2))},
        {"entries": BASE.entries.set("b", Entry(1, -1))},
        {"holders": BASE.holders | {(A, 2)}},
    ),
    "an_entry_is_idle_exactly_when_no_input_holds_it": (
        {"idle": ()},
        {"idle": ("b", "b")},
        {"idle": ("a", "b")},
        {"idle": ("b", "x")},
    ),
    "entries_and_free_slots_make_the_encoder_budget": ({"num_free": 2}, {"num_free": 0}),
    "idle_media_can_be_made_free": ({"num_freeable": 1}, {"num_freeable": 3}),
    "an_encoder_cache_that_nobody_holds_is_whole": ({"holders": frozenset()},),
    "a_worker_that_follows_the_reports_keeps_the_entries": (
        {"stored": frozenset({"a"})},
        {"stored": frozenset({"a", "b", "x"})},
        {"new": frozenset({"x"})},
        {"freed": ("a",)},
    ),
}

SHARED_A = BASE._replace(
    entries=BASE.entries.set("a", Entry(1, 2)), holders=BASE.holders | {(B, 1)}
)
NO_B = BASE._replace(entries=BASE.entries.without("b"), idle=(), num_free=2, freed=("b",))
NOBODY = NO_B._replace(holders=frozenset())
ROOM = BASE._replace(num_free=2, num_freeable=3, size=4)
OLD = BASE._replace(
    entries=Frozen({"a": Entry(1, 1), "x": Entry(1), "b": Entry(1)}), idle=("x", "b"), num_free=0
)
WITH_C = BASE._replace(
    entries=Frozen({"a": Entry(1, 1), "c": Entry(2, 1)}),
    holders=BASE.holders | {(B, 0)},
    idle=(),
    num_free=0,
    num_freeable=0,
    freed=("b",),
)
ASK_A = {"request": A, "input_id": 0}
ASK_C = {"request": B, "input_id": 0}
ASK_A_AGAIN = {"request": B, "input_id": 1}
NO = Refused("not_enough_encoder_cache")

BROKEN_STEPS: Mapping[str, tuple[EncoderStep, ...]] = {
    "an_encoder_call_that_is_refused_or_asks_changes_nothing": (
        EncoderStep(BASE, "allocate", ASK_C, NO, NO_B),
        EncoderStep(OLD, "has_cache", ASK_A, True, OLD._replace(idle=("b", "x"))),  # noqa: FBT003  # the answer
    ),
    "media_above_the_encoder_budget_are_refused_at_once": (
        EncoderStep(BASE, "can_allocate", {"request": B, "input_id": 2}, False, BASE),  # noqa: FBT003  # the answer
        EncoderStep(BASE, "has_cache", ASK_A, Refused("encoder_input_is_too_large"), BASE),
    ),
    "an_identifier_has_one_size": (
        EncoderStep(BASE, "has_cache", {"request": B, "input_id": 3}, True, BASE),  # noqa: FBT003  # the answer
    ),
    "the_encoder_cache_tells_what_it_has": (
        EncoderStep(BASE, "has_cache", ASK_A, False, BASE),  # noqa: FBT003  # the answer
        EncoderStep(BASE, "has_cache", ASK_C, True, BASE),  # noqa: FBT003  # the answer
        EncoderStep(BASE, "get_cached_input_ids", {"request": A}, frozenset({0, 2}), BASE),
    ),
    "encoder_admission_is_exact": (
        EncoderStep(BASE, "can_allocate", ASK_C, False, BASE),  # noqa: FBT003  # the answer
        EncoderStep(BASE, "allocate", ASK_C, NO, BASE),
        EncoderStep(WITH_C, "can_allocate", {"request": A, "input_id": 1}, True, WITH_C),  # noqa: FBT003  # the answer
    ),
    "an_input_holds_from_allocation_to_release": (
        EncoderStep(SHARED_A, "free_encoder_input", ASK_A, None, NOBODY),
        EncoderStep(SHARED_A, "free", {"request": A}, None, SHARED_A),
        EncoderStep(BASE, "allocate", ASK_A_AGAIN, None, BASE),
    ),
    "one_content_is_charged_once": (
        EncoderStep(BASE, "allocate", ASK_A_AGAIN, None, SHARED_A._replace(num_free=0)),
    ),
    "only_idle_media_are_evicted": (
        EncoderStep(BASE, "free", {"request": A}, None, NOBODY),
        EncoderStep(BASE, "allocate", ASK_C, None, WITH_C._replace(entries=Frozen())),
    ),
    "the_longest_idle_media_are_evicted_first": (
        EncoderStep(OLD, "allocate", ASK_C, None, WITH_C._replace(
            entries=WITH_C.entries.set("x", Entry(1)), idle=("x",)
        )),
    ),
    "no_more_media_are_evicted_than_needed": (
        EncoderStep(ROOM, "allocate", ASK_C, None, WITH_C),
        EncoderStep(BASE, "allocate", ASK_A_AGAIN, None, NO_B),
    ),
    "media_become_idle_behind_the_others": (
        EncoderStep(BASE, "free", {"request": A}, None, BASE._replace(
            entries=BASE.entries.set("a", Entry(1)), holders=frozenset(), idle=("a", "b")
        )),
        EncoderStep(OLD, "get_freed", {}, (), OLD._replace(idle=("b", "x"))),
    ),
    "what_is_evicted_is_reported_once": (
        EncoderStep(BASE, "allocate", ASK_C, None, WITH_C._replace(freed=())),
        EncoderStep(BASE, "allocate", ASK_C, None, WITH_C._replace(freed=("b", "b"))),
        EncoderStep(WITH_C, "get_freed", {}, ("b",), WITH_C),
        EncoderStep(WITH_C, "get_freed", {}, (), WITH_C._replace(freed=())),
    ),
}  # fmt: skip  # a step stands on as few lines as it can


@pytest.mark.parametrize("name", BROKEN_STATES)
def test_a_property_of_a_state_can_be_broken(name: str) -> None:
    """Each state that was made wrong by hand is flagged under the name; the right one is not."""
    assert list(broken_in_encoder(BASE)) == []
    for facts in BROKEN_STATES[name]:
        assert name in [broken for broken, _ in broken_in_encoder(BASE._replace(**facts))], facts


@pytest.mark.parametrize("name", BROKEN_STEPS)
def test_a_property_of_a_call_can_be_broken(name: str) -> None:
    """Each call that was made wrong by hand is flagged under the name; the right one is not."""
    for step in BROKEN_STEPS[name]:
        assert name in [broken for broken, _ in broken_in_encoder(step)], step
        assert list(broken_in_encoder(perform(step.before, step.action, step.args))) == []


def test_every_property_is_broken_by_hand() -> None:
    """No predicate of the registry is left out, and none has a name of the blocks' registry."""
    kinds = {name: p.kind for name, p in ENCODER_REGISTRY.items()}
    assert kinds == dict.fromkeys(BROKEN_STEPS, "step") | dict.fromkeys(BROKEN_STATES, "state")
    assert not set(ENCODER_REGISTRY) & set(REGISTRY)


@pytest.mark.parametrize("p", ENCODER_REGISTRY.values(), ids=lambda p: str(p.name))
def test_each_property_says_what_it_means(p: Property) -> None:
    """Statement and reason are sentences."""
    for text in (p.statement, p.why):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        assert "  " not in text
    assert p.levels == "E"


def test_a_content_goes_through_its_four_states() -> None:
    """It is held, shared, held again, idle, held again, idle, and evicted when room is needed."""
    s = empty(2)
    assert entry_state(s, "a") is ABSENT
    s = allocate(s, A, 0)
    assert (entry_state(s, "a"), s.num_free, s.num_freeable) == (HELD, 1, 1)
    s = allocate(s, B, 1)
    assert (entry_state(s, "a"), s.num_free, s.num_freeable) == (SHARED, 1, 1)
    s = free_encoder_input(s, A, 0)
    assert (entry_state(s, "a"), s.idle) == (HELD, ())
    s = free(s, B)
    assert (entry_state(s, "a"), s.idle, s.num_free, s.num_freeable) == (IDLE, ("a",), 1, 2)
    s = free(allocate(s, A, 2), A)
    assert has_cache(s, A, 0)
    s = allocate(s, B, 0)
    assert (entry_state(s, "a"), s.num_free, s.num_freeable) == (ABSENT, 0, 0)
    assert get_freed(s)[1] == ("a",)
    assert get_freed(get_freed(s)[0])[1] == ()


def test_each_place_of_an_item_holds_for_itself() -> None:
    """A request that shows an item twice holds it until both places are past."""
    s = allocate(allocate(empty(1), A, 0), A, 2)
    assert get_cached_input_ids(s, A) == {0, 2}
    s = free_encoder_input(s, A, 0)
    assert (entry_state(s, "a"), get_cached_input_ids(s, A)) == (HELD, frozenset({2}))
    assert not can_allocate(s, A, 1)
    assert entry_state(free_encoder_input(s, A, 2), "a") is IDLE


def test_a_request_gives_up_its_inputs_in_order() -> None:
    """What a call leaves idle is evicted in the order of the inputs; who shares keeps its entry."""
    s = allocate(allocate(allocate(empty(3), A, 1), A, 2), A, 0)
    assert free(s, A).idle == ("b", "a")
    assert free(allocate(s, B, 1), A).idle == ("b",)
    assert free(empty(3), A) == empty(3)


REFUSALS: Mapping[str, tuple[str, Facts]] = {
    "no_such_encoder_input": ("allocate", {"request": A, "input_id": 3}),
    "encoder_input_is_too_large": ("has_cache", {"request": B, "input_id": 2}),
    "request_id_holds_encoder_inputs": ("free", {"request": STRANGER}),
    "encoder_input_differs_from_its_entry": ("can_allocate", {"request": B, "input_id": 3}),
    "encoder_input_is_held": ("allocate", ASK_A),
    "encoder_input_is_not_held": ("free_encoder_input", {"request": A, "input_id": 1}),
    "not_enough_encoder_cache": ("allocate", {"request": Media("C", (("f", 3),)), "input_id": 0}),
}


@pytest.mark.parametrize("rule", REFUSALS)
def test_a_refusal_names_its_rule(rule: str) -> None:
    """What the rules forbid is answered with the rule, and changes nothing."""
    action, args = REFUSALS[rule]
    step = perform(BASE, action, args)
    assert isinstance(step.result, Refused)
    assert (step.result.rule, step.after) == (rule, BASE)


def test_the_first_rule_that_applies_refuses() -> None:
    """Number, budget, name, size and hold are looked at in this order."""
    huge, b = Media("A", (("a", 2), ("d", 9)), 2), Media("B", (("a", 2),))
    calls = [("allocate", huge, 2), ("allocate", huge, 1), ("allocate", huge, 0)]
    calls += [("allocate", b, 0), ("free_encoder_input", huge, 0)]
    steps = [perform(BASE, action, {"request": r, "input_id": i}) for action, r, i in calls]
    assert [getattr(step.result, "rule", None) for step in steps] == [
        "no_such_encoder_input",
        "encoder_input_is_too_large",
        "request_id_holds_encoder_inputs",
        "encoder_input_differs_from_its_entry",
        "request_id_holds_encoder_inputs",
    ]
