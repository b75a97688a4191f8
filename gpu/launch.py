"""Triton's forms of the operations, called like torch's: grids, units and widths.

`TritonForms` runs the kernels compiled for a device, or under the interpreter of Triton, which is
there for tests: it does about 1 MB/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from gpu.fingerprint import GOLDEN, MASK, WORD_BYTES, first_word_index, num_words_of, signed

ACCOUNT_WIDTH: Final = 1024
"""Slots that the one program of `route_slots` judges at a time."""
TABLE_WIDTH: Final = 256
"""Cells of a table row compared at a time."""
TILE_WORDS: Final = 1024
"""Words that a program mixes at a time, of one row or of several."""
FILL_WIDTH: Final = 1024
"""Units that a program fills."""


def width_of(count: int) -> int:
    """The smallest power of two that is `count` or more."""
    return 1 << max(0, count - 1).bit_length()


def num_warps_of(num_units: int) -> int:
    """Warps that copy so many units with two each, which is 128 bits of a word."""
    return min(8, max(1, width_of(num_units) // 64))


def scatter_width_of(num_warps: int) -> int:
    """Slots judged at a time beside a write: two for a thread, so that registers are left."""
    return 64 * num_warps


class Units:
    """Rows and planes as the units that kernels copy: int64 where all of them allow it."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        flat = [_with_flat_rows(tensor) for tensor in tensors]
        # Rows are the last dimension; those before it step from row to row.
        self.row_bytes = flat[0].shape[-1] * flat[0].element_size()
        self.by_word = not self.row_bytes % WORD_BYTES and all(map(_on_words, flat))
        dtype = torch.int64 if self.by_word else torch.uint8
        self.tensors = [tensor.view(dtype) for tensor in flat]
        self.num_units = self.tensors[0].shape[-1]


def _with_flat_rows(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten(-2)
    return flat if flat.stride(-1) == 1 else flat.contiguous()


def _on_words(flat: torch.Tensor) -> bool:
    steps = (flat.data_ptr(), *(step * flat.element_size() for step in flat.stride()[:-1]))
    return not any(step % WORD_BYTES for step in steps)


class TritonForms:
    """The operations of `gpu.eager`, by the kernels that `kernels` gives by name."""

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self.kernels = kernels

    def _run(self, name: str, grid: tuple[int, ...], *args: Any, num_warps: int = 4) -> None:  # noqa: ANN401  # a kernel takes tensors and numbers
        # No kernel computes with floats, and some releases of Triton warn where this is not said.
        self.kernels[name][grid](*args, num_warps=num_warps, enable_fp_fusion=False)

    def route_slots(
        self,
        slots: torch.Tensor,
        tags: torch.Tensor,
        lease: torch.Tensor,
        counts: torch.Tensor,
        ring: torch.Tensor,
        block_size: int,
    ) -> torch.Tensor:
        """Where each row may be written."""
        num_rows, routed = slots.shape[0], torch.empty_like(slots)
        width = min(ACCOUNT_WIDTH, width_of(num_rows))
        num_slots = lease.shape[0] * block_size
        self._run(
            "route_slots",
            (1,),
            slots,
            tags,
            lease,
            routed,
            counts,
            ring,
            num_rows,
            num_slots,
            block_size,
            width,
        )
        return routed

    def scatter_kv(  # noqa: PLR0913, PLR0917  # the operation's arguments
        self,
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
        rows = (keys, values, key_plane, value_plane, slots)
        self._scatter(rows, (tags, lease, counts, ring))

    def write_rows(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_plane: torch.Tensor,
        value_plane: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Rows of keys and values, written where it says; outside the pool means trash."""
        rows = (keys, values, key_plane, value_plane, slots)
        # An unchecked write reads none of these.
        self._scatter(rows, (slots, slots, slots, slots), checked=False)

    def _scatter(
        self,
        rows: tuple[torch.Tensor, ...],
        account: tuple[torch.Tensor, ...],
        *,
        checked: bool = True,
    ) -> None:
        *places, slots = rows
        num_rows, (num_blocks, block_size) = slots.shape[0], places[2].shape[:2]
        if not num_rows:
            return
        units = Units(*places)
        strides = (tensor.stride(0) for tensor in units.tensors)
        num_warps = num_warps_of(units.num_units)
        self._run(
            "scatter_kv",
            (num_rows,),
            *units.tensors,
            slots,
            *account,
            num_rows,
            (num_blocks - 1) * block_size,
            *strides,
            checked,
            block_size,
            units.num_units,
            width_of(units.num_units),
            min(scatter_width_of(num_warps), width_of(num_rows)),
            num_warps=num_warps,
        )

    def ms64(
        self,
        rows: torch.Tensor,
        slots: torch.Tensor,
        seed: int,
        layer: int,
        plane_id: int,
        block_size: int,
    ) -> torch.Tensor:
        """The fingerprints that rows will have at their slots."""
        index = (seed, layer, plane_id, block_size)
        return self._ms64(Units(rows.flatten(1).unsqueeze(1)), slots, index, None)

    def ms64_slots(
        self, plane: torch.Tensor, slots: torch.Tensor, seed: int, layer: int, plane_id: int
    ) -> torch.Tensor:
        """The fingerprints of the rows that are at the slots."""
        num_blocks, block_size = plane.shape[0] - 1, plane.shape[1]
        index = (seed, layer, plane_id, block_size)
        return self._ms64(Units(plane), slots, index, num_blocks * block_size)

    def _ms64(
        self,
        units: Units,
        slots: torch.Tensor,
        index: tuple[int, int, int, int],
        num_slots: int | None,
    ) -> torch.Tensor:
        seed, layer, plane_id, block_size = index
        num_rows, out = slots.shape[0], torch.empty_like(slots)
        if not num_rows:
            return out
        num_words = num_words_of(units.row_bytes)
        first_key = seed + GOLDEN * first_word_index(layer, plane_id, 0, block_size, num_words)
        width = min(TILE_WORDS, width_of(num_words))
        num_tile_rows = max(1, min(TILE_WORDS // width, width_of(num_rows)))
        self._run(
            "ms64",
            (-(-num_rows // num_tile_rows),),
            units.tensors[0],
            slots,
            out,
            num_rows,
            num_slots or 0,
            units.tensors[0].stride(0),
            signed(first_key),
            num_slots is not None,
            block_size,
            units.row_bytes,
            units.by_word,
            num_tile_rows,
            width,
        )
        return out

    def poison(self, plane: torch.Tensor, block_ids: torch.Tensor, pattern: int) -> None:
        """Blocks in which every element has the bits of `pattern`."""
        if not block_ids.shape[0]:
            return
        units = Units(plane)
        num_units = units.num_units * plane.shape[1]
        width = min(FILL_WIDTH, width_of(num_units))
        self._run(
            "poison",
            (block_ids.shape[0], -(-num_units // width)),
            units.tensors[0],
            block_ids,
            plane.shape[0] - 1,
            units.tensors[0].stride(0),
            signed(pattern * (MASK // ((1 << 8 * plane.element_size()) - 1))),
            num_units,
            units.by_word,
            width,
        )

    def gather_kv(
        self,
        plane: torch.Tensor,
        block_ids: torch.Tensor,
        first: torch.Tensor,
        last: torch.Tensor,
    ) -> torch.Tensor:
        """The rows of requests in the order of their positions, zero where none is wanted."""
        (num_blocks, block_size), (num_requests, num_cells) = plane.shape[:2], block_ids.shape
        num_rows = num_cells * block_size
        out = plane.new_empty((num_requests, num_rows, *plane.shape[2:]))
        if not num_requests * num_cells:
            return out
        units = Units(plane, out)
        self._run(
            "gather_kv",
            (num_requests, num_rows),
            units.tensors[0],
            block_ids,
            first,
            last,
            units.tensors[1],
            num_blocks - 1,
            num_cells,
            units.tensors[0].stride(0),
            block_size,
            units.num_units,
            width_of(units.num_units),
            num_warps=num_warps_of(units.num_units),
        )
        return out

    def check_identity(  # noqa: PLR0913, PLR0917  # the operation's arguments
        self,
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
        num_rows, max_cells = block_ids.shape
        if not num_rows * max_cells:
            return
        tables = (block_ids, epochs, identities, num_cells, block_epoch, block_identity)
        # The programs of one launch count together, so each needs the number from before it.
        self._run(
            "check_identity",
            (num_rows,),
            *tables,
            counts.clone(),
            counts,
            ring,
            max_cells,
            block_epoch.shape[0],
            min(TABLE_WIDTH, width_of(max_cells)),
        )
