"""Faults that write memory behind the runner's back: loaders, copies, flips, overruns.

No lease is asked, so what was written must be seen where it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from gpu.planting import Fault, Plant, after_step, all_planes, as_bytes, settled_blocks
from gpu.runner import Batch, Runner

Change = Callable[[Runner, Plant, list[int]], bool]


def _on_settled(change: Change) -> Callable[[Runner, Plant], None]:
    """Make a fault of a change to settled blocks between two steps; False is: no place for it."""

    def install(runner: Runner, plant: Plant) -> None:
        def strike(runner: Runner, batch: Batch) -> None:
            settled = settled_blocks(runner)
            if settled and plant.may_strike(batch) and change(runner, plant, settled):
                plant.strike(batch)

        after_step(runner, strike)

    return install


def _loader(runner: Runner, plant: Plant, settled: list[int]) -> bool:
    """Another content is loaded into a block that several requests hold."""
    blocks = runner.manager.block_pool.blocks
    shared = [b for b in settled if blocks[b].ref_cnt > 1]
    if not shared:
        return False
    target = plant.random.choice(shared)
    for plane in all_planes(runner):
        as_bytes(plane, target).copy_(as_bytes(plane, target).flip(0).clone())
    return True


def _copy_backwards(runner: Runner, plant: Plant, settled: list[int]) -> bool:
    """A copy to a fresh block goes from it instead."""
    blocks = runner.manager.block_pool.blocks[1:]
    fresh = [b.block_id for b in blocks if b.block_hash is None]
    if not fresh:
        return False
    source, target = plant.random.choice(settled), plant.random.choice(fresh)
    for plane in all_planes(runner):
        as_bytes(plane, source).copy_(as_bytes(plane, target))
    return True


def _flip(runner: Runner, plant: Plant, settled: list[int]) -> bool:
    """One bit of one plane."""
    data = as_bytes(plant.random.choice(all_planes(runner)), plant.random.choice(settled))
    place = tuple(plant.random.randrange(size) for size in data.shape)
    data[place] ^= 1 << plant.random.randrange(8)
    return True


def _sign_flips(runner: Runner, plant: Plant, settled: list[int]) -> bool:
    """The signs of a whole block of one plane: an even number, which a weighted sum misses."""
    plane = plant.random.choice(all_planes(runner))
    block = as_bytes(plane, plant.random.choice(settled))
    block[..., plane.element_size() - 1 :: plane.element_size()] ^= 0x80
    return True


def _half_a_copy(runner: Runner, plant: Plant, settled: list[int]) -> bool:
    """A block is brought back from elsewhere; of the values a stale block's come."""
    source = plant.random.choice(settled)
    values = runner.pool.plane(0, 1)
    mine = as_bytes(values, source)
    others = [b for b in settled if not torch.equal(as_bytes(values, b), mine)]
    if not others:
        return False
    stale = plant.random.choice(others)
    for layer in range(runner.model.num_layers):
        values = runner.pool.plane(layer, 1)
        as_bytes(values, source).copy_(as_bytes(values, stale))
    return True


def _overrun(runner: Runner, plant: Plant) -> None:
    """A row is written after the end of the pool's last block."""

    def strike(runner: Runner, batch: Batch) -> None:
        if plant.may_strike(batch):
            plant.strike(batch)
            layer = plant.random.randrange(runner.model.num_layers)
            zone = runner.pool.physical(layer, plant.random.randrange(2))[-1]
            zone.view(torch.uint8)[0].zero_()

    after_step(runner, strike)


def _late_store(runner: Runner, plant: Plant) -> None:
    """A store of a request arrives when its block is another's, past every check of slots."""
    slots: dict[int, tuple[str, torch.Tensor]] = {}
    size = runner.block_size

    def strike(runner: Runner, batch: Batch) -> None:
        blocks = runner.manager.block_pool.blocks
        tables = {
            block_id: served.request.request_id
            for served in runner.scheduler.running
            for block_id in runner.manager.get_block_ids(served.request.request_id)
        }
        keys = runner.pool.plane(0, 0)
        for slot, (owner, row) in slots.items():
            holder = tables.get(slot // size)
            different = not torch.equal(keys[slot // size, slot % size].view(torch.uint8), row)
            if holder not in {None, owner} and different and plant.may_strike(batch):
                plant.strike(batch)
                keys[slot // size, slot % size].view(torch.uint8).copy_(row)
        for block_id, owner in tables.items():
            if blocks[block_id].block_hash is None:
                row = keys[block_id, 0].view(torch.uint8).clone()
                slots[block_id * size] = (owner, row)

    after_step(runner, strike)


MEMORY: Final = (
    Fault("F10", "a loader fills a shared block", ("fingerprint",), _on_settled(_loader)),
    Fault("F11", "a copy in the wrong direction", ("fingerprint",), _on_settled(_copy_backwards)),
    Fault("F12", "one bit flipped in a sealed block", ("fingerprint",), _on_settled(_flip)),
    Fault("F17", "half a copy, the values stale", ("fingerprint",), _on_settled(_half_a_copy)),
    Fault("F21", "all signs of a block flipped", ("fingerprint",), _on_settled(_sign_flips)),
    Fault("F22", "a row written after the end of the pool", ("poison",), _overrun),
    Fault(
        "F23",
        "a late store into a block that is another's by now",
        ("fingerprint", "poison"),
        _late_store,
        is_tight=True,
    ),
)
"""In the order of their names."""
