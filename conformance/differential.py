"""Drives two block managers with the same calls and compares them after each one.

Unlike `Lockstep` it asks no specification: what it finds is that two managers behave differently,
not which one is wrong. Block ids, hits, evictions, counts, the order of the queue and of copies
must be equal; keys are opaque, so two blocks must carry equal keys on both sides or on neither.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from conformance.program import VERBS
from conformance.subject import Refusal, RequestSpec, Snapshot, Subject
from spec.state import NULL
from spec.statemachine import Outcome


class DifferenceFound(Exception):  # noqa: N818  # it is what was looked for
    """Two managers behave differently; the text says at which call, and how."""


class Differential:
    """Two subjects as one: a driver's verbs, each made on both and compared.

    `look_every` calls apart everything is compared; in between, what the calls returned, the ends
    and the length of the queue, and the number of evictions.
    """

    def __init__(self, ours: Subject, theirs: Subject, look_every: int = 1) -> None:
        self.ours, self.theirs = ours, theirs
        self.config = ours.config
        self.look_every = look_every
        self.calls = 0

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        self._both("add_request", rid, request)

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens."""
        self._both("propose", rid, drafts)

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit."""
        hits: tuple[int, ...] = self._both("get_computed_blocks", rid)
        return hits

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        new: tuple[int, ...] | None = self._both(
            "allocate_slots", rid, num_tokens, hits, num_lookahead
        )
        return new

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        self._both("run_step", outcomes)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks."""
        self._both("preempt", rid)

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self._both("finish", rid)

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return self.ours.num_free()

    def _both(self, verb: str, *args: object) -> Any:  # noqa: ANN401  # each verb names its own
        self.calls += 1
        answers = [_answer(subject, verb, args) for subject in (self.ours, self.theirs)]
        if answers[0] != answers[1]:
            raise self._found(verb, args, "the answer", *answers)
        counts = [(s.num_free(), s.num_evictions()) for s in (self.ours, self.theirs)]
        if counts[0] != counts[1]:
            raise self._found(verb, args, "free blocks and evictions", *counts)
        if self.calls % self.look_every == 0:
            for what, one, other in compared(self.ours.snapshot(), self.theirs.snapshot()):
                raise self._found(verb, args, what, one, other)
        if isinstance(answers[0], Refusal):
            raise answers[0]
        return answers[0]

    def _found(
        self, verb: str, args: Sequence[object], what: str, one: object, other: object
    ) -> DifferenceFound:
        told = ", ".join(f"{n}={v}" for n, v in zip(VERBS[verb], args, strict=True))
        return DifferenceFound(
            f"call {self.calls}: {verb}({told}): {what}: "
            f"{self.ours.name} {one}, {self.theirs.name} {other}"
        )


def _answer(subject: Subject, verb: str, args: Sequence[object]) -> object:
    try:
        return getattr(subject, verb)(*args)
    except Refusal as refusal:
        return _Refused(refusal.rule, refusal.text)


class _Refused(Refusal):
    """A refusal that equals another one of the same rule."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refusal) and self.rule == other.rule

    def __hash__(self) -> int:
        return hash(self.rule)


def compared(one: Snapshot, other: Snapshot) -> Iterator[tuple[str, object, object]]:
    """Yield what differs between two managers, the count of the null block apart."""
    pairs: dict[str, tuple[object, object]] = {
        "counts": (one.ref_cnts[NULL + 1 :], other.ref_cnts[NULL + 1 :]),
        "queue": (one.queue, other.queue),
        "queue walked backward": (one.queue_back, other.queue_back),
        "which blocks carry equal keys": (_classes(one.keys), _classes(other.keys)),
        "index": (sorted(one.index.values()), sorted(other.index.values())),
        "tables": (dict(one.tables), dict(other.tables)),
    }
    for what, (left, right) in pairs.items():
        if left != right:
            yield what, left, right


def _classes(keys: Sequence[Hashable | None]) -> list[int | None]:
    """Return, for each block, the first block with an equal key."""
    first: dict[Hashable, int] = {}
    return [None if key is None else first.setdefault(key, b) for b, key in enumerate(keys)]
