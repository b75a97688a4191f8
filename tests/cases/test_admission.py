"""Cases 22, 25 and 26: the order of touching and taking, and what is counted before."""

from collections.abc import Callable
from typing import Any

Pool = Callable[..., Any]


def test_case_22_a_request_does_not_evict_its_own_hit(any_pool: Pool) -> None:
    """Hits are touched before anything is taken, even when they stand at the head of the queue."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A); new(C,wxyz); free(C)")
    assert scene.queue == [2, 1, 4, 3]
    assert scene.new("B", "abpqr").hits == (1,)
    assert scene.table("B") == [1, 2, 4]


def test_case_25_nulls_in_a_window_hit_cost_nothing(pool: Pool) -> None:
    """Only real hits are charged: one idle hit and one new block fit in two free blocks."""
    scene = pool(2, window=3)
    scene.play("new(A,abcd); free(A)")
    assert scene.queue == [2, 1]
    assert scene.new("B", "abcde") == ((0, 2), (1,))
    assert scene.table("B") == [0, 2, 1]
    assert scene.held == {1: 1, 2: 1}


def test_case_26_a_hit_on_an_idle_block_keeps_its_key(any_pool: Pool) -> None:
    """A block that comes back through a hit is found again by the next request."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A)")
    assert scene.new("B", "abd").hits == (1,)
    assert scene.new("C", "abe").hits == (1,)
    assert scene.held[1] == 2


def test_case_26_idle_hits_are_charged(any_pool: Pool) -> None:
    """A pool with as many free blocks as new ones are needed is full when the hits are idle."""
    scene = any_pool(3)
    scene.play("new(A,abc); free(A); new(Z,z)")
    assert scene.adm("B", "abcde") == ((1,), None)
    assert scene.queue == [2, 1]
    assert scene.adm("C", "abc") == ((1,), (2,))


def test_case_26_a_key_published_at_allocation_goes_with_an_abort(any_pool: Pool) -> None:
    """Between allocation and run the content is not there, and after an abort nor is the key."""
    scene = any_pool(3)
    scene.play("adm(A,abc); free(A)")
    assert scene.sealed == []
    assert scene.look("B", "abd") == ()
