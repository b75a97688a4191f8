"""Cases 17 and 39 to 43: keys whose content was never written, or that name half a block."""

from collections.abc import Callable
from typing import Any

import pytest

Pool = Callable[..., Any]


def test_case_17_a_request_aborted_before_compute_leaves_no_key(any_pool: Pool) -> None:
    """Blocks that were allocated and never filled go back without a key."""
    scene = any_pool(3)
    scene.play("adm(A,abcd)")
    assert scene.sealed == [1, 2]
    scene.free("A")
    assert (scene.sealed, scene.queue) == ([], [3, 2, 1])
    assert scene.look("B", "abcd") == ()


@pytest.mark.parametrize("leave", ["free", "pre"])
def test_case_39_only_the_part_that_ran_is_found_after_a_cancel(any_pool: Pool, leave: str) -> None:
    """Of two chunks the first ran: its block stays cached, and that of the second does not."""
    scene = any_pool(4)
    scene.play(f"new(A,abcde,tokens=2); adm(A); {leave}(A)")
    assert scene.sealed == [1]
    assert scene.look("B", "abcde") == (1,)


def test_case_39_a_batch_that_never_ran_leaves_nothing_to_find(any_pool: Pool) -> None:
    """A batch that is abandoned in reverse order of scheduling is undone completely."""
    scene = any_pool(6)
    scene.play("adm(A,abcd); adm(B,abcx); adm(C,uvwx)")
    assert scene.table("B") == [1, 3]
    scene.free("C", "B", "A")
    assert (scene.sealed, scene.held) == ([], {})
    assert scene.look("D", "abcd") == ()


def test_case_40_a_hit_within_a_step_depends_on_its_writer(any_pool: Pool) -> None:
    """A block that is filled in the same step may be shared, but its writer cannot go first.

    A step writes all its slots, layer by layer, before it attends: that is the semantics chosen.
    """
    scene = any_pool(4)
    scene.play("adm(A,abc)")
    assert scene.adm("B", "abd") == ((1,), (3,))
    assert scene.pair.state.pool.blocks[1].pending == "A"
    for leave in (scene.free, scene.pre, scene.release):
        assert scene.refusal(leave, "A") == "pending_block_is_shared"
    assert scene.held == {1: 2, 2: 1, 3: 1}
    scene.pre("B")
    scene.pre("A")
    assert (scene.held, scene.sealed) == ({}, [])


def test_case_40_the_step_settles_what_was_shared_inside_it(any_pool: Pool) -> None:
    """After the run the writer may leave and the other keeps the block."""
    scene = any_pool(4)
    scene.play("adm(A,abc); adm(B,abd); run()")
    assert scene.pair.state.pool.blocks[1].pending is None
    scene.free("A")
    assert (scene.held, scene.look("C", "abz")) == ({1: 1, 3: 1}, (1,))


def test_case_42_a_preempted_prefill_leaves_what_it_wrote_and_takes_back_the_rest(
    any_pool: Pool,
) -> None:
    """A block is in the index or was given away, never both."""
    scene = any_pool(3)
    scene.play("new(A,abcdef,tokens=4); adm(A); pre(A)")
    assert (scene.sealed, scene.queue) == ([1, 2], [3, 2, 1])
    assert scene.new("C", "wxyz").new == (3, 2)
    assert scene.look("B", "abcdq") == (1,)
    scene.free("C")
    assert scene.new("A").hits == (1,)


def test_case_42_a_preempted_first_chunk_is_a_miss_for_everybody(any_pool: Pool) -> None:
    """Publishing at scheduling and freeing at retraction would serve another request's text."""
    scene = any_pool(3)
    scene.play("adm(A,abcdef,tokens=4); pre(A); new(C,uvwxyz)")
    assert scene.look("B", "abcdq") == ()
    scene.free("C")
    assert scene.adm("A") == ((), (1, 2, 3))


def test_case_43_a_block_is_sealed_when_it_is_full_and_not_before(any_pool: Pool) -> None:
    """A half-filled block has no key; once it is full, its key says what filled it."""
    scene = any_pool(4)
    scene.new("A", "abc", says="d")
    assert scene.sealed == [1]
    scene.gen("A")
    assert scene.sealed == [1, 2]
    assert scene.new("B", "abcxy").hits == (1,)
    assert scene.look("C", "abcdy") == (1, 2)
