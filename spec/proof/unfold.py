"""Takes a step of the Python specification apart into steps of the pool machine.

One call of the specification moves many blocks; the machine moves one. The states in between are
made with the specification's own effects, one block at a time, and the last one must be the state
that the call gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from spec.pool import (
    release_effect,
    seal_effect,
    take_effect,
    touch_effect,
    unpublish_effect,
)
from spec.proof.values import Domains, Table, Values
from spec.state import NULL, Block, Key, Pool, State

RealStep: TypeAlias = tuple[State, str, Mapping[str, Any], State]
"""State before, action, arguments, state after."""

Holder: TypeAlias = tuple[object, ...]
T = TypeVar("T")


class Move(NamedTuple):
    """One step of a machine on concrete values; fields after the step end in `.next`."""

    action: str
    values: Values
    domains: Domains


class UnfoldError(AssertionError):
    """The steps of a machine do not add up to the step of the specification."""


class PoolMoves:
    """Moves blocks of a pool one by one and notes each move."""

    def __init__(self, s: State) -> None:
        self.append = s.config.free_rule == "append"
        self.free_rule = s.config.free_rule
        self.pool = s.pool
        self.held: dict[int, frozenset[Holder]] = dict.fromkeys(
            range(s.config.num_gpu_blocks), frozenset()
        )
        for rid, r in s.requests.items():
            for i, b in enumerate(r.table or ()):
                if b != NULL:
                    self.held[b] |= {(rid, i)}
        for b, n in Counter(s.loose).items():
            self.held[b] |= {("loose", b, i) for i in range(n)}
        self.moves: list[
            tuple[str, dict[str, Any], Pool, Pool, dict[int, Any], dict[int, Any]]
        ] = []

    def loose(self, b: int) -> Holder:
        """Return the next loose reference to a block."""
        return ("loose", b, sum(h[0] == "loose" for h in self.held[b]))

    def take(self, holder: Holder | None) -> int:
        """Take the head of the queue."""
        pool, (b,) = take_effect(self.pool, 1)
        holder = holder or self.loose(b)
        self._note("take", pool, {"v": b, "h": holder}, b, self.held[b] | {holder})
        return b

    def touch(self, b: int, holder: Holder) -> None:
        """Touch a block."""
        pool = touch_effect(self.pool, [b])
        self._note("touch", pool, {"v": b, "h": holder}, b, self.held[b] | {holder})

    def one_by_one(self, mentions: Iterable[tuple[int, T]]) -> list[tuple[int, T]]:
        """Return mentions in the order in which single releases leave the queue as one call does.

        What enters at the head enters in the call's order, so one by one the last must come first.
        """
        named = list(mentions)
        if self.free_rule == "append":
            return named
        plain = [mention for mention in named if self.pool.blocks[mention[0]].key is None]
        keyed = [mention for mention in named if self.pool.blocks[mention[0]].key is not None]
        return keyed + plain[::-1]

    def release(self, b: int, holder: Holder) -> None:
        """Release a block."""
        pool = release_effect(self.pool, [b], self.free_rule)
        self._note("release", pool, {"v": b, "h": holder}, b, self.held[b] - {holder})

    def seal(self, b: int, block: Block) -> None:
        """Seal a block."""
        pool = seal_effect(self.pool, {b: block})
        self._note("seal", pool, {"v": b, "k": block.key}, b, self.held[b])

    def unpublish(self, b: int) -> None:
        """Take back the key of a block."""
        self._note("unpublish", unpublish_effect(self.pool, [b]), {"v": b}, b, self.held[b])

    def reset(self) -> None:
        """Forget every key."""
        pool = unpublish_effect(self.pool, range(1, len(self.pool.blocks)))
        self._note("reset", pool, {}, NULL, self.held[NULL])

    def _note(
        self, action: str, pool: Pool, params: dict[str, Any], b: int, holders: frozenset[Holder]
    ) -> None:
        held = self.held | {b: holders}
        self.moves.append((action, params, self.pool, pool, self.held, held))
        self.pool, self.held = pool, held

    def must_be(self, after: Pool) -> None:
        """Raise when the moves do not end where the call ended."""
        ours = [(x.ref_cnt, x.key) for x in self.pool.blocks]
        theirs = [(x.ref_cnt, x.key) for x in after.blocks]
        if (ours, self.pool.queue, self.pool.by_key) != (theirs, after.queue, after.by_key):
            raise UnfoldError(f"the moves end in {self.pool}, the call in {after}")

    def steps(self) -> Iterator[Move]:
        """Yield each move with the values of all fields before and after it."""
        pools = [self.pool, *(move[2] for move in self.moves)]
        keys = {key: None for pool in pools for key in keys_of(pool)}
        keys |= {params["k"]: None for _, params, *_ in self.moves if "k" in params}
        holders = {
            h: None for move in self.moves for held in move[4:] for hs in held.values() for h in hs
        }
        domains: Domains = {
            "Block": range(len(self.pool.blocks)),
            "Key": [None, *keys],
            "Holder": list(holders),
        }
        for action, params, before, after, held, held_after in self.moves:
            values: dict[str, Any] = dict(RIGID) | {"append": self.append}
            values |= {f"{action}.{name}": value for name, value in params.items()}
            values |= pool_values(before) | {"held": by_block(held)}
            new = pool_values(after) | {"held": by_block(held_after)}
            yield Move(action, values | {f"{name}.next": v for name, v in new.items()}, domains)


RIGID: Values = {
    "null": NULL,
    "nokey": None,
    "member": lambda h, holders: h in holders,
    "plus": lambda holders, h: holders | {h},
    "minus": lambda holders, h: holders - {h},
    "card": len,
}


def keys_of(pool: Pool) -> Iterator[Key]:
    """Yield the keys that the index or a block has."""
    yield from pool.by_key
    yield from (block.key for block in pool.blocks if block.key is not None)


def by_block(values: Mapping[int, Any]) -> Table:
    """Return values by block as a function."""
    return Table({(b,): value for b, value in values.items()}, frozenset())


def queue_values(pool: Pool) -> dict[str, Any]:
    """Return the values of what the queue and the index say, and the keys."""
    queue, copies = pool.queue, pool.by_key.values()
    return {
        "key": Table({(b,): block.key for b, block in enumerate(pool.blocks)}, None),
        "queued": Table({(b,): True for b in queue}, default=False),
        "ahead": Table(_pairs([queue]), default=False),
        "older": Table(_pairs(copies), default=False),
    }


def pool_values(pool: Pool) -> dict[str, Any]:
    """Return the values of every field that a pool has."""
    entries = pool.by_key.items()
    return queue_values(pool) | {
        "ref_cnt": Table({(b,): block.ref_cnt for b, block in enumerate(pool.blocks)}, 0),
        "indexed": Table({(k, b): True for k, ids in entries for b in ids}, default=False),
        "present": Table({(k,): True for k, _ in entries}, default=False),
        "first": Table({(k,): ids[0] for k, ids in entries if ids}, NULL),
    }


def _pairs(rows: Iterable[tuple[int, ...]]) -> dict[tuple[Any, ...], bool]:
    return {(a, b): True for row in rows for n, a in enumerate(row) for b in row[n + 1 :]}


def pool_steps(step: RealStep) -> Iterator[Move]:
    """Yield the moves that a step of the specification makes in the pool."""
    before, action, args, after = step
    if after == before and action != "reset_prefix_cache":
        return
    moves = PoolMoves(before)
    if action in DIRECT:
        DIRECT[action](moves, args)
    elif action == "reset_prefix_cache":
        if before.pool.num_free() == before.config.usable:
            moves.reset()
    elif action == "allocate_slots":
        _allocate(moves, before, after, args)
    elif action in ("free", "preempt", "finish"):
        _free(moves, before, after, args["rid"])
    moves.must_be(after.pool)
    yield from moves.steps()


def _free_blocks(moves: PoolMoves, args: Mapping[str, Any]) -> None:
    for b, _ in moves.one_by_one((b, None) for b in args["ids"]):
        if b != NULL:
            (*_, holder) = sorted(moves.held[b], key=lambda h: (h[0] == "loose", str(h)))
            moves.release(b, holder)


def _cache_full_blocks(moves: PoolMoves, args: Mapping[str, Any]) -> None:
    table, keys = args["table"], args["keys"]
    for i in range(args["num_cached"], args["num_full"]):
        if (b := table[i]) != NULL:
            moves.seal(b, moves.pool.blocks[b]._replace(key=keys[i]))


DIRECT: Mapping[str, Any] = {
    "get_new_blocks": lambda moves, args: [moves.take(None) for _ in range(args["n"])],
    "touch": lambda moves, args: [moves.touch(b, moves.loose(b)) for b in args["ids"] if b != NULL],
    "free_blocks": _free_blocks,
    "cache_full_blocks": _cache_full_blocks,
    "unpublish": lambda moves, args: [moves.unpublish(b) for b in args["ids"]],
}


def _allocate(moves: PoolMoves, before: State, after: State, args: Mapping[str, Any]) -> None:
    rid = args["rid"]
    old, r = before.requests[rid].table or (), after.requests[rid]
    new = r.table or ()
    left = [(old[i], (rid, i)) for i in reversed(range(len(old))) if old[i] != new[i]]
    for b, holder in moves.one_by_one(left):
        moves.release(b, holder)
    num_hits = r.num_hits if before.requests[rid].table is None else 0
    for i in range(len(old), len(new)):
        if i < num_hits and new[i] != NULL:
            moves.touch(new[i], (rid, i))
        elif i >= num_hits and moves.take((rid, i)) != new[i]:
            raise UnfoldError(f"{new[i]} is not what a take at index {i} gives")
    for b in new:
        key: Key | None = after.pool.blocks[b].key
        if key is not None and moves.pool.blocks[b].key is None:
            moves.seal(b, after.pool.blocks[b])


def _free(moves: PoolMoves, before: State, after: State, rid: str) -> None:
    table = before.requests[rid].table or ()
    for b in table:
        if before.pool.blocks[b].key is not None and after.pool.blocks[b].key is None:
            moves.unpublish(b)
    entries = [(b, (rid, i)) for i, b in enumerate(table)]
    for b, holder in moves.one_by_one(entries[::-1] if before.config.enable_caching else entries):
        if b != NULL:
            moves.release(b, holder)
