"""The two kinds of attention: what counts as a hit, and what a request may let go.

With full attention every later query reads every earlier position: a hit is the longest prefix of
keys that are present, and nothing is let go before the end. With a window of `W` tokens the query
at position `n` reads positions `n-W+1 .. n`: a hit needs only the blocks that the next query reads,
and a running request lets go of blocks that lie wholly before them. Positions stay put, because an
entry that is let go shows the null block. Chapter 5.7.

Both are values with the same functions, chosen once by `attention_kind`. They are not told apart
anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.block import KVCacheBlock
    from kvcache.block_pool import BlockPool
    from kvcache.config import CacheConfig
    from kvcache.hashing import BlockHash


class AttentionKind(Protocol):
    """What the manager asks of a kind of attention; sizes are in tokens unless named otherwise."""

    keeps_every_block: ClassVar[bool]
    """A request holds all its blocks until its end."""

    def num_skipped_blocks(self, num_computed_tokens: int, block_size: int) -> int:
        """The number of leading blocks that the query at `num_computed_tokens` does not read."""

    def find_longest_cache_hit(
        self, pool: BlockPool, keys: Sequence[BlockHash], num_keys: int, block_size: int
    ) -> list[KVCacheBlock]:
        """The blocks of the longest cached prefix within the first `num_keys` keys."""

    def remove_skipped_blocks(
        self,
        table: list[KVCacheBlock],
        num_computed_tokens: int,
        block_size: int,
        null_block: KVCacheBlock,
    ) -> list[KVCacheBlock]:
        """The blocks that are no longer read, last first; the table shows null in their place."""


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Every query reads every earlier position."""

    keeps_every_block: ClassVar[bool] = True

    def num_skipped_blocks(self, num_computed_tokens: int, block_size: int) -> int:  # noqa: ARG002  # the kinds share one signature
        """0: all blocks are read."""
        return 0

    def find_longest_cache_hit(
        self,
        pool: BlockPool,
        keys: Sequence[BlockHash],
        num_keys: int,
        block_size: int,  # noqa: ARG002  # the kinds share one signature
    ) -> list[KVCacheBlock]:
        """The blocks of the longest prefix of keys that are present (chapter 5.4.2)."""
        first = pool.index.first
        hits: list[KVCacheBlock] = []
        for key in islice(keys, num_keys):
            block = first(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def remove_skipped_blocks(
        self,
        table: list[KVCacheBlock],  # noqa: ARG002  # the kinds share one signature
        num_computed_tokens: int,  # noqa: ARG002  # the same
        block_size: int,  # noqa: ARG002  # the same
        null_block: KVCacheBlock,  # noqa: ARG002  # the same
    ) -> list[KVCacheBlock]:
        """Nothing: all blocks are read."""
        return []


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A query reads its own position and the `window - 1` positions before it."""

    keeps_every_block: ClassVar[bool] = False
    window: int

    def num_skipped_blocks(self, num_computed_tokens: int, block_size: int) -> int:
        """`max(0, n - W + 1) // block_size`, with `n = num_computed_tokens`.

        With `W = 3` and blocks of 2 tokens: 0 at `n = 3` and 1 at `n = 4`.
        """
        return max(0, num_computed_tokens - self.window + 1) // block_size

    def find_longest_cache_hit(
        self, pool: BlockPool, keys: Sequence[BlockHash], num_keys: int, block_size: int
    ) -> list[KVCacheBlock]:
        """The right-most run of blocks that fills the window, after nulls.

        The run has `ceil((W - 1) / block_size)` blocks; a shorter one counts only if it starts at
        block 0. O(num_keys).
        """
        first = pool.index.first
        wanted = -(-(self.window - 1) // block_size)
        run: list[KVCacheBlock] = []
        for position in range(num_keys - 1, -1, -1):
            block = first(keys[position])
            if block is None:
                run.clear()
                continue
            run.append(block)
            if len(run) == wanted:
                return [pool.null_block] * position + run[::-1]
        return run[::-1]

    def remove_skipped_blocks(
        self,
        table: list[KVCacheBlock],
        num_computed_tokens: int,
        block_size: int,
        null_block: KVCacheBlock,
    ) -> list[KVCacheBlock]:
        """The blocks before the window, last first; the table shows null there (chapter 5.7).

        The nulls of a table are a prefix of it, so the walk ends at the first null: the cost is
        O(blocks let go).
        """
        removed: list[KVCacheBlock] = []
        num_skipped = min(self.num_skipped_blocks(num_computed_tokens, block_size), len(table))
        for position in range(num_skipped - 1, -1, -1):
            block = table[position]
            if block is null_block:
                break
            removed.append(block)
            table[position] = null_block
        return removed


def attention_kind(config: CacheConfig) -> AttentionKind:
    """The kind of attention that the configuration describes (chapter 5.7)."""
    if config.sliding_window is None:
        return FullAttention()
    return SlidingWindow(config.sliding_window)
