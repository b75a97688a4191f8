"""The memory of a worker's cache, with what shows that somebody wrote or read where nobody may.

Each layer keeps a *plane* of keys and one of values (MLA: one plane), and around the blocks of each
plane lie three blocks more, so a layer takes `planes * 3` halves of a page beyond its plan:

    red zone | block 0, the null block | block 1 ... block num_blocks - 1 | trash block | red zone

A red zone is never written; the trash block takes what must not go where it says; the null block
is never written either. All of it is *poison* at the start, and so is a block that was taken and
not yet written: a NaN with a payload of its own, or, for integers, a value that no model stores.
Whoever reads it unmasked is seen, and so is whoever writes a red zone or the null block.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch

from gpu import ops
from gpu.eager import as_integers, read_rows
from gpu.errors import UnknownBacking
from gpu.fingerprint import words_of
from gpu.layout import torch_dtype_of
from kvcache.interface import DTYPE_SIZE_BYTES, KVCacheConfig, KVCacheSpec

Backing = Literal["torch", "mmap"]
Place = Literal["before", "null", "after"]

POISON: Final[dict[torch.dtype, int]] = {
    torch.float64: 0x7FFD_EAD0_DEAD_BEA7,
    torch.float32: 0x7FED_BEA7,
    torch.float16: 0x7EA7,
    torch.bfloat16: 0x7FE7,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7E,
    torch.int8: 0x80,
    torch.uint8: 0xFF,
}
"""The bits of an element that nobody wrote: a quiet NaN, -128 or 255."""

NUM_EXTRA_BLOCKS: Final = 3
_FIRST_BLOCK: Final = 1


@dataclass(frozen=True, slots=True)
class Stray:
    """The first byte that somebody wrote in a place that nobody may write."""

    layer: int
    plane: int
    place: Place
    byte: int


class KVPool:
    """The planes of every layer on one device.

    Layers are numbered in the order of `config.layer_specs`. `backing="mmap"` keeps each block of a
    plane in memory pages of its own, so that the system can be asked to protect it (CPU only).
    Raises `UnknownBacking`.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        device: torch.device | str = "cpu",
        backing: Backing = "torch",
    ) -> None:
        self.device = torch.device(device)
        if backing not in get_args(Backing) or (backing == "mmap" and self.device.type != "cpu"):
            raise UnknownBacking(backing=backing, device=str(device))
        self.config = config
        self.num_blocks = config.num_blocks
        self.backing = backing
        self.specs: list[KVCacheSpec] = list(config.layer_specs.values())
        self._physical = [self._allocate(spec) for spec in self.specs]
        for layer, physical in enumerate(self._physical):
            as_integers(physical).fill_(self.poison_pattern(layer))

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers' names, in the order of their numbers."""
        return tuple(self.config.layer_specs)

    @property
    def trash_block(self) -> int:
        """The id of the block that takes what must not go where it says."""
        return self.num_blocks

    def num_planes(self, layer: int) -> int:
        """2, keys and values; for MLA 1."""
        return self.specs[layer].coef

    def block_size(self, layer: int) -> int:
        """The tokens of a block."""
        return self.specs[layer].block_size

    def poison_pattern(self, layer: int) -> int:
        """The bits of an element of this layer that nobody wrote."""
        return POISON[torch_dtype_of(self.specs[layer].dtype)]

    def physical(self, layer: int, plane: int) -> torch.Tensor:
        """All blocks `[num_blocks + 3, block_size, num_kv_heads, head_size]`: id + 1 is the row."""
        return self._physical[layer][plane]

    def plane(self, layer: int, plane: int) -> torch.Tensor:
        """Blocks by id, then trash: `[num_blocks + 1, block_size, num_kv_heads, head_size]`.

        This is what the operations take.
        """
        return self._physical[layer][plane, _FIRST_BLOCK:-1]

    def view(self, layer: int) -> torch.Tensor:
        """`[planes, num_blocks, block_size, num_kv_heads, head_size]`, for attention."""
        return self._physical[layer][:, _FIRST_BLOCK : _FIRST_BLOCK + self.num_blocks]

    def poison(self, block_ids: torch.Tensor) -> None:
        """Blocks of all layers become as if nobody had written them; ids int64 `[n]`."""
        for layer in range(len(self.specs)):
            for plane in range(self.num_planes(layer)):
                ops.poison(self.plane(layer, plane), block_ids, self.poison_pattern(layer))

    def rows(self, layer: int, plane: int, slots: torch.Tensor) -> torch.Tensor:
        """The rows at slots int64 `[n]`, copied bit by bit; outside means the trash block."""
        return read_rows(self.plane(layer, plane), slots)

    def row_words(self, layer: int, plane: int, slots: torch.Tensor) -> torch.Tensor:
        """The same as little-endian words, int64 `[n, words]`, the last one filled with zeros."""
        return words_of(self.rows(layer, plane, slots))

    def strays(self) -> list[Stray]:
        """What was written in red zones and null blocks, the first byte of each; waits for it."""
        found = []
        for layer, spec in enumerate(self.specs):
            for plane in range(spec.coef):
                found += self._strays(layer, plane)
        return found

    def red_zones_intact(self) -> bool:
        """Nobody wrote before the first block or after the trash block of any plane."""
        return all(stray.place == "null" for stray in self.strays())

    def null_block_intact(self) -> bool:
        """Nobody wrote the null block."""
        return all(stray.place != "null" for stray in self.strays())

    def span(self, layer: int, plane: int, block_id: int) -> tuple[int, int]:
        """The address of a block's first byte, and the number of bytes up to the next block.

        With `backing="mmap"` these are whole memory pages. The trash block is `num_blocks`, and the
        red zones are -1 and `num_blocks + 1`.
        """
        blocks = self.physical(layer, plane)
        num_bytes = blocks.stride(0) * blocks.element_size()
        return blocks[block_id + _FIRST_BLOCK].data_ptr(), num_bytes

    def _strays(self, layer: int, plane: int) -> list[Stray]:
        blocks = as_integers(self.physical(layer, plane))
        places: tuple[tuple[Place, int], ...] = (
            ("before", 0),
            ("null", _FIRST_BLOCK),
            ("after", -1),
        )
        found = []
        for place, index in places:
            changed = (blocks[index] != self.poison_pattern(layer)).flatten()
            if changed.any():
                byte = int(changed.int().argmax()) * blocks.element_size()
                found.append(Stray(layer, plane, place, byte))
        return found

    def _allocate(self, spec: KVCacheSpec) -> torch.Tensor:
        """Planes and blocks, strided: `[planes, num_blocks + 3, block_size, heads, head_size]`."""
        element = DTYPE_SIZE_BYTES[spec.dtype]
        block_bytes = spec.page_size_bytes // spec.coef
        if self.backing == "mmap":
            block_bytes += -block_bytes % mmap.PAGESIZE
        num_rows = spec.coef * (self.num_blocks + NUM_EXTRA_BLOCKS)
        if self.backing == "mmap":
            # The tensor keeps the map, and the map the memory; a forked child gets its own.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            memory = mmap.mmap(-1, num_rows * block_bytes, flags=flags)
            raw = torch.frombuffer(memory, dtype=torch.uint8)
        else:
            raw = torch.empty(num_rows * block_bytes, dtype=torch.uint8, device=self.device)
        rows = raw.view(torch_dtype_of(spec.dtype)).view(spec.coef, -1, block_bytes // element)
        used = rows[:, :, : spec.page_size_bytes // spec.coef // element]
        return used.view(*rows.shape[:2], spec.block_size, spec.num_kv_heads, spec.head_size)
