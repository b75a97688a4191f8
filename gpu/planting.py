"""What a seeded fault of the tensor level is, and what such faults have in common.

A fault gets something wrong once, in the first step from a drawn one on in which it finds its
place; nobody but itself is told. It changes what passes through a hook of the runner, writes
memory behind the runner's back, or bends the manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch

from gpu.runner import Batch, Runner
from gpu.violations import Defence


class Plant:
    """One fault in one run: when it may strike, and whether it has."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # a fault must be repeatable, not secret
        self.first_step = self.random.randrange(2, 6)
        self.step: int | None = None
        """The step in which it struck."""

    def may_strike(self, batch: Batch) -> bool:
        """It has not struck yet, and the run has gone on for a while."""
        return self.step is None and batch.step >= self.first_step

    def strike(self, batch: Batch) -> None:
        """It strikes now."""
        self.step = batch.step


@dataclass(frozen=True)
class Fault:
    """`says` what goes wrong; `seen_by` names the layers of which one must see it.

    `is_windowed`, `is_tight` and `has_drafts` are what a run must have for it, None where either
    will do.
    """

    name: str
    says: str
    seen_by: tuple[Defence, ...]
    install: Callable[[Runner, Plant], None]
    is_windowed: bool | None = None
    is_tight: bool = False
    has_drafts: bool = False


def settled_blocks(runner: Runner) -> list[int]:
    """The sealed blocks; after a step none of them is pending."""
    return [b.block_id for b in runner.manager.block_pool.blocks if b.block_hash is not None]


def cells_of(runner: Runner, batch: Batch, row: int) -> list[int]:
    """The table of the request that a row of the batch belongs to."""
    part = batch.parts[int(batch.rows.request_idx[row])]
    return runner.manager.get_block_ids(part.request.request_id)


def all_planes(runner: Runner) -> list[torch.Tensor]:
    """Keys and values of all layers, `[num_blocks + 1, block_size, num_kv_heads, head_size]`."""
    layers = range(runner.model.num_layers)
    return [runner.pool.plane(layer, plane) for layer in layers for plane in (0, 1)]


def as_bytes(plane: torch.Tensor, block_id: int) -> torch.Tensor:
    """One block as bytes; what is written there is written into the plane."""
    return plane[block_id].view(torch.uint8)


def after_step(runner: Runner, strike: Callable[[Runner, Batch], None]) -> None:
    """Let a fault strike after each step, before others look."""
    others = runner.hooks.after_step

    def both(runner: Runner, batch: Batch) -> None:
        strike(runner, batch)
        others(runner, batch)

    runner.hooks.after_step = both


def settled_so_far(runner: Runner) -> set[int]:
    """A set that holds, in each step, the blocks that were settled after the one before."""
    settled: set[int] = set()

    def note(runner: Runner, _batch: Batch) -> None:
        settled.clear()
        settled.update(settled_blocks(runner))

    after_step(runner, note)
    return settled
