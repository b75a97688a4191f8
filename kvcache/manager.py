"""`KVCacheManager`: what a request needs, said in calls to the block pool.

The manager keeps two things for a request: a record for the time of one admission, from its first
successful `allocate_slots` to `free`, and its hash chain, which outlives a preemption. Every call
checks its caller first, plans next, and applies last. Chapter 5.4.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvcache.admission import Admission, refuse_progress, refuse_stale_hits, refuse_tokens
from kvcache.attention import attention_kind
from kvcache.block_pool import BlockPool
from kvcache.errors import (
    HitsForRunningRequest,
    HitsWithoutCaching,
    HitsWithPromptLogprobs,
    InvalidRunningCount,
    PendingBlockShared,
    RequestIdInUse,
    RequestTooLarge,
)
from kvcache.hashing import HashChain, key_kind
from kvcache.stats import PrefixCacheStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.block import KVCacheBlock
    from kvcache.block_pool import PoolListener
    from kvcache.config import CacheConfig
    from kvcache.request import Request


class KVCacheManager:
    """The request-level interface of the cache; one manager owns one `block_pool` (chapter 5.4)."""

    def __init__(self, config: CacheConfig, *, listener: PoolListener | None = None) -> None:
        self.config = config
        self.block_pool = BlockPool(config.num_gpu_blocks, listener=listener)
        self._attention = attention_kind(config)
        self._key_kind = key_kind(config)
        self._admissions: dict[str, Admission] = {}
        self._chains: dict[str, HashChain] = {}
        self._stats = PrefixCacheStats()
        self._num_usable_blocks = config.num_gpu_blocks - 1

    @property
    def usage(self) -> float:
        """The share of the usable blocks that is held, from 0 to 1 (chapter 5.4.4)."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """The longest cached prefix: its blocks, and its length in tokens (chapter 5.4.2).

        The last token is always left to compute, so a hit never covers the whole request. Nothing
        is found while caching is off or for a request with `prompt_logprobs`. Changes no state:
        the blocks are touched by `allocate_slots`. Raises `RequestIdInUse`.
        """
        self._admission_of(request)
        if not self.config.enable_caching or request.prompt_logprobs is not None:
            return [], 0
        block_size = self.config.block_size
        chain = self._chain_of(request)
        hits = self._attention.find_longest_cache_hit(
            self.block_pool, chain.keys, (request.num_tokens - 1) // block_size, block_size
        )
        found = [block.block_hash for block in hits if block.block_hash is not None]
        chain.adopt(found, start=len(hits) - len(found))
        return hits, len(hits) * block_size

    def allocate_slots(
        self,
        request: Request,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock] | None:
        """The new blocks that hold the next `num_tokens` tokens, or None when they do not fit now.

        `new_computed_blocks` are the hits of `get_computed_blocks`, for the first call of an
        admission; `num_lookahead_tokens` are slots beyond the scheduled tokens, never sealed. A
        refused call changes nothing, except that blocks that fell out of the window are released
        before the room is counted and stay released. What may be wrong with the call stands in
        `kvcache.admission`; `RequestTooLarge` means that waiting is in vain. Chapter 5.4.1.
        """
        admission = self._admission_of(request)
        pool, block_size = self.block_pool, self.config.block_size
        hits = list(new_computed_blocks or ())
        start = request.num_computed_tokens + len(hits) * block_size
        end = start + num_tokens
        refuse_tokens(request, num_tokens, num_lookahead_tokens, end, self.config.max_model_len)
        if hits:
            self._refuse_hits(request, admission, hits, start)
        refuse_progress(request, admission, start)
        if hits and request.prompt_logprobs is not None:
            raise HitsWithPromptLogprobs(request_id=request.request_id, num_hits=len(hits))

        idle = 0
        if admission is None:
            # A hit outside the window, possible in a list the caller made, is never touched.
            outside = self._attention.num_skipped_blocks(start, block_size)
            hits[:outside] = [pool.null_block] * outside
            idle = len([block for block in hits if not (block.ref_cnt or block.is_null)])
        else:
            removed = self._attention.remove_skipped_blocks(
                admission.table, start, block_size, pool.null_block
            )
            if removed:
                pool.free_blocks(removed)
        table = hits if admission is None else admission.table
        slots = min(end + num_lookahead_tokens, self.config.max_model_len)
        required = -(-slots // block_size)
        if admission is None and self._attention.keeps_every_block:
            self._refuse_too_large(request, -(-request.num_tokens // block_size))
        if required > self._num_usable_blocks:
            self._refuse_too_large(request, required - table.count(pool.null_block))
        num_new = max(0, required - len(table))
        if num_new + idle > pool.get_num_free_blocks():
            return None

        if admission is None:
            admission = self._admit(request, hits)
        admission.last_start = start
        new_blocks = pool.get_new_blocks(num_new)
        admission.table.extend(new_blocks)
        self._seal(admission, end)
        return new_blocks

    def free(self, request: Request) -> None:
        """The request gives up its blocks, last first, so that tails are evicted before heads.

        Blocks that this admission published and no step wrote lose their keys before. Raises
        `PendingBlockShared`, and changes nothing, when another request holds such a block. A second
        call does nothing. Call it before `num_computed_tokens` is reset. Raises `RequestIdInUse`.
        Chapter 5.4.3.
        """
        admission = self._admission_of(request)
        if admission is None:
            return
        name, table = request.request_id, admission.table
        written = request.num_computed_tokens // self.config.block_size
        first = max(admission.num_hit_blocks, written)
        unwritten = [b for b in table[first : admission.num_cached_blocks] if not b.is_null]
        for block in unwritten:
            if block.ref_cnt > 1:
                holders = tuple(i for i, a in self._admissions.items() if block in a.table)
                raise PendingBlockShared(block_id=block.block_id, writer=name, holders=holders)
        if unwritten:
            self.block_pool.unpublish(unwritten)
        self.block_pool.free_blocks(table[::-1] if self.config.enable_caching else table)
        del self._admissions[name]

    def free_block_hashes(self, request: Request) -> None:
        """The request's hash chain is forgotten, at its end and not at preemption (chapter 5.4.2).

        Raises `RequestIdInUse`.
        """
        self._admission_of(request)
        self._chains.pop(request.request_id, None)

    def reset_prefix_cache(self) -> bool:
        """All keys are forgotten and True is returned, if no request holds a block (5.4.5)."""
        done = self.block_pool.reset_prefix_cache()
        self._stats.reset |= done
        return done

    def get_num_common_prefix_blocks(self, request: Request, num_running_requests: int) -> int:
        """The number of leading blocks that all running requests hold; null ends the count.

        0 for a request without a table. Raises `InvalidRunningCount` below 1 and `RequestIdInUse`.
        """
        if num_running_requests < 1:
            raise InvalidRunningCount(num_running_requests=num_running_requests)
        admission = self._admission_of(request)
        count = 0
        for block in () if admission is None else admission.table:
            # The null block's count stays 0, so it can never equal the number of requests.
            if block.ref_cnt != num_running_requests:
                break
            count += 1
        return count

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """What was counted since the last call; nothing is counted while caching is off."""
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block ids of the request's table in order of position, 0 for null; [] without one."""
        admission = self._admissions.get(request_id)
        return [] if admission is None else [block.block_id for block in admission.table]

    def check(self) -> None:
        """Pool, tables and chains agree; AssertionError says where not; O(pool + tables).

        Counts are compared with the tables, so the manager must be its pool's only user.
        """
        self.block_pool.check()
        held = Counter(block for a in self._admissions.values() for block in a.table)
        for block in self.block_pool.blocks:
            assert block.is_null or block.ref_cnt == held[block], (
                f"{block!r} stands {held[block]} times in tables"
            )
        if not self.config.enable_caching:
            assert not self.block_pool.index, "blocks carry keys while caching is off"
        for admission in self._admissions.values():
            self._check_admission(admission)

    def _check_admission(self, admission: Admission) -> None:
        name, table = admission.request.request_id, admission.table
        num_hits, num_cached = admission.num_hit_blocks, admission.num_cached_blocks
        assert num_hits <= num_cached <= len(table), (
            f"{name!r} has {num_hits} hits, {num_cached} sealed of {len(table)} blocks"
        )
        num_null = table.count(self.block_pool.null_block)
        assert all(block.is_null for block in table[:num_null]), (
            f"null is no prefix of the table {self.get_block_ids(name)} of {name!r}"
        )
        skipped = self._attention.num_skipped_blocks(admission.last_start, self.config.block_size)
        assert skipped <= num_null, (
            f"{name!r} holds {self.get_block_ids(name)}, of which {skipped} left the window"
        )
        chain = self._chains.get(name) or HashChain(admission.request, self._key_kind)
        keys = chain.extend() if self.config.enable_caching else []
        for position, block in enumerate(table):
            key = keys[position] if num_null <= position < num_cached else None
            assert block.block_hash == key, (
                f"{block!r} at position {position} of {name!r} should carry {key!r}"
            )

    def _admission_of(self, request: Request) -> Admission | None:
        """The request's record, if it has one; its id is nobody else's."""
        admission = self._admissions.get(request.request_id)
        known = admission or self._chains.get(request.request_id)
        if known is not None and known.request is not request:
            raise RequestIdInUse(request_id=request.request_id)
        return admission

    def _chain_of(self, request: Request) -> HashChain:
        """The request's chain, with the keys of all its full blocks of confirmed tokens."""
        chain = self._chains.get(request.request_id)
        if chain is None:
            chain = self._chains[request.request_id] = HashChain(request, self._key_kind)
        chain.extend()
        return chain

    def _refuse_hits(
        self,
        request: Request,
        admission: Admission | None,
        hits: Sequence[KVCacheBlock],
        start: int,
    ) -> None:
        """The hits come at the first call, carry the request's keys, and show all that is read."""
        name = request.request_id
        if admission is not None:
            raise HitsForRunningRequest(request_id=name, num_blocks=len(admission.table))
        if not self.config.enable_caching:
            raise HitsWithoutCaching(request_id=name, num_hits=len(hits))
        self.block_pool.refuse_foreign(hits)
        first_readable = self._attention.num_skipped_blocks(start, self.config.block_size)
        refuse_stale_hits(name, hits, self._chain_of(request).keys, first_readable)

    def _refuse_too_large(self, request: Request, required_blocks: int) -> None:
        """The pool, when empty, holds the blocks that are required."""
        if required_blocks > self._num_usable_blocks:
            raise RequestTooLarge(
                request_id=request.request_id,
                required_blocks=required_blocks,
                usable_blocks=self._num_usable_blocks,
            )

    def _admit(self, request: Request, hits: list[KVCacheBlock]) -> Admission:
        """The request holds its hits from here on, and its look-up is counted."""
        self.block_pool.touch(hits)
        admission = self._admissions[request.request_id] = Admission(request, hits)
        if self.config.enable_caching:
            asked = request.prompt_logprobs is None
            self._stats.count_admission(
                (request.num_tokens - 1) // self.config.block_size if asked else 0,
                len(hits) - hits.count(self.block_pool.null_block),
                resumed=request.num_preemptions > 0,
            )
        return admission

    def _seal(self, admission: Admission, end: int) -> None:
        """The blocks that are full of confirmed tokens below position `end` get their keys."""
        request = admission.request
        num_full = min(end, request.num_tokens) // self.config.block_size
        if num_full > admission.num_cached_blocks and self.config.enable_caching:
            keys = self._chain_of(request).keys
            self.block_pool.cache_full_blocks(
                admission.table, keys, admission.num_cached_blocks, num_full
            )
            admission.num_cached_blocks = num_full
