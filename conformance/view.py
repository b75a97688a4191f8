"""Compares a subject's snapshot with a state of the specification, and reads it as such a state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from conformance.subject import Snapshot
from spec.invariants import holders
from spec.state import NULL, Frozen, Key, Pool, State


class Difference(NamedTuple):
    """One thing that the specification and the subject see differently."""

    what: str
    block: int | None
    expected: object
    actual: object


def differences(s: State, seen: Snapshot) -> Iterator[Difference]:
    """Yield every difference between a state and a snapshot."""
    if len(seen.ref_cnts) != s.config.num_gpu_blocks:
        yield Difference("number of blocks", None, s.config.num_gpu_blocks, len(seen.ref_cnts))
        return
    for b, block in enumerate(s.pool.blocks):
        if block.ref_cnt != seen.ref_cnts[b]:
            yield Difference("ref_cnt", b, block.ref_cnt, seen.ref_cnts[b])
        if (block.key is None) != (seen.keys[b] is None):
            yield Difference("sealed", b, block.key is not None, seen.keys[b] is not None)
    if tuple(s.pool.queue) != seen.queue:
        yield Difference("free queue", _first_unequal(s.pool.queue, seen.queue), *_short(s, seen))
    yield from chain_differences(seen)
    yield from key_differences(s, seen)
    if sorted(s.pool.by_key.values()) != sorted(seen.index.values()):
        ours, theirs = set(s.pool.by_key.values()), set(seen.index.values())
        for copies in sorted(ours ^ theirs):
            first = copies[0] if copies else None
            yield Difference(
                "index entry", first, copies in ours, copies if copies in theirs else None
            )
    tables = {rid: r.table for rid, r in s.requests.items() if r.table is not None}
    for rid in sorted(set(tables) | {rid for rid, table in seen.tables.items() if table}):
        if tables.get(rid, ()) != seen.tables.get(rid, ()):
            table, other = tables.get(rid, ()), seen.tables.get(rid, ())
            yield Difference(f"table of {rid}", _first_unequal(table, other), table, other)


def chain_differences(seen: Snapshot) -> Iterator[Difference]:
    """Yield what is wrong with the subject's queue as a chain, walked both ways and counted."""
    if seen.queue_back[::-1] != seen.queue:
        yield Difference("queue walked backward", None, seen.queue, seen.queue_back[::-1])
    if seen.num_free != len(seen.queue):
        yield Difference("free counter", None, len(seen.queue), seen.num_free)


def key_differences(s: State, seen: Snapshot) -> Iterator[Difference]:
    """Yield blocks that the subject gives one key and the specification two, or the reverse."""
    by_subject: dict[Hashable, int] = {}
    by_spec: dict[Key, int] = {}
    for b, block in enumerate(s.pool.blocks):
        mine, theirs = block.key, seen.keys[b]
        if mine is not None and theirs is not None:
            first, twin = by_subject.setdefault(theirs, b), by_spec.setdefault(mine, b)
            if s.pool.blocks[first].key is not mine:
                yield Difference("one key for two contents", b, mine, s.pool.blocks[first].key)
            if seen.keys[twin] != theirs:
                yield Difference("two keys for one content", b, seen.keys[twin], theirs)


def as_state(s: State, seen: Snapshot) -> State:
    """Return the snapshot as a state: the subject's real facts, the specification's ghosts.

    A key of the subject is read as the specification's key of the first block that carries it.
    """
    names: dict[Hashable, Key] = {}
    for b, block in enumerate(s.pool.blocks):
        if (theirs := seen.keys[b]) is not None and block.key is not None:
            names.setdefault(theirs, block.key)
    for theirs in (*seen.keys, *seen.index):
        if theirs is not None:
            names.setdefault(theirs, Key(None, (), (("unknown to the specification", theirs),)))
    blocks = tuple(
        block._replace(ref_cnt=count, key=None if key is None else names[key])
        for block, count, key in zip(s.pool.blocks, seen.ref_cnts, seen.keys, strict=True)
    )
    index: dict[Key, tuple[int, ...]] = defaultdict(tuple)
    for key, copies in seen.index.items():
        index[names[key]] += copies
    requests = {
        rid: r._replace(table=seen.tables.get(rid) or (None if r.table is None else ()))
        for rid, r in s.requests.items()
    }
    pool = Pool(blocks, seen.queue, Frozen(index))
    return s._replace(pool=pool, requests=Frozen(requests))


def holders_of(s: State, b: int | None) -> str:
    """Return who holds a block by the specification's ledger, for a report."""
    if b is None or b == NULL:
        return "-"
    names = [rid for rid, r in s.requests.items() for shown in r.table or () if shown == b]
    loose = holders(s)[b] - len(names)
    return ",".join(names + ["caller"] * loose) or "nobody"


def _first_unequal(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return x
    longer = max(a, b, key=len)
    return longer[min(len(a), len(b))] if len(a) != len(b) else None


def _short(s: State, seen: Snapshot) -> tuple[object, object]:
    """Return both queues around the first place where they differ."""
    ours, theirs = tuple(s.pool.queue), seen.queue
    at = next(
        (i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y),
        min(len(ours), len(theirs)),
    )
    lo, hi = max(0, at - 2), at + 3
    return f"[{lo}:]{ours[lo:hi]}", f"[{lo}:]{theirs[lo:hi]}"
