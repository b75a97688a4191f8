"""Which block a request reads at which place, and what it expects to find there.

A cell of a table names a block, and the block's *epoch* when it was put there: how often the block
had been taken. Beside it stands the *identity* that the reader expects. The block has both, too,
and on every read they are compared. The epoch sees a block that was taken by somebody else in the
meantime; it does not see two rows of the table exchanged, because each cell still agrees with its
block. The identity does: it is the reader's own and stays when rows of the table move.

Identities are int64: 0 is the null block's; below 0 is a block that one request writes (the writer
and the place in its table); above 0 is a sealed block, by 63 bits of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from gpu import ops
from gpu.errors import TableRowTooLong
from kvcache.hashing import BlockHash

NO_BLOCK: Final = -1
NULL_IDENTITY: Final = 0
_LOW_63: Final = 2**63 - 1
_PLACE_BITS: Final = 32


def writer_identity(tag: int, position: int) -> int:
    """What a block is while the request with this tag writes it as its `position`-th, below 0."""
    return ~((tag << _PLACE_BITS) | position)


def key_identity(key: BlockHash) -> int:
    """What a block with this key is: the key's low 63 bits, above 0."""
    value = int.from_bytes(key, "big") if isinstance(key, bytes) else hash(key)
    return value & _LOW_63 or 1


class BlockTables:
    """`num_rows` rows of `max_blocks` cells on one device, for one group of layers.

    `block_ids` and `epochs` are int32, `identities` int64, all `[num_rows, max_blocks]`. A cell
    without a block holds -1, -1 and 0. Rows are written from the host and read on the device.
    """

    def __init__(
        self, num_rows: int, max_blocks: int, block_size: int, device: torch.device | str = "cpu"
    ) -> None:
        self.block_size = block_size
        shape = (num_rows, max_blocks)
        self.block_ids = torch.full(shape, NO_BLOCK, dtype=torch.int32, device=device)
        self.epochs = torch.full(shape, NO_BLOCK, dtype=torch.int32, device=device)
        self.identities = torch.zeros(shape, dtype=torch.int64, device=device)

    def set_row(
        self,
        row: int,
        block_ids: Sequence[int],
        epochs: Sequence[int],
        identities: Sequence[int],
    ) -> None:
        """A request's blocks in order, in place of what the row held; raises `TableRowTooLong`."""
        max_blocks = self.block_ids.shape[1]
        if len(block_ids) > max_blocks:
            raise TableRowTooLong(row=row, num_blocks=len(block_ids), max_blocks=max_blocks)
        self.clear_row(row)
        columns = (
            (self.block_ids, block_ids),
            (self.epochs, epochs),
            (self.identities, identities),
        )
        for cells, values in columns:
            cells[row, : len(block_ids)] = torch.tensor(values, dtype=cells.dtype)

    def clear_row(self, row: int) -> None:
        """The row names no block."""
        self.block_ids[row] = NO_BLOCK
        self.epochs[row] = NO_BLOCK
        self.identities[row] = NULL_IDENTITY

    def slot_mapping(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The slot of each token, int64 `[n]`, by its row and its position, int64 `[n]` both.

        -1 where the row is -1 (padding) or the table has no block at the position.
        """
        num_rows, max_blocks = self.block_ids.shape
        cells = positions // self.block_size
        there = (rows >= 0) & (rows < num_rows) & (positions >= 0) & (cells < max_blocks)
        block = self.block_ids[rows.where(there, 0), cells.where(there, 0)].long()
        slots = block * self.block_size + positions % self.block_size
        return slots.where(there & (block >= 0), -1)


class BlockIdentities:
    """What each block is now: `epoch` int32 and `identity` int64, `[num_blocks]` both."""

    def __init__(self, num_blocks: int, device: torch.device | str = "cpu") -> None:
        self.epoch = torch.zeros(num_blocks, dtype=torch.int32, device=device)
        self.identity = torch.zeros(num_blocks, dtype=torch.int64, device=device)

    def take(self, block_id: int, tag: int, position: int) -> None:
        """The block is somebody's to write: a new epoch, and the writer's identity."""
        self.epoch[block_id] += 1
        self.identity[block_id] = writer_identity(tag, position)

    def seal(self, block_id: int, key: BlockHash) -> None:
        """The block is what its key says."""
        self.identity[block_id] = key_identity(key)

    def forget(self, block_id: int) -> None:
        """The block is nothing that anybody may expect, until it is taken."""
        self.identity[block_id] = NULL_IDENTITY

    def check(
        self, tables: BlockTables, rows: torch.Tensor, num_cells: torch.Tensor, log: ops.Log
    ) -> None:
        """The first `num_cells` cells of these rows, compared; what differs goes into the log.

        `rows` and `num_cells` are int64 `[n]`; the log is one of `ops.IDENTITY_COLUMNS`, in which
        `row` counts within `rows`.
        """
        ops.check_identity(
            tables.block_ids[rows],
            tables.epochs[rows],
            tables.identities[rows],
            num_cells,
            self.epoch,
            self.identity,
            log.counts,
            log.ring,
        )
