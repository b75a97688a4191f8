"""With a sliding window blocks leave the front of a table, and positions stay where they are."""

from collections.abc import Callable
from typing import Any

import pytest

from spec.state import NULL
from spec.statemachine import Plan, Refused, plan_of

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]


@pytest.mark.parametrize(
    ("computed", "nulls"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 2), (7, 2), (8, 3)]
)
def test_the_next_call_releases_what_it_cannot_read(
    world: World, computed: int, nulls: int
) -> None:
    """W=3 with two tokens a block: at 3 nothing is released, at 4 the first block is."""
    w = world(8, sliding_window=3)
    w.add("A", "abcdefghi")
    w.admit("A", computed)
    table = w.table("A")
    w.run()
    assert w.table("A") == table
    w.allocate("A", 1)
    assert w.table("A")[: len(table)] == (NULL,) * nulls + table[nulls:]
    w.run()
    assert w.broken() == []


def test_a_released_block_stays_cached_and_goes_tail_first(world: World) -> None:
    """Several blocks that leave at once enter the queue from the last to the first."""
    w = world(5, sliding_window=2)
    w.add("A", "abcdef")
    w.admit("A")
    w.run(A="g")
    assert w.allocate("A", 1) == (4,)
    assert (w.table("A"), w.state.pool.queue) == ((NULL, NULL, 3, 4), (5, 2, 1))
    assert [len(copies) for copies in w.state.pool.by_key.values()] == [1, 1, 1]
    w.run()
    assert w.broken() == []


def test_what_left_the_window_stays_released_when_there_is_no_room(world: World) -> None:
    """None changes nothing else; the next try finds the blocks in the queue."""
    w = world(4, sliding_window=2)
    w.add("A", "abcdefg")
    w.admit("A", 4)
    w.run()
    w.new("B", "x")
    w.new("C", "y")
    assert w.allocate("A", 3) is None
    assert (w.table("A"), w.state.pool.queue) == ((NULL, 2), (1,))
    assert w.broken() == []
    w.end("B")
    w.end("C")
    assert w.allocate("A", 3) == (1, 3)
    assert w.broken() == []


def test_what_leaves_the_window_makes_room_in_the_same_call(world: World) -> None:
    """The pool is full, and the block that the call releases is the one that it takes."""
    w = world(2, sliding_window=2)
    w.add("A", "abcdef")
    w.allocate("A", 4)
    w.run()
    assert w.state.pool.queue == ()
    assert w.allocate("A", 1) == (1,)
    assert w.table("A") == (NULL, 2, 1)
    assert w.broken() == []


def test_a_shared_block_that_leaves_the_window_makes_no_room(world: World) -> None:
    """Its other holder keeps it out of the queue."""
    w = world(4, sliding_window=3)
    w.new("A", "abc")
    w.add("B", "abcde")
    assert (w.admit("B"), w.table("B")) == ((3, 4), (1, 3, 4))
    w.run(B="f")
    w("propose", rid="B", drafts=(1, 1))
    assert w.allocate("B", 3) is None
    assert (w.table("B"), w.state.pool.queue) == ((NULL, 3, 4), ())
    assert w.broken() == []


def test_a_mistake_releases_nothing(world: World) -> None:
    """A call that a guard refuses leaves even what has left the window."""
    w = world(4, sliding_window=2)
    w.add("A", "abcdef")
    w.admit("A", 4)
    w.run()
    assert w.refused("allocate_slots", rid="A", num_tokens=3, hits=(), num_lookahead=0) == (
        "tokens_beyond_the_request",
        {"end": 7, "known": 6},
    )
    assert w.table("A") == (1, 2)
    assert w.broken() == []


def test_a_window_lets_a_request_outgrow_the_pool(world: World) -> None:
    """Only what is needed now counts, less the nulls; a chunk that is too large is refused."""
    w = world(2, sliding_window=2)
    w.add("A", "abcdef")
    refusal = w.allocate("A", 6)
    assert isinstance(refusal, Refused)
    assert refusal.values == {"request": "A", "required": 3, "usable": 2}
    for n in (2, 1, 1, 1, 1):
        assert isinstance(w.allocate("A", n), tuple)
        w.run()
    assert w.table("A") == (NULL, NULL, 1)
    assert w.broken() == []


def test_hits_before_the_window_count_as_null(world: World) -> None:
    """They are neither touched nor counted, whatever the caller found."""
    w = world(5, sliding_window=2)
    w.new("A", "abcd")
    w.end("A")
    w.add("B", "abcdef")
    assert w.state.pool.queue == (3, 4, 5, 2, 1)
    assert plan_of(w.state, "B", 2, (1, 2), 0) == Plan(4, (NULL, 2), 1, 1, 3, 1)
    assert w.allocate("B", 2, (1, 2)) == (3,)
    assert w.table("B") == (NULL, 2, 3)
    assert w.state.pool.blocks[1].ref_cnt == 0
    assert w.broken() == []


def test_a_release_with_a_draft_outstanding_counts_written_tokens(world: World) -> None:
    """Rejected drafts were scheduled and not written, so they move no window."""
    w = world(5, sliding_window=3)
    w.add("A", "abc")
    w("propose", rid="A", drafts=(1, 2, 3))
    w.allocate("A", 6)
    w.run(A=(0, "d"))
    assert w.state.requests["A"].num_computed == 3
    w.allocate("A", 1)
    assert w.table("A") == (1, 2, 3)
    w.run(A="e")
    w.allocate("A", 1)
    assert w.table("A") == (NULL, 2, 3)
    w.run()
    assert w.broken() == []


def test_an_end_after_a_release_gives_back_the_rest(world: World) -> None:
    """The nulls of a table are nobody's, so every block is released once."""
    w = world(3, sliding_window=2)
    w.new("A", "abcd")
    w.end("A")
    w.add("B", "abcdx")
    w.admit("B")
    assert w.table("B") == (NULL, 2, 3)
    w.run()
    w.end("B")
    assert sorted(w.state.pool.queue) == [1, 2, 3]
    assert w.broken() == []
