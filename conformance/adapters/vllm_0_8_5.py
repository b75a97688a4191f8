"""The block manager of vLLM 0.8.5 as a subject: the system that the chapter describes.

The release refuses almost nothing, so most rules of the specification are not its own. It has no
salts, no generations of adapters, and no call that takes a key back.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from conformance.adapters.sources_0_8_5 import RELEASE, PlaceholderRange, load
from conformance.adapters.stepping import advance
from conformance.subject import BlockView, Capabilities, Refusal, RequestSpec, Snapshot
from spec.state import NULL, Config
from spec.statemachine import Outcome

RULES = frozenset({"num_tokens_is_below_one", "not_enough_free_blocks"})
"""What the release itself refuses with an error."""


class VLLM085:
    """`vllm.v1.core.kv_cache_manager.KVCacheManager` of release 0.8.5.

    Raises `PeerMissingError` where the sources are not there.
    """

    name = f"vllm-{RELEASE}"
    capabilities = Capabilities(salts=False, generations=False, unpublish=False, rules=RULES)

    def __init__(self, config: Config, caching_hash_algo: str = "sha256") -> None:
        self.config = config
        self._vllm = load()
        interface = self._vllm.kv_cache_interface
        shape = {"num_kv_heads": 1, "head_size": 1, "dtype": None, "use_mla": False}
        if config.sliding_window is None:
            spec = interface.FullAttentionSpec(config.block_size, **shape)
        else:
            window = {"sliding_window": config.sliding_window}
            spec = interface.SlidingWindowSpec(config.block_size, **shape, **window)
        group = interface.KVCacheGroupSpec(["layer"], spec)
        self.manager: Any = self._vllm.kv_cache_manager.KVCacheManager(
            interface.KVCacheConfig(config.num_gpu_blocks, {}, [group]),
            config.max_model_len,
            enable_caching=config.enable_caching,
            caching_hash_algo=caching_hash_algo,
        )
        self.requests: dict[str, Any] = {}
        self._ends: dict[str, int] = {}
        self._evictions = 0
        self._count_evictions()

    @property
    def pool(self) -> Any:  # noqa: ANN401  # the release has no types that we can name
        """The pool under test."""
        return self.manager.block_pool

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        media = sorted(request.media, key=lambda item: item[1])
        made = self._vllm.request.Request(
            request_id=rid,
            prompt_token_ids=list(request.prompt),
            multi_modal_inputs=[None] * len(media),
            multi_modal_hashes=[item for item, _, _ in media],
            multi_modal_placeholders=[PlaceholderRange(at, n) for _, at, n in media],
            sampling_params=SimpleNamespace(
                guided_decoding=None,
                max_tokens=1 << 30,
                prompt_logprobs=0 if request.prompt_logprobs else None,
            ),
            eos_token_id=None,
            arrival_time=0.0,
            lora_request=request.lora and SimpleNamespace(lora_int_id=request.lora[0]),
        )
        self.requests[rid] = made

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens."""
        self.requests[rid].spec_token_ids = list(drafts)

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
        if num_tokens < 1:
            raise Refusal("num_tokens_is_below_one", f"num_tokens={num_tokens}")
        new = self.manager.allocate_slots(request, num_tokens, self._blocks(hits), num_lookahead)
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
        self.manager.free(self.requests[rid])
        self._ends.pop(rid, None)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks; it starts again from its confirmed tokens."""
        self.free(rid)
        request = self.requests[rid]
        request.num_computed_tokens = 0
        request.spec_token_ids = []

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self.free(rid)
        self.manager.free_block_hashes(self.requests.pop(rid))

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        return bool(self.manager.reset_prefix_cache())

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks to a direct caller."""
        if n > self.num_free():
            raise Refusal("not_enough_free_blocks", f"{n} of {self.num_free()}")
        return tuple([block.block_id for block in self.pool.get_new_blocks(n)])

    def touch(self, ids: Sequence[int]) -> None:
        """Add a direct caller's references."""
        self.pool.touch(self._blocks(ids))

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""
        self.pool.free_blocks(self._blocks(ids))

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal a direct caller's blocks; a key of the release has parts, and ours is the first."""
        made = self._vllm.kv_cache_utils.BlockHashType
        hashes = [made(key, (), None) for key in keys]
        self.pool.cache_full_blocks(
            None, self._blocks(table), hashes, num_cached, num_full, self.config.block_size, None
        )

    def unpublish(self, ids: Sequence[int]) -> None:
        """The release has no such call. Raises `Refusal`."""
        raise Refusal("unpublish_is_not_offered", f"ids={tuple(ids)}")

    def snapshot(self) -> Snapshot:
        """Return everything."""
        blocks, queue = self.pool.blocks, self.pool.free_block_queue
        listed = self.pool.cached_block_hash_to_block
        return Snapshot(
            ref_cnts=tuple(block.ref_cnt for block in blocks),
            keys=tuple(block.block_hash for block in blocks),
            queue=self._walk(queue.free_list_head, "next_free_block"),
            queue_back=self._walk(queue.free_list_tail, "prev_free_block"),
            num_free=queue.num_free_blocks,
            index={key: tuple(copies) for key, copies in listed.items()},
            tables={rid: table for rid in self.requests if (table := self.table(rid))},
            usage=self.manager.usage,
        )

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks and the ends and length of the queue."""
        blocks, queue = self.pool.blocks, self.pool.free_block_queue
        listed = self.pool.cached_block_hash_to_block
        head, tail = queue.free_list_head, queue.free_list_tail
        views: list[BlockView] = []
        for b in ids:
            block = blocks[b]
            before, after, key = block.prev_free_block, block.next_free_block, block.block_hash
            queued = block is head or before is not None or after is not None
            end = NULL if queued else None
            views.append(
                (
                    block.ref_cnt,
                    None if key is None else tuple(listed.get(key, ())),
                    end if before is None else before.block_id,
                    end if after is None else after.block_id,
                )
            )
        ends = [NULL if block is None else block.block_id for block in (head, tail)]
        return views, ends[0], ends[1], queue.num_free_blocks

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        return tuple([block.block_id for block in self.manager.req_to_blocks.get(rid, ())])

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
        blocks = self.pool.blocks
        foreign = self._vllm.kv_cache_utils.KVCacheBlock
        return [blocks[b] if 0 <= b < len(blocks) else foreign(b) for b in ids]

    def _walk(self, block: Any, link: str) -> tuple[int, ...]:  # noqa: ANN401  # a block of the release
        """Return the ids of a walk along the queue; a ring that never closes is cut off."""
        walked: list[int] = []
        while block is not None and len(walked) <= len(self.pool.blocks):
            walked.append(block.block_id)
            block = getattr(block, link)
        return tuple(walked)
