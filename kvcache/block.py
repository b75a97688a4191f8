"""`KVCacheBlock`, the metadata of one physical block of the key-value cache.

A pool makes one object per block id and keeps it for life, so identity is the comparison and a
table may hold the objects themselves. The object holds no token data. Its links belong to the free
queue, its reference count and key to the block pool. Chapter 5.2.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache.hashing import BlockHash


class BlockState(Enum):
    """The states of a block, derived from its reference count and key (chapter 5.2.3)."""

    FREE = "FREE"
    FREE_CACHED = "FREE_CACHED"
    IN_USE = "IN_USE"
    IN_USE_CACHED = "IN_USE_CACHED"
    SHARED = "SHARED"
    NULL = "NULL"


class KVCacheBlock:
    """One physical block: who it is, how many hold it, what it contains, where it is queued.

    `ref_cnt` counts references and is not kept for the null block. `block_hash` is the key of a
    full, sealed block. A block with links is in the free queue, one without is not.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "is_null",
        "next_free_block",
        "prev_free_block",
        "ref_cnt",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHash | None = None
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None
        self.is_null = False

    @property
    def state(self) -> BlockState:
        """The state that reference count and key amount to."""
        if self.is_null:
            return BlockState.NULL
        if self.ref_cnt > 1:
            return BlockState.SHARED
        if self.ref_cnt == 1:
            return BlockState.IN_USE if self.block_hash is None else BlockState.IN_USE_CACHED
        return BlockState.FREE if self.block_hash is None else BlockState.FREE_CACHED

    def __repr__(self) -> str:
        # Neighbours are shown by id: a repr that followed the links would print the whole queue.
        before, after = self.prev_free_block, self.next_free_block
        return (
            f"KVCacheBlock(block_id={self.block_id}, ref_cnt={self.ref_cnt}, "
            f"state={self.state.value}, block_hash={_short(self.block_hash)}, "
            f"prev={before and before.block_id}, next={after and after.block_id})"
        )


def _short(key: BlockHash | None) -> str:
    return key.hex()[:8] if isinstance(key, bytes) else repr(key)
