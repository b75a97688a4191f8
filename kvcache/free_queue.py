"""`FreeKVCacheBlockQueue`: idle blocks, least recently released first.

The idea. The queue is at once the pool of free blocks, the order of use, and the order of eviction:
its head is the next victim, whether it carries a key or not. A hit takes a block out of the middle,
so the queue is a doubly linked list; the links live in the blocks, so no node is ever allocated.
Every operation is O(1) a block, and the bulk forms are one pass.

The list is a ring closed by one block of its own, which is never handed out. Every queued block
then has two neighbours: splicing needs no test for the ends, and "has links" and "is in the queue"
are one fact, also for a queue of one. Rejected: bare head and tail pointers (a queue of one has no
links, so a second test is needed to know that it is queued), `collections.deque` (no removal in the
middle) and `OrderedDict` (a node and a hash for each block).

A count stands beside the ring because a scheduler asks for it at every step; `check` compares the
two. Misuse is found before anything changes. What cannot be seen here is a block that is queued in
*another* queue: a pool therefore refuses foreign blocks before it comes here. Chapter 5.3.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from kvcache.block import KVCacheBlock
from kvcache.errors import AlreadyInFreeQueue, NegativeBlockCount, NotEnoughBlocks, NotInFreeQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_RING_ID = -1


class FreeKVCacheBlockQueue:
    """A queue of blocks with removal anywhere; `num_free_blocks` counts them (chapter 5.3.1)."""

    __slots__ = ("_ring", "num_free_blocks")

    def __init__(self, blocks: Sequence[KVCacheBlock] = ()) -> None:
        ring = KVCacheBlock(_RING_ID)
        ring.prev_free_block = ring.next_free_block = ring
        self._ring = ring
        self.num_free_blocks = 0
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """The head, taken out; `NotEnoughBlocks` when the queue is empty."""
        return self.popleft_n(1)[0]

    def popleft_n(self, num_blocks: int) -> list[KVCacheBlock]:
        """The first `num_blocks` blocks, taken out in order.

        Raises `NegativeBlockCount` below 0 and `NotEnoughBlocks` above `num_free_blocks`.
        """
        if num_blocks < 0:
            raise NegativeBlockCount(wanted=num_blocks)
        if num_blocks > self.num_free_blocks:
            raise NotEnoughBlocks(wanted=num_blocks, free=self.num_free_blocks)
        ring = self._ring
        block = ring.next_free_block
        popped: list[KVCacheBlock] = []
        for _ in repeat(None, num_blocks):
            assert block is not None, f"the free queue ends after {len(popped)} of {num_blocks}"
            popped.append(block)
            following = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = following
        assert block is not None, f"the free queue is open after {num_blocks} blocks"
        ring.next_free_block = block
        block.prev_free_block = ring
        self.num_free_blocks -= num_blocks
        return popped

    def append(self, block: KVCacheBlock) -> None:
        """The block becomes the tail; `AlreadyInFreeQueue` when it is queued."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """The blocks follow the tail in the order given.

        Raises `AlreadyInFreeQueue` for a block that is queued or named twice.
        """
        for block in blocks:
            if block.prev_free_block is not None:
                raise AlreadyInFreeQueue(block_id=block.block_id)
        if len(set(blocks)) != len(blocks):
            raise AlreadyInFreeQueue(block_id=_first_repeat(blocks).block_id)
        ring = self._ring
        last = ring.prev_free_block
        assert last is not None, "the ring of the free queue is open at its tail"
        for block in blocks:
            last.next_free_block = block
            block.prev_free_block = last
            last = block
        last.next_free_block = ring
        ring.prev_free_block = last
        self.num_free_blocks += len(blocks)

    def remove(self, block: KVCacheBlock) -> None:
        """The block is taken out wherever it stands; `NotInFreeQueue` when it is not queued."""
        self.remove_n((block,))

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """The blocks are taken out wherever they stand.

        Raises `NotInFreeQueue` for a block that is not queued or named twice.
        """
        for block in blocks:
            if block.prev_free_block is None:
                raise NotInFreeQueue(block_id=block.block_id)
        if len(set(blocks)) != len(blocks):
            raise NotInFreeQueue(block_id=_first_repeat(blocks).block_id)
        for block in blocks:
            before, after = block.prev_free_block, block.next_free_block
            assert before is not None, f"block {block.block_id} has no predecessor"
            assert after is not None, f"block {block.block_id} has no successor"
            before.next_free_block = after
            after.prev_free_block = before
            block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= len(blocks)

    @property
    def head(self) -> KVCacheBlock | None:
        """The next victim, or None when the queue is empty."""
        return self._ring.next_free_block if self.num_free_blocks else None

    @property
    def tail(self) -> KVCacheBlock | None:
        """The block that joined last, or None when the queue is empty."""
        return self._ring.prev_free_block if self.num_free_blocks else None

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All queued blocks, the next victim first; O(n)."""
        return self._walk(lambda block: block.next_free_block)

    def check(self) -> None:
        """Both walks agree with each other and with the count; AssertionError says where not."""
        forward = self.get_all_free_blocks()
        backward = self._walk(lambda block: block.prev_free_block)
        assert forward == backward[::-1], (
            f"the free queue is {[block.block_id for block in forward]} forward and "
            f"{[block.block_id for block in backward]} backward"
        )
        assert len(forward) == self.num_free_blocks, (
            f"the free queue links {len(forward)} blocks and counts {self.num_free_blocks}"
        )

    def _walk(self, follow: Callable[[KVCacheBlock], KVCacheBlock | None]) -> list[KVCacheBlock]:
        """The blocks in the order of one direction; a walk that never comes home is an error."""
        walked: list[KVCacheBlock] = []
        seen: set[KVCacheBlock] = set()
        block = follow(self._ring)
        while block is not self._ring:
            assert block is not None, (
                f"the free queue breaks off after {[b.block_id for b in walked[-3:]]}"
            )
            assert block not in seen, f"the free queue comes back to block {block.block_id}"
            seen.add(block)
            walked.append(block)
            block = follow(block)
        return walked


def _first_repeat(blocks: Sequence[KVCacheBlock]) -> KVCacheBlock:
    """The first block of the list, which names one twice, that stands in it before."""
    seen: set[KVCacheBlock] = set()
    for block in blocks:
        if block in seen:
            break
        seen.add(block)
    return block
