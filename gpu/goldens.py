"""The operations against numbers that are written down, against Python, and form against form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from gpu import ops
from gpu.fingerprint import MASK, first_word_index, ms64_of_row, num_words_of, signed
from gpu.ops import Backend

GOLDENS: Final = (
    (b"", 0, 0, 0x0000000000000000),
    (bytes(8), 0, 0, 0x0000000000000000),
    (bytes(range(8)), 0, 0, 0x6E068E3B28B76F49),
    (bytes(range(16)), 7, 3, 0x897EB540B237BCA8),
    (b"\xff" * 13, 2**63, 2**40, 0xC2903FAFFB960FFD),
)
"""Row, seed, index of its first word, fingerprint."""

SHAPES: Final = (
    (torch.bfloat16, 2, 8, 4),
    (torch.int8, 2, 4, 4),
    (torch.float8_e4m3fn, 1, 3, 2),
)
"""dtype, heads, head size, block size; a row of the last one is no whole number of words."""

_NUM_BLOCKS: Final = 6
_SEED: Final = 2**40 + 9
_PATTERN: Final = 0x7F


@dataclass(frozen=True)
class GoldenRow:
    """One comparison: what with what, how many numbers, and how many differ."""

    name: str
    num_compared: int
    num_different: int


def golden_rows() -> GoldenRow:
    """Fingerprints in Python integers, against what is written down here."""
    wrong = sum(
        ms64_of_row(row, seed=seed, first_index=index) != expected
        for row, seed, index, expected in GOLDENS
    )
    return GoldenRow("ms64 in Python, goldens", len(GOLDENS), wrong)


def compare_forms(backend: Backend, device: str) -> list[GoldenRow]:
    """Every operation in one form, bit for bit against torch's on the CPU, and that with Python."""
    rows = []
    for dtype, heads, head_size, block_size in SHAPES:
        case = _Case(dtype, heads, head_size, block_size)
        expected, found = case.run("torch", "cpu"), case.run(backend, device)
        for name, numbers in expected.items():
            different = int((numbers != found[name]).sum())
            rows.append(GoldenRow(f"{name}, {dtype}, {backend}", numbers.numel(), different))
        rows.append(case.compare_with_python(found["ms64"], backend))
    return rows


class _Case:
    """Rows, slots, leases and tables of one shape, the same every time."""

    def __init__(self, dtype: torch.dtype, heads: int, head_size: int, block_size: int) -> None:
        random = torch.Generator().manual_seed(5)
        self.dtype, self.block_size = dtype, block_size
        element = torch.empty(0, dtype=dtype).element_size()
        self._shape = (heads, head_size)
        num_slots = _NUM_BLOCKS * block_size
        # Good, leased to another, free, twice padding, beyond the pool and below it.
        blocks = torch.tensor([1, 2, 3, 4, 5])
        good = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
        odd = torch.tensor([-1, -1, num_slots + 10 * block_size, -7])
        self.slots = torch.cat([good, odd])
        self.tags = torch.full((len(self.slots),), 7, dtype=torch.int32)
        self.lease = torch.tensor([0, 7, 7, 9, 0, 7], dtype=torch.int32)
        row = (len(self.slots), heads, head_size * element)
        self.keys = torch.randint(0, 256, row, generator=random, dtype=torch.uint8)
        self.values = torch.randint(0, 256, row, generator=random, dtype=torch.uint8)
        planes = (2, _NUM_BLOCKS + 1, block_size, heads, head_size * element)
        self.planes = torch.randint(0, 256, planes, generator=random, dtype=torch.uint8)

    def run(self, backend: Backend, device: str) -> dict[str, torch.Tensor]:
        """What each operation gives, as integers on the CPU."""
        keys, values = (rows.to(device).view(self.dtype) for rows in (self.keys, self.values))
        planes = self.planes.to(device).view(self.dtype).clone()
        slots, tags, lease = (part.to(device) for part in (self.slots, self.tags, self.lease))
        log = ops.Log.empty(ops.LEASE_COLUMNS, device)
        seen = ops.Log.empty(ops.IDENTITY_COLUMNS, device)
        table = torch.tensor([[1, 5, -1], [2, 0, 6]], dtype=torch.int32, device=device)
        first, last = (torch.tensor(n, device=device) for n in ([0, 1], [5, 3]))
        epochs = torch.tensor([[1, 2, 0], [1, 9, 1]], dtype=torch.int32, device=device)
        identities = torch.arange(6, device=device).view(2, 3)
        block_epoch = torch.tensor([0, 1, 1, 2, 2, 2], dtype=torch.int32, device=device)
        block_identity = torch.tensor([0, 0, 3, 0, 0, 1], device=device)
        size = self.block_size
        with ops.using(backend):
            routed = ops.route_slots(slots, tags, lease, log.counts, log.ring, size)
            ops.write_rows(keys, values, planes[0], planes[1], routed)
            ops.scatter_kv(
                values, keys, planes[0], planes[1], slots, tags, lease, log.counts, log.ring
            )
            results = {
                "ms64": ops.ms64(keys, slots, _SEED, 1, 1, size),
                "ms64_slots": ops.ms64_slots(planes[1], slots, _SEED, 1, 1),
                "gather_kv": ops.gather_kv(planes[0], table, first, last),
            }
            ops.poison(planes[0], torch.tensor([2, 99], device=device), _PATTERN)
            ops.check_identity(
                table,
                epochs,
                identities,
                last.clamp(max=3),
                block_epoch,
                block_identity,
                seen.counts,
                seen.ring,
            )
        # The trash block takes several rows at once, in any order.
        results |= {"route_slots": routed, "planes": planes[:, :-1]}
        results |= {"lease log": log.counts, "lease ring": log.ring}
        results |= {"identity log": seen.counts, "identity ring": seen.ring}
        return {name: _integers(tensor) for name, tensor in results.items()}

    def compare_with_python(self, found: torch.Tensor, backend: str) -> GoldenRow:
        """The fingerprints of the keys, one by one."""
        row_bytes = self.keys[0].numel()
        wrong = 0
        for row, slot, number in zip(self.keys, self.slots.tolist(), found.tolist(), strict=True):
            offset = slot % self.block_size if slot >= 0 else 0
            index = first_word_index(1, 1, offset, self.block_size, num_words_of(row_bytes))
            expected = ms64_of_row(bytes(row.flatten().tolist()), seed=_SEED, first_index=index)
            wrong += signed(expected & MASK) != number
        name = f"ms64 with Python, {self.dtype}, {backend}"
        return GoldenRow(name, len(found), wrong)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits, as int64 or bytes, on the CPU."""
    tensor = tensor.cpu().contiguous()
    return tensor if tensor.dtype == torch.int64 else tensor.view(torch.uint8)
