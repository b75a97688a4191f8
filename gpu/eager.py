"""torch's forms of the operations: on any device, and what the kernels are held against.

Nothing waits for the device and no shape depends on a value (no `.item()`, no boolean index), so
they may be captured in a graph. A row that must not go where it says goes to the trash block,
which is the last block of a plane `[num_blocks + 1, block_size, num_kv_heads, head_size]`: left out
or at -1 it would land in the last slot, without a word.

Everything is copied through integer views, because a NaN's payload is lost on a way through floats.
"""

from __future__ import annotations

from typing import Final

import torch

from gpu.fingerprint import ms64_rows_in_chunks, row_keys, word_steps, words_of

RING_ROWS: Final = 64

INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""A dtype of integers by its size in bytes."""


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers of the same size; nothing is copied."""
    return tensor.view(INTEGERS[tensor.element_size()])


def route_slots(
    slots: torch.Tensor,
    tags: torch.Tensor,
    lease: torch.Tensor,
    counts: torch.Tensor,
    ring: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """Where each row may be written."""
    num_slots = lease.shape[0] * block_size
    inside = (slots >= 0) & (slots < num_slots)
    block = torch.where(inside, slots // block_size, -1)
    found = torch.where(inside, lease[block.clamp(min=0)], -1)
    good = inside & (found == tags) & (tags != 0)
    in_trash = (slots >= num_slots) & (slots < num_slots + block_size)
    padded = (slots == -1) | in_trash
    bad = ~(good | padded)
    rows = torch.arange(slots.shape[0], device=slots.device)
    record(counts, ring, bad, torch.stack([rows, slots, block, found, tags.long()], dim=1))
    counts[0] += slots.shape[0]
    counts[2] += padded.sum()
    return torch.where(good, slots, num_slots + rows % block_size)


def record(
    counts: torch.Tensor, ring: torch.Tensor, bad: torch.Tensor, entries: torch.Tensor
) -> None:
    """The bad entries, counted; the first 64 of them stand in place of the oldest in the ring."""
    rank = bad.cumsum(0) - 1
    place = torch.where(bad & (rank < RING_ROWS), (rank + counts[1]) % RING_ROWS, RING_ROWS)
    # What is not to be written goes to one row more, which is then dropped.
    longer = torch.cat([ring, ring[:1]])
    longer.index_copy_(0, place, entries)
    ring.copy_(longer[:RING_ROWS])
    counts[1] += bad.sum()


def scatter_kv(  # noqa: PLR0913, PLR0917  # the operation's arguments
    keys: torch.Tensor,
    values: torch.Tensor,
    key_plane: torch.Tensor,
    value_plane: torch.Tensor,
    slots: torch.Tensor,
    tags: torch.Tensor,
    lease: torch.Tensor,
    counts: torch.Tensor,
    ring: torch.Tensor,
) -> None:
    """Rows of keys and values, written where their writer has the lease."""
    routed = route_slots(slots, tags, lease, counts, ring, key_plane.shape[1])
    write_rows(keys, values, key_plane, value_plane, routed)


def write_rows(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_plane: torch.Tensor,
    value_plane: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Rows of keys and values, written where it says; outside the pool means the trash block."""
    block_size = key_plane.shape[1]
    num_slots = (key_plane.shape[0] - 1) * block_size
    rows = torch.arange(slots.shape[0], device=slots.device)
    inside = (slots >= 0) & (slots < num_slots)
    slots = torch.where(inside, slots, num_slots + rows % block_size)
    block, offset = slots // block_size, slots % block_size
    as_integers(key_plane)[block, offset] = as_integers(keys)
    as_integers(value_plane)[block, offset] = as_integers(values)


def read_rows(plane: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The rows at the slots, `[n, num_kv_heads, head_size]`; outside means trash, offset 0."""
    block_size = plane.shape[1]
    num_slots = (plane.shape[0] - 1) * block_size
    slots = torch.where((slots >= 0) & (slots < num_slots), slots, num_slots)
    return as_integers(plane)[slots // block_size, slots % block_size].view(plane.dtype)


def ms64(
    rows: torch.Tensor, slots: torch.Tensor, seed: int, layer: int, plane_id: int, block_size: int
) -> torch.Tensor:
    """The fingerprints that rows will have at their slots."""
    words = words_of(rows)
    num_words = words.shape[1]
    keys = row_keys(
        slots.clamp(min=0) % block_size,
        seed=seed,
        layer=layer,
        plane=plane_id,
        block_size=block_size,
        num_words=num_words,
    )
    return ms64_rows_in_chunks(words, keys, word_steps(num_words, words.device))


def ms64_slots(
    plane: torch.Tensor, slots: torch.Tensor, seed: int, layer: int, plane_id: int
) -> torch.Tensor:
    """The fingerprints of the rows that are at the slots."""
    block_size = plane.shape[1]
    num_slots = (plane.shape[0] - 1) * block_size
    slots = torch.where(slots < num_slots, slots, -1)
    return ms64(read_rows(plane, slots), slots, seed, layer, plane_id, block_size)


def poison(plane: torch.Tensor, block_ids: torch.Tensor, pattern: int) -> None:
    """Blocks in which every element has the bits of `pattern`."""
    num_blocks = plane.shape[0] - 1
    inside = (block_ids >= 0) & (block_ids < num_blocks)
    targets = torch.where(inside, block_ids, num_blocks)
    as_integers(plane).index_fill_(0, targets, pattern)


def gather_kv(
    plane: torch.Tensor, block_ids: torch.Tensor, first: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    """The rows of requests in the order of their positions, zero where none is wanted."""
    num_blocks, block_size = plane.shape[0] - 1, plane.shape[1]
    num_cells = block_ids.shape[1]
    inside = (block_ids >= 0) & (block_ids < num_blocks)
    rows = as_integers(plane)[torch.where(inside, block_ids, num_blocks).long()].flatten(1, 2)
    position = torch.arange(num_cells * block_size, device=plane.device)
    wanted = (position >= first.unsqueeze(1)) & (position < last.unsqueeze(1))
    wanted &= inside.repeat_interleave(block_size, dim=1, output_size=num_cells * block_size)
    rows.masked_fill_(~wanted[:, :, None, None], 0)
    return rows.view(plane.dtype)


def check_identity(  # noqa: PLR0913, PLR0917  # the operation's arguments
    block_ids: torch.Tensor,
    epochs: torch.Tensor,
    identities: torch.Tensor,
    num_cells: torch.Tensor,
    block_epoch: torch.Tensor,
    block_identity: torch.Tensor,
    counts: torch.Tensor,
    ring: torch.Tensor,
) -> None:
    """Cells of a table, compared with what their blocks hold now."""
    inside = (block_ids >= 0) & (block_ids < block_epoch.shape[0])
    safe = torch.where(inside, block_ids, 0).long()
    epoch_found = torch.where(inside, block_epoch[safe], -1)
    identity_found = torch.where(inside, block_identity[safe], 0)
    cells = torch.arange(block_ids.shape[1], device=block_ids.device).expand_as(block_ids)
    rows = torch.arange(block_ids.shape[0], device=block_ids.device).unsqueeze(1)
    known = cells < num_cells.unsqueeze(1)
    same = inside & (epoch_found == epochs) & (identity_found == identities)
    seen = [rows.expand_as(cells), cells, block_ids, epoch_found, epochs]
    columns = [column.long() for column in seen] + [identity_found, identities]
    entries = torch.stack(columns, dim=-1).flatten(0, 1)
    record(counts, ring, (known & ~same).flatten(), entries)
    counts[0] += known.sum()
