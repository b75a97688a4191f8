"""Makes a failing program small: few calls, short prompts, a small pool, and the same property.

Delta debugging over the calls of a request, then over single calls, then over pairs of them; after
that each argument and the configuration are made simpler, and all begins again until nothing helps.
Whatever is tried is performed in lockstep on a fresh subject, and what that really called, up to
the difference, is what goes on. So calls that lost their meaning are gone, and calls after the
difference too.

A long program is first tried under incremental checks, which take a fifth of the time; only what
fails there is held under full checks, whose name of the failure counts. Rejected: to compare by the
violation's line, which shows ids and counts that a smaller program cannot keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from itertools import combinations
from typing import Final

from conformance.lockstep import Check, Divergence, Lockstep
from conformance.program import Factory, Program, perform, recording
from conformance.shrinking.simpler import cost, simpler
from conformance.shrinking.smaller import (
    configurations,
    merged,
    numbered,
    renamed,
    shorter,
    tighter,
)

LONG: Final = 100
"""Calls from which on an incremental check is worth its while."""
LARGE: Final = 2_000_000
"""Calls times blocks from which on full checks wait until the program is smaller."""
FEW: Final = 16
"""Calls up to which every pair of them is left out."""


class NoFailureError(ValueError):
    """A program that is to be shrunk does not fail."""


class _OutOfTimeError(Exception):
    """The time is over; what was found so far stands."""


Same = Callable[[Divergence], Hashable]


def _property(divergence: Divergence) -> Hashable:
    return divergence.property


def shrink(
    program: Program,
    make: Factory,
    *,
    max_seconds: float = 20,
    same: Same = _property,
    check: Check | None = None,
) -> tuple[Program, Divergence]:
    """Return a smaller program that fails in the same way, and how it fails.

    Two failures are the same when `same` says one thing of both: by default, by their property.
    `check` says how the failure is seen, when that is known.

    Raises `NoFailureError` for a program that does not fail on a fresh subject.
    """
    shrinker = Shrinker(program, make, max_seconds=max_seconds, same=same, check=check)
    shrinker.run()
    return shrinker.program, shrinker.divergence


class Shrinker:
    """A failing program, smaller with every success. `program` and `divergence` are the best yet.

    `check` is how the failure is seen: in full, unless only incremental checks see it.
    """

    def __init__(
        self,
        program: Program,
        make: Factory,
        *,
        max_seconds: float = 20,
        same: Same = _property,
        check: Check | None = None,
    ) -> None:
        self.make = make
        self.tries = 0
        """How many programs were performed."""
        self.on_try: Callable[[int], None] = lambda _: None
        """Is told how many calls are left, at each try."""
        self._end = time.monotonic() + max_seconds
        self.check: Check = check or "incremental"
        found = self._evaluated(program)
        self._quick = found is not None and self.check == "incremental"
        if found is None and check is None:
            self.check = "full"
            found = self._evaluated(program)
        if found is None:
            raise NoFailureError("the calls do not fail on this subject")
        self.divergence, self.program = found
        self._same = same
        self._kind = same(self.divergence)

    def run(self) -> None:
        """Make the program smaller until nothing helps or the time is over."""
        try:
            if self.check == "incremental":
                self._name_in_full()
            self._settle()
            self._take(self._evaluated(numbered(self.program)))
        except _OutOfTimeError:
            return

    def _name_in_full(self) -> None:
        """Go over to full checks; a program too large for them is made smaller beforehand."""
        if len(self.program.operations) * self.program.config.num_gpu_blocks > LARGE:
            self._without_requests()
            self._without_calls()
            self._all(configurations)
        self.check = "full"
        named = self._evaluated(self.program)
        if named is None:
            self.check = "incremental"
        else:
            self.divergence, self.program = named
            self._kind = self._same(self.divergence)

    def _settle(self) -> None:
        before: tuple[int, ...] | None = None
        self._without_requests()
        while before != (before := cost(self.program)):
            self._without_calls()
            self._all(configurations)
            self._all(merged)
            self._all(tighter)
            self._all(shorter)
            self._all(_simpler_calls)
            self._all(renamed)
            if len(self.program.operations) <= FEW:
                self._all(_without_pairs)

    def _without_requests(self) -> None:
        """Leave out requests with all their calls: half of them, then quarters, down to one."""

        def requests() -> list[str]:
            named = (operation.args.get("rid") for operation in self.program.operations)
            return list(dict.fromkeys(rid for rid in named if rid is not None))

        size = len(requests())
        while size := size // 2:
            at = 0
            while gone := set(requests()[at : at + size]):
                kept = [o for o in self.program.operations if o.args.get("rid") not in gone]
                if not self._try(self.program._replace(operations=tuple(kept))):
                    at += size

    def _without_calls(self) -> None:
        """Leave out calls in a row: half of them, then quarters, down to one."""
        size = len(self.program.operations)
        while size := size // 2:
            at = 0
            while at < len(calls := self.program.operations):
                if not self._try(Program(self.program.config, calls[:at] + calls[at + size :])):
                    at += size

    def _all(self, offer: Callable[[Program], Iterator[Program]]) -> None:
        """Take the first of the offered programs that fails, and ask again, until none does."""
        while any(self._try(candidate) for candidate in offer(self.program)):
            continue

    def _try(self, candidate: Program) -> bool:
        """Go on with a program if it fails by the same property and there is less to read."""
        if time.monotonic() > self._end:
            raise _OutOfTimeError
        self.tries += 1
        self.on_try(len(self.program.operations))
        long = self._quick and self.check == "full" and len(candidate.operations) > LONG
        if long and _evaluated(candidate, self.make, "incremental") is None:
            return False
        found = self._evaluated(candidate)
        return found is not None and cost(found[1]) < cost(self.program) and self._take(found)

    def _take(self, found: tuple[Divergence, Program] | None) -> bool:
        """Go on with what was found if it is the same failure."""
        if found is None or self._same(found[0]) != self._kind:
            return False
        self.divergence, self.program = found
        return True

    def _evaluated(self, program: Program) -> tuple[Divergence, Program] | None:
        return _evaluated(program, self.make, self.check)


def _evaluated(program: Program, make: Factory, check: Check) -> tuple[Divergence, Program] | None:
    """Return how a program fails, and what it really called until then; None where it does not.

    What else goes wrong with a broken subject, or with one that was given nonsense, is no failure
    of the kind that is sought.
    """
    try:
        subject, called = recording(make(program.config))
        pair = Lockstep(subject, check)
        try:
            perform(pair, program.operations)
            pair.sweep()
        except Divergence as divergence:
            return divergence, Program(pair.config, tuple(called))
    except Exception:  # noqa: BLE001  # whatever a broken subject does must not end the search
        return None
    return None


def _simpler_calls(program: Program) -> Iterator[Program]:
    calls = program.operations
    for at, operation in enumerate(calls):
        for form in simpler(operation):
            yield program._replace(operations=(*calls[:at], form, *calls[at + 1 :]))


def _without_pairs(program: Program) -> Iterator[Program]:
    calls = program.operations
    for a, b in combinations(range(len(calls)), 2):
        yield program._replace(operations=calls[:a] + calls[a + 1 : b] + calls[b + 1 :])
