"""Cases 3 to 21: double releases, negative counts, aliased blocks, blocks that never come back."""

from collections.abc import Callable
from typing import Any

import pytest

from conformance.lockstep import Divergence

Pool = Callable[..., Any]


def test_case_03_a_block_released_twice_in_one_call_enters_the_queue_once(pool: Pool) -> None:
    """The free counter is the number of distinct linked blocks, whatever one call names twice."""
    scene = pool(4)
    assert scene.take(3) == (1, 2, 3)
    scene.seal(1, "ab")
    scene.touch(1)
    assert scene.held == {1: 2, 2: 1, 3: 1}
    scene.drop(1, 1, 2)
    assert scene.queue == [4, 1, 2]
    assert scene.seen.num_free == 3


def test_case_03_one_release_too_many_is_refused_before_the_first(pool: Pool) -> None:
    """A call that names a block more often than it is held changes nothing."""
    scene = pool(3)
    scene.take(2)
    assert scene.refusal(scene.drop, 2, 1, 1) == "released_more_often_than_held"
    assert scene.held == {1: 1, 2: 1}
    assert scene.queue == [3]


def test_case_04_null_is_skipped_and_a_repeat_is_refused(pool: Pool) -> None:
    """A table full of nulls and repeats never queues null, nor a block twice."""
    scene = pool(3)
    scene.take(3)
    assert scene.refusal(scene.drop, 0, 3, 0, 3) == "released_more_often_than_held"
    assert scene.held == {1: 1, 2: 1, 3: 1}
    scene.drop(0, 3, 0)
    assert scene.queue == [3]
    scene.seal(2, "ab")
    scene.touch(0, 2, 0)
    scene.drop(0, 2, 0, 2)
    assert scene.queue == [3, 2]


def test_case_04_a_window_table_full_of_nulls_frees_its_real_blocks_once(pool: Pool) -> None:
    """The nulls that a window leaves in a table are not released with it."""
    scene = pool(4, window=3)
    scene.play("new(A,abcdef,says=g); gen(A)")
    assert scene.table("A") == [0, 0, 3, 4]
    scene.free("A")
    assert scene.queue == [2, 1, 4, 3]


def test_case_06_a_second_free_of_a_request_does_nothing(any_pool: Pool) -> None:
    """A request that was freed takes no block from whoever got its blocks since."""
    scene = any_pool(3)
    scene.play("new(A,abc); release(A)")
    queue = scene.queue
    scene.release("A")
    assert scene.queue == queue == [3, 2, 1]
    assert scene.new("B", "wxyzv").new == (3, 2, 1)
    scene.release("A")
    assert scene.held == {1: 1, 2: 1, 3: 1}
    scene.free("A")
    assert scene.table("B") == [3, 2, 1]


def test_case_07_each_holder_of_one_content_releases_its_own_copy(any_pool: Pool) -> None:
    """Two blocks with one key are counted apart, so the next two blocks are distinct."""
    scene = any_pool(3)
    scene.play("new(A,ab); new(B,ab)")
    assert (scene.table("A"), scene.table("B"), scene.sealed) == ([1], [2], [1, 2])
    assert scene.adm("C", "abc") == ((1,), (3,))
    assert scene.held == {1: 2, 2: 1, 3: 1}
    scene.free("B", "C")
    assert (scene.held, scene.queue) == ({1: 1}, [2, 3])
    assert scene.new("D", "wxyz").new == (2, 3)


def test_case_09_a_slot_that_was_never_computed_is_released_once(any_pool: Pool) -> None:
    """A request that ends between the allocation and the run of a decode step leaks nothing."""
    scene = any_pool(3)
    scene.play("new(A,abc,says=d); adm(A)")
    assert (scene.table("A"), scene.sealed) == ([1, 2], [1, 2])
    scene.free("A")
    assert (scene.queue, scene.sealed, scene.held) == ([3, 2, 1], [1], {})
    assert scene.look("B", "abcdx") == (1,)


def test_case_09_a_token_without_a_slot_needs_no_release(any_pool: Pool) -> None:
    """The last sampled token may have no block yet; its confirmation seals nothing."""
    scene = any_pool(3)
    scene.play("new(A,ab,says=c); free(A)")
    assert (scene.queue, scene.sealed) == ([2, 3, 1], [1])


@pytest.mark.parametrize(
    ("position", "named"), [(1, "ref_cnt_counts_the_holders"), (0, "positions_never_move")]
)
def test_case_10_an_aliased_block_is_seen_although_the_sums_balance(
    unchecked_pool: Pool, position: int, named: str
) -> None:
    """Membership is compared block by block: totals of free and held blocks miss an alias.

    B's table gets A's block behind the checker's back, at its end or in place of its own block.
    The latter also moves a position, and that is the name it gets.
    """
    scene = unchecked_pool(4)
    scene.play("new(A,abc); new(B,wx)")
    table = scene.manager._admissions["B"].table
    table[position:] = [scene.manager.block_pool.blocks[1]]
    assert len(scene.queue) + len(scene.held) == 4
    with pytest.raises(Divergence, match="block=") as seen:
        scene.look("C", "q")
    assert seen.value.property == named


def test_case_11_a_block_comes_back_with_one_reference(any_pool: Pool) -> None:
    """A pool of one block serves one request after the other."""
    scene = any_pool(1)
    for rid in "AB":
        assert scene.new(rid, "a").new == (1,)
        assert scene.held == {1: 1}
        scene.free(rid)


@pytest.mark.parametrize("window", [None, 3])
def test_case_16_chunks_that_end_inside_a_block_leak_nothing(
    pool: Pool, window: int | None
) -> None:
    """Known tokens and sealed blocks are two lengths: 3 of 5 tokens are one sealed block."""
    scene = pool(4, window=window)
    scene.play("new(A,abcde,tokens=3)")
    assert (scene.table("A"), scene.sealed) == ([1, 2], [1])
    scene.new("A")
    assert (scene.table("A"), scene.sealed) == ([1, 2, 3], [1, 2])
    scene.free("A")
    assert (scene.held, scene.queue) == ({}, [4, 3, 2, 1])


def test_case_19_eviction_never_frees_a_block_that_somebody_holds(any_pool: Pool) -> None:
    """The end of one holder takes one reference, and pressure takes none."""
    scene = any_pool(4)
    scene.play("new(A,abc); new(B,abd)")
    assert scene.held == {1: 2, 2: 1, 3: 1}
    scene.free("A")
    assert (scene.held[1], scene.queue) == (1, [4, 2])
    assert scene.new("C", "wxyz").new == (4, 2)
    assert scene.adm("D", "q").new is None
    assert scene.table("B") == [1, 3]
    scene.free("B")
    assert scene.queue == [3, 1]


def test_case_21_three_meters_tell_held_from_cached_from_empty(any_pool: Pool) -> None:
    """After distinct prompts have drained nothing is held, and no hit is not no cache."""
    scene = any_pool(8)
    for rid, text in zip("ABCD", ("abc", "def", "ghi", "jkl"), strict=True):
        scene.new(rid, text)
        assert scene.meters.live == 2
        scene.free(rid)
        assert sum(scene.meters) == 8
    assert scene.meters == (0, 4, 4)
    assert scene.manager.usage == 0
    stats = scene.manager.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (4, 4, 0)


def test_case_21_the_tail_of_a_freed_table_is_evicted_before_its_head(any_pool: Pool) -> None:
    """A release in forward order would hide until a third request needs what is left."""
    scene = any_pool(3)
    scene.play("new(A,abcde); free(A)")
    assert scene.queue == [3, 2, 1]
    scene.play("new(C,wxyz); free(C)")
    assert scene.new("B", "abcdf").hits == (1,)
