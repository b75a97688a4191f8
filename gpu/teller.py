"""Turns what the device remembers of a violation into a record that says who, where and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gpu.fingerprint import MASK
from gpu.ledger import Ledger
from gpu.violations import PROPERTIES, Defence, Violation, ViolationFound

logger: Final = logging.getLogger("kvspec.shield")


class Teller:
    """The violations of one shield, in the order in which it asked for them.

    `step` and `names`, the requests of the step in order, are those of the latest step.
    """

    def __init__(self, ledger: Ledger, block_size: int) -> None:
        self.violations: list[Violation] = []
        self.step = 0
        self.names: list[str] = []
        self._ledger = ledger
        self._block_size = block_size
        self._num_raised = 0

    def tell(  # noqa: PLR0913  # the fields of a violation
        self,
        defence: Defence,
        what: str,
        expected: str,
        found: str,
        *,
        place: tuple[int, int] | None = None,
        slot: int | None = None,
        block: int | None = None,
        writer: str | None = None,
        broken: str | None = None,
    ) -> None:
        """Record a violation and write it to the log."""
        ledger = self._ledger
        number, call = ledger.calls.get(-1 if block is None else block, (ledger.call_number, "-"))
        layer, plane = place or (None, None)
        violation = Violation(
            defence=defence,
            broken=broken or PROPERTIES[defence],
            what=what,
            step=self.step,
            expected=expected,
            found=found,
            layer=layer,
            plane=plane,
            slot=slot,
            block=block,
            writer=writer,
            call_number=number,
            call=call,
            holders=dict(ledger.holders.get(-1 if block is None else block, {})),
        )
        self.violations.append(violation)
        logger.warning("%s\n%s", violation, violation.details)

    def tell_lease(self, row: Sequence[int]) -> None:
        """A row of `ops.LEASE_COLUMNS`: somebody was about to write what is not his."""
        _, slot, block, lease, tag = row
        ledger = self._ledger
        writer = ledger.name_of(tag) if tag else "padding"
        owner = "no block" if block < 0 else ledger.name_of(lease)
        self.tell(
            "lease",
            f"{writer} was about to write a slot of {owner}",
            expected=writer,
            found=owner.replace(" ", "_"),
            slot=slot,
            block=block if block >= 0 else None,
            writer=writer,
        )

    def tell_identity(self, row: Sequence[int]) -> None:
        """A row of `ops.IDENTITY_COLUMNS`: a table shows a reader what is not his."""
        number, cell, block, epoch_found, epoch, identity_found, identity = row
        # A table that was read before the latest step may have had more rows.
        reader = self.names[number] if number < len(self.names) else f"row {number}"
        self.tell(
            "identity",
            f"{reader} reads at block {cell} of its table what is not its own",
            expected=f"{epoch}:{identity & MASK:#x}",
            found=f"{epoch_found}:{identity_found & MASK:#x}",
            block=block if block >= 0 else None,
            writer=self._ledger.writers.get(block),
        )

    def tell_content(self, row: Sequence[int]) -> None:
        """A row of `contents.CONTENT_COLUMNS`: memory is not what its writer meant."""
        layer, plane, slot, expected, found, is_poison = row
        block = slot // self._block_size
        writer = self._ledger.writers.get(block)
        self.tell(
            "poison" if is_poison else "fingerprint",
            "somebody wrote where nobody has" if is_poison else "not what its writer meant",
            expected=f"{expected & MASK:#018x}",
            found=f"{found & MASK:#018x}",
            place=(layer, plane),
            slot=slot,
            block=block,
            writer=writer,
            broken=self._broken_by(block, is_poison=bool(is_poison)),
        )

    def _broken_by(self, block: int, *, is_poison: bool) -> str:
        if block == 0:
            return "the_null_block_is_inert"
        if is_poison:
            return PROPERTIES["poison"]
        # What is not settled may change, and is still what its writer's tokens stand on.
        is_settled = block in self._ledger.settled_blocks()
        return PROPERTIES["fingerprint" if is_settled else "identity"]

    def raise_new(self) -> None:
        """Raise the first violation since the last call, if there is one."""
        if len(self.violations) > self._num_raised:
            first = self.violations[self._num_raised]
            self._num_raised = len(self.violations)
            raise ViolationFound(first)
