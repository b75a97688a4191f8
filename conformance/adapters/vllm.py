"""The block manager of vLLM 0.33.0 as a subject, with the pool below it.

The release frees blocks without a key to the head of the queue, refuses almost nothing, and has no
call that takes a key back. Its scheduler raises `num_computed_tokens` while it schedules; here, as
for every subject, the number is raised when the step has run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from conformance.adapters.sources_0_33_0 import load
from conformance.adapters.stepping import advance
from conformance.subject import BlockView, Capabilities, Refusal, RequestSpec, Snapshot
from spec.state import NULL, Config
from spec.statemachine import Outcome

RULES = frozenset({"not_enough_free_blocks"})
"""What the release itself refuses with an error that says so."""


class VLLM:
    """`vllm.v1.core.kv_cache_manager.KVCacheManager` of the installed release.

    Raises `PeerMissingError` where vLLM is not installed.
    """

    capabilities = Capabilities(unpublish=False, free_rule="unhashed_first", rules=RULES)

    def __init__(self, config: Config) -> None:
        self.config = config
        self._vllm = load()
        self.name = f"vllm-{self._vllm.release}"
        interface = self._vllm.kv_cache_interface
        shape: dict[str, Any] = {
            "block_size": config.block_size,
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": self._vllm.torch.float16,
        }
        if config.sliding_window is None:
            spec = interface.FullAttentionSpec(**shape)
        else:
            spec = interface.SlidingWindowSpec(**shape, sliding_window=config.sliding_window)
        self.manager: Any = self._vllm.kv_cache_manager.KVCacheManager(
            kv_cache_config=interface.KVCacheConfig(
                num_blocks=config.num_gpu_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
            ),
            max_model_len=config.max_model_len,
            scheduler_block_size=config.block_size,
            hash_block_size=config.block_size,
            enable_caching=config.enable_caching,
        )
        self.requests: dict[str, Any] = {}
        self._hasher = self._vllm.kv_cache_utils.get_request_block_hasher(
            config.block_size, self._vllm.hashing.sha256
        )
        self._ends: dict[str, int] = {}
        self._made: dict[Hashable, bytes] = {}
        self._evictions = 0
        self._count_evictions()

    @property
    def pool(self) -> Any:  # noqa: ANN401  # the release has types, we have not
        """The pool under test."""
        return self.manager.block_pool

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives; new weights of an adapter lie in another path."""
        inputs, lora = self._vllm.inputs, None
        if request.lora is not None:
            adapter, generation = request.lora
            path = f"generation {generation}"
            lora = self._vllm.lora.LoRARequest(repr(adapter), lora_int_id=1, lora_path=path)
        self.requests[rid] = self._vllm.request.Request(
            request_id=rid,
            prompt_token_ids=list(request.prompt),
            sampling_params=self._vllm.sampling_params.SamplingParams(
                max_tokens=1 << 30, prompt_logprobs=0 if request.prompt_logprobs else None
            ),
            pooling_params=None,
            mm_features=[
                inputs.MultiModalFeatureSpec(None, "image", item, inputs.PlaceholderRange(at, n))
                for item, at, n in sorted(request.media, key=lambda item: item[1])
            ],
            lora_request=lora,
            cache_salt=request.salt,
            block_hasher=self._hasher,
        )

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens."""
        self.requests[rid].spec_token_ids = list(drafts)

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit, null included."""
        hits, *_ = self.manager.get_computed_blocks(self.requests[rid])
        return _ids(hits.blocks[0])

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        request = self.requests[rid]
        num_hit_tokens = len(hits) * self.config.block_size
        found = self._vllm.kv_cache_manager.KVCacheBlocks((self._blocks(hits),)) if hits else None
        start = request.num_computed_tokens + num_hit_tokens
        new = self.manager.allocate_slots(
            request,
            num_tokens,
            num_new_computed_tokens=num_hit_tokens,
            new_computed_blocks=found,
            num_lookahead_tokens=num_lookahead,
        )
        if new is None:
            return None
        self._ends[rid] = start + num_tokens
        return _ids(new.blocks[0])

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        for rid, outcome in outcomes.items():
            advance(self.requests[rid], self._ends.pop(rid), outcome)

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""
        self.manager.free(self.requests[rid])
        self._ends.pop(rid, None)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks; it starts again from its confirmed tokens."""
        self.free(rid)
        request = self.requests[rid]
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.spec_token_ids = []

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self.free(rid)
        del self.requests[rid]

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        return bool(self.manager.reset_prefix_cache())

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks to a direct caller."""
        if n > self.num_free():
            raise Refusal("not_enough_free_blocks", f"{n} of {self.num_free()}")
        return _ids(self.pool.get_new_blocks(n))

    def touch(self, ids: Sequence[int]) -> None:
        """Add a direct caller's references."""
        self.pool.touch(self._blocks(ids))

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""
        self.pool.free_blocks(self._blocks(ids))

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal a direct caller's blocks; a hash of the release is 32 bytes, so ours are numbered.

        The release reads nothing of a request but its hashes here.
        """
        made = self._made
        hashes = [made.setdefault(key, len(made).to_bytes(32, "big")) for key in keys]
        self.pool.cache_full_blocks(
            request=SimpleNamespace(block_hashes=hashes),
            blocks=self._blocks(table),
            num_cached_blocks=num_cached,
            num_full_blocks=num_full,
            block_size=self.config.block_size,
            kv_cache_group_id=0,
        )

    def unpublish(self, ids: Sequence[int]) -> None:
        """The release has no such call. Raises `Refusal`."""
        raise Refusal("unpublish_is_not_offered", f"ids={tuple(ids)}")

    def snapshot(self) -> Snapshot:
        """Return everything.

        A block may carry several keys. Its identity is then the set of them, which no block with
        another content carries; the index is told under the same identities.
        """
        blocks, queue = self.pool.blocks, self.pool.free_block_queue
        head, tail = queue.fake_free_list_head, queue.fake_free_list_tail
        keys = tuple(map(self._key, blocks))
        forward = self._walk(head.next_free_block, "next_free_block", tail)
        queued = set(forward)
        return Snapshot(
            ref_cnts=tuple([block.ref_cnt for block in blocks]),
            keys=keys,
            queue=forward,
            queue_back=self._walk(tail.prev_free_block, "prev_free_block", head),
            num_free=queue.num_free_blocks,
            index={self._named(key, ids, keys): ids for key, ids in self._listed().items()},
            tables={rid: table for rid in self.requests if (table := self.table(rid))},
            usage=self.manager.usage,
            stray=tuple(
                [
                    b
                    for b, block in enumerate(blocks)
                    if b not in queued
                    and (block.prev_free_block is not None or block.next_free_block is not None)
                ]
            ),
        )

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks and the ends and length of the queue."""
        blocks, queue, listed = self.pool.blocks, self.pool.free_block_queue, self._copies
        views: list[BlockView] = []
        for b in ids:
            block = blocks[b]
            before, after = block.prev_free_block, block.next_free_block
            key = block.block_hash
            views.append(
                (
                    block.ref_cnt,
                    None if key is None else listed(key),
                    # The two blocks that close the queue have a negative id; a view says NULL.
                    None if before is None else max(NULL, before.block_id),
                    None if after is None else max(NULL, after.block_id),
                )
            )
        first = queue.fake_free_list_head.next_free_block
        last = queue.fake_free_list_tail.prev_free_block
        return views, max(NULL, first.block_id), max(NULL, last.block_id), queue.num_free_blocks

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        tables = self.manager.coordinator.single_type_managers[0].req_to_blocks
        return _ids(tables.get(rid, ()))

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return int(self.pool.get_num_free_blocks())

    def num_evictions(self) -> int:
        """Return how many cached blocks were handed out since the beginning."""
        return self._evictions

    def _count_evictions(self) -> None:
        evict = self.pool._maybe_evict_cached_block  # noqa: SLF001  # the release counts nothing

        def counted(block: object) -> bool:
            evicted = bool(evict(block))
            self._evictions += evicted
            return evicted

        self.pool._maybe_evict_cached_block = counted  # noqa: SLF001  # the same

    def _blocks(self, ids: Sequence[int]) -> list[Any]:
        blocks, foreign = self.pool.blocks, self._vllm.kv_cache_utils.KVCacheBlock
        return [blocks[b] if 0 <= b < len(blocks) else foreign(b) for b in ids]

    def _key(self, block: Any) -> Hashable:  # noqa: ANN401  # a block of the release
        more = self.pool.cached_block_hashes_by_block.get(block.block_id)
        return frozenset({block.block_hash, *more}) if more else block.block_hash

    def _listed(self) -> dict[Hashable, tuple[int, ...]]:
        cached = self.pool.cached_block_hash_to_block._cache  # noqa: SLF001  # it cannot be asked for all
        return {key: self._copies(key) for key in cached}

    def _copies(self, key: Hashable) -> tuple[int, ...]:
        found = self.pool.cached_block_hash_to_block._cache.get(key, {})  # noqa: SLF001  # the same
        return tuple(found) if isinstance(found, dict) else (found.block_id,)

    def _named(
        self, key: Hashable, ids: tuple[int, ...], keys: Sequence[Hashable | None]
    ) -> Hashable:
        """Return the identity that all blocks under a key have in common, or else the key."""
        carried = {keys[b] for b in ids if 0 <= b < len(keys)}
        one = carried.pop() if len(carried) == 1 else None
        return one if isinstance(one, frozenset) and key in one else key

    def _walk(self, block: Any, link: str, end: Any) -> tuple[int, ...]:  # noqa: ANN401  # as above
        """Return the ids of a walk along the queue; a ring that never closes is cut off."""
        walked: list[int] = []
        while block is not None and block is not end and len(walked) <= len(self.pool.blocks):
            walked.append(block.block_id)
            block = getattr(block, link)
        return tuple(walked)


def _ids(blocks: Sequence[Any]) -> tuple[int, ...]:
    return tuple([block.block_id for block in blocks])
