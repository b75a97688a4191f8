"""The machine for a direct caller of the pool, with all the misuse that a pool must refuse."""

from __future__ import annotations

from hypothesis.stateful import initialize, precondition, rule

from conformance.machines.pair_machine import Machine, chosen
from conformance.machines.strategies import (
    ANY_IDS,
    LABELS,
    MISUSED,
    PICKS,
    SIZES,
    SOME,
    TOKENS,
    Ids,
    Kind,
)
from spec.pool import FREE_CACHED, IN_USE, IN_USE_CACHED, SHARED
from spec.state import BlockState, Key, block_state


class PoolMachine(Machine):
    """A direct caller of the pool, careful or not."""

    @initialize(size=SIZES)
    def begin(self, size: Ids) -> None:
        """Make a pool."""
        self.start(size, Kind())
        if not self.pair.capabilities.pool_calls:
            raise ValueError(f"{self.pair.name} takes no calls on its pool; run ManagerMachine")

    def those(self, *states: BlockState) -> Ids:
        """Return the blocks that are in one of some states."""
        s = self.pair.state
        return tuple(b for b in range(1, len(s.pool.blocks)) if block_state(s, b) in states)

    def takes(self, n: int) -> Ids:
        """Take some blocks, one at least where there is one."""
        taken: Ids = self.ask("get_new_blocks", min(n % 3 + 1, self.pair.num_free()))
        return taken

    def seals(self, table: Ids, labels: Ids, num_cached: int, num_full: int) -> None:
        """Seal a part of a table; a label stands for a content of whole blocks."""
        keys = tuple(Key(None, (label,) * self.pair.config.block_size) for label in labels)
        self.ask("cache_full_blocks", table, keys, num_cached, num_full)

    @rule(n=PICKS)
    def take(self, n: int) -> None:
        """Take blocks."""
        self.takes(n)

    @rule(n=PICKS, labels=LABELS)
    def fill(self, n: int, labels: Ids) -> None:
        """Take blocks and seal them."""
        taken = self.takes(n)
        self.seals(taken, labels, 0, len(taken))

    @precondition(lambda self: self.those(IN_USE))
    @rule(picks=SOME, labels=LABELS, cached=TOKENS)
    def seal(self, picks: Ids, labels: Ids, cached: int) -> None:
        """Seal blocks that one holder has filled."""
        table = chosen(self.those(IN_USE), picks[: len(labels)])
        self.seals(table, labels, min(cached, len(table) - 1), len(table))

    @precondition(lambda self: self.those(FREE_CACHED))
    @rule(picks=SOME)
    def touch_idle(self, picks: Ids) -> None:
        """Touch sealed blocks that nobody holds."""
        self.ask("touch", chosen(self.those(FREE_CACHED), picks))

    @precondition(lambda self: self.those(FREE_CACHED, IN_USE_CACHED, SHARED))
    @rule(picks=SOME)
    def touch(self, picks: Ids) -> None:
        """Touch sealed blocks, held or not."""
        self.ask("touch", chosen(self.those(FREE_CACHED, IN_USE_CACHED, SHARED), picks))

    @precondition(lambda self: self.pair.state.loose)
    @rule(picks=SOME)
    def release(self, picks: Ids) -> None:
        """Give references back, each once."""
        loose = list(self.pair.state.loose)
        self.ask("free_blocks", tuple(loose.pop(n % len(loose)) for n in picks if loose))

    @precondition(lambda self: self.those(SHARED))
    @rule(pick=PICKS)
    def release_shared(self, pick: int) -> None:
        """Give one reference of a shared block back."""
        shared = self.those(SHARED)
        self.ask("free_blocks", (shared[pick % len(shared)],))

    @precondition(lambda self: self.pair.state.loose)
    @rule(turned=TOKENS)
    def release_all(self, turned: int) -> None:
        """Give all references back, those of the youngest ids first or last."""
        self.ask("free_blocks", self.pair.state.loose[:: -1 if turned else 1])

    @precondition(lambda self: self.pair.state.loose)
    @rule(picks=SOME)
    def release_again(self, picks: Ids) -> None:
        """Give references back, the same one twice if need be."""
        self.ask("free_blocks", chosen(self.pair.state.loose, picks))

    @precondition(lambda self: self.pair.capabilities.unpublish and self.those(IN_USE_CACHED))
    @rule(picks=SOME)
    def unpublish(self, picks: Ids) -> None:
        """Take keys back."""
        self.ask("unpublish", chosen(self.those(IN_USE_CACHED), picks))

    @precondition(lambda self: self.pair.capabilities.unpublish and self.those(SHARED))
    @rule(pick=PICKS)
    def unpublish_shared(self, pick: int) -> None:
        """Take the key from a block that others hold too."""
        shared = self.those(SHARED)
        self.ask("unpublish", (shared[pick % len(shared)],))

    @precondition(lambda self: self.those(FREE_CACHED, IN_USE_CACHED, SHARED))
    @rule()
    def reset(self) -> None:
        """Reset the cache, while blocks are held or not."""
        self.ask("reset_prefix_cache")

    @rule(verb=MISUSED, ids=ANY_IDS)
    def misuse(self, verb: str, ids: Ids) -> None:
        """Name blocks that may be free, unsealed, shared, foreign, or named twice."""
        if verb != "unpublish" or self.pair.capabilities.unpublish:
            self.ask(verb, ids)

    @rule(n=PICKS, ids=ANY_IDS, labels=LABELS)
    def take_or_seal_wrongly(self, n: int, ids: Ids, labels: Ids) -> None:
        """Take too few or too many, or seal what may not be sealed, in any range."""
        if n < 20:
            self.ask("get_new_blocks", (self.pair.num_free() + 1, -1)[n % 2])
        else:
            beyond = (0, 0, 0, 1, -1)[n // 4 % 5]
            self.seals(ids, labels, (0, 0, 1, -1)[n % 4], len(ids) + beyond)
