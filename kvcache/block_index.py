"""`BlockIndex`: which blocks carry a key, in the order in which they were sealed.

The idea. Two requests that compute the same prefix in the same step seal two blocks with one key.
Both are kept, because a block table never changes behind a request's back, and a look-up returns
the one sealed first. Nearly always a key has a single block, so a plain dict from key to first
block answers every look-up, and only a key with several blocks has an entry in a second dict, which
lists them all in order. When the first goes, the next in order becomes the first. Every operation
is O(1); the lists are `OrderedDict`s because the oldest entry of a plain dict that loses its oldest
entries again and again is found by a scan. Rejected: a dict of dicts, which costs an allocation for
each block and a second look-up for each hit.

Keys are never changed here; the block pool sets and clears `block_hash`. Chapter 5.3.2 and 5.5.3.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvcache.block import KVCacheBlock
    from kvcache.hashing import BlockHash


class BlockIndex:
    """The sealed blocks by key.

    `first(key)` is the block that was sealed first among those that carry the key, or None. It is
    bound to the dict's own method, because it is called once for every block of every look-up.
    """

    __slots__ = ("_copies", "_first", "first")

    def __init__(self) -> None:
        self._first: dict[BlockHash, KVCacheBlock] = {}
        self._copies: dict[BlockHash, OrderedDict[int, KVCacheBlock]] = {}
        self.first: Callable[[BlockHash], KVCacheBlock | None] = self._first.get

    def add(self, block: KVCacheBlock) -> None:
        """The block is listed under the key that it carries, after the others."""
        self.add_n((block,))

    def add_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Each block is listed under the key that it carries, in the order given."""
        setdefault = self._first.setdefault
        for block in blocks:
            key = block.block_hash
            assert key is not None, f"block {block.block_id} has no key to be listed under"
            first = setdefault(key, block)
            if first is not block:
                copies = self._copies.get(key)
                if copies is None:
                    copies = self._copies[key] = OrderedDict({first.block_id: first})
                copies[block.block_id] = block

    def discard(self, block: KVCacheBlock) -> None:
        """The block is no longer listed; its key goes with the last block that carries it."""
        key = block.block_hash
        assert key is not None, f"block {block.block_id} has no key to be listed under"
        copies = self._copies.get(key)
        if copies is None:
            first = self._first.get(key)
            assert first is block, f"key of block {block.block_id} is listed for {first!r} only"
            del self._first[key]
            return
        assert copies.get(block.block_id) is block, (
            f"block {block.block_id} is not among the copies {list(copies)} of its key"
        )
        del copies[block.block_id]
        self._first[key] = next(iter(copies.values()))
        if len(copies) == 1:
            del self._copies[key]

    def copies(self, key: BlockHash) -> tuple[KVCacheBlock, ...]:
        """All blocks that carry the key, in the order of sealing."""
        copies = self._copies.get(key)
        if copies is not None:
            return tuple(copies.values())
        first = self._first.get(key)
        return () if first is None else (first,)

    def clear(self) -> None:
        """Nothing is listed any more."""
        self._first.clear()
        self._copies.clear()

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[BlockHash]:
        return iter(self._first)

    def check(self, blocks: Iterable[KVCacheBlock]) -> None:
        """The index lists exactly the keys that `blocks` carry; AssertionError says where not."""
        carried: dict[BlockHash, set[KVCacheBlock]] = {}
        for block in blocks:
            if block.block_hash is not None:
                carried.setdefault(block.block_hash, set()).add(block)
        for key in self:
            listed = self.copies(key)
            assert set(listed) == carried.get(key, set()), (
                f"the index lists {[b.block_id for b in listed]} under a key that "
                f"{sorted(b.block_id for b in carried.get(key, ()))} carry"
            )
            assert listed[0] is self._first[key], (
                f"block {self._first[key].block_id} is found first and "
                f"block {listed[0].block_id} was sealed first"
            )
        assert len(self) == len(carried), (
            f"{len(carried)} keys are carried by blocks and {len(self)} are listed"
        )
        for key, copies in self._copies.items():
            assert len(copies) > 1, f"a list of copies has {len(copies)} entry"
            assert key in self._first, f"copies {list(copies)} are listed and cannot be found"
