"""What a monitor does around the calls that take, share and release blocks of a pool.

Each watch takes the watched pool, the method, and its name, and returns what stands in the method's
place. It costs O(blocks named), before the call and after it. Misuse that the arguments alone show
is said before the pool is called, so that in the mode `raise` nothing has changed; what a call left
wrong is said after it.

A serving engine makes these calls, so the loops read flat lists and allocate nothing while all is
well; who is guilty is worked out behind the first test that fails. Each watch is one function with
its parts inside, because they share what is looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from conformance.monitoring.profiles import Block
from conformance.monitoring.sweep import short
from conformance.monitoring.violation import Found
from conformance.monitoring.watched import MASK, Watched, code_of
from spec.state import NULL

Method: TypeAlias = Callable[..., Any]


def watch_take(w: Watched, inner: Method, verb: str) -> Method:  # see the head
    """Blocks are handed out: nobody holds them, and nothing is left on them."""
    owners, queue, blocks = w.owners, w.pool.free_block_queue, w.pool.blocks
    held, first, keys, stamps = owners.held, owners.first, owners.keys, owners.stamps
    counts, code, pool = owners.counts, code_of(verb), w.pool
    key_of, getter = w.profile.key_of, w.profile.getter

    def take(num_blocks: int) -> Any:  # noqa: ANN401  # whatever the pool returns
        w.stamp = stamp = (w.stamp | MASK) + code
        wrong = _negative(num_blocks) if num_blocks < 0 else None
        late = wrong and w.misuse(verb, wrong)
        try:
            taken = inner(num_blocks)
        except Exception as error:
            w.refused(verb, (), error)
            raise
        found, who = None, w.who
        for block in taken:
            b = block.block_id
            if (
                held[b]
                or block.ref_cnt != 1
                or block.next_free_block is not None
                or blocks[b] is not block
                or key_of(block) is not None
            ):
                found = found or _unclean(w, block)
            old = keys[b]
            if old is not None:
                keys[b] = None
                if getter(pool)(old) is not None and w.is_listed(old, block):
                    found = found or _still_listed(b, old)
            held[b] = 1
            first[b] = who
            stamps[b] = stamp
        if taken:
            w.grown = stamp
            owners.idle -= len(taken)
            counts[who] = counts.get(who, 0) + len(taken)
        if wrong or found is not None or queue.num_free_blocks != owners.idle:
            _say(w, verb, taken, late if wrong else found or w.counter())
        if stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return taken

    return take


def _negative(n: int) -> Found:
    what = f"{n} blocks are asked for; a pool that hands out less than none counts them as free"
    return Found("the_free_queue_is_a_chain", None, "0 or more", n, what)


def _unclean(w: Watched, block: Block) -> Found:
    b = block.block_id
    if not w.is_own(block):
        return w.foreign(block)
    if held := w.owners.held[b]:
        what = f"block {b} is handed out and held {held} times"
        return Found("a_block_is_free_exactly_when_nobody_holds_it", b, 0, held, what)
    if block.next_free_block is not None:
        what = f"block {b} is handed out and still linked into the queue"
        return Found("the_free_queue_is_a_chain", b, "no links", "linked", what)
    facts = (block.ref_cnt, short(block.block_hash))
    what = f"block {b} is handed out with count {facts[0]} and key {facts[1]}"
    return Found("a_block_handed_out_is_clean", b, (1, None), facts, what)


def _still_listed(b: int, key: object) -> Found:
    what = f"block {b} is handed out and is still found under its old key"
    return Found("a_block_handed_out_is_clean", b, "not listed", short(key), what)


def watch_touch(w: Watched, inner: Method, verb: str) -> Method:  # noqa: C901  # see the head
    """Blocks get one more holder: they are sealed, and leave the queue."""
    owners, queue, code = w.owners, w.pool.free_block_queue, code_of(verb)
    held, first, stamps = owners.held, owners.first, owners.stamps
    counts, key_of, getter = owners.counts, w.profile.key_of, w.profile.getter

    def entered(named: list[Block], who: str, stamp: int) -> Found | None:
        """Enter who holds the blocks; return the first thing that is wrong with them."""
        woken = 0
        for block in named:
            b = block.block_id
            stamps[b] = stamp
            if held[b]:
                owners.add(b, who)
            elif b != NULL:
                held[b] = 1
                first[b] = who
                woken += 1
        if woken:
            owners.idle -= woken
            counts[who] = counts.get(who, 0) + woken
        get, found = getter(w.pool), None
        for block, key in zip(named, map(key_of, named)):  # noqa: B905  # saying strict takes as long as a block
            b = block.block_id
            if block.ref_cnt != held[b] or block.next_free_block is not None:
                found = found or miscounted(w, block)
            elif get(key) is not block and b != NULL and not w.is_listed(key, block):
                found = found or w.unlisted(block)
        return found

    def touch(blocks: Iterable[Block]) -> Any:  # noqa: ANN401  # whatever the pool returns
        w.stamp = stamp = (w.stamp | MASK) + code
        named = list(blocks)
        wrong = _untouchable(w, named)
        late = wrong and w.misuse(verb, wrong)
        try:
            result = inner(named)
        except Exception as error:
            w.refused(verb, named, error)
            raise
        if named:
            w.grown = stamp
            found = None if wrong else entered(named, w.who, stamp)
            if wrong or found is not None or queue.num_free_blocks != owners.idle:
                _say(w, verb, named, late if wrong else found or w.counter())
        if stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return result

    return touch


def _say(w: Watched, verb: str, named: list[Block], found: Found | None) -> None:
    """Say what is wrong after a call; None after misuse, which was said before it."""
    said = () if found is None else (found,)
    w.report(verb, *said, going_on_from=[w.pool.blocks[NULL], *named])


def _untouchable(w: Watched, named: Iterable[Block]) -> Found | None:
    """Return why these blocks must not be touched."""
    own, key_of = w.pool.blocks, w.profile.key_of
    size = len(own)
    for block in named:
        b = block.block_id
        if b >= size or own[b] is not block:
            return w.foreign(block)
        if key_of(block) is None and b != NULL:
            what = f"block {b} is shared, carries no key, and is held {w.owners.held[b]} times"
            return Found("only_sealed_blocks_are_shared", b, "a key", None, what)
    return None


def miscounted(w: Watched, block: Block) -> Found:
    """Return what is wrong with the count or the links of a block."""
    b, queued = block.block_id, block.next_free_block is not None
    held = w.owners.held[b]
    if b == NULL:
        facts = (block.ref_cnt, queued)
        what = f"the null block is counted {facts[0]} times; in the queue: {queued}"
        return Found("the_null_block_is_inert", b, (0, False), facts, what)
    if block.ref_cnt != held:
        what = f"block {b} is held {held} times and counted {block.ref_cnt} times"
        return Found("ref_cnt_counts_the_holders", b, held, block.ref_cnt, what)
    if queued and not held:
        what = f"the neighbour of block {b} in the queue does not point back"
        return Found("the_free_queue_is_a_chain", b, "a chain", "torn", what)
    what = f"block {b} is held {held} times; in the queue: {queued}"
    name = "a_block_is_free_exactly_when_nobody_holds_it"
    return Found(name, b, int(not held), int(queued), what)


def watch_release(w: Watched, inner: Method, verb: str) -> Method:  # noqa: C901  # see the head
    """Blocks lose one holder each, who held them; the idle ones join the queue."""
    owners, queue, own = w.owners, w.pool.free_block_queue, w.pool.blocks
    held, first, size, code = owners.held, owners.first, len(own), code_of(verb)
    checked = _after_release(w)

    def dropped(named: list[Block], who: str) -> tuple[Found | None, list[Block]]:
        """Take a reference to each block from `who`, or none at all; return why, and our blocks."""
        plain, others, ours, wrong = 0, 0, named, None
        for block in named:
            b = block.block_id
            if b < size and first[b] == who and own[b] is block:
                held[b] = 0
                first[b] = None
                plain += 1
                continue
            wrong = _dropped(w, block, who)
            if wrong is not None:
                break
            others += 1
            if b >= size or own[b] is not block:
                ours = list(filter(w.is_own, named))
        if plain:
            owners.idle += plain
            owners.lose(who, plain)
        if wrong is not None:
            _give_back(w, named[: plain + others], who)
        return wrong, ours

    def release(ordered_blocks: Iterable[Block], *rest: Any, **more: Any) -> Any:  # noqa: ANN401  # as the pool's
        w.stamp = stamp = (w.stamp | MASK) + code
        named, who = list(ordered_blocks), w.who
        wrong, ours = dropped(named, who)
        late = wrong and w.misuse(verb, wrong)
        try:
            result = inner(named, *rest, **more)
        except Exception as error:
            if wrong is None:
                _give_back(w, named, who)
            w.refused(verb, named, error)
            raise
        found = None if wrong else checked(ours, stamp)
        if wrong or found is not None or queue.num_free_blocks != owners.idle:
            _say(w, verb, named, late if wrong else found or w.counter())
        if stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return result

    return release


def _after_release(w: Watched) -> Callable[[list[Block], int], Found | None]:
    """Return what looks at blocks after their release."""
    held, stamps = w.owners.held, w.owners.stamps
    key_of, getter = w.profile.key_of, w.profile.getter

    def checked(named: list[Block], stamp: int) -> Found | None:
        """Return the first thing that is wrong with the pool's own blocks after their release."""
        get, found = getter(w.pool), None
        for block, key in zip(named, map(key_of, named)):  # noqa: B905  # saying strict takes as long as a block
            b = block.block_id
            stamps[b] = stamp
            after = block.next_free_block
            if block.ref_cnt or after is None or after.prev_free_block is not block:
                # Null, or a block that somebody else still holds; or something is wrong.
                if block.ref_cnt != held[b] or after is not None or (not held[b] and b != NULL):
                    found = found or miscounted(w, block)
            elif held[b] or b == NULL:
                found = found or miscounted(w, block)
            if key is not None and get(key) is not block and not w.is_listed(key, block):
                found = found or w.unlisted(block)
        return found

    return checked


def _dropped(w: Watched, block: Block, who: str) -> Found | None:
    """Take a reference from `who`, where it is not the block's only one; return what is wrong."""
    b, owners = block.block_id, w.owners
    if not w.is_own(block):
        return None if w.profile.elsewhere(w.pool, block) else w.foreign(block)
    if b == NULL or owners.drop(b, who):
        return None
    what = (
        f"{who} releases block {b}, which it does not hold; the last to touch it: {w.last_call(b)}"
    )
    return Found("ref_cnt_counts_the_holders", b, 0, 1, what)


def _give_back(w: Watched, named: Iterable[Block], who: str) -> None:
    """Enter again what was taken from `who`."""
    for block in named:
        if w.is_own(block) and block.block_id != NULL:
            w.owners.add(block.block_id, who)
