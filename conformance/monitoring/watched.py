"""A pool under watch: its ledger, the call that is under way, and how a violation is said.

Every watched call has a stamp: its number and its verb in one int, so that each block remembers the
last call that touched it at the price of one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from conformance.monitoring.owners import CALLER, Owners
from conformance.monitoring.profiles import Block, Manager, Pool, Profile
from conformance.monitoring.sweep import short, sweep
from conformance.monitoring.violation import Found, Violation
from spec.state import NULL

VERBS: Final = (
    "attach",
    "get_new_blocks",
    "touch",
    "free_blocks",
    "unpin_blocks",
    "cache_full_blocks",
    "cache_partial_block",
    "move_block_hashes",
    "evict_blocks",
    "unpublish",
    "reset_prefix_cache",
)
"""The verbs that change a pool; a stamp holds the place of one in its low bits."""
BITS: Final = 4
MASK: Final = (1 << BITS) - 1


def code_of(verb: str) -> int:
    """Return what makes of a stamp with all low bits set the next call's, one of this verb."""
    return 1 + VERBS.index(verb)


class Watched:
    """A live pool, the manager that uses it where that is watched too, and their ledger.

    `say` gets each violation; it may raise it.
    """

    __slots__ = (
        "_known",
        "base",
        "grown",
        "manager",
        "num_sweeps",
        "num_violations",
        "owners",
        "pool",
        "profile",
        "say",
        "stamp",
        "sweep_at",
        "sweep_every",
        "who",
    )

    def __init__(
        self,
        profile: Profile,
        pool: Pool,
        manager: Manager | None,
        say: Callable[[Violation], None],
        sweep_every: int,
    ) -> None:
        self.profile, self.pool, self.manager, self.say = profile, pool, manager, say
        self.who = self.base = CALLER
        """Whose calls these are. While a call of the manager is under way, in which tables lag
        behind the pool, that is the request, and `base` is who it was before."""
        self.stamp = self.grown = 0
        """The call that is under way, and the last one that gave references to somebody."""
        self.sweep_every = sweep_every << BITS
        self.sweep_at = self.sweep_every
        self.num_violations = self.num_sweeps = 0
        self._known: set[tuple[str, int | None]] = set()
        self.owners = Owners(len(pool.blocks))
        self._adopt_all()

    @property
    def num_calls(self) -> int:
        """How many calls of the pool were watched."""
        return self.stamp >> BITS

    @contextmanager
    def owner(self, who: str) -> Iterator[None]:
        """Count the calls of the pool inside this context as those of `who`."""
        before = self.who, self.base
        self.who = self.base = who
        try:
            yield
        finally:
            self.who, self.base = before

    def report(self, verb: str, *found: Found, going_on_from: Iterable[Block] = ()) -> None:
        """Say violations, after the ledger has adopted what the pool counts for some blocks."""
        holders = self.owners.holders
        made = [Violation(self.num_calls, verb, one, holders(one.block)) for one in found]
        self.num_violations += len(made)
        self.adopt(going_on_from)
        for violation in made:
            self.say(violation)

    def misuse(self, verb: str, found: Found) -> Found | None:
        """Say what the arguments alone show; return what is left to say if the pool lets it pass.

        A pool that refuses misuse itself speaks first.
        """
        if self.profile.refuses:
            return found
        self.report(verb, found)
        return None

    def adopt(self, blocks: Iterable[Block]) -> None:
        """Go on from what the pool counts for these blocks, so that one fault is said once."""
        owners, named = self.owners, list(blocks)
        for block in named:
            if self.is_own(block) and block.block_id != NULL:
                owners.adopt(block.block_id, block.ref_cnt)
        if named:
            owners.idle = self.pool.free_block_queue.num_free_blocks

    def refused(self, verb: str, blocks: Iterable[Block], error: Exception) -> None:
        """Say that a call changed something, though the pool raised an error."""
        if isinstance(error, Violation):
            return
        owners, free = self.owners, self.pool.free_block_queue.num_free_blocks
        named = list(blocks)
        found = [
            Found(
                "a_refused_call_changes_nothing",
                block.block_id,
                owners.held[block.block_id],
                block.ref_cnt,
                f"{verb} failed ({_told(error)}) and changed the count of block {block.block_id}",
            )
            for block in named
            if self.is_own(block) and block.ref_cnt != owners.held[block.block_id]
        ]
        if free != owners.idle and not found:
            what = f"{verb} failed ({_told(error)}) and changed how many blocks are free"
            found.append(Found("a_refused_call_changes_nothing", None, owners.idle, free, what))
        if found:
            self.report(verb, found[0], going_on_from=named)

    def counter(self) -> Found:
        """Return that the pool counts other free blocks than there are."""
        free, idle = self.pool.free_block_queue.num_free_blocks, self.owners.idle
        what = f"nobody holds {idle} blocks, and the pool counts {free} free ones"
        return Found("the_free_queue_is_a_chain", None, idle, free, what)

    def is_own(self, block: Block) -> bool:
        """Return whether a block is one of the pool's own objects."""
        b, blocks = block.block_id, self.pool.blocks
        return 0 <= b < len(blocks) and blocks[b] is block

    def is_listed(self, key: Hashable, block: Block) -> bool:
        """Return whether the index lists a block under a key."""
        return any(block is copy for copy in self.profile.copies(self.pool, key))

    def foreign(self, block: Block) -> Found:
        """Return that a block is not of this pool."""
        what = f"block {block.block_id} is an object that this pool does not own"
        return Found("the_free_queue_is_a_chain", block.block_id, "an own block", "foreign", what)

    def unlisted(self, block: Block) -> Found:
        """Return that a block carries a key under which it is not listed."""
        b, key = block.block_id, block.block_hash
        what = f"block {b} carries a key and is not listed under it"
        return Found("the_index_and_the_blocks_agree", b, short(key), None, what)

    def sweep(self, verb: str = "sweep", turn: int | None = None) -> None:
        """Look at the whole pool; what a sweep has said once, it does not repeat."""
        self.sweep_at = self.stamp + self.sweep_every
        self.num_sweeps += 1
        found = list(sweep(self.profile, self.pool, self.manager, self.owners, turn))
        new = [one for one in found if (one.property, one.block) not in self._known]
        if turn is None or found:
            self._known = {(one.property, one.block) for one in found}
        self.report(verb, *new)

    def regular_sweep(self) -> None:
        """Look at the whole pool, and at a share of the tables."""
        self.sweep(turn=self.num_sweeps)

    def last_call(self, b: int) -> str:
        """Return the last call that took, shared or released a block, for a reader."""
        stamp = self.owners.stamps[b]
        return f"call {stamp >> BITS} {VERBS[stamp & MASK]}"

    def _adopt_all(self) -> None:
        """Begin with what the tables show; what they do not account for is a caller's."""
        owners = self.owners
        if self.manager is not None:
            for rid, table in self.profile.tables(self.manager):
                for block in table:
                    if block.block_id != NULL:
                        owners.add(block.block_id, rid)
        for b, block in enumerate(self.pool.blocks):
            for _ in range(block.ref_cnt - owners.held[b] if b != NULL else 0):
                owners.add(b, CALLER)
            owners.keys[b] = block.block_hash


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
