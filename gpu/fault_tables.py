"""Faults of tables and of the manager: somebody reads a block that is not his.

Nobody writes where he may not, so neither leases nor fingerprints can see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gpu.planting import Fault, Plant, after_step
from gpu.runner import Batch, Runner
from kvcache.attention import SlidingWindow
from kvcache.block import KVCacheBlock
from kvcache.hashing import BlockHash


def _evicted_is_found(runner: Runner, plant: Plant) -> None:
    """A block that is taken keeps its key, and the index its entry, until its next seal."""
    pool = runner.manager.block_pool
    take, seal = pool.get_new_blocks, pool.cache_full_blocks
    stale: set[KVCacheBlock] = set()

    def take_with_keys(num_blocks: int) -> list[KVCacheBlock]:
        free = pool.free_block_queue.get_all_free_blocks()[:num_blocks]
        keys = [block.block_hash for block in free]
        taken = take(num_blocks)
        stale.difference_update(taken)
        for block, key in zip(taken, keys, strict=True):
            if key is not None and pool.get_cached_block(key) is None:
                block.block_hash = key
                pool.index.add_n([block])
                stale.add(block)
        return taken

    def seal_anew(
        blocks: Sequence[KVCacheBlock],
        block_hashes: Sequence[BlockHash],
        num_cached_blocks: int,
        num_full_blocks: int,
    ) -> None:
        for block in blocks[num_cached_blocks:num_full_blocks]:
            if block in stale and block.block_hash is not None:
                pool.index.discard(block)
                block.block_hash = None
            stale.discard(block)
        seal(blocks, block_hashes, num_cached_blocks, num_full_blocks)

    def touch(blocks: Sequence[KVCacheBlock]) -> None:
        if plant.step is None and stale.intersection(blocks):
            plant.step = runner.tally.num_steps + 1
        original_touch(blocks)

    original_touch = pool.touch
    pool.get_new_blocks = take_with_keys  # type: ignore[method-assign]  # the fault is in the pool
    pool.cache_full_blocks = seal_anew  # type: ignore[method-assign]  # the same
    pool.touch = touch  # type: ignore[method-assign]  # the same


def _window_too_short(runner: Runner, plant: Plant) -> None:
    """The manager lets go of what the model still reads."""
    manager = runner.manager
    manager._attention = SlidingWindow(3)  # noqa: SLF001  # the manager's notion of the window

    def notice(_runner: Runner, batch: Batch) -> None:
        if plant.step is None and any(
            0 in manager.get_block_ids(part.request.request_id) for part in batch.parts
        ):
            plant.strike(batch)

    after_step(runner, notice)


def _double_free(runner: Runner, plant: Plant) -> None:
    """A block that two requests hold is released once too often."""

    def strike(runner: Runner, batch: Batch) -> None:
        pool = runner.manager.block_pool
        shared = [block for block in pool.blocks if block.ref_cnt > 1]
        if shared and plant.may_strike(batch):
            plant.strike(batch)
            # As an engine does that keeps counts of its own: nobody else is told.
            listener, pool.listener = pool.listener, None
            pool.free_blocks([plant.random.choice(shared)])
            pool.listener = listener

    after_step(runner, strike)


def _exchanged(runner: Runner, plant: Plant) -> None:
    def exchange(_runner: Runner, batch: Batch, tables: torch.Tensor) -> torch.Tensor:
        last = len(batch.parts) - 1
        if not plant.may_strike(batch) or last < 1 or torch.equal(tables[0], tables[last]):
            return tables
        plant.strike(batch)
        return tables.flip(0)

    runner.hooks.tables = exchange


def _stale_table(runner: Runner, plant: Plant) -> None:
    """A request that comes back reads through the table that it had before."""
    known: dict[str, tuple[int, list[int]]] = {}

    def stale(_runner: Runner, batch: Batch, tables: torch.Tensor) -> torch.Tensor:
        changed = tables.clone()
        for row, part in enumerate(batch.parts):
            request = part.request
            now = runner.manager.get_block_ids(request.request_id)
            count, table = known.setdefault(request.request_id, (request.num_preemptions, now))
            if count == request.num_preemptions:
                known[request.request_id] = (count, now)
            elif table[: len(now)] != now and plant.step is None:
                num_cells = min(len(table), len(now))
                changed[row, :num_cells] = changed.new_tensor(table[:num_cells])
        if not torch.equal(changed, tables):
            plant.strike(batch)
        return changed

    runner.hooks.tables = stale


TABLES: Final = (
    Fault(
        "F13",
        "an evicted key is still mapped",
        ("identity", "lease"),
        _evicted_is_found,
        is_tight=True,
    ),
    Fault(
        "F14",
        "a block of the window is released too early",
        ("identity",),
        _window_too_short,
        is_windowed=True,
    ),
    Fault(
        "F15",
        "a shared block is released twice",
        ("lease", "identity"),
        _double_free,
        is_tight=True,
    ),
    Fault("F16", "two rows of the table are exchanged", ("identity",), _exchanged),
    Fault(
        "F24",
        "a table from before the preemption is read",
        ("identity",),
        _stale_table,
        is_tight=True,
    ),
)
"""In the order of their names."""
