"""Cases 31 to 37: index entries and keys that outlive what they name."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from kvcache import PoolListener

Pool = Callable[..., Any]


def test_case_31_a_recycled_block_is_not_found_by_its_old_key(any_pool: Pool) -> None:
    """The index entry of a block goes when the block is handed out."""
    scene = any_pool(2)
    scene.play("new(A,abc); free(A); new(C,wxyz); free(C)")
    assert scene.look("D", "abq") == ()
    assert scene.look("E", "wxq") == (2,)


def test_case_32_a_recycled_block_is_unwritten_until_its_new_owner_ran(any_pool: Pool) -> None:
    """A hit on a new key is legal within its step; when the step is abandoned it is a miss."""
    scene = any_pool(2)
    scene.play("new(A,abc); free(A); adm(C,wxyz)")
    assert scene.table("C") == [2, 1]
    assert scene.look("D", "wxq") == (2,)
    scene.free("C")
    assert scene.look("D") == ()
    assert scene.sealed == []


@pytest.mark.parametrize("text", ["abq", "abcdq"])
def test_case_33_the_key_stays_at_free_and_goes_at_recycling(any_pool: Pool, text: str) -> None:
    """Deleting keys at `free` would cure the stale index and destroy all reuse."""
    scene = any_pool(3)
    scene.play("new(A,abcd); free(A)")
    num_keys = (len(text) - 1) // 2
    assert scene.look("B", text) == (1, 2)[:num_keys]
    scene.new("C", "vwxyz")
    assert scene.table("C") == [3, 2, 1]
    assert scene.look("B") == ()


def test_case_35_a_reused_block_has_no_key_until_it_is_sealed_again(any_pool: Pool) -> None:
    """The key of a block is cleared with its index entry, so having a key tells something."""
    scene = any_pool(1)
    scene.play("new(A,ab); free(A)")
    assert scene.sealed == [1]
    scene.new("B", "x", says="y")
    assert (scene.table("B"), scene.sealed) == ([1], [])
    scene.gen("B")
    assert scene.sealed == [1]
    scene.free("B")
    assert scene.look("C", "abq") == ()
    assert scene.look("D", "xyq") == (1,)


def test_case_37_a_hit_block_is_not_sealed_again(any_pool: Pool) -> None:
    """Sealing starts at the first full block without a key: one hit and one more is one seal."""
    scene = any_pool(4)
    scene.play("new(A,abc); free(A)")
    listener = scene.manager.block_pool.listener = Mock(spec=PoolListener)
    assert scene.new("B", "abcd").hits == (1,)
    (sealed,) = (call.args[0].block_id for call in listener.seal.call_args_list)
    assert sealed == scene.table("B")[1] == 3
