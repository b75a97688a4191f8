"""Who may write which block, and what its readers may expect, by the manager's own events.

A block is *leased* to the one request that may write it: from the take to the seal, and on to the
end of the step that fills it, because a block is sealed when its last token is scheduled. Then it
is *settled*, and nobody may write it until it is taken again. So at every moment

    lease[block] != 0   exactly when   the block is in use and unsealed, or pending on its writer

which is the specification's own rule. A lease is a number for one admission of one request: a
request that comes back after a preemption is another writer, and its old table points at blocks
that are somebody else's.

The ledger lives on the host and knows no tensor of the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from gpu.tables import NULL_IDENTITY, BlockIdentities, key_identity, writer_identity
from kvcache.block import KVCacheBlock
from kvcache.hashing import BlockHash, HashChain, key_kind
from kvcache.manager import KVCacheManager
from kvcache.request import Request

NOBODY = 0
FOREIGN = -1
"""The epoch and the identity that no block has: a cell that can never be right."""
DIRECT = "-"
"""The holder of blocks that were taken from the pool without a request."""


@dataclass(slots=True)
class Cell:
    """What a request expects of a block that it holds; the identity of a hit is its own key."""

    epoch: int
    position: int
    identity: int | None


@dataclass(slots=True)
class Admission:
    """One admission of one request, from its first block to its last."""

    tag: int
    cells: dict[int, Cell] = field(default_factory=dict)


class Wrong(NamedTuple):
    """An event that no manager may send."""

    block_id: int
    what: str
    expected: str
    found: str


class Ledger:
    """A `PoolListener` that keeps the leases of a pool of `num_blocks` blocks.

    `lease` is int32 `[num_blocks]` and `blocks` what each block is, both on the CPU.
    `watch` names the manager; without one every block is settled at its seal.
    """

    def __init__(self, num_blocks: int) -> None:
        self.lease = torch.zeros(num_blocks, dtype=torch.int32)
        self.blocks = BlockIdentities(num_blocks)
        self.holders: dict[int, Counter[str]] = {}
        self.writers: dict[int, str] = {}
        self.call_number = 0
        self.calls: dict[int, tuple[int, str]] = {}
        """By block: the number and the text of the last call that touched it."""
        self.due: list[int] = []
        """Blocks whose content must be looked at before anything is written."""
        self.taken: list[int] = []
        self.settled: list[int] = []
        self.wrong: list[Wrong] = []
        self.is_changed = True
        self._manager: KVCacheManager | None = None
        self._admissions: dict[str, Admission] = {}
        self._names: dict[int, str] = {}
        self._num_tags = 0
        self._sealed: set[int] = set()
        self._pending: dict[int, str] = {}
        self._call = DIRECT
        self._request: Request | None = None
        self._tables: dict[str, list[int]] = {}

    def watch(self, manager: KVCacheManager) -> None:
        """Tables, window and keys are this manager's from here on."""
        self._manager = manager

    def before_call(self, call: str, request: Request) -> None:
        """The events that follow are of this call and this request."""
        self.call_number += 1
        self._call, self._request = call, request
        self._tables.clear()

    def after_calls(self) -> None:
        """The events that follow are of nobody's call."""
        self._call, self._request = DIRECT, None
        self._tables.clear()

    def take(self, block: KVCacheBlock) -> None:
        """The block is leased to the request, in a new epoch."""
        block_id, admission, table = self._note(block), self._admission(), self._table()
        position = len(table)
        table.append(block_id)
        self.blocks.take(block_id, admission.tag, position)
        identity = writer_identity(admission.tag, position)
        admission.cells[block_id] = Cell(self.epoch(block_id), position, identity)
        if block_id in self._sealed:
            self._report(block_id, "taken with its key", "no key", "a key")
            self._sealed.discard(block_id)
        if self.holders.get(block_id):
            self._report(block_id, "taken from its holders", "nobody", self.held_by(block_id))
        self.holders[block_id] = Counter([self._name()])
        self.writers[block_id] = self._name()
        self._pending.pop(block_id, None)
        self.lease[block_id] = admission.tag
        self.taken.append(block_id)

    def evict(self, block: KVCacheBlock, _key: BlockHash) -> None:
        """Nobody finds the block any more; what it held is looked at once more."""
        block_id = self._note(block)
        self._sealed.discard(block_id)
        self.blocks.forget(block_id)
        self.due.append(block_id)

    def seal(self, block: KVCacheBlock, key: BlockHash) -> None:
        """The block is what its key says, and settled where all of it is written already."""
        block_id = self._note(block)
        self._sealed.add(block_id)
        self.blocks.seal(block_id, key)
        cell = self._admission().cells.get(block_id)
        if cell is None:
            self._report(block_id, "sealed by one who does not hold it", self._name(), "-")
        else:
            cell.identity = key_identity(key)
        if self._request is not None and self._manager is not None and cell is not None:
            end = (cell.position + 1) * self._manager.config.block_size
            if end > self._request.num_computed_tokens:
                self._pending[block_id] = self._name()
                return
        self._settle(block_id)

    def touch(self, block: KVCacheBlock) -> None:
        """The block has one reader more, who expects what its own key says."""
        block_id = self._note(block)
        if block_id not in self._sealed:
            self._report(block_id, "found, and it is not sealed", "a key", "no key")
        self.holders.setdefault(block_id, Counter())[self._name()] += 1
        self._compare_counts(block)
        self._admission().cells[block_id] = Cell(self.epoch(block_id), FOREIGN, None)
        self.due.append(block_id)

    def release(self, block: KVCacheBlock) -> None:
        """The block has one holder less; without any, nobody may write it."""
        block_id = self._note(block)
        name, held = self._name(), self.holders.setdefault(block_id, Counter())
        if not held[name]:
            what = "released by one who does not hold it"
            self._report(block_id, what, self.held_by(block_id), name)
            return
        held[name] -= 1
        if not held[name]:
            del held[name]
            self._forget(name, block_id)
        if not held:
            self.lease[block_id] = NOBODY
            self._pending.pop(block_id, None)
        self._compare_counts(block)
        self.due.append(block_id)

    def unpublish(self, block: KVCacheBlock, _key: BlockHash) -> None:
        """The block is its writer's again."""
        block_id = self._note(block)
        self._sealed.discard(block_id)
        self._pending.pop(block_id, None)
        admission = self._admission()
        if block_id not in admission.cells:
            self._report(block_id, "taken back by one who does not hold it", self._name(), "-")
            return
        cell = admission.cells[block_id]
        cell.identity = writer_identity(admission.tag, cell.position)
        self.blocks.identity[block_id] = cell.identity
        self.lease[block_id] = admission.tag

    def reset(self) -> None:
        """No block can be found any more."""
        for block_id in sorted(self._sealed):
            self.blocks.forget(block_id)
            self.due.append(block_id)
        self._sealed.clear()
        self.is_changed = True

    def settle(self, request_ids: Iterable[str]) -> None:
        """The step of these requests has run: what they were to fill is filled."""
        names, self.is_changed = set(request_ids), True
        for block_id in [b for b, name in self._pending.items() if name in names]:
            del self._pending[block_id]
            self._settle(block_id)

    def settled_blocks(self) -> set[int]:
        """The sealed blocks that nobody may write now."""
        return self._sealed - self._pending.keys()

    def tag_of(self, request_id: str) -> int:
        """The tag of a request's admission; 0, which owns nothing, where it has none."""
        admission = self._admissions.get(request_id)
        return NOBODY if admission is None else admission.tag

    def name_of(self, tag: int) -> str:
        """Whose tag it is."""
        return self._names.get(tag, "nobody")

    def held_by(self, block_id: int) -> str:
        """Its holders as text."""
        return ",".join(self.holders.get(block_id, ())) or "nobody"

    def epoch(self, block_id: int) -> int:
        """How often the block was taken."""
        return int(self.blocks.epoch[block_id])

    def expectation(self, request: Request, first: int) -> list[tuple[int, int, int]]:
        """The request's cells, as (block, epoch, identity), by the manager's table.

        Cells before `first` are out of its window and may show null; the others may not.
        """
        assert self._manager is not None, "call watch(manager) before the first step"
        table = self._manager.get_block_ids(request.request_id)
        admission = self._admissions.get(request.request_id)
        cells = {} if admission is None else admission.cells
        keys: Sequence[BlockHash] = ()
        rows: list[tuple[int, int, int]] = []
        for position, block_id in enumerate(table):
            cell = cells.get(block_id)
            if not block_id and position < first:
                rows.append((0, 0, NULL_IDENTITY))
            elif cell is None:
                rows.append((block_id, FOREIGN, FOREIGN))
            else:
                if cell.identity is None:
                    keys = keys or HashChain(request, key_kind(self._manager.config)).extend()
                    cell.identity, cell.position = key_identity(keys[position]), position
                rows.append((block_id, cell.epoch, cell.identity))
        return rows

    def _note(self, block: KVCacheBlock) -> int:
        self.calls[block.block_id] = (self.call_number, self._call)
        self.is_changed = True
        return block.block_id

    def _name(self) -> str:
        return DIRECT if self._request is None else self._request.request_id

    def _admission(self) -> Admission:
        name = self._name()
        admission = self._admissions.get(name)
        if admission is None:
            self._num_tags += 1
            admission = self._admissions[name] = Admission(self._num_tags)
            self._names[self._num_tags] = name
        return admission

    def _table(self) -> list[int]:
        """The request's table as it will be when this call has returned."""
        name = self._name()
        if name not in self._tables:
            known = None if self._manager is None else self._manager.get_block_ids(name)
            self._tables[name] = known or []
        return self._tables[name]

    def _compare_counts(self, block: KVCacheBlock) -> None:
        """The manager counts the holders as their events do."""
        num_holders = self.holders[block.block_id].total()
        # A direct call may name a block twice, and is applied before its first event.
        if self._request is not None and block.ref_cnt != num_holders:
            what = "held by others than counted"
            self._report(block.block_id, what, str(num_holders), str(block.ref_cnt))

    def _forget(self, name: str, block_id: int) -> None:
        admission = self._admissions.get(name)
        if admission is not None:
            admission.cells.pop(block_id, None)
            if not admission.cells:
                del self._admissions[name]

    def _settle(self, block_id: int) -> None:
        self.lease[block_id] = NOBODY
        self.settled.append(block_id)

    def _report(self, block_id: int, what: str, expected: str, found: str) -> None:
        self.wrong.append(Wrong(block_id, what, expected, found))
