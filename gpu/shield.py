"""The shield: whoever writes where he may not, or reads what is not his, is told.

It stands beside a `Runner` and is driven by two things only: the manager's events, which its ledger
turns into leases and identities, and the runner's steps. Four layers see different faults:

* *lease*: the slots of a step are held against the leases before anything is written; a bad row
  goes to the trash block.
* *fingerprint*: for every layer, plane and slot the shield knows what the rightful writer meant to
  write, and memory must equal it: at the end of the step that wrote it, for the whole block when it
  settles, at every touch, release and eviction, and in turn.
* *poison*: what nobody wrote holds a pattern that no model stores; so do red zones and null block.
* *identity*: each cell of a table that is read has an epoch and an identity, and so has its block.

Intent is computed from the rows that the model made and from slots that the shield finds itself, so
a write that the plan got wrong does not become what is expected. Everything that is due is counted
on the host, everything that is checked on the device, and the two must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Literal, TypeAlias

import torch

from gpu import ops
from gpu.cells import Cells
from gpu.contents import Contents
from gpu.errors import UnknownShield
from gpu.ledger import NOBODY, Ledger
from gpu.pool import KVPool
from gpu.runner import Batch
from gpu.teller import Teller
from gpu.violations import Defence, Violation
from kvcache.block import KVCacheBlock
from kvcache.hashing import BlockHash
from kvcache.manager import KVCacheManager
from kvcache.request import Request

Mode = Literal["off", "log", "raise"]
MODES: Final = ("off", "log", "raise")
LAYERS: Final[tuple[Defence, ...]] = ("lease", "fingerprint", "poison", "identity")


Event: TypeAlias = Callable[[KVCacheBlock], None]
KeyEvent: TypeAlias = Callable[[KVCacheBlock, BlockHash], None]


class Shield:
    """A `runner.Guard` over a pool that nobody has written yet.

    `mode`: `off` does nothing, `log` writes each violation to the log `kvspec.shield` and goes on,
    `raise` raises `ViolationFound` at the first. All are in `violations`. `layers` leaves layers
    out, to find out what each is worth. After each step `scrub_blocks` blocks are looked at in
    turn, and the places that nobody may write once a round. The device is asked every `poll_every`
    steps; above 1, step and writer in a violation are those of the step that asked.

    Raises `UnknownShield`. Call `watch` with the runner's manager before the first step.
    """

    def __init__(
        self,
        pool: KVPool,
        mode: Mode = "raise",
        *,
        seed: int = 0,
        layers: Collection[Defence] = LAYERS,
        scrub_blocks: int = 8,
        poll_every: int = 1,
    ) -> None:
        if mode not in MODES or set(layers) - set(LAYERS) or min(scrub_blocks, poll_every) < 1:
            raise UnknownShield(
                mode=mode,
                layers=tuple(layers),
                scrub_blocks=scrub_blocks,
                poll_every=poll_every,
                modes=MODES,
                known=LAYERS,
            )
        self.pool = pool
        self.mode = mode
        self.layers = frozenset(layers)
        self.due = 0
        self.ledger = Ledger(pool.num_blocks)
        self._block_size = pool.block_size(0)
        self._teller = Teller(self.ledger, self._block_size)
        self.contents = Contents(
            pool,
            seed,
            sees_writes="fingerprint" in self.layers,
            sees_poison="poison" in self.layers,
        )
        self._scrub_blocks, self._poll_every = scrub_blocks, poll_every
        self._leases = ops.Log.empty(ops.LEASE_COLUMNS, pool.device)
        self._reads = ops.Log.empty(ops.IDENTITY_COLUMNS, pool.device)
        self._logs = (self._leases, self._reads, self.contents.log)
        self._num_seen = [0, 0, 0]
        self._num_told_layers = 0
        self._next_scrub = 0
        self._step: int | None = None
        self._slots = torch.empty(0, dtype=torch.int64, device=pool.device)
        self._window: int | None = None
        self._upload()
        on, told = mode != "off", self.ledger
        self.take: Event = told.take if on else _ignore
        self.touch: Event = told.touch if on else _ignore
        self.release: Event = told.release if on else _ignore
        self.evict: KeyEvent = told.evict if on else _ignore
        self.seal: KeyEvent = told.seal if on else _ignore
        self.unpublish: KeyEvent = told.unpublish if on else _ignore
        self.reset: Callable[[], None] = told.reset if on else _ignore

    @property
    def lease(self) -> torch.Tensor:
        """The tag of each block's writer, int32 `[num_blocks]` on the CPU; 0 is nobody."""
        return self.ledger.lease

    @property
    def violations(self) -> list[Violation]:
        """All so far, in the order in which the device was asked."""
        return self._teller.violations

    @property
    def checked(self) -> int:
        """How much the device has checked; waits for it. `due` is how much there was to check."""
        return sum(int(log.counts[0]) for log in self._logs) + self._num_told_layers

    def watch(self, manager: KVCacheManager) -> None:
        """Tables, keys and window are this manager's; its events come as its `listener`."""
        self.ledger.watch(manager)
        self._window = manager.config.sliding_window

    def before_call(self, call: str, request: Request) -> None:
        """The manager is about to be called for a request."""
        if self.mode != "off":
            self.ledger.before_call(call, request)

    def before_step(self, batch: Batch) -> torch.Tensor:
        """The slots that the rows may write, int64 `[T]`; what is not leased goes to the trash."""
        if self.mode == "off":
            return batch.slot_mapping
        if self._step is not None and batch.step != self._step + 1:
            self._teller.tell("guard", "steps were not seen", str(self._step + 1), str(batch.step))
        self._step = self._teller.step = batch.step
        self._teller.names = [part.request.request_id for part in batch.parts]
        self._drain()
        self._cells = Cells.of(batch, self.ledger, self._window, self._block_size)
        self._slots = self._cells.slots(batch, self._block_size)
        self.due += len(self.pool.specs)
        if "lease" not in self.layers:
            return batch.slot_mapping
        return self._route(batch)

    def before_read(self, batch: Batch) -> None:
        """Every cell that the step may read is what its reader expects."""
        if self.mode == "off" or "identity" not in self.layers or batch.step != self._step:
            return
        self.due += self._cells.total
        ops.check_identity(
            batch.block_tables,
            self._cells.epochs,
            self._cells.identities,
            self._cells.num_cells,
            self._epochs,
            self._identities,
            self._reads.counts,
            self._reads.ring,
        )
        if self.mode == "raise" and self._poll_every == 1:
            self._poll()

    def after_write(
        self, batch: Batch, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """What the model made in this layer is what its slots should hold from now on."""
        if self.mode != "off" and batch.step == self._step:
            self.contents.intend(layer, (keys, values), self._slots)
            self._num_told_layers += 1

    def settle(self, batch: Batch) -> None:
        """The step has run: what it wrote, and what it filled, is what was meant."""
        if self.mode == "off":
            return
        ledger = self.ledger
        ledger.after_calls()
        ledger.settle(part.request.request_id for part in batch.parts)
        self._upload()
        if batch.step != self._step:
            self._teller.tell("guard", "a step was not announced", str(batch.step), str(self._step))
            self._poll()
            return
        blocks = {*ledger.settled, *self._scrubbed()}
        ledger.settled.clear()
        self.due += self.contents.look(self._slots)
        self.due += self.contents.look(self.contents.slots_of(sorted(blocks)))
        if self._next_scrub == 0:
            self._look_around()
        if batch.step % self._poll_every == 0:
            self._audit()
            self._poll()

    def finish(self) -> None:
        """Look at everything once more, and ask the device."""
        if self.mode == "off":
            return
        self._drain()
        self.due += self.contents.look(self.contents.slots_of(range(self.pool.num_blocks)))
        self._look_around()
        self._audit()
        self._poll()

    def _drain(self) -> None:
        """Look at what the manager's calls asked for, then make what they took poison."""
        ledger = self.ledger
        ledger.after_calls()
        for wrong in ledger.wrong if "lease" in self.layers else ():
            self._teller.tell(
                "lease", wrong.what, wrong.expected, wrong.found, block=wrong.block_id
            )
        ledger.wrong.clear()
        self.due += self.contents.look(self.contents.slots_of(sorted(set(ledger.due))))
        self.contents.poison(sorted(set(ledger.taken)))
        ledger.due.clear()
        ledger.taken.clear()
        self._upload()

    def _upload(self) -> None:
        """Bring the host's leases and identities to the device; it waits for the copy only."""
        if self.ledger.is_changed:
            self._lease = self.ledger.lease.to(self.pool.device)
            self._epochs = self.ledger.blocks.epoch.to(self.pool.device)
            self._identities = self.ledger.blocks.identity.to(self.pool.device)
            self.ledger.is_changed = False

    def _route(self, batch: Batch) -> torch.Tensor:
        tags = torch.tensor(
            [self.ledger.tag_of(name) for name in self._teller.names], dtype=torch.int32
        )
        of_rows = tags.to(self.pool.device)[batch.rows.request_idx]
        # Rows beyond those of the requests are padding, which owns nothing.
        padding = len(batch.slot_mapping) - len(of_rows)
        of_rows = torch.nn.functional.pad(of_rows, (0, padding), value=NOBODY)
        self.due += len(of_rows)
        log, size = self._leases, self._block_size
        routed = ops.route_slots(
            batch.slot_mapping, of_rows, self._lease, log.counts, log.ring, size
        )
        if self.mode == "raise" and self._poll_every == 1:
            self._poll()
        return routed

    def _scrubbed(self) -> list[int]:
        """The next blocks in turn."""
        first = self._next_scrub
        after = min(first + self._scrub_blocks, self.pool.num_blocks)
        self._next_scrub = after % self.pool.num_blocks
        return list(range(first, after))

    def _look_around(self) -> None:
        for stray in self.contents.strays():
            null = stray.place == "null"
            self._teller.tell(
                "poison",
                "the null block was written" if null else f"the red zone {stray.place} was written",
                "poison",
                f"byte_{stray.byte}",
                place=(stray.layer, stray.plane),
                block=0 if null else None,
                broken="the_null_block_is_inert" if null else None,
            )

    def _poll(self) -> None:
        """Ask the device what it found, and whether it did all that was due."""
        teller = self._teller
        tell = (teller.tell_lease, teller.tell_identity, teller.tell_content)
        for number, log in enumerate(self._logs):
            for row in log.entries(since=self._num_seen[number]):
                tell[number](row)
            self._num_seen[number] = int(log.counts[1])
        if self.mode == "raise":
            teller.raise_new()

    def _audit(self) -> None:
        """What was due has been checked, or the shield itself is at fault."""
        checked = self.checked
        if checked != self.due:
            self._teller.tell("guard", "checks were not made", str(self.due), str(checked))
            self._num_told_layers += self.due - checked


def _ignore(*_: object) -> None:
    """Hear an event and do nothing."""
