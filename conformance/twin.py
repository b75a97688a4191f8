"""The specification's pool, changed in place: the same actions, at a cost that ignores pool size.

`spec.state.Pool` makes a new tuple for each change, which costs O(pool). `TwinPool` answers the
same methods and returns itself, so the specification's own actions run on it unchanged; a test
holds the two against each other. It remembers what the current call overwrote, which gives the
two things that lockstep needs: the blocks that a call touched, and the pool before the call.

The queue is a ring of two arrays that closes through the null block, which is never in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from conformance.subject import BlockView
from spec.state import NULL, Block, Frozen, Key, Pool

OUT = -1
"""The neighbour of a block that is not in the queue."""


class TwinPool:
    """A mutable pool with the methods of `spec.state.Pool`."""

    def __init__(self, pool: Pool) -> None:
        n = len(pool.blocks)
        self.blocks: list[Block] = list(pool.blocks)
        self._next = [OUT] * n
        self._prev = [OUT] * n
        ring = (NULL, *pool.queue, NULL)
        for a, b in pairwise(ring):
            self._next[a], self._prev[b] = b, a
        self._num_free = len(pool.queue)
        self.by_key: dict[Key, dict[int, None]] = {
            key: dict.fromkeys(copies) for key, copies in pool.by_key.items()
        }
        self.begin()

    def begin(self) -> None:
        """Forget what was overwritten: a new call starts."""
        self.overwritten: dict[int, Block] = {}
        self._old_next: dict[int, int] = {}
        self._old_copies: dict[Key, tuple[int, ...]] = {}

    def num_free(self) -> int:
        """Return the length of the queue."""
        return self._num_free

    def heads(self, n: int) -> tuple[int, ...]:
        """Return the next `n` victims."""
        found = []
        b = NULL
        for _ in range(n):
            b = self._next[b]
            found.append(b)
        return tuple(found)

    def copies(self, key: Key) -> tuple[int, ...]:
        """Return the blocks sealed under `key`, the first one first."""
        return tuple(self.by_key.get(key, ()))

    def update(self, changes: Mapping[int, Block]) -> TwinPool:
        """Replace some blocks."""
        for b, block in changes.items():
            self.overwritten.setdefault(b, self.blocks[b])
            self.blocks[b] = block
        return self

    def dequeue(self, ids: Iterable[int]) -> TwinPool:
        """Take `ids` out of the queue."""
        for b in ids:
            before, after = self._prev[b], self._next[b]
            self._link(before, after)
            self._old_next.setdefault(b, after)
            self._next[b] = self._prev[b] = OUT
            self._num_free -= 1
        return self

    def enqueue(self, tail: Iterable[int], head: Iterable[int] = ()) -> TwinPool:
        """Put `head` before the queue and `tail` behind it, in their order."""
        for b in tail:
            self._insert(self._prev[NULL], b, NULL)
        for b in reversed(tuple(head)):
            self._insert(NULL, b, self._next[NULL])
        return self

    def publish(self, b: int, key: Key) -> TwinPool:
        """Make `b` the last copy of `key`."""
        self._old_copies.setdefault(key, self.copies(key))
        self.by_key.setdefault(key, {})[b] = None
        return self

    def withdraw(self, b: int, key: Key) -> TwinPool:
        """Take `b` out of the index; the key goes with its last copy."""
        self._old_copies.setdefault(key, self.copies(key))
        copies = self.by_key[key]
        del copies[b]
        if not copies:
            del self.by_key[key]
        return self

    def views(self, ids: Iterable[int]) -> list[BlockView]:
        """Return blocks as an incremental check sees them."""
        blocks, prev, following, copies = self.blocks, self._prev, self._next, self.by_key
        return [
            (0, None, None, None)  # Of the null block only its place in the ring is kept here.
            if b == NULL
            else (
                blocks[b].ref_cnt,
                None if (key := blocks[b].key) is None else tuple(copies.get(key, ())),
                None if prev[b] == OUT else prev[b],
                None if following[b] == OUT else following[b],
            )
            for b in ids
        ]

    def touched(self) -> set[int]:
        """Return the blocks whose real facts the current call changed: count, key, neighbours."""
        changed = {
            b
            for b, old in self.overwritten.items()
            if old.ref_cnt != self.blocks[b].ref_cnt or old.key is not self.blocks[b].key
        }
        # Whose predecessor changed stands behind a block whose successor changed, now or before.
        for a, b in self._old_next.items():
            changed.update((a, b, self._next[a]))
        return changed - {NULL, OUT}

    def ends(self) -> tuple[int, int, int]:
        """Return the head and the tail of the queue (0 if it is empty) and its length."""
        return self._next[NULL], self._prev[NULL], self._num_free

    def frozen(self) -> Pool:
        """Return the pure pool that this one stands for."""
        copies = {key: tuple(ids) for key, ids in self.by_key.items()}
        return _pure(self.blocks, self._next, copies)

    def before(self) -> Pool:
        """Return the pure pool as it was when the current call began."""
        blocks, links = list(self.blocks), list(self._next)
        for b, block in self.overwritten.items():
            blocks[b] = block
        for b, after in self._old_next.items():
            links[b] = after
        copies = {key: tuple(ids) for key, ids in self.by_key.items()} | self._old_copies
        return _pure(blocks, links, {key: ids for key, ids in copies.items() if ids})

    def _link(self, a: int, b: int) -> None:
        self._old_next.setdefault(a, self._next[a])
        self._next[a], self._prev[b] = b, a

    def _insert(self, before: int, b: int, after: int) -> None:
        self._link(before, b)
        self._link(b, after)
        self._num_free += 1


def _pure(blocks: list[Block], links: list[int], copies: dict[Key, tuple[int, ...]]) -> Pool:
    queue = []
    b = links[NULL]
    while b != NULL:
        queue.append(b)
        b = links[b]
    return Pool(tuple(blocks), tuple(queue), Frozen(copies))
