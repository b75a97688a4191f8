"""Counts what a long run has seen, in flat memory: shapes of the pool, moves between them.

A *shape* is what a pool looks like without its keys: of each block the count, whether it is sealed,
and its place in the free queue. A run may see millions, so they are not kept: a shape sets one bit
of a fixed number, and the share of bits still clear tells how many different shapes there were
(linear counting). Two runs together have seen what either has, which is the union of the bits. An
exact set would grow for ever, and a count of new shapes could not be merged.

A shape is a sum of one number a block, so a call changes it at the cost of the blocks it touched.
The numbers are hashes of integers, which no hash seed changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from conformance.lockstep import Lockstep
from conformance.program import VERBS
from conformance.subject import Subject
from conformance.twin import TwinPool
from spec.pool import TRANSITIONS
from spec.state import NULL, Block, BlockState, Pool, initial

NUM_BITS: Final = 1 << 22
"""Good for some twenty million different numbers within one in a hundred."""

WORD: Final = (1 << 64) - 1

VERB_NUMBERS: Final = {verb: number for number, verb in enumerate(VERBS)}

Edge = tuple[str, str, str]
"""One way for a block to move: the effect, the state before, the state after."""


class Distinct:
    """A set of numbers that knows only about how many there are."""

    def __init__(self, bits: bytes | None = None) -> None:
        self.bits = bytearray(NUM_BITS // 8) if bits is None else bytearray(bits)

    def add(self, number: int) -> None:
        """Count a 64-bit number, once however often it comes."""
        self.bits[number >> 3 & NUM_BITS // 8 - 1] |= 1 << (number & 7)

    def __or__(self, other: Distinct) -> Distinct:
        """Return the numbers that are in one of two sets."""
        mine, theirs = (int.from_bytes(one.bits, "little") for one in (self, other))
        return Distinct((mine | theirs).to_bytes(NUM_BITS // 8, "little"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distinct) and self.bits == other.bits

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __len__(self) -> int:
        """Return about how many different numbers were added."""
        clear = NUM_BITS - int.from_bytes(self.bits, "little").bit_count()
        return round(NUM_BITS * math.log(NUM_BITS / max(1, clear)))


CODES: Final = {
    BlockState.FREE: 0,
    BlockState.FREE_CACHED: 1,
    BlockState.IN_USE: 2,
    BlockState.IN_USE_CACHED: 3,
    BlockState.SHARED: 5,
}


def _code(block: Block) -> int:
    """Return the state of a block as a small number, out of `CODES`."""
    return 2 * min(block.ref_cnt, 2) + (block.key is not None)


EDGES: Final[Mapping[tuple[int, int, int], Edge]] = {
    (CODES[a], CODES[b], {"take": 1, "touch": 1, "release": -1}.get(effect, 0)): (
        effect,
        a.value,
        b.value,
    )
    for effect, edges in TRANSITIONS.items()
    for a, b in edges
}
"""Every transition of a block, by the two states and the change of its count."""


class WatchedTwin(TwinPool):
    """A pool changed in place that keeps its shape as a number, and the ways its blocks moved.

    A block whose count moves by more than one in a single effect makes several transitions that
    cannot be told apart; they are not noted.
    """

    def __init__(self, pool: Pool, moved: set[tuple[int, int, int]]) -> None:
        super().__init__(pool)
        self._moved = moved
        self._parts = [self._part(b) for b in range(len(self.blocks))]
        self.shape = (sum(self._parts) + hash((len(self.blocks),))) & WORD

    def update(self, changes: Mapping[int, Block]) -> TwinPool:
        """Replace some blocks."""
        blocks = self.blocks
        for b, new in changes.items():
            old = blocks[b]
            if old.ref_cnt != new.ref_cnt or old.key is not new.key:
                self._moved.add((_code(old), _code(new), new.ref_cnt - old.ref_cnt))
        return super().update(changes)

    def touched(self) -> set[int]:
        """Return the blocks that the current call changed; the shape follows them."""
        changed = super().touched()
        parts, shape = self._parts, self.shape
        for b in (NULL, *changed):
            part = self._part(b)
            shape += part - parts[b]
            parts[b] = part
        self.shape = shape & WORD
        return changed

    def _part(self, b: int) -> int:
        block = self.blocks[b]
        number = hash((b, block.ref_cnt, block.key is None, self._next[b]))
        # The hash of a tuple is nearly linear in its last part, so without the square two blocks
        # that change places in the queue would leave the sum as it was.
        return number * number >> 32 & WORD


class Shapes:
    """What a run has seen of pools: shapes, moves from shape to shape by a verb, block edges."""

    def __init__(self) -> None:
        self.states = Distinct()
        self.transitions = Distinct()
        self.moved: set[tuple[int, int, int]] = set()

    def saw(self, before: int, verb: str, after: int) -> None:
        """Note a call that led from one shape to another, or left it as it was."""
        self.states.add(hash((after,)))
        self.transitions.add(hash((before, VERB_NUMBERS[verb], after)))

    def edges(self) -> frozenset[Edge]:
        """Return the transitions of single blocks that were seen."""
        return frozenset(EDGES[move] for move in self.moved if move in EDGES)


class WatchedPair(Lockstep):
    """A pair in lockstep, under incremental checks, that tells `Shapes` of each call."""

    def __init__(self, subject: Subject, seen: Shapes) -> None:
        super().__init__(subject, "incremental")
        self._seen = seen
        self._watched = WatchedTwin(initial(self.config).pool, seen.moved)
        self._twin = self._watched
        self.state = self.state._replace(pool=cast("Pool", self._watched))
        seen.states.add(hash((self._watched.shape,)))

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
        before = self._watched.shape
        try:
            return super()._call(action, **args)
        finally:
            self._seen.saw(before, action, self._watched.shape)
