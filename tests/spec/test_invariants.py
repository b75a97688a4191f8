"""Each property of a state is broken by hand, and its own predicate says where and how."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from spec.invariants import REGISTRY, Broken, broken
from spec.state import NULL, Block, BlockState, Frozen, Key, State

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]

OTHER = Key(None, (7, 7))
"""A key that nobody is entitled to."""


def two(world: World) -> Scene:
    """A and B share block 1; 2 is A's, 3 is B's, 4 is free. Nothing is scheduled."""
    w = world(4)
    w.new("A", "abc")
    w.new("B", "abd")
    return w


def flying(world: World) -> Scene:
    """A computed its first block; its step writes blocks 2, which it seals, and 3."""
    w = world(4)
    w.add("A", "abcde")
    w.admit("A", 2)
    w.run()
    w.allocate("A", 3)
    return w


def windowed(world: World) -> Scene:
    """Block 1 left A's window and is free; the step of A reads block 2 and writes block 3."""
    w = world(4, sliding_window=3)
    w.add("A", "abcde")
    w.admit("A", 4)
    w.run()
    w.allocate("A", 1)
    return w


def whole(world: World) -> Scene:
    """With one token a block and W=3, the step of A at 2 reads from 0 on."""
    w = world(3, block_size=1, sliding_window=3)
    w.add("A", "abc")
    w.admit("A", 2)
    w.run()
    w.allocate("A", 1)
    return w


def idle(world: World) -> Scene:
    """Blocks 1 and 2 are cached, the second under the first, and nobody is there."""
    w = world(3)
    w.new("A", "abcd")
    w.end("A")
    return w


Wrong = tuple[
    Callable[[World], Scene], Callable[[Scene], State], Callable[[Scene], Sequence[Broken]]
]
"""A good state, what is done to it, and what must be said about that."""


def said(*instances: Broken) -> Callable[[Scene], list[Broken]]:
    """Return what answers the same whatever the world."""
    return lambda _: list(instances)


VIOLATIONS: Mapping[str, Sequence[Wrong]] = {
    "the_null_block_is_inert": (
        (two, lambda w: w.with_block(0, ref_cnt=1), said(Broken(0, Block(), Block(1)))),
        (two, lambda w: w.with_pool(queue=(0, 4)), said(Broken(0, Block(), Block()))),
        (
            two,
            lambda w: w.with_pool(by_key=w.state.pool.by_key.set(OTHER, (0,))),
            said(Broken(0, Block(), Block())),
        ),
    ),
    "the_free_queue_is_a_chain": (
        (two, lambda w: w.with_pool(queue=(4, 4)), said(Broken(4, 1, 2))),
        (two, lambda w: w.with_pool(queue=(4, 5)), said(Broken(5, 1, 1))),
        (two, lambda w: w.with_pool(queue=(-1, 4)), said(Broken(-1, 1, 1))),
    ),
    "a_block_is_free_exactly_when_nobody_holds_it": (
        (two, lambda w: w.with_pool(queue=()), said(Broken(4, 1, 0))),
        (two, lambda w: w.with_pool(queue=(4, 4)), said(Broken(4, 1, 2))),
        (two, lambda w: w.with_pool(queue=(2, 4)), said(Broken(2, 0, 1))),
        (two, lambda w: w.with_block(2, ref_cnt=0), said(Broken(2, 1, 0))),
    ),
    "ref_cnt_counts_the_holders": (
        (two, lambda w: w.with_block(1, ref_cnt=1), said(Broken(1, 2, 1))),
        (two, lambda w: w.with_block(4, ref_cnt=-1), said(Broken(4, 0, -1))),
        (idle, lambda w: w.with_block(1, ref_cnt=1), said(Broken(1, 0, 1))),
        (two, lambda w: w.state._replace(loose=(2,)), said(Broken(2, 2, 1))),
        (two, lambda w: w.with_request("B", table=(2, 3)), said(Broken(1, 1, 2), Broken(2, 2, 1))),
    ),
    "free_and_held_and_null_make_the_pool": (
        (
            two,
            lambda w: w.with_pool(queue=()),
            said(Broken(4, "one of three", [False, False, False])),
        ),
        (
            two,
            lambda w: w.with_pool(queue=(3, 4)),
            said(Broken(3, "one of three", [True, True, False])),
        ),
        (
            two,
            lambda w: w.with_pool(queue=(4, 0)),
            said(Broken(0, "one of three", [True, False, True])),
        ),
    ),
    "the_index_and_the_blocks_agree": (
        (two, lambda w: w.with_block(1, key=None), lambda w: [Broken(1, w.key(1), None)]),
        (two, lambda w: w.with_pool(by_key=Frozen()), lambda w: [Broken(1, w.key(1), None)]),
        (
            two,
            lambda w: w.with_pool(by_key=w.state.pool.by_key.set(OTHER, ())),
            said(Broken(None, "distinct copies", ())),
        ),
        (
            two,
            lambda w: w.with_pool(by_key=Frozen({w.key(1): (1, 1)})),
            said(Broken(None, "distinct copies", (1, 1))),
        ),
        (
            two,
            lambda w: w.with_pool(by_key=w.state.pool.by_key.set(OTHER, (4,))),
            said(Broken(4, OTHER, None)),
        ),
    ),
    "only_sealed_blocks_are_shared": (
        (two, lambda w: w.with_block(1, key=None), said(Broken(1, "a key", None))),
        (two, lambda w: w.with_block(2, ref_cnt=2), said(Broken(2, "a key", None))),
    ),
    "every_block_is_in_one_of_five_states": tuple(
        (two, change, said(Broken(b, [s.value for s in BlockState], shown)))
        for b, shown, change in (
            (4, (0, None, False), lambda w: w.with_pool(queue=())),
            (2, (1, None, True), lambda w: w.with_pool(queue=(4, 2))),
            (4, (-1, None, True), lambda w: w.with_block(4, ref_cnt=-1)),
            (2, (-1, None, False), lambda w: w.with_block(2, ref_cnt=-1)),
            (2, (2, None, False), lambda w: w.with_block(2, ref_cnt=2)),
        )
    ),
    "only_full_blocks_have_a_hash": (
        (two, lambda w: w.with_block(2, key=Key(None, (7,))), said(Broken(2, 2, 1))),
        (two, lambda w: w.with_block(4, key=Key(None, (7, 7, 7))), said(Broken(4, 2, 3))),
    ),
    "nothing_unwritten_is_found": (
        (two, lambda w: w.with_block(1, content=None), said(Broken(1, 2, 0))),
        (two, lambda w: w.with_block(1, content=Key(None, (97,))), said(Broken(1, 2, 1))),
        *(
            (flying, change, said(Broken(b, "scheduled to be written", pending)))
            for b, pending, change in (
                (2, "A", lambda w: w.with_request("A", num_computed=3)),
                (2, "A", lambda w: w.with_request("A", end=3)),
                (2, "A", lambda w: w.with_request("A", table=(1, 4, 3))),
                (2, "A", lambda w: w.state._replace(requests=Frozen())),
                (2, "B", lambda w: w.with_block(2, pending="B")),
                (3, "A", lambda w: w.with_block(3, pending="A")),
            )
        ),
    ),
    "a_key_tells_the_content": (
        (two, lambda w: w.with_block(1, content=OTHER), lambda w: [Broken(1, w.key(1), OTHER)]),
        (
            flying,
            lambda w: w.with_block(2, pending=None, content=OTHER),
            lambda w: [Broken(2, w.key(2), OTHER)],
        ),
    ),
    "a_writer_owns_its_block": (
        (flying, lambda w: w.with_block(3, key=OTHER), said(Broken(3, "A", "1 holders"))),
        (flying, lambda w: w.with_block(2, pending="B"), said(Broken(2, "A", "B"))),
        (flying, lambda w: w.with_block(2, pending=None), said(Broken(2, "A", "1 holders"))),
        (flying, lambda w: w.state._replace(loose=(3,)), said(Broken(3, "A", "2 holders"))),
        (
            flying,
            lambda w: w.with_request("A", table=(1, 2, NULL)),
            said(Broken(NULL, "A", "0 holders")),
        ),
        (
            flying,
            lambda w: w.with_request("A", table=(1, 2)),
            said(Broken(None, "5 slots for A", 4)),
        ),
    ),
    "a_request_reads_its_own_prefix": (
        (flying, lambda w: w.with_block(1, content=OTHER), lambda w: [Broken(1, w.key(1), OTHER)]),
        (flying, lambda w: w.with_block(1, content=None), lambda w: [Broken(1, w.key(1), None)]),
        (
            flying,
            lambda w: w.with_request("A", table=(NULL, 2, 3)),
            lambda w: [Broken(NULL, w.key(1), None)],
        ),
        (
            flying,
            lambda w: w.with_block(1, content=None, key=OTHER, pending="B"),
            lambda w: [Broken(1, w.key(1), None)],
        ),
        (
            windowed,
            lambda w: w.with_block(2, content=OTHER),
            lambda w: [Broken(2, w.key(2), OTHER)],
        ),
        (whole, lambda w: w.with_block(1, content=OTHER), lambda w: [Broken(1, w.key(1), OTHER)]),
        (
            flying,
            lambda w: w.with_request("A", salt="x"),
            lambda w: [Broken(1, Key(None, (97, 98), (("salt", "x"),)), w.key(1))],
        ),
    ),
    "unconfirmed_tokens_are_never_sealed": (
        (
            two,
            lambda w: w.with_request("A", num_cached=2),
            said(Broken(None, "1 full blocks", "2 sealed")),
        ),
        (two, lambda w: w.with_block(2, key=OTHER), said(Broken(2, "1 full blocks", OTHER))),
        (
            two,
            lambda w: w.with_request("B", tokens=(97,)),
            lambda w: [
                Broken(1, "0 full blocks", w.key(1)),
                Broken(None, "0 full blocks", "1 sealed"),
            ],
        ),
    ),
    "the_cache_is_prefix_closed": (
        (
            idle,
            lambda w: w.with_pool(by_key=w.state.pool.by_key.without(w.key(1))),
            lambda w: [Broken(2, w.key(1), None)],
        ),
    ),
    "skipped_positions_show_null": (
        (two, lambda w: w.with_request("A", table=(NULL, 2)), said(Broken(NULL, (0, 0), [0]))),
        (windowed, lambda w: w.with_request("A", table=(1, 2, 3)), said(Broken(NULL, (1, 1), []))),
        (
            windowed,
            lambda w: w.with_request("A", table=(NULL, NULL, 3)),
            said(Broken(NULL, (1, 1), [0, 1])),
        ),
        (
            windowed,
            lambda w: w.with_request("A", table=(1, NULL, 3)),
            said(Broken(NULL, (1, 1), [1])),
        ),
    ),
    "an_idle_pool_is_whole": (
        (idle, lambda w: w.with_pool(queue=(3, 2)), said(Broken(None, 3, 2))),
        (idle, lambda w: w.with_pool(queue=(3, 2, 1, 1)), said(Broken(None, 3, 4))),
    ),
}


def test_every_property_of_a_state_is_violated_here() -> None:
    """A new property needs a state that breaks it: one that is always true says nothing."""
    assert set(VIOLATIONS) == {p.name for p in REGISTRY.values() if p.kind == "state"}


CASES = [(name, wrong) for name, wrongs in VIOLATIONS.items() for wrong in wrongs]


@pytest.mark.parametrize(("name", "wrong"), CASES, ids=[name for name, _ in CASES])
def test_a_violation_is_seen_and_its_original_is_not(world: World, name: str, wrong: Wrong) -> None:
    """The predicate names the block, what it should be, and what it is."""
    make, change, told = wrong
    w = make(world)
    assert w.broken() == []
    bad, expected = change(w), list(told(w))
    assert list(REGISTRY[name].check(bad)) == expected
    assert [found for by, found in broken(bad) if by == name] == expected


def test_the_prefix_of_a_windowed_cache_may_have_holes(world: World) -> None:
    """With a window a parent leaves first, which is no violation."""
    w = world(2, sliding_window=2)
    w.add("A", "abcdef")
    for _ in range(3):
        w.allocate("A", 2)
        w.run()
    parents = [key.parent for key in w.state.pool.by_key if key.parent]
    assert any(not w.state.pool.copies(parent) for parent in parents)
    assert w.broken() == []
