"""Faults on the way of a row: its slot, its content, its plane and its layer.

They pass through the runner's own write, so a shield with leases may keep them from the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from gpu.planting import Fault, Plant, cells_of, settled_so_far
from gpu.runner import Batch, Runner
from gpu.scheduling import Scheduled, Served

Slots = Callable[[Runner, Batch, torch.Tensor], torch.Tensor]


def _into_the_neighbour(runner: Runner, plant: Plant) -> None:
    last = (runner.pool.num_blocks - 1) * runner.block_size

    def shift(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        at_end = slots % runner.block_size == runner.block_size - 1
        rows = (at_end & (slots < last)).nonzero().flatten().tolist()
        if not plant.may_strike(batch) or not rows:
            return slots
        plant.strike(batch)
        shifted = slots.clone()
        shifted[plant.random.choice(rows)] += 1
        return shifted

    runner.hooks.slot_mapping = shift


def _stale_slots(runner: Runner, plant: Plant) -> None:
    """A request that comes back writes through the table that it had before it was preempted."""
    tables: dict[str, tuple[int, list[int]]] = {}
    size = runner.block_size

    def stale(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        blocks = runner.manager.block_pool.blocks
        changed = slots.clone()
        for row, position in enumerate(batch.rows.positions.tolist()):
            request = batch.parts[int(batch.rows.request_idx[row])].request
            now = cells_of(runner, batch, row)
            count, table = tables.setdefault(request.request_id, (request.num_preemptions, now))
            if count == request.num_preemptions:
                tables[request.request_id] = (count, now)
                continue
            cell = position // size
            block_id = table[cell] if cell < len(table) else 0
            writable = blocks[block_id].ref_cnt == 1 and blocks[block_id].block_hash is None
            if writable and block_id not in now and plant.step in {None, batch.step}:
                plant.strike(batch)
                changed[row] = block_id * size + position % size
        return changed

    runner.hooks.slot_mapping = stale


def _one_row_more(runner: Runner, plant: Plant, slot: int) -> None:
    """A row of padding has a slot, where it should have -1."""

    def padded(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        if not plant.may_strike(batch):
            return slots
        plant.strike(batch)
        return torch.cat([slots, slots.new_tensor([slot])])

    def source(
        _runner: Runner, batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
    ) -> torch.Tensor:
        return torch.cat([rows, rows[:1]]) if plant.step == batch.step else rows

    runner.hooks.slot_mapping, runner.hooks.source = padded, source


def _into_null(runner: Runner, plant: Plant) -> None:
    _one_row_more(runner, plant, 0)


def _into_last(runner: Runner, plant: Plant) -> None:
    _one_row_more(runner, plant, runner.pool.num_blocks * runner.block_size - 1)


def _whole_prompt(runner: Runner, plant: Plant) -> None:
    """The last token of a hit is computed once more, and written where it stands."""
    settled = settled_so_far(runner)
    admit = runner.scheduler._admit  # noqa: SLF001  # the place where a hit becomes a start

    def one_token_early(served: Served, budget: int, step: list[Scheduled]) -> int | None:
        num_tokens = admit(served, budget, step)
        if not num_tokens or not step[-1].start or plant.step is not None:
            return num_tokens
        table = runner.manager.get_block_ids(served.request.request_id)
        if table[(step[-1].start - 1) // runner.block_size] in settled:
            plant.step = runner.tally.num_steps + 1
            old = step.pop()
            step.append(Scheduled(served, old.start - 1, old.num_tokens + 1))
        return num_tokens

    runner.scheduler._admit = one_token_early  # type: ignore[method-assign]  # noqa: SLF001  # the same


def _restart(runner: Runner, plant: Plant) -> None:
    """The positions of a request's first step begin at 0, though it has a hit."""
    size, settled = runner.block_size, settled_so_far(runner)

    def slots_again(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        if plant.step is not None:
            return slots
        changed = slots.clone()
        for row, position in enumerate(batch.rows.positions.tolist()):
            part = batch.parts[int(batch.rows.request_idx[row])]
            cell, offset = divmod(position - part.start, size)
            block_id = cells_of(runner, batch, row)[cell]
            if part.start and not part.request.output_token_ids and block_id in settled:
                changed[row] = block_id * size + offset
        if not torch.equal(changed, slots):
            plant.strike(batch)
        return changed

    def positions_again(_runner: Runner, batch: Batch, positions: torch.Tensor) -> torch.Tensor:
        if plant.step != batch.step:
            return positions
        starts = positions.new_tensor([part.start for part in batch.parts])
        hits = [bool(p.start) and not p.request.output_token_ids for p in batch.parts]
        moved = starts * starts.new_tensor(hits)
        return positions - moved[batch.rows.request_idx]

    runner.hooks.slot_mapping, runner.hooks.positions = slots_again, positions_again


def _draft_into_sealed(runner: Runner, plant: Plant) -> None:
    size = runner.block_size

    def misplaced(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        blocks = runner.manager.block_pool.blocks
        for row, position in enumerate(batch.rows.positions.tolist()):
            part = batch.parts[int(batch.rows.request_idx[row])]
            table = cells_of(runner, batch, row)
            sealed = [b for b in table if blocks[b].block_hash is not None]
            is_draft = position >= part.end - part.num_drafts
            if is_draft and sealed and plant.may_strike(batch):
                plant.strike(batch)
                changed = slots.clone()
                changed[row] = sealed[0] * size + position % size
                return changed
        return slots

    runner.hooks.slot_mapping = misplaced


def _rows(
    change: Callable[[Runner, Batch, int, int, torch.Tensor], torch.Tensor],
) -> Callable[[Runner, Plant], None]:
    """Make a fault of a change of the rows that are written, in one step."""

    def install(runner: Runner, plant: Plant) -> None:
        def source(
            runner: Runner, batch: Batch, layer: int, plane: int, rows: torch.Tensor
        ) -> torch.Tensor:
            if plant.step != batch.step and not plant.may_strike(batch):
                return rows
            changed = change(runner, batch, layer, plane, rows)
            if not torch.equal(changed.view(torch.uint8), rows.view(torch.uint8)):
                plant.strike(batch)
            return changed

        runner.hooks.source = source

    return install


def _wrong_stride(
    _runner: Runner, _batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
) -> torch.Tensor:
    return rows.transpose(1, 2).reshape(rows.shape)


def _exchanged_rows(
    _runner: Runner, _batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
) -> torch.Tensor:
    return rows.flip(0)


def _lost_in_last_layer(
    runner: Runner, batch: Batch, layer: int, plane: int, rows: torch.Tensor
) -> torch.Tensor:
    """What was there before is written, so nothing is."""
    is_last = layer == runner.model.num_layers - 1
    return runner.pool.rows(layer, plane, batch.slot_mapping) if is_last else rows


def _places(swap: Callable[[int, int, int], tuple[int, int]]) -> Callable[[Runner, Plant], None]:
    """Make a fault of a change of layer and plane, in one step."""

    def install(runner: Runner, plant: Plant) -> None:
        def place(_runner: Runner, batch: Batch, layer: int, plane: int) -> tuple[int, int]:
            if plant.may_strike(batch):
                plant.strike(batch)
            here = plant.step == batch.step
            return swap(layer, plane, runner.model.num_layers) if here else (layer, plane)

        runner.hooks.place = place

    return install


WRITES: Final = (
    Fault(
        "F01",
        "a slot off by one, into the neighbour",
        ("lease", "fingerprint"),
        _into_the_neighbour,
    ),
    Fault(
        "F02",
        "a stale slot after preemption and re-allocation",
        ("lease",),
        _stale_slots,
        is_tight=True,
    ),
    Fault("F03", "a row of padding writes the null block", ("lease",), _into_null),
    Fault("F04", "the -1 of padding wraps to the last slot", ("lease",), _into_last),
    Fault(
        "F05", "the last token of a whole-prompt hit is written again", ("lease",), _whole_prompt
    ),
    Fault("F06", "rows with a wrong stride", ("fingerprint",), _rows(_wrong_stride)),
    Fault(
        "F07",
        "layers mixed up",
        ("fingerprint",),
        _places(lambda layer, plane, num_layers: (num_layers - 1 - layer, plane)),
    ),
    Fault(
        "F08",
        "keys and values swapped",
        ("fingerprint",),
        _places(lambda layer, plane, _num_layers: (layer, 1 - plane)),
    ),
    Fault(
        "F09",
        "a rejected draft is written into a sealed block",
        ("lease",),
        _draft_into_sealed,
        has_drafts=True,
    ),
    Fault("F18", "positions begin at 0 again after a hit", ("lease",), _restart),
    Fault("F19", "the rows of a step in reverse order", ("fingerprint",), _rows(_exchanged_rows)),
    Fault(
        "F20",
        "the last layer's write of a step is lost",
        ("fingerprint",),
        _rows(_lost_in_last_layer),
    ),
)
"""In the order of their names."""
