"""Compares a subject's snapshot with a state of the specification, and reads it as such a state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from conformance.subject import Snapshot
from spec.invariants import holders
from spec.state import NULL, Frozen, Key, Pool, Request, State


class Difference(NamedTuple):
    """One thing that the specification and the subject see differently."""

    what: str
    block: int | None
    expected: object
    actual: object


def differences(s: State, seen: Snapshot) -> Iterator[Difference]:
    """Yield every difference between a state and a snapshot."""
    shown = min(len(seen.ref_cnts), len(seen.keys)), max(len(seen.ref_cnts), len(seen.keys))
    if shown != (s.config.num_gpu_blocks,) * 2:
        wrong = next(n for n in shown if n != s.config.num_gpu_blocks)
        yield Difference("number of blocks", None, s.config.num_gpu_blocks, wrong)
        return
    for b, block in enumerate(s.pool.blocks):
        if block.ref_cnt != seen.ref_cnts[b]:
            yield Difference("ref_cnt", b, block.ref_cnt, seen.ref_cnts[b])
        if (block.key is None) != (seen.keys[b] is None):
            yield Difference("sealed", b, block.key is not None, seen.keys[b] is not None)
    if tuple(s.pool.queue) != seen.queue:
        yield Difference("free queue", _first_unequal(s.pool.queue, seen.queue), *_short(s, seen))
    held = 1 - s.pool.num_free() / s.config.usable
    if seen.usage is not None and seen.usage != held:
        yield Difference("usage", None, held, seen.usage)
    yield from chain_differences(seen)
    yield from key_differences(s, seen)
    yield from index_differences(s, seen)
    tables = {rid: r.table for rid, r in s.requests.items() if r.table is not None}
    for rid in sorted(set(tables) | {rid for rid, table in seen.tables.items() if table}):
        if tables.get(rid, ()) != seen.tables.get(rid, ()):
            table, other = tables.get(rid, ()), seen.tables.get(rid, ())
            yield Difference(f"table of {rid}", _first_unequal(table, other), table, other)


def index_differences(s: State, seen: Snapshot) -> Iterator[Difference]:
    """Yield what is wrong with the subject's index: in itself, then against the specification's."""
    listed: set[tuple[Hashable, int]] = set()
    for key, copies in seen.index.items():
        if not copies:
            yield Difference("empty index entry", None, "no entry", key)
        for b in copies:
            listed.add((key, b))
            if not 0 <= b < len(seen.keys) or seen.keys[b] != key:
                yield Difference("listed under a key that it does not carry", b, None, key)
    for b, key in enumerate(seen.keys):
        if key is not None and (key, b) not in listed:
            yield Difference("carries a key under which it is not listed", b, key, None)
    # What is listed carries its key by now, so entries of equal blocks are equal entries.
    ours, theirs = set(s.pool.by_key.values()), set(seen.index.values())
    for copies in sorted(ours ^ theirs):
        what = "index entry" if copies in ours else "index entry that should not be"
        yield Difference(what, copies[0] if copies else None, copies in ours, copies in theirs)


def chain_differences(seen: Snapshot) -> Iterator[Difference]:
    """Yield what is wrong with the subject's queue as a chain, walked both ways and counted."""
    if seen.queue_back[::-1] != seen.queue:
        yield Difference("queue walked backward", None, seen.queue, seen.queue_back[::-1])
    if seen.num_free != len(seen.queue):
        yield Difference("free counter", None, len(seen.queue), seen.num_free)
    for b in seen.stray:
        yield Difference("links outside the queue", b, "no neighbour", "a neighbour")


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


def as_state(s: State, before: State, seen: Snapshot) -> State:
    """Return the snapshot as a state: the subject's real facts, the specification's ghosts.

    A key of the subject is read as the specification's key of the first block that carries it, now
    or before the call. A key that means nothing to the specification is read as naming the tokens
    that stand where the block stands in a table, drafts included.
    """
    names: dict[Hashable, Key] = {}
    for known in (s, before):
        for theirs, block in zip(seen.keys, known.pool.blocks, strict=True):
            if theirs is not None and block.key is not None:
                names.setdefault(theirs, block.key)
    requests = {}
    for rid, r in s.requests.items():
        table = seen.tables.get(rid) or (None if r.table is None else ())
        requests[rid] = _as_request(r, table, seen, names, s.config.block_size)
    for theirs in (*seen.keys, *seen.index):
        if theirs is not None:
            names.setdefault(theirs, _unknown((), len(names)))
    blocks = []
    for b, (count, carried) in enumerate(zip(seen.ref_cnts, seen.keys, strict=True)):
        key = None if carried is None else names[carried]
        # Where the subject left a block alone, its memory is what it was before the call.
        was = before.pool.blocks[b]
        alone = (was.ref_cnt, was.key) == (count, key)
        blocks.append((was if alone else s.pool.blocks[b])._replace(ref_cnt=count, key=key))
    index: dict[Key, tuple[int, ...]] = defaultdict(tuple)
    for theirs, copies in seen.index.items():
        index[names[theirs]] += copies
    return s._replace(
        pool=Pool(tuple(blocks), seen.queue, Frozen(index)), requests=Frozen(requests)
    )


def _as_request(
    r: Request, table: tuple[int, ...] | None, seen: Snapshot, names: dict[Hashable, Key], size: int
) -> Request:
    """Return a request with the subject's table, and name the unknown keys that stand in it."""
    known = r.tokens + r.drafts
    for i, b in enumerate(table or ()):
        theirs = seen.keys[b] if 0 <= b < len(seen.keys) else None
        if theirs is not None:
            tokens = known[i * size : (i + 1) * size]
            names.setdefault(theirs, _unknown(tokens, len(names)))
    return r._replace(table=table)


def _unknown(tokens: tuple[int, ...], number: int) -> Key:
    """Return a key that no request has; a number tells two apart in the same way in every run."""
    return Key(None, tokens, (("unknown to the specification", number),))


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
