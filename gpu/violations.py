"""What a shield says of a pool: one record for each place, and one line that greps well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Defence = Literal["lease", "fingerprint", "poison", "identity", "guard"]
"""Who saw it. `guard` is the shield's account of itself: a check was due and was not made."""

PLANE_NAMES: Final = ("K", "V")

PROPERTIES: Final[Mapping[Defence, str]] = {
    "lease": "a_writer_owns_its_block",
    "fingerprint": "a_settled_block_never_changes",
    "poison": "a_writer_owns_its_block",
    "identity": "a_request_reads_its_own_prefix",
    "guard": "every_check_that_is_due_is_made",
}
"""What is broken, by the names of the specification where it has one."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where the pool is not what its manager says.

    `broken` is the property. `layer`, `plane`, `slot` and `block` are None where the place is none
    of a single one. `expected` and `found` are texts: writers, fingerprints, or epoch and identity.
    `writer` is the request that wrote, or that should have. `call` is the manager's call behind it,
    the last one that touched the block; `call_number` counts them since the shield was made.
    """

    defence: Defence
    broken: str
    what: str
    step: int
    expected: str
    found: str
    layer: int | None = None
    plane: int | None = None
    slot: int | None = None
    block: int | None = None
    writer: str | None = None
    call_number: int = 0
    call: str = "-"
    holders: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """The stable line."""
        plane = "-" if self.plane is None else PLANE_NAMES[self.plane]
        verb = self.call.partition("(")[0]
        return (
            f"kvspec violation: property={self.broken} call={self.call_number} {verb} "
            f"block={_text(self.block)} layer={_text(self.layer)} plane={plane} "
            f"slot={_text(self.slot)} expected={self.expected} actual={self.found} "
            f"holders={_holders(self.holders)} found_by=shield"
        )

    @property
    def details(self) -> str:
        """What the line has no room for."""
        return (
            f"  {self.what} (seen by: {self.defence})\n"
            f"  step {self.step}, writer {self.writer or 'nobody'}, behind it: {self.call}"
        )


class ViolationFound(Exception):  # noqa: N818  # named after what it carries
    """A shield in the mode `raise` saw a violation; its text is the line, its note the rest."""

    def __init__(self, violation: Violation) -> None:
        self.violation = violation
        super().__init__(str(violation))
        self.add_note(violation.details)


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _holders(holders: Mapping[str, int]) -> str:
    return ",".join(who if n == 1 else f"{who}*{n}" for who, n in holders.items()) or "-"
