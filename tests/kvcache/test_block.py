"""A block is a thin object whose state follows from its count and key."""

import pytest

from kvcache import BlockState, KVCacheBlock


@pytest.mark.parametrize(
    ("ref_cnt", "key", "state"),
    [
        (0, None, BlockState.FREE),
        (0, b"k", BlockState.FREE_CACHED),
        (1, None, BlockState.IN_USE),
        (1, b"k", BlockState.IN_USE_CACHED),
        (2, b"k", BlockState.SHARED),
        (3, b"k", BlockState.SHARED),
    ],
)
def test_the_state_follows_from_count_and_key(
    ref_cnt: int, key: bytes | None, state: BlockState
) -> None:
    """Chapter 5.2.3 names five states; each is a pair of count and key."""
    block = KVCacheBlock(7)
    block.ref_cnt = ref_cnt
    block.block_hash = key
    assert block.state is state


def test_null_is_a_mark_and_not_a_number() -> None:
    """A block is null because it is marked, whatever its id."""
    block = KVCacheBlock(3)
    block.is_null = True
    assert block.state is BlockState.NULL
    assert KVCacheBlock(0).state is BlockState.FREE


def test_blocks_are_compared_by_identity() -> None:
    """Two objects with one id are two blocks."""
    assert KVCacheBlock(1) != KVCacheBlock(1)


def test_a_block_has_no_other_attributes() -> None:
    """Slots keep the object thin."""
    with pytest.raises(AttributeError):
        KVCacheBlock(1).token_ids = [1]  # type: ignore[attr-defined]  # the refusal is the fact


def test_a_repr_shows_neighbours_by_id() -> None:
    """A repr does not follow the links of the queue."""
    one, other = KVCacheBlock(1), KVCacheBlock(2)
    one.next_free_block, other.prev_free_block = other, one
    one.block_hash = bytes(32)
    assert repr(one) == (
        "KVCacheBlock(block_id=1, ref_cnt=0, state=FREE_CACHED, block_hash=00000000, "
        "prev=None, next=2)"
    )
