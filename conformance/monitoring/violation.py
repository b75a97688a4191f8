"""What a monitor says of a live pool: one line that greps well, and the modes of saying it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from conformance.divergence import flat
from spec.invariants import REGISTRY

logger = logging.getLogger("kvspec.monitor")

Mode: TypeAlias = Literal["raise", "warn"]


class Found(NamedTuple):
    """What is wrong, and with which block, if with one; `what` says it in words."""

    property: str
    block: int | None
    expected: object
    actual: object
    what: str


class Violation(Exception):  # noqa: N818  # the field's word
    """A live pool breaks a property of the specification. The text is one line that greps well.

    `call` counts the calls of the pool since the monitor was attached.
    """

    def __init__(self, call: int, verb: str, found: Found, holders: Mapping[str, int]) -> None:
        self.property = found.property
        self.call = call
        self.verb = verb
        self.found = found
        self.holders = dict(holders)
        block = "-" if found.block is None else found.block
        super().__init__(
            f"kvspec violation: property={found.property} call={call} {verb} block={block} "
            f"expected={flat(found.expected)} actual={flat(found.actual)} "
            f"holders={flat(named(holders))} found_by=monitor"
        )

    @property
    def details(self) -> str:
        """What is wrong in words, what the property says, and what a user sees if it breaks."""
        known = REGISTRY[self.property]
        return f"  {self.found.what}\n  {known.statement}\n  If it breaks: {known.why}"


def named(holders: Mapping[str, int]) -> str:
    """Return holders as text: `r1,r2*2`, or `-` for nobody."""
    return ",".join(who if n == 1 else f"{who}*{n}" for who, n in holders.items()) or "-"


def warn(violation: Violation) -> None:
    """Write a violation and its details to the log `kvspec.monitor`."""
    logger.warning("%s\n%s", violation, violation.details)


def throw(violation: Violation) -> None:
    """Raise a violation, with its details as a note."""
    violation.add_note(violation.details)
    raise violation


SAYING: Final[Mapping[str, Callable[[Violation], None]]] = {"raise": throw, "warn": warn}
"""How each mode says a violation."""
