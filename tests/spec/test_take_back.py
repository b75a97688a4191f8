"""What was published and never written is taken back, unless somebody relies on it already."""

from collections.abc import Callable
from typing import Any

import pytest

from spec.state import Block, Key

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Chain = Callable[..., tuple[Key, ...]]


@pytest.fixture
def w(world: World) -> Scene:
    """Return a world in which A computed its first block, and its second is pending."""
    w = world(6)
    w.add("A", "abcde")
    w.admit("A", 2)
    w.run()
    w.allocate("A", 2)
    return w


@pytest.mark.parametrize("action", ["free", "preempt", "finish"])
def test_an_abandoned_step_takes_its_blocks_back(w: Scene, chain: Chain, action: str) -> None:
    """The written block stays cached, the pending one is free and cannot be found."""
    first, second = chain("abcd")
    assert w.state.pool.blocks[2] == Block(1, second, None, "A")
    assert w(action, rid="A") is None
    assert w.state.pool.blocks[1:3] == (Block(0, first, first), Block())
    assert (w.state.pool.by_key, w.state.pool.queue) == ({first: (1,)}, (3, 4, 5, 6, 2, 1))
    assert w.broken() == []


def test_within_one_step_a_pending_block_is_a_hit(w: Scene) -> None:
    """A step writes all its slots before it attends, so its requests may share what it fills."""
    w.add("B", "abcdx")
    assert (w.look("B"), w.admit("B")) == ((1, 2), (3,))
    w.run()
    assert w.broken() == []


def test_a_pending_block_that_others_hold_cannot_be_taken_back(w: Scene) -> None:
    """The refusal names block, writer and all holders; the latest scheduled is given up first."""
    for rid in "CB":
        w.add(rid, "abcdx")
        w.admit(rid)
    values = {"block": 2, "writer": "A", "holders": ["A", "B", "C"]}
    for action in ("free", "preempt", "finish"):
        assert w.refused(action, rid="A") == ("pending_block_is_shared", values)
    for rid in "BCA":
        assert w("preempt", rid=rid) is None
    assert len(w.state.pool.queue) == 6
    assert w.broken() == []


def test_once_the_step_has_run_sharing_is_no_obstacle(w: Scene) -> None:
    """A settled block is everybody's."""
    w.add("B", "abcdx")
    w.admit("B")
    w.run()
    w.end("A")
    assert (w.state.pool.blocks[2].ref_cnt, w.state.pool.blocks[2].pending) == (1, None)
    assert w.broken() == []


def test_hits_are_never_taken_back(w: Scene, chain: Chain) -> None:
    """An admission that is given up before it ran leaves what it found as it found it."""
    w.run()
    w.end("A")
    w.add("B", "abcdx")
    w.admit("B")
    before = w.state.pool.by_key
    w("preempt", rid="B")
    assert before == w.state.pool.by_key
    assert {key: w.state.pool.copies(key) for key in chain("abcd")} == before
    assert w.broken() == []


def test_a_preempted_request_counts_its_hits_anew(w: Scene) -> None:
    """What it sealed before its current admission is a hit now, and stays."""
    w.run()
    w("preempt", rid="A")
    assert w.admit("A") == (3,)
    assert w.state.requests["A"].num_hits == 2
    w("preempt", rid="A")
    assert w.look("A") == (1, 2)
    assert w.broken() == []


def test_of_two_copies_only_the_pending_one_goes(world: World, chain: Chain) -> None:
    """An abandoned duplicate leaves the other copy findable."""
    w = world(6)
    for rid in "AB":
        w.add(rid, "ab")
        w.allocate(rid, 2)
    assert list(w.state.pool.by_key.values()) == [(1, 2)]
    w("preempt", rid="A")
    assert w.state.pool.by_key == {chain("ab")[0]: (2,)}
    w.run()
    assert w.broken() == []


def test_a_block_of_accepted_drafts_is_never_pending(world: World) -> None:
    """It is sealed when it is already written, so giving up the next step leaves it cached."""
    w = world(4)
    w.add("A", "a")
    w("propose", rid="A", drafts=(98,))
    w.allocate("A", 2)
    w.run(A=(1, "c"))
    w.allocate("A", 1)
    assert w.state.pool.blocks[1].pending is None
    w("preempt", rid="A")
    assert w.look("A") == (1,)
    assert w.broken() == []
