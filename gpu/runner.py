"""The loop of a worker: requests in, tokens out, with every key and value in the paged pool.

A step is: schedule; make the batch (whose rows, which slots, whose tables); per layer write the
keys and values of all rows and let them attend through the tables; sample; confirm; settle; let go
of what is finished. All rows of a layer are written before any of them reads, so a request may hit
a block that another fills in the same step.

Two others may look in, at fixed places. A *guard* is told of every call to the manager, may send
bad rows to the trash block, sees what the model meant to write, and settles what a step has
written. *Hooks* are where a fault can be put, each with the name of what it can get wrong; none of
them is known to model, guard or manager. Chapter 5.4 and 5.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from gpu import ops
from gpu.attention import Attend, Mix, Rows, context_slots, paged_attention
from gpu.errors import PoolIsOfAnotherModel
from gpu.pool import KVPool
from gpu.scheduling import Drafter, Limits, Scheduled, Scheduler, Tally, Work
from kvcache.block import KVCacheBlock
from kvcache.block_pool import PoolListener
from kvcache.config import CacheConfig
from kvcache.interface import KVCacheConfig
from kvcache.manager import KVCacheManager
from kvcache.request import Request

KEY, VALUE = 0, 1
"""The planes of a layer."""


class Model(Protocol):
    """A decoder, as the runner sees it; `ExactModel` and `FloatModel` are two."""

    num_layers: int
    window: int | None
    device: torch.device
    kv_dtype: torch.dtype
    mix: Mix

    def kv_cache_config(self, num_blocks: int, block_size: int) -> KVCacheConfig:
        """What the model keeps, in a pool of so many blocks."""

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """The logits after each token, `[T, any]`; ids and positions are int64 `[T]`."""

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        """The token that follows each row: int64 `[T]`, 0 or more."""


@dataclass(frozen=True)
class Batch:
    """A step in tensors, for T rows of R requests.

    `token_ids` and `slot_mapping` are int64 `[T]`; a slot is `block_id * block_size + offset`.
    `block_tables` is int32 `[R, max_blocks]`, -1 after a table's end. `parts[r]` is request r's.
    """

    step: int
    parts: tuple[Scheduled, ...]
    rows: Rows
    token_ids: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor


class Guard(PoolListener, Protocol):
    """Who watches over the pool; the manager's events reach it as a `PoolListener`."""

    def before_call(self, call: str, request: Request) -> None:
        """The manager is about to be called; `call` shows the call as it would be written."""

    def before_step(self, batch: Batch) -> torch.Tensor:
        """The slots that the rows may write, int64 `[T]`: bad ones are routed to the trash."""

    def before_read(self, batch: Batch) -> None:
        """The tables of the batch are about to be read, by all layers."""

    def after_write(
        self, batch: Batch, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """The rows are written; keys and values are what the model made, whatever arrived."""

    def settle(self, batch: Batch) -> None:
        """The step has run, its tokens are confirmed, and nothing has been released since."""


@dataclass
class Hooks:
    """Where a fault can be put: each changes one thing on its way, and by default nothing.

    The first arguments are the runner and the batch; `source` and `place` also get layer and plane.
    `slot_mapping` and `source` may add rows at the end, as a batch that is padded to a fixed size
    has them; their slot is -1.
    """

    slot_mapping: Callable[[Runner, Batch, torch.Tensor], torch.Tensor] = field(
        default=lambda _runner, _batch, slots: slots
    )
    positions: Callable[[Runner, Batch, torch.Tensor], torch.Tensor] = field(
        default=lambda _runner, _batch, positions: positions
    )
    tables: Callable[[Runner, Batch, torch.Tensor], torch.Tensor] = field(
        default=lambda _runner, _batch, tables: tables
    )
    source: Callable[[Runner, Batch, int, int, torch.Tensor], torch.Tensor] = field(
        default=lambda _runner, _batch, _layer, _plane, rows: rows
    )
    place: Callable[[Runner, Batch, int, int], tuple[int, int]] = field(
        default=lambda _runner, _batch, layer, plane: (layer, plane)
    )
    before_step: Callable[[Runner, Batch], None] = field(default=lambda _runner, _batch: None)
    after_write: Callable[[Runner, Batch, int], None] = field(
        default=lambda _runner, _batch, _layer: None
    )
    after_step: Callable[[Runner, Batch], None] = field(default=lambda _runner, _batch: None)


class WatchedManager(KVCacheManager):
    """A manager whose guard is told of each call that may change a block, before it."""

    def __init__(self, config: CacheConfig, guard: Guard) -> None:
        super().__init__(config, listener=guard)
        self._guard = guard

    def allocate_slots(
        self,
        request: Request,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] | None = None,
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock] | None:
        """See `KVCacheManager.allocate_slots`."""
        hits = [block.block_id for block in new_computed_blocks or ()]
        call = (
            f"allocate_slots({request.request_id}, {num_tokens}, hits={hits}, "
            f"lookahead={num_lookahead_tokens})"
        )
        self._guard.before_call(call, request)
        return super().allocate_slots(
            request, num_tokens, new_computed_blocks, num_lookahead_tokens
        )

    def free(self, request: Request) -> None:
        """See `KVCacheManager.free`."""
        self._guard.before_call(f"free({request.request_id})", request)
        super().free(request)


class Runner:
    """One worker with one model, one pool and one manager, which it makes.

    Raises `PoolIsOfAnotherModel` where the pool's layers are not those that the model keeps.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        limits: Limits,
        *,
        guard: Guard | None = None,
        drafter: Drafter | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        spec = next(iter(pool.config.layer_specs.values()))
        if model.kv_cache_config(pool.config.num_blocks, spec.block_size) != pool.config:
            raise PoolIsOfAnotherModel(pool=str(pool.config.layer_specs))
        self.model = model
        self.pool = pool
        self.guard = guard
        self.hooks = hooks or Hooks()
        self.block_size = spec.block_size
        config = CacheConfig(
            num_gpu_blocks=pool.config.num_blocks,
            block_size=spec.block_size,
            max_model_len=limits.max_model_len,
            enable_caching=limits.enable_caching,
            sliding_window=model.window,
        )
        self.manager = KVCacheManager(config) if guard is None else WatchedManager(config, guard)
        self.scheduler = Scheduler(self.manager, limits, drafter)

    @property
    def tally(self) -> Tally:
        """What has been done so far."""
        return self.scheduler.tally

    def serve(self, work: Sequence[Work]) -> dict[str, list[int]]:
        """The tokens that each request got, by its id.

        All arrive at once. One that the pool can never hold has those that came before, and stands
        in `tally.refused`. Raises what `Request`, the manager and the guard raise.
        """
        served = [self.scheduler.add(one) for one in work]
        while self.scheduler.has_work:
            self.step()
        return {s.request.request_id: list(s.request.output_token_ids) for s in served}

    def step(self) -> None:
        """Run one step; it may be empty, where it could only preempt."""
        parts = self.scheduler.schedule()
        if not parts:
            return
        batch = self._make_batch(parts)
        self.hooks.before_step(self, batch)
        if self.guard is not None:
            batch = replace(batch, slot_mapping=self.guard.before_step(batch))
            self.guard.before_read(batch)
        positions = self.hooks.positions(self, batch, batch.rows.positions)
        logits = self.model.forward(batch.token_ids, positions, self._attend_in(batch))
        tokens = self.model.sample(logits).tolist()
        sampled = []
        for part in parts:
            sampled.append(tokens[: part.num_tokens])
            del tokens[: part.num_tokens]
        done = self.scheduler.confirm(parts, sampled)
        if self.guard is not None:
            self.guard.settle(batch)
        self.hooks.after_step(self, batch)
        for served in done:
            self.scheduler.retire(served)

    def _make_batch(self, parts: Sequence[Scheduled]) -> Batch:
        device = self.model.device
        rows = Rows.of([p.start for p in parts], [p.num_tokens for p in parts], device)
        token_ids: list[int] = []
        for part in parts:
            token_ids += part.request.token_ids[part.start : part.end]
            token_ids += part.request.spec_token_ids[: part.num_drafts]
        tables = [self.manager.get_block_ids(part.request.request_id) for part in parts]
        longest = max(map(len, tables))
        block_tables = torch.tensor(
            [table + [-1] * (longest - len(table)) for table in tables],
            dtype=torch.int32,
            device=device,
        )
        slots = context_slots(block_tables, self.block_size, rows.num_positions)
        batch = Batch(
            step=self.tally.num_steps,
            parts=tuple(parts),
            rows=rows,
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
            slot_mapping=slots[rows.request_idx, rows.positions],
            block_tables=block_tables,
        )
        slot_mapping = self.hooks.slot_mapping(self, batch, batch.slot_mapping)
        tables_read = self.hooks.tables(self, batch, batch.block_tables)
        return replace(batch, slot_mapping=slot_mapping, block_tables=tables_read)

    def _attend_in(self, batch: Batch) -> Attend:
        """What the model calls in each layer of this step."""
        pool, hooks, model = self.pool, self.hooks, self.model

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            keys, values = key.to(model.kv_dtype), value.to(model.kv_dtype)
            ops.write_rows(
                hooks.source(self, batch, layer, KEY, keys),
                hooks.source(self, batch, layer, VALUE, values),
                pool.plane(*hooks.place(self, batch, layer, KEY)),
                pool.plane(*hooks.place(self, batch, layer, VALUE)),
                batch.slot_mapping,
            )
            if self.guard is not None:
                self.guard.after_write(batch, layer, keys, values)
            hooks.after_write(self, batch, layer)
            planes = (pool.plane(layer, KEY), pool.plane(layer, VALUE))
            return paged_attention(
                model.mix, query, planes, batch.block_tables, batch.rows, model.window
            )

        return attend
