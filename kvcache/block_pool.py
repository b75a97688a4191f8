"""`BlockPool`: the blocks, who is free, who carries which key, and how many hold each.

This is the only file that changes a reference count or a key. Every call checks the whole of its
arguments before it changes anything, and every call costs O(blocks named), never O(pool), except
`reset_prefix_cache` and `check`. Chapter 5.2 to 5.5.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from kvcache.block import BlockState, KVCacheBlock
from kvcache.block_index import BlockIndex
from kvcache.errors import (
    AlreadySealed,
    ForeignBlock,
    InvalidPoolSize,
    ReleasedTooOften,
    SealedByMany,
    SealRangeInvalid,
    TouchedUnsealed,
    UnpublishRefused,
)
from kvcache.free_queue import FreeKVCacheBlockQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.hashing import BlockHash

logger = logging.getLogger(__name__)


class PoolListener(Protocol):
    """Somebody who is told what happened to single blocks.

    A pool call is applied completely before its first notice, and the notices of one call come in
    the order in which things happened; an eviction comes before the take that caused it.
    """

    def take(self, block: KVCacheBlock) -> None:
        """The block left the free queue for its first holder."""

    def evict(self, block: KVCacheBlock, key: BlockHash) -> None:
        """The block lost its key because it is taken."""

    def seal(self, block: KVCacheBlock, key: BlockHash) -> None:
        """The block got its key."""

    def touch(self, block: KVCacheBlock) -> None:
        """The block got one more holder."""

    def release(self, block: KVCacheBlock) -> None:
        """The block lost one holder."""

    def unpublish(self, block: KVCacheBlock, key: BlockHash) -> None:
        """The block lost its key because nobody wrote its content."""

    def reset(self) -> None:
        """All blocks lost their keys."""


class BlockPool:
    """`num_gpu_blocks` blocks, block 0 being the null block (chapter 5.3.3).

    Raises `InvalidPoolSize` below 2. `listener` may be set at any time. `num_evictions` counts the
    cached blocks that were taken since the pool was made.
    """

    def __init__(self, num_gpu_blocks: int, *, listener: PoolListener | None = None) -> None:
        if num_gpu_blocks < 2:
            raise InvalidPoolSize(num_gpu_blocks=num_gpu_blocks)
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.null_block = self.free_block_queue.popleft()
        self.null_block.is_null = True
        self.index = BlockIndex()
        self.listener = listener
        self.num_evictions = 0

    def get_cached_block(self, key: BlockHash) -> KVCacheBlock | None:
        """The block sealed first among those that carry the key, or None (chapter 5.4.2)."""
        return self.index.first(key)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """The next `num_blocks` victims, taken; one that was cached is evicted (chapter 5.3.2).

        Each has one reference, no key and unwritten content. Raises `NegativeBlockCount` below 0
        and `NotEnoughBlocks` above what is free.
        """
        taken = self.free_block_queue.popleft_n(num_blocks)
        listener = self.listener
        old_keys = [] if listener is None else [block.block_hash for block in taken]
        for block in taken:
            block.ref_cnt = 1
            if block.block_hash is not None:
                self.index.discard(block)
                block.block_hash = None
                self.num_evictions += 1
        if listener is not None:
            for block, key in zip(taken, old_keys, strict=True):
                if key is not None:
                    listener.evict(block, key)
                listener.take(block)
        return taken

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Each block, null apart, gets one more reference and is idle no longer (chapter 5.4.2).

        A block that is named twice gets two. Raises `ForeignBlock`, and `TouchedUnsealed` for a
        block without a key.
        """
        self.refuse_foreign(blocks)
        for block in blocks:
            if block.block_hash is None and not block.is_null:
                raise TouchedUnsealed(block_id=block.block_id, ref_cnt=block.ref_cnt)
        idle: list[KVCacheBlock] = []
        for block in blocks:
            ref_cnt = block.ref_cnt
            if not ref_cnt:
                # The null block's count is never raised, so it always comes this way.
                if block.is_null:
                    continue
                idle.append(block)
            block.ref_cnt = ref_cnt + 1
        self.free_block_queue.remove_n(idle)
        if self.listener is not None:
            for block in blocks:
                if not block.is_null:
                    self.listener.touch(block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Each block, null apart, loses one reference; at 0 it joins the tail (chapter 5.4.3).

        Blocks join in the order given. Raises `ForeignBlock`, and `ReleasedTooOften` when the call
        names a block more often than it is held.
        """
        blocks = list(ordered_blocks)
        self.refuse_foreign(blocks)
        for block, releases in Counter(blocks).items():
            if releases > block.ref_cnt and not block.is_null:
                raise ReleasedTooOften(
                    block_id=block.block_id, ref_cnt=block.ref_cnt, releases=releases
                )
        idle: list[KVCacheBlock] = []
        for block in blocks:
            if block.is_null:
                continue
            ref_cnt = block.ref_cnt = block.ref_cnt - 1
            if not ref_cnt:
                idle.append(block)
        self.free_block_queue.append_n(idle)
        if self.listener is not None:
            for block in blocks:
                if not block.is_null:
                    self.listener.release(block)

    def cache_full_blocks(
        self,
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        """The blocks `[num_cached_blocks:num_full_blocks]` of a table get their keys, null apart.

        `block_hashes[i]` is the key of `blocks[i]`. Raises `SealRangeInvalid` for a range outside
        table or chain, `ForeignBlock`, `AlreadySealed` for a block that has a key or stands in the
        range twice, and `SealedByMany` for one that has not exactly one holder. Chapter 5.4.1.
        """
        if not 0 <= num_cached_blocks <= num_full_blocks <= min(len(blocks), len(block_hashes)):
            raise SealRangeInvalid(
                num_cached_blocks=num_cached_blocks,
                num_full_blocks=num_full_blocks,
                num_blocks=len(blocks),
                num_keys=len(block_hashes),
            )
        full = blocks[num_cached_blocks:num_full_blocks]
        keys = block_hashes[num_cached_blocks:num_full_blocks]
        self._refuse_seal(full, num_cached_blocks)
        sealed: list[KVCacheBlock] = []
        for block, key in zip(full, keys, strict=True):
            if not block.is_null:
                block.block_hash = key
                sealed.append(block)
        self.index.add_n(sealed)
        if self.listener is not None:
            for block, key in zip(full, keys, strict=True):
                if not block.is_null:
                    self.listener.seal(block, key)

    def unpublish(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Each block loses its key, because its content was never written.

        Raises `ForeignBlock`, and `UnpublishRefused` for a block that is not IN_USE_CACHED or is
        named twice: one that others share, or that nobody holds, is not its writer's to take back.
        """
        self.refuse_foreign(blocks)
        seen: set[KVCacheBlock] = set()
        keys: list[BlockHash] = []
        for block in blocks:
            state, key = block.state, block.block_hash
            if key is None or state is not BlockState.IN_USE_CACHED or block in seen:
                now = BlockState.IN_USE if block in seen else state
                raise UnpublishRefused(block_id=block.block_id, state=now.value)
            seen.add(block)
            keys.append(key)
        for block in blocks:
            self.index.discard(block)
            block.block_hash = None
        if self.listener is not None:
            for block, key in zip(blocks, keys, strict=True):
                self.listener.unpublish(block, key)

    def reset_prefix_cache(self) -> bool:
        """All keys are forgotten and True is returned, if nothing but null is in use.

        Otherwise nothing changes, a warning says how many blocks are held, and False is returned.
        The free queue keeps its order. Chapter 5.4.5.
        """
        held = self.num_gpu_blocks - 1 - self.free_block_queue.num_free_blocks
        if held:
            logger.warning("The prefix cache is not reset: %d blocks are held; free them.", held)
            return False
        self.index.clear()
        for block in self.blocks:
            block.block_hash = None
        if self.listener is not None:
            self.listener.reset()
        return True

    def get_num_free_blocks(self) -> int:
        """The number of blocks that can be taken, cached ones included (chapter 5.4.4)."""
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """The share of the usable blocks that is held: 0 when idle, 1 when full (chapter 5.4.4)."""
        return 1 - self.free_block_queue.num_free_blocks / (self.num_gpu_blocks - 1)

    def refuse_foreign(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Every block is one of this pool's own; `ForeignBlock` names the first that is not."""
        own, size = self.blocks, self.num_gpu_blocks
        for block in blocks:
            try:
                mine = own[block.block_id] is block
            except (AttributeError, IndexError, TypeError) as error:
                raise ForeignBlock(block=block, num_gpu_blocks=size) from error
            if not mine:
                raise ForeignBlock(block=block, num_gpu_blocks=size)

    def check(self) -> None:
        """Queue, index, counts and null block agree; AssertionError says where not; O(pool)."""
        self.free_block_queue.check()
        self.index.check(self.blocks)
        free = set(self.free_block_queue.get_all_free_blocks())
        for block_id, block in enumerate(self.blocks):
            assert block.block_id == block_id, f"{block!r} stands at position {block_id}"
            linked = (block.prev_free_block is not None, block.next_free_block is not None)
            assert linked == (block in free,) * 2, f"{block!r} has links outside the free queue"
            assert block.ref_cnt >= 0, f"{block!r} has a negative count"
            if block is self.null_block:
                inert = block.is_null and not (block.ref_cnt or block.block_hash or block in free)
                assert inert, f"the null block is {block!r}, in queue: {block in free}"
                continue
            assert not block.is_null, f"{block!r} is marked null and is not the null block"
            assert (block.ref_cnt == 0) == (block in free), (
                f"{block!r} is held {block.ref_cnt} times, in queue: {block in free}"
            )
            assert block.ref_cnt <= 1 or block.block_hash is not None, f"{block!r} is not sealed"

    def _refuse_seal(self, full: Sequence[KVCacheBlock], first_position: int) -> None:
        """The blocks may be sealed; the error names the first that may not."""
        self.refuse_foreign(full)
        seen: set[KVCacheBlock] = set()
        for position, block in enumerate(full, first_position):
            if block.is_null:
                continue
            if block.block_hash is not None or block in seen:
                raise AlreadySealed(block_id=block.block_id, position=position)
            if block.ref_cnt != 1:
                raise SealedByMany(
                    block_id=block.block_id, position=position, ref_cnt=block.ref_cnt
                )
            seen.add(block)
