"""Each property of any other call is broken by hand, and its predicate says where and how."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from spec.invariants import REGISTRY, Broken, Step, broken
from spec.state import Key
from spec.statemachine import Refused

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]

ADMITTING = {"get_computed_blocks", "allocate_slots", "get_new_blocks"}
"""The calls that hand out blocks; what speaks of them alone is broken in `test_steps.py`."""

OTHER = Key(None, (7, 7))
"""A key that nobody is entitled to."""


def taken(world: World) -> Scene:
    """A direct caller took blocks 1 and 2 of four."""
    w = world(4)
    w("get_new_blocks", n=2)
    return w


def released(world: World) -> Scene:
    """A direct caller gave back block 2, then 1; 3 and 4 were free."""
    w = taken(world)
    w("free_blocks", ids=(2, 1))
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


def ran(world: World) -> Scene:
    """B, which hits block 1, ran."""
    w = admitted(world)
    w.run()
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


def freed(world: World) -> Scene:
    """A gave back blocks 1 and 2, both cached, and 3."""
    w = world(4)
    w.new("A", "abcde")
    w.end("A")
    return w


def grown(world: World) -> Scene:
    """The first block of A left the window, and a fourth one came."""
    w = world(5, sliding_window=3)
    w.add("A", "abcdefg")
    w.admit("A", 5)
    w.run()
    w.allocate("A", 2)
    return w


def reset(world: World) -> Scene:
    """A reset succeeds; block 1 had a key."""
    w = world(2)
    w.new("A", "ab")
    w.end("A")
    w("reset_prefix_cache")
    return w


def not_reset(world: World) -> Scene:
    """A reset is refused; block 1 is in use, block 2 is free."""
    w = world(2)
    w.new("A", "ab")
    w("reset_prefix_cache")
    return w


Wrong = tuple[
    Callable[[World], Scene], Callable[[Scene], Mapping[str, Any]], Callable[[Scene], list[Broken]]
]
"""A good call (the last one), what is overwritten in its step, and what must be said about that."""

REFUSAL = Refused("any_rule")

SHOULD = Broken(None, expected=True, actual=False)
SHOULD_NOT = Broken(None, expected=False, actual=True)

VIOLATIONS: Mapping[str, Sequence[Wrong]] = {
    "a_settled_block_never_changes": (
        (
            ran,
            lambda w: {"after": w.with_block(1, content=OTHER)},
            lambda w: [Broken(1, (w.key(1), w.key(1)), (w.key(1), OTHER))],
        ),
        (
            ran,
            lambda w: {"after": w.with_block(1, content=None)},
            lambda w: [Broken(1, (w.key(1), w.key(1)), (w.key(1), None))],
        ),
        (
            ran,
            lambda w: {"after": w.with_block(1, key=None)},
            lambda w: [Broken(1, (w.key(1), w.key(1)), (None, w.key(1)))],
        ),
    ),
    "a_refused_call_changes_nothing": (
        (
            no_room,
            lambda w: {"after": w.with_block(1, ref_cnt=1)},
            lambda w: [Broken(1, shown(w, 1), shown(w, 1)._replace(ref_cnt=1))],
        ),
        (
            no_room,
            lambda w: {"after": w.with_pool(queue=w.state.pool.queue[::-1])},
            lambda w: [Broken(None, w.state.pool.queue, w.state.pool.queue[::-1])],
        ),
        (
            taken,
            lambda _: {"result": REFUSAL},
            lambda w: [
                Broken(1, shown(w, 3), shown(w, 1)),
                Broken(2, shown(w, 3), shown(w, 2)),
                Broken(None, (1, 2, 3, 4), (3, 4)),
                Broken(None, (), (1, 2)),
            ],
        ),
    ),
    "the_tail_is_evicted_before_the_head": (
        (
            freed,
            lambda w: {"after": w.with_pool(queue=(4, 3, 1, 2))},
            lambda _: [Broken(2, "before 1", "after 1")],
        ),
    ),
    "the_oldest_release_is_evicted_first": (
        (
            released,
            lambda w: {"after": w.with_pool(queue=(2, 1, 3, 4))},
            lambda _: [Broken(None, [3, 4], [2, 1, 3, 4])],
        ),
        (
            released,
            lambda w: {"after": w.with_pool(queue=(4, 3, 2, 1))},
            lambda _: [Broken(None, [3, 4], [4, 3, 2, 1])],
        ),
        (
            taken,
            lambda w: {"after": w.with_pool(queue=(1, 2))},
            lambda _: [Broken(None, [1, 2, 3, 4], [1, 2])],
        ),
        (
            readmitted,
            lambda w: {"after": w.with_pool(queue=(2, 4))},
            lambda _: [Broken(None, [3, 4, 2], [2, 4])],
        ),
    ),
    "positions_never_move": (
        (
            ran,
            lambda w: {"after": w.with_request("B", table=(1, 4))},
            lambda _: [Broken(3, 3, 4)],
        ),
        (ran, lambda w: {"after": w.with_request("B", table=(1,))}, lambda _: [Broken(None, 2, 1)]),
        (
            grown,
            lambda w: {"after": w.with_request("A", table=(2, 3, 4))},
            lambda _: [Broken(1, 1, 2), Broken(2, 2, 3), Broken(3, 3, 4)],
        ),
    ),
    "reset_only_when_idle": (
        (reset, lambda _: {"result": False}, lambda _: [SHOULD]),
        (
            reset,
            lambda w: {"after": w.with_block(1, key=OTHER)},
            lambda w: [Broken(1, None, shown(w, 1)._replace(key=OTHER))],
        ),
        (
            not_reset,
            lambda _: {"result": True},
            lambda _: [SHOULD_NOT],
        ),
        (
            not_reset,
            lambda w: {"after": w.with_block(1, key=None)},
            lambda w: [Broken(1, shown(w, 1), shown(w, 1)._replace(key=None))],
        ),
    ),
}


def shown(w: Scene, b: int) -> Any:  # noqa: ANN401  # a Block
    """Return a block of the last state."""
    return w.state.pool.blocks[b]


def test_every_other_property_of_a_call_is_violated_here() -> None:
    """A new property needs a call that breaks it: one that is always true says nothing."""
    of_others = {
        p.name
        for p in REGISTRY.values()
        if p.kind == "step" and not (p.of and set(p.of) <= ADMITTING)
    }
    assert of_others == set(VIOLATIONS)


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
