"""A seeded random walk through the direct calls of a pool: who takes, seals, shares and drops.

No request stands between caller and pool, so every sequence of calls can come, with every misuse
in it: too many, too often, twice in one call, of another pool. A walk is a function of its seed and
the configuration.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from conformance.driving.walk import wander
from conformance.lockstep import Lockstep
from spec.state import NULL, Block, Key

NUM_KEYS = 7


class PoolWalk:
    """Random direct calls on a pair in lockstep. `counts` tells how often each thing happened."""

    def __init__(self, pair: Lockstep, seed: int) -> None:
        self.pair = pair
        self.rng = rng = Random(seed)  # noqa: S311 (a walk must be repeatable, not secret)
        self.counts: Counter[str] = Counter()
        self._keys = _tree_of_keys(pair.config.block_size)[: rng.choice((2, 4, NUM_KEYS))]
        self._moves = (
            (self._take, rng.choice((4, 8))),
            (self._seal, rng.choice((2, 8))),
            (self._touch, rng.choice((1, 4, 8))),
            (self._drop, rng.choice((4, 8))),
            (self._unpublish, rng.choice((0, 1, 3)) if pair.capabilities.unpublish else 0),
            (self._clear, rng.choice((0, 0, 1))),
            (self._reset, rng.choice((0, 1))),
            (self._misuse, rng.choice((0, 1, 3))),
        )

    def run(self, num_moves: int) -> None:
        """Make some moves. Raises `Divergence` at the first difference."""
        wander(self.rng, self._moves, num_moves, self.counts)

    @property
    def _blocks(self) -> list[Block] | tuple[Block, ...]:
        return self.pair.state.pool.blocks

    def _some(self, *, sealed: bool, most: int = 3) -> list[int]:
        """Return a few blocks that carry a key or none, out of a few looked at."""
        blocks, rng = self._blocks, self.rng
        looked_at = {rng.randrange(1, len(blocks)): None for _ in range(8)}
        return [b for b in looked_at if (blocks[b].key is not None) == sealed][:most]

    def _any_id(self) -> int:
        """Return the id of any block, null and those of no pool included."""
        return self.rng.randrange(-1, len(self._blocks) + 1)

    def _held(self, most: int) -> list[int]:
        """Return some of the references that the caller holds; a shared block may come twice."""
        loose = self.pair.state.loose
        return self.rng.sample(loose, self.rng.randint(0, min(most, len(loose))))

    def _take(self) -> None:
        free = self.pair.num_free()
        few = min(free, 3)
        self.pair.get_new_blocks(self.rng.randint(0, few if self.rng.random() < 0.9 else free))

    def _seal(self) -> None:
        """Seal a few held blocks, behind some that are sealed already, null among them."""
        blocks, rng = self._blocks, self.rng
        held = {b: None for b in self._held(4) if blocks[b].ref_cnt == 1 and blocks[b].key is None}
        before = self._some(sealed=True, most=rng.randrange(3))
        full = [NULL, *held] if rng.random() < 0.1 else [*held]
        table = [*before, *full]
        keys = rng.choices(self._keys, k=len(table) + rng.randrange(2))
        num_full = rng.randint(len(before), len(table)) if rng.random() < 0.2 else len(table)
        self.pair.cache_full_blocks(table, keys, len(before), num_full)

    def _touch(self) -> None:
        ids = self._some(sealed=True, most=self.rng.randint(1, 3))
        if self.rng.random() < 0.2:
            ids = [NULL, *ids, *ids]
        self.pair.touch(ids)

    def _drop(self) -> None:
        ids = self._held(self.rng.choice((1, 3, len(self._blocks))))
        if self.rng.random() < 0.1:
            ids.insert(0, NULL)
        self.pair.free_blocks(ids)

    def _unpublish(self) -> None:
        blocks = self._blocks
        self.pair.unpublish([b for b in self._some(sealed=True) if blocks[b].ref_cnt == 1])

    def _clear(self) -> None:
        """Drop everything, so that a reset has nothing in its way."""
        loose = list(self.pair.state.loose)
        self.rng.shuffle(loose)
        self.pair.free_blocks(loose)
        self._reset()

    def _reset(self) -> None:
        self.counts[f"reset {self.pair.reset_prefix_cache()}"] += 1

    def _misuse(self) -> None:
        """Make a call with something wrong about it; by chance it may be right."""
        rng, pair = self.rng, self.pair
        any_ids = [self._any_id() for _ in range(rng.randint(1, 3))]
        held, sealed = self._held(2), self._some(sealed=True, most=2)
        kind = rng.randrange(7 if pair.capabilities.unpublish else 6)
        if kind == 0:
            pair.get_new_blocks(rng.choice((-1, pair.num_free() + 1, len(self._blocks) * 9)))
        elif kind == 1:
            pair.touch(rng.choice((self._some(sealed=False), [*sealed, *any_ids], any_ids)))
        elif kind == 2:
            # One reference more than there are, and references that nobody holds.
            again = [b for b in held for _ in range(self._blocks[b].ref_cnt)]
            pair.free_blocks(rng.choice(([*held, *again], [*held, *any_ids], any_ids)))
        elif kind == 3:
            table = rng.choice(([*held, *held], sealed, any_ids, [*held, *sealed]))
            pair.cache_full_blocks(table, rng.choices(self._keys, k=len(table)), 0, len(table))
        elif kind == 4:
            keys = rng.choices(self._keys, k=rng.randrange(4))
            pair.cache_full_blocks(held, keys, rng.randint(-1, 3), rng.randint(-1, 3))
        elif kind == 5:
            pair.touch([*sealed, len(self._blocks)])
        else:
            pair.unpublish(rng.choice(([*sealed, *sealed], any_ids, [*sealed, NULL], held)))


def _tree_of_keys(block_size: int) -> list[Key]:
    """Return a few keys of which some name prefixes of others."""
    keys: list[Key] = []
    parents: list[Key | None] = [None]
    while len(keys) < NUM_KEYS:
        parent = parents.pop(0)
        children = [Key(parent, (token,) * block_size) for token in (0, 1)]
        keys += children
        parents += children
    return keys[:NUM_KEYS]
