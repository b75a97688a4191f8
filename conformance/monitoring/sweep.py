"""Looks at all of a live pool in one pass: what each call's check has no time for.

The counts are compared as whole lists, and the queue and the index are walked once, with one
comparison or two for each block. Who is guilty is asked only where something differs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from operator import attrgetter, is_
from typing import Any, Final

from conformance.monitoring.owners import Owners
from conformance.monitoring.profiles import Block, Manager, Pool, Profile
from conformance.monitoring.violation import Found
from spec.state import NULL

REF_CNT: Final = attrgetter("ref_cnt")
TURNS: Final = 16
"""After how many sweeps in a row the queue and all of index and tables was looked at."""
CHUNK: Final = 256
"""How many entries of the index are compared at once."""


def sweep(
    profile: Profile, pool: Pool, manager: Manager | None, owners: Owners, turn: int | None = None
) -> Iterator[Found]:
    """Yield what is wrong with a pool. Costs O(pool + tables).

    The counts of all blocks are looked at. The queue is walked when it is its turn, and of index
    and tables a share is looked at: all of them in `TURNS` turns. None looks at everything.
    """
    yield from _counts(pool, owners)
    if turn is None or not turn % TURNS:
        yield from _queue(profile, pool, owners)
    yield from _index(profile, pool, turn)
    yield from _keys(profile, pool, turn)
    if manager is not None:
        yield from _tables(profile, manager, owners, turn)


def _counts(pool: Pool, owners: Owners) -> Iterator[Found]:
    """Every block is held as often as the ledger says."""
    ref_cnts = list(map(REF_CNT, pool.blocks))
    if ref_cnts == owners.held:
        return
    for b, (counted, held) in enumerate(zip(ref_cnts, owners.held, strict=True)):
        if counted != held:
            name = "the_null_block_is_inert" if b == NULL else "ref_cnt_counts_the_holders"
            yield Found(name, b, held, counted, f"block {b} is held {held} times")


def _queue(profile: Profile, pool: Pool, owners: Owners) -> Iterator[Found]:
    """The queue is one chain of exactly the blocks that nobody holds."""
    before, end = profile.ends(pool)
    block, length, most = before.next_free_block, 0, len(pool.blocks)
    while block is not end:
        if block is None or block.prev_free_block is not before or length > most:
            yield _torn(before, block, length)
            return
        if block.ref_cnt or block.block_id == NULL:
            yield _wrongly_queued(block)
        length += 1
        before, block = block, block.next_free_block
    if end.prev_free_block is not before:
        yield _torn(before, end, length)
    counted = pool.free_block_queue.num_free_blocks
    if counted != length:
        what = f"the queue links {length} blocks and counts {counted}"
        yield Found("the_free_queue_is_a_chain", None, length, counted, what)
    if length != owners.idle:
        what = f"nobody holds {owners.idle} blocks, and {length} are in the queue"
        yield Found("a_block_is_free_exactly_when_nobody_holds_it", None, owners.idle, length, what)


def _torn(before: Block, block: Block | None, length: int) -> Found:
    at = None if block is None else block.block_id
    what = f"the free queue breaks after {length} blocks, behind block {before.block_id}"
    return Found("the_free_queue_is_a_chain", at, "a neighbour that points back", at, what)


def _wrongly_queued(block: Block) -> Found:
    if block.block_id == NULL:
        return Found("the_null_block_is_inert", NULL, "outside", "queued", "null is in the queue")
    return Found(
        "a_block_is_free_exactly_when_nobody_holds_it",
        block.block_id,
        "outside",
        "queued",
        f"block {block.block_id} is in the queue and counted {block.ref_cnt} times",
    )


def _index(profile: Profile, pool: Pool, turn: int | None) -> Iterator[Found]:
    """Every listed block carries the key."""
    key_of, index = profile.key_of, profile.listed(pool)
    listed, found = list(index), list(index.values())
    for at in _starts(len(listed), turn):
        some = listed[at : at + CHUNK]
        # Nearly always each key has one block, and then this is all.
        if _own_keys(key_of, found[at : at + CHUNK]) == some:
            continue
        for key in some:
            for block in profile.copies(pool, key):
                own = key_of(block)
                if own != key and key not in profile.more_keys(pool, block):
                    b = block.block_id
                    what = f"block {b} is listed under a key that it does not carry"
                    yield Found("the_index_and_the_blocks_agree", b, short(key), short(own), what)


def _own_keys(key_of: Callable[[Block], Hashable], found: list[Any]) -> list[Hashable] | None:
    """Return the keys of blocks; None where a key with several blocks is among them."""
    try:
        return list(map(key_of, found))
    except AttributeError:
        return None


def _keys(profile: Profile, pool: Pool, turn: int | None) -> Iterator[Found]:
    """Every block with a key is listed under it, and null has none."""
    blocks, get = pool.blocks, profile.getter(pool)
    if (own := profile.key_of(blocks[NULL])) is not None:
        what = "the null block carries a key"
        yield Found("the_null_block_is_inert", NULL, None, short(own), what)
    for at in _starts(len(blocks), turn):
        some = blocks[at : at + CHUNK]
        keys = list(map(profile.key_of, some))
        found = list(map(get, keys))
        if sum(map(is_, found, some)) + keys.count(None) == len(some):
            continue
        for block, key in zip(some, keys, strict=True):
            listed = key is None or any(block is c for c in profile.copies(pool, key))
            if not listed and block.block_id != NULL:
                what = f"block {block.block_id} carries a key and is not listed under it"
                yield Found(
                    "the_index_and_the_blocks_agree", block.block_id, short(key), None, what
                )


def _starts(length: int, turn: int | None) -> range:
    """Return where the chunks begin whose turn it is."""
    return (
        range(0, length, CHUNK)
        if turn is None
        else range(turn % TURNS * CHUNK, length, TURNS * CHUNK)
    )


def _tables(
    profile: Profile, manager: Manager, owners: Owners, turn: int | None
) -> Iterator[Found]:
    """Every request holds what its tables show, and nothing else."""
    first, more, shown, places = owners.first, owners.more, dict[str, int](), dict[str, int]()
    for rid, table in profile.tables(manager):
        place = places.setdefault(rid, len(places))
        if turn is not None and (place + turn) % TURNS:
            continue
        ids = [block.block_id for block in table]
        shown[rid] = shown.get(rid, 0) + len(ids) - ids.count(NULL)
        for b in ids:
            if first[b] != rid and b != NULL and rid not in more.get(b, ()):
                what = f"the table of {rid} shows block {b}, which it does not hold"
                yield Found("ref_cnt_counts_the_holders", b, rid, "-", what)
    for rid, n in shown.items():
        held = owners.counts.get(rid, 0)
        if held != n:
            what = f"{rid} holds {held} blocks, and its tables show {n}"
            yield Found("ref_cnt_counts_the_holders", None, n, held, what)


def short(key: object) -> str | None:
    """Return enough of a key to tell it from others."""
    if key is None:
        return None
    return key.hex()[:8] if isinstance(key, bytes) else f"{hash(key) & 0xFFFFFFFF:08x}"
