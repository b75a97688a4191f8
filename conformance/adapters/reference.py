"""Our own manager as a subject: the shortest complete adapter, to copy from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from conformance.adapters.stepping import advance
from conformance.subject import BlockView, Capabilities, Refusal, RequestSpec, Snapshot
from kvcache import (
    BlockPool,
    CacheConfig,
    KVCacheBlock,
    KVCacheError,
    KVCacheManager,
    LoRARequest,
    MultiModalItem,
    PrefixCacheStats,
    Request,
)
from spec.state import NULL, Config
from spec.statemachine import Outcome


def refusing(call: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # what the call takes
    """Return what a call of the manager returns; its typed errors become refusals."""
    try:
        return call(*args, **named)
    except KVCacheError as error:
        raise Refusal(error.rule, str(error)) from error


def _numbers(report: PrefixCacheStats) -> dict[str, int]:
    """Return the counts of a report; whether the cache was reset is none."""
    return {name: n for name, n in asdict(report).items() if name != "reset"}


class Reference:
    """`kvcache.KVCacheManager` behind the verbs of `conformance.subject.Subject`."""

    name = "reference"
    capabilities = Capabilities()

    def __init__(self, config: Config, caching_hash_algo: str = "sha256") -> None:
        self.config = config
        self.manager = KVCacheManager(
            CacheConfig(
                num_gpu_blocks=config.num_gpu_blocks,
                block_size=config.block_size,
                max_model_len=config.max_model_len,
                enable_caching=config.enable_caching,
                caching_hash_algo=cast("Any", caching_hash_algo),
                sliding_window=config.sliding_window,
            )
        )
        self.requests: dict[str, Request] = {}
        self._ends: dict[str, int] = {}
        self._report = self.manager._stats  # noqa: SLF001  # see `_counted`
        self._counters: Counter[str] = Counter()

    @property
    def pool(self) -> BlockPool:
        """The pool under test."""
        return self.manager.block_pool

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        lora = request.lora and LoRARequest(lora_id=request.lora[0], generation=request.lora[1])
        self.requests[rid] = refusing(
            Request,
            rid,
            request.prompt,
            lora_request=lora,
            mm_items=[
                MultiModalItem(identifier=item, offset=offset, length=length)
                for item, offset, length in request.media
            ],
            cache_salt=request.salt,
            prompt_logprobs=0 if request.prompt_logprobs else None,
        )

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens."""
        refusing(setattr, self.requests[rid], "spec_token_ids", tuple(drafts))

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit, null included."""
        hits, _ = self.manager.get_computed_blocks(self.requests[rid])
        return tuple([block.block_id for block in hits])

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        request = self.requests[rid]
        start = request.num_computed_tokens + len(hits) * self.config.block_size
        new = refusing(
            self.manager.allocate_slots, request, num_tokens, self._blocks(hits), num_lookahead
        )
        if new is None:
            return None
        self._ends[rid] = start + num_tokens
        return tuple([block.block_id for block in new])

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        for rid, outcome in outcomes.items():
            advance(self.requests[rid], self._ends.pop(rid), outcome)

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""
        refusing(self.manager.free, self.requests[rid])
        self._ends.pop(rid, None)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks; it starts again from its confirmed tokens."""
        self.free(rid)
        request = self.requests[rid]
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.spec_token_ids = ()

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self.free(rid)
        self.manager.free_block_hashes(self.requests.pop(rid))

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        return self.manager.reset_prefix_cache()

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks to a direct caller."""
        return tuple([block.block_id for block in refusing(self.pool.get_new_blocks, n)])

    def touch(self, ids: Sequence[int]) -> None:
        """Add a direct caller's references."""
        refusing(self.pool.touch, self._blocks(ids))

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""
        refusing(self.pool.free_blocks, self._blocks(ids))

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal a direct caller's blocks; the pool takes any hashable as a key."""
        refusing(self.pool.cache_full_blocks, self._blocks(table), keys, num_cached, num_full)

    def unpublish(self, ids: Sequence[int]) -> None:
        """Take the keys from a direct caller's blocks."""
        refusing(self.pool.unpublish, self._blocks(ids))

    def snapshot(self) -> Snapshot:
        """Return everything."""
        blocks, queue = self.pool.blocks, self.pool.free_block_queue
        index: dict[Hashable, tuple[int, ...]] = {
            key: tuple(block.block_id for block in self.pool.index.copies(key))
            for key in self.pool.index
        }
        forward = self._walk(queue.head, lambda block: block.next_free_block)
        queued = set(forward)
        return Snapshot(
            ref_cnts=tuple(block.ref_cnt for block in blocks),
            keys=tuple(block.block_hash for block in blocks),
            queue=forward,
            queue_back=self._walk(queue.tail, lambda block: block.prev_free_block),
            num_free=queue.num_free_blocks,
            index=index,
            tables={rid: table for rid in self.requests if (table := self.table(rid))},
            counters=self._counted(),
            stray=tuple(
                block.block_id
                for block in blocks
                if block.block_id not in queued
                and (block.prev_free_block is not None or block.next_free_block is not None)
            ),
        )

    def _counted(self) -> dict[str, int]:
        """Return the statistics since the beginning.

        The manager hands over what it counted once, to whoever asks; asking here would take it from
        them. So its open report is read, and what was handed over is remembered.
        """
        report = self.manager._stats  # noqa: SLF001  # asking for it would begin another
        if report is not self._report:
            self._counters.update(_numbers(self._report))
            self._report = report
        counts = Counter(self._counters)
        counts.update(_numbers(report))
        return {**counts, "evictions": self.pool.num_evictions}

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks and the ends and length of the queue."""
        blocks, copies = self.pool.blocks, self.pool.index.copies
        views: list[BlockView] = []
        for b in ids:
            block = blocks[b]
            before, after, key = block.prev_free_block, block.next_free_block, block.block_hash
            views.append(
                (
                    block.ref_cnt,
                    None if key is None else tuple([copy.block_id for copy in copies(key)]),
                    # The ring that closes the queue has a negative id; a view says NULL there.
                    None if before is None else max(NULL, before.block_id),
                    None if after is None else max(NULL, after.block_id),
                )
            )
        queue = self.pool.free_block_queue
        head, tail = queue.head, queue.tail
        return (
            views,
            NULL if head is None else head.block_id,
            NULL if tail is None else tail.block_id,
            queue.num_free_blocks,
        )

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        return tuple(self.manager.get_block_ids(rid))

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return self.pool.get_num_free_blocks()

    def num_evictions(self) -> int:
        """Return how many cached blocks were handed out since the beginning."""
        return self.pool.num_evictions

    def _blocks(self, ids: Sequence[int]) -> list[KVCacheBlock]:
        blocks = self.pool.blocks
        # An id that no block has is asked for with a block of no pool, so that the call refuses it.
        return [blocks[b] if 0 <= b < len(blocks) else KVCacheBlock(b) for b in ids]

    def _walk(
        self, block: KVCacheBlock | None, follow: Callable[[KVCacheBlock], KVCacheBlock | None]
    ) -> tuple[int, ...]:
        """Return the ids of a walk along the queue; a ring that never closes is cut off."""
        walked: list[int] = []
        while block is not None and block.block_id >= 0 and len(walked) <= len(self.pool.blocks):
            walked.append(block.block_id)
            block = follow(block)
        return tuple(walked)
