"""Cases 60 and 61: contents that are out of date, and a reset that says what it did."""

from collections.abc import Callable
from typing import Any

Pool = Callable[..., Any]


def test_case_60_nothing_of_before_a_reset_is_found_after_it(any_pool: Pool) -> None:
    """When the weights change, a reset makes every earlier block a miss."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A)")
    assert scene.look("B", "abq") == (1,)
    assert scene.reset()
    assert scene.look("B") == ()
    assert scene.sealed == []


def test_case_60_a_hit_from_before_a_reset_is_stale(any_pool: Pool) -> None:
    """A look-up and its admission may have a reset between them: the old answer is refused."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A); look(B,abq); reset()")
    assert scene.refusal(scene.adm, "B", hits=(1,)) == "hit_is_stale"
    assert scene.adm("B") == ((), (3, 4))


def test_case_60_the_chain_of_a_request_outlives_a_reset(any_pool: Pool) -> None:
    """A request that was preempted before the reset publishes again afterwards."""
    scene = any_pool(4)
    scene.play("new(A,abcde); pre(A); reset()")
    assert scene.new("A").hits == ()
    assert scene.look("B", "abcdq") == (4, 3)


def test_case_61_a_reset_while_a_block_is_held_changes_nothing_and_says_so(any_pool: Pool) -> None:
    """The answer is False, and whoever is running keeps what is cached."""
    scene = any_pool(4)
    scene.play("new(A,abc)")
    before = scene.seen
    assert not scene.reset()
    assert scene.seen == before
    assert scene.look("B", "abq") == (1,)


def test_case_61_a_reset_of_an_idle_pool_clears_every_key(any_pool: Pool) -> None:
    """The answer is True, no block has a key, and the queue keeps its order and all its blocks."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A)")
    assert scene.reset()
    assert (scene.sealed, scene.queue) == ([], [3, 4, 2, 1])
    assert not scene.seen.index


def test_case_61_the_null_block_does_not_count_as_used(pool: Pool) -> None:
    """The edge: a new pool and one whose tables ended in nulls are idle, one block is not."""
    scene = pool(4, window=3)
    assert scene.reset()
    scene.play("new(A,abcdef,says=g); gen(A)")
    assert scene.table("A") == [0, 0, 3, 4]
    assert not scene.reset()
    scene.free("A")
    assert scene.reset()
