"""What should lie in every slot of a pool, as fingerprints, and whether it does.

For each layer, plane and slot one number is kept: the fingerprint of the row that the rightful
writer meant to write there, or of a row of poison where nobody wrote since the block was taken. A
look at a slot computes that of the memory. The two are compared on the device, and what differs
goes into a log; it is then taken as given, so each change is told once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gpu import ops
from gpu.eager import as_integers, record
from gpu.pool import KVPool, Stray

CONTENT_COLUMNS: Final = ("layer", "plane", "slot", "expected", "found", "is_poison")


class Contents:
    """The expected fingerprints of a pool that nobody has written yet.

    `sees_writes` tells of slots that somebody wrote, `sees_poison` of those that nobody did; both
    are left on except to find out what a layer of defence is worth.
    """

    def __init__(
        self, pool: KVPool, seed: int, *, sees_writes: bool = True, sees_poison: bool = True
    ) -> None:
        self.pool = pool
        self.seed = seed
        self.block_size = pool.block_size(0)
        self.log = ops.Log.empty(CONTENT_COLUMNS, pool.device)
        self._sees = (sees_writes, sees_poison)
        self._offsets = torch.arange(self.block_size, device=pool.device)
        self._planes = [(n, p) for n in range(len(pool.specs)) for p in range(pool.num_planes(n))]
        self._blank = [self._blank_prints(*place) for place in self._planes]
        self.expected = [blank.repeat(pool.num_blocks) for blank in self._blank]
        """By layer and plane, int64 `[num_blocks * block_size]`."""
        self._told: set[Stray] = set()

    @property
    def num_planes(self) -> int:
        """The planes of all layers."""
        return len(self._planes)

    def intend(self, layer: int, rows: Sequence[torch.Tensor], slots: torch.Tensor) -> None:
        """The rows, one tensor for each plane of the layer, are meant for these slots."""
        for (this_layer, plane), expected in zip(self._planes, self.expected, strict=True):
            if this_layer == layer:
                prints = ops.ms64(rows[plane], slots, self.seed, layer, plane, self.block_size)
                expected[slots] = prints

    def poison(self, block_ids: Sequence[int]) -> None:
        """Nobody has written these blocks, and memory shows it."""
        if not block_ids or not self._sees[1]:
            return
        ids = torch.tensor(block_ids, device=self.pool.device)
        self.pool.poison(ids)
        for expected, blank in zip(self.expected, self._blank, strict=True):
            expected.view(-1, self.block_size)[ids] = blank

    def slots_of(self, block_ids: Sequence[int]) -> torch.Tensor:
        """All slots of these blocks, int64."""
        ids = torch.tensor(block_ids, dtype=torch.int64, device=self.pool.device)
        return (ids[:, None] * self.block_size + self._offsets).flatten()

    def look(self, slots: torch.Tensor) -> int:
        """Compare memory with what is expected; return how many rows that makes in all planes."""
        if not len(slots):
            return 0
        sees_writes, sees_poison = self._sees
        for number, (layer, plane) in enumerate(self._planes):
            memory = self.pool.plane(layer, plane)
            found = ops.ms64_slots(memory, slots, self.seed, layer, plane)
            expected = self.expected[number][slots]
            blank = expected == self._blank[number][slots % self.block_size]
            bad = found != expected
            if not sees_writes:
                bad &= blank
            if not sees_poison:
                bad &= ~blank
            place = [torch.full_like(slots, n) for n in (layer, plane)]
            columns = [*place, slots, expected, found, blank.long()]
            record(self.log.counts, self.log.ring, bad, torch.stack(columns, dim=1))
            self.log.counts[0] += len(slots)
            self.expected[number][slots] = torch.where(bad, found, expected)
        return len(slots) * len(self._planes)

    def strays(self) -> list[Stray]:
        """What was written in red zones and null blocks since the last look."""
        if not self._sees[1]:
            return []
        new = [stray for stray in self.pool.strays() if stray not in self._told]
        self._told.update(new)
        return new

    def _blank_prints(self, layer: int, plane: int) -> torch.Tensor:
        """The fingerprints of a block of poison, int64 `[block_size]`."""
        block = self.pool.plane(layer, plane)[0].clone()
        as_integers(block).fill_(self.pool.poison_pattern(layer))
        return ops.ms64(block, self._offsets, self.seed, layer, plane, self.block_size)
