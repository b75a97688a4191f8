"""Each property of an admission is broken by hand, and its predicate says where and how."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from spec.invariants import REGISTRY, Broken, Step, broken
from spec.state import NULL, Block, Key
from spec.statemachine import Refused

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]

ADMITTING = {"get_computed_blocks", "allocate_slots", "get_new_blocks"}
"""The calls that hand out blocks. For what speaks of others, see `test_steps_of_order.py`."""

OTHER = Key(None, (7, 7))
"""A key that nobody is entitled to."""

C = Key(Key(None, (97, 98)), (99,))
"""What block 2 holds of the prompt `abc`."""


def taken(world: World) -> Scene:
    """A direct caller took blocks 1 and 2 of four."""
    w = world(4)
    w("get_new_blocks", n=2)
    return w


def admitted(world: World) -> Scene:
    """B hits block 1, which A holds, and takes block 3 of four."""
    w = world(4)
    w.new("A", "abc")
    w.add("B", "abd")
    w.admit("B")
    return w


def readmitted(world: World) -> Scene:
    """B hits block 1, which was idle, and takes block 3 of four."""
    w = world(4)
    w.new("A", "abc")
    w.end("A")
    w.add("B", "abd")
    w.admit("B")
    return w


def looked_up(world: World) -> Scene:
    """B looks up four tokens, of which block 1 holds two; block 2 holds the other two."""
    w = world(4)
    w.new("A", "abcd")
    w.add("B", "abcd")
    w.look("B")
    return w


def no_room(world: World) -> Scene:
    """B hits the idle block 1 and needs three more; only block 2 is free besides."""
    w = world(4)
    w.new("A", "abc")
    w.end("A")
    w.new("Y", "stu")
    w.add("B", "abcdefg")
    assert w.admit("B") is None
    return w


def too_large(world: World) -> Scene:
    """A needs three blocks of two."""
    w = world(2)
    w.add("A", "abcde")
    w.admit("A")
    return w


Wrong = tuple[
    Callable[[World], Scene], Callable[[Scene], Mapping[str, Any]], Callable[[Scene], list[Broken]]
]
"""A good call (the last one), what is overwritten in its step, and what must be said about that."""

REFUSAL = Refused("any_rule")

SHOULD = Broken(None, expected=True, actual=False)
SHOULD_NOT = Broken(None, expected=False, actual=True)


def said(*instances: Broken) -> Callable[[Scene], list[Broken]]:
    """Return what answers the same whatever the world."""
    return lambda _: list(instances)


VIOLATIONS: Mapping[str, Sequence[Wrong]] = {
    "a_block_handed_out_is_clean": tuple(
        (make, change, said(Broken(b, "one holder, no old key", block)))
        for make, b, block, change in (
            (taken, 2, Block(2), lambda w: {"after": w.with_block(2, ref_cnt=2)}),
            (taken, 2, Block(1, OTHER), lambda w: {"after": w.with_block(2, key=OTHER)}),
            (admitted, 3, Block(1, OTHER), lambda w: {"after": w.with_block(3, key=OTHER)}),
            (admitted, 3, Block(0), lambda w: {"after": w.with_block(3, ref_cnt=0)}),
            (admitted, 2, Block(1, None, C), lambda _: {"result": (2,)}),
        )
    ),
    "a_hit_leaves_a_token_to_compute": (
        (looked_up, lambda _: {"result": (1, 2)}, lambda _: [Broken(2, "below 4", 4)]),
        (looked_up, lambda _: {"result": (NULL, 1, 2)}, lambda _: [Broken(2, "below 4", 6)]),
    ),
    "equal_keys_mean_equal_prefixes": (
        (
            looked_up,
            lambda _: {"result": (2,)},
            lambda w: [Broken(2, w.key(1), w.key(2))],
        ),
        (
            looked_up,
            lambda w: {"before": w.with_block(1, content=OTHER)},
            lambda w: [Broken(1, w.key(1), OTHER)],
        ),
        (
            looked_up,
            lambda w: {"before": w.with_block(1, key=OTHER, pending="A")},
            lambda w: [Broken(1, w.key(1), OTHER)],
        ),
        (
            looked_up,
            lambda _: {"result": (1, 2, 3)},
            lambda _: [Broken(3, None, None)],
        ),
    ),
    "a_repeated_prompt_hits": (
        (looked_up, lambda _: {"result": ()}, lambda _: [Broken(None, 1, 0)]),
        (looked_up, lambda _: {"result": (1, 2)}, lambda _: [Broken(None, 1, 2)]),
        (
            looked_up,
            lambda w: {"before": w.with_request("B", prompt_logprobs=True)},
            lambda _: [Broken(None, 0, 1)],
        ),
    ),
    "hits_and_new_blocks_are_disjoint": (
        (readmitted, lambda _: {"result": (1,)}, lambda _: [Broken(1, "a hit", "handed out")]),
        (
            readmitted,
            lambda w: {"after": w.with_block(1, key=None)},
            lambda _: [Broken(1, "a hit", "handed out")],
        ),
        (
            admitted,
            lambda w: {"after": w.with_request("B", table=(1, 3, 3))},
            lambda _: [Broken(3, 1, 2)],
        ),
    ),
    "admission_is_exact": (
        (admitted, lambda _: {"result": None}, lambda _: [Broken(None, 1, None)]),
        (admitted, lambda _: {"result": (3, 4)}, lambda _: [Broken(None, 1, 2)]),
        (admitted, lambda _: {"result": ()}, lambda _: [Broken(None, 1, 0)]),
        (admitted, lambda _: {"result": REFUSAL}, lambda _: [Broken(None, 1, REFUSAL)]),
        (no_room, lambda _: {"result": (2,)}, lambda _: [Broken(None, None, 1)]),
    ),
    "what_cannot_fit_is_refused_at_once": (
        (
            too_large,
            lambda _: {"result": None},
            lambda _: [SHOULD],
        ),
        (
            too_large,
            lambda _: {"result": (1, 2)},
            lambda _: [SHOULD],
        ),
        (
            too_large,
            lambda _: {"result": REFUSAL},
            lambda _: [SHOULD],
        ),
        (
            admitted,
            lambda _: {"result": Refused("request_is_too_large")},
            lambda _: [SHOULD_NOT],
        ),
    ),
}


def shown(w: Scene, b: int) -> Any:  # noqa: ANN401  # a Block
    """Return a block of the last state."""
    return w.state.pool.blocks[b]


def test_every_property_of_an_admission_is_violated_here() -> None:
    """A new property needs a call that breaks it: one that is always true says nothing."""
    of_admission = {
        p.name for p in REGISTRY.values() if p.kind == "step" and p.of and set(p.of) <= ADMITTING
    }
    assert of_admission == set(VIOLATIONS)


CASES = [(name, wrong) for name, wrongs in VIOLATIONS.items() for wrong in wrongs]


@pytest.mark.parametrize(("name", "wrong"), CASES, ids=[name for name, _ in CASES])
def test_a_violation_is_seen_and_its_original_is_not(world: World, name: str, wrong: Wrong) -> None:
    """The predicate names the block, what it should be, and what it is."""
    make, change, told = wrong
    w = make(world)
    assert w.broken() == []
    good: Step = w.steps[-1]
    bad, expected = good._replace(**change(w)), told(w)
    assert list(REGISTRY[name].check(good)) == []
    assert list(REGISTRY[name].check(bad)) == expected
    assert [found for by, found in broken(bad) if by == name] == expected
