"""Cases 13, 15 and 23: what is left behind by a call that answered no."""

from collections.abc import Callable
from typing import Any

import pytest

Pool = Callable[..., Any]


def test_case_13_a_request_that_was_not_admitted_has_no_blocks(any_pool: Pool) -> None:
    """A refused request holds nothing and its hit keeps the count that it had."""
    scene = any_pool(3)
    assert scene.new("A", "abcde").new == (1, 2, 3)
    assert scene.adm("B", "abq") == ((1,), None)
    assert scene.table("B") == []
    assert scene.held == {1: 1, 2: 1, 3: 1}


def test_case_15_a_request_that_tries_again_and_again_loses_nothing(any_pool: Pool) -> None:
    """Hits are the first resource and new blocks the second: without the second, none is taken."""
    scene = any_pool(5)
    scene.play("new(Z,yz); new(A,abcde); free(A)")
    queue = scene.queue
    assert queue == [5, 4, 3, 2]
    for _ in range(5):
        assert scene.adm("B", "abcdefghi") == ((2, 3), None)
        assert (scene.queue, scene.held) == (queue, {1: 1})
    scene.free("Z")
    assert scene.adm("B", "abcdefghi") == ((2, 3), (5, 4, 1))


def test_case_15_what_the_window_gave_back_stays_released_when_the_call_says_no(
    pool: Pool,
) -> None:
    """The one change that a refusal leaves is the release of blocks that nobody reads."""
    scene = pool(4, window=3)
    scene.play("new(A,abcdef,says=g); adm(B,wx)")
    assert scene.table("A") == [1, 2, 3]
    assert scene.adm("A", lookahead=5).new is None
    assert (scene.table("A"), scene.queue, scene.held) == ([0, 0, 3], [2, 1], {3: 1, 4: 1})
    assert scene.gen("A").new == (2,)


@pytest.mark.parametrize("tries", [1, 3])
def test_case_23_a_refusal_with_idle_hits_touches_none_of_them(any_pool: Pool, tries: int) -> None:
    """Idle hits are charged before they are touched: 2 hits and 2 new blocks are 4, not 2."""
    scene = any_pool(4)
    scene.play("new(Z,z); new(A,abcde); free(A)")
    assert scene.queue == [4, 3, 2]
    for _ in range(tries):
        assert scene.adm("B", "abcdfgh") == ((2, 3), None)
        assert (scene.queue, scene.held) == ([4, 3, 2], {1: 1})
    assert scene.table("B") == []
