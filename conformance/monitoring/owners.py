"""`Owners`: who holds which block how often, which a pool that only counts cannot say.

The idea. A monitor runs beside every call of a serving engine, so the ledger is made of flat lists
and never allocates for the common block, which has one holder: `first[b]` is that holder's name. A
block with several references has its holders in a dict of its own, and `first[b]` is None. So
"this name is the only holder" is one comparison. How many references a name holds is counted
beside that, so that a name that should hold nothing any more is found without a walk.

Rejected: a dict of holders for each block (an allocation at each take), and to read the tables of
the manager instead (they say who should hold a block, which is what is to be checked).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

CALLER: Final = "caller"
"""Who holds what was taken by a call that carries no request."""
UNKNOWN: Final = "unknown"
"""Who holds what a pool counts and no call accounts for."""


class Owners:
    """The ledger of a pool of `num_blocks` blocks; at first nobody holds any."""

    __slots__ = ("counts", "first", "held", "idle", "keys", "more", "stamps")

    def __init__(self, num_blocks: int) -> None:
        self.held: list[int] = [0] * num_blocks
        """How many references each block has. The null block's stays 0."""
        self.first: list[str | None] = [None] * num_blocks
        """The holder of each block that has one reference."""
        self.more: dict[int, dict[str, int]] = {}
        """The holders of each block that has more."""
        self.counts: dict[str, int] = {}
        """How many references each name holds; a name without is not there."""
        self.stamps: list[int] = [0] * num_blocks
        """The last call that took, shared or released each block."""
        self.keys: list[Hashable | None] = [None] * num_blocks
        """The key that each block was last seen to carry, until it is handed out again."""
        self.idle = num_blocks - 1
        """How many blocks nobody holds, null not counted."""

    def add(self, b: int, who: str) -> None:
        """`who` holds block `b` once more."""
        held = self.held[b]
        self.held[b] = held + 1
        self.counts[who] = self.counts.get(who, 0) + 1
        if not held:
            self.first[b] = who
            self.idle -= 1
            return
        only = self.first[b]
        if only is not None:
            self.first[b] = None
            self.more[b] = {only: 1}
        shared = self.more[b]
        shared[who] = shared.get(who, 0) + 1

    def drop(self, b: int, who: str) -> bool:
        """`who` holds block `b` once less; False, and nothing changes, when it does not hold it."""
        shared = self.more.get(b)
        if shared is None:
            if self.first[b] != who:
                return False
            self.held[b] = 0
            self.first[b] = None
            self.idle += 1
        else:
            times = shared.get(who, 0)
            if not times:
                return False
            if times > 1:
                shared[who] = times - 1
            else:
                del shared[who]
            self.held[b] -= 1
            if self.held[b] == 1:
                (self.first[b],) = shared
                del self.more[b]
        self.lose(who, 1)
        return True

    def lose(self, who: str, n: int) -> None:
        """Count `n` references less for a name."""
        left = self.counts[who] - n
        if left:
            self.counts[who] = left
        else:
            del self.counts[who]

    def holders(self, b: int | None) -> dict[str, int]:
        """Return who holds a block, and how often; nobody holds None."""
        if b is None or not 0 <= b < len(self.held):
            return {}
        only = self.first[b]
        return dict(self.more.get(b, {})) if only is None else {only: 1}

    def of(self, who: str) -> list[int]:
        """Return the blocks that a name holds. Costs O(pool)."""
        return [b for b in range(len(self.held)) if who in self.holders(b)]

    def adopt(self, b: int, ref_cnt: int) -> None:
        """Bring a block's references to what its pool counts: whoever is in excess goes first."""
        while self.held[b] > max(0, ref_cnt):
            self.drop(b, next(reversed(self.holders(b))))
        while self.held[b] < ref_cnt:
            self.add(b, UNKNOWN)
