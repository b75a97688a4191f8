"""What the requests of a step expect of the blocks that they read, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu.ledger import Ledger
from gpu.runner import Batch
from gpu.tables import NO_BLOCK, NULL_IDENTITY


@dataclass(frozen=True, slots=True)
class Cells:
    """The tables of R requests with M cells, by manager and events, whatever the batch shows.

    `block_ids` int64, `epochs` int32 and `identities` int64 are `[R, M]`, `num_cells` is int64
    `[R]` and `total` its sum.
    """

    block_ids: torch.Tensor
    epochs: torch.Tensor
    identities: torch.Tensor
    num_cells: torch.Tensor
    total: int

    @classmethod
    def of(cls, batch: Batch, ledger: Ledger, window: int | None, block_size: int) -> Cells:
        """The cells of a step; those before a request's window may show the null block."""
        rows = []
        for part in batch.parts:
            first = 0 if window is None else max(0, part.start - window + 1) // block_size
            rows.append(ledger.expectation(part.request, first))
        longest, device = batch.block_tables.shape[1], batch.block_tables.device
        padding = (NO_BLOCK, NO_BLOCK, NULL_IDENTITY)
        padded = [row + [padding] * (longest - len(row)) for row in rows]
        table = torch.tensor(padded, dtype=torch.int64, device=device)
        ids, epochs, identities = table.unbind(dim=2)
        lengths = [len(row) for row in rows]
        num_cells = torch.tensor(lengths, dtype=torch.int64, device=device)
        return cls(ids, epochs.int(), identities.contiguous(), num_cells, sum(lengths))

    def slots(self, batch: Batch, block_size: int) -> torch.Tensor:
        """The slot of each row, int64 `[T]`."""
        rows = batch.rows
        cells = self.block_ids[rows.request_idx]
        block = cells.gather(1, (rows.positions // block_size)[:, None]).flatten()
        return block * block_size + rows.positions % block_size
