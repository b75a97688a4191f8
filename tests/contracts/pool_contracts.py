"""Contracts on `kvcache.block_pool`: one call of the real pool from any state of two usable blocks.

Reference counts are integers of any size; a block has no key, key A or key B; queue and copies each
stand in either order. A state must be `_valid`, and `BlockPool.check` says that the state after the
call is one too: so what holds after one call holds after any number of them.

Blocks are alike and keys are names, so one state stands for all that differ by a renaming: keys are
numbered as they appear, a call that names one block names block 1, and where a call names none and
both are free block 1 is the head. A function called `wrong_` states what is false.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from kvcache import BlockPool, KVCacheBlock, errors

# A refused reset writes a warning; on every path that would be most of the time.
logging.getLogger("kvcache").setLevel(logging.ERROR)


class Block(NamedTuple):
    """How many hold a block, and the number of its key."""

    held: int
    key: int


class State(NamedTuple):
    """Blocks 1 and 2, which is the head of the queue, and which the first of two copies."""

    one: Block
    two: Block
    head: int
    copy: int


def _valid(s: State) -> bool:
    """Return whether no count is negative, what is shared is sealed, and names are in order."""
    return (
        0 <= s.one.key <= 1
        and 0 <= s.two.key <= 1 + s.one.key
        and 0 <= s.one.held <= (1 if s.one.key == 0 else s.one.held)
        and 0 <= s.two.held <= (1 if s.two.key == 0 else s.two.held)
        and (s.head == 1 or (s.head == 2 and s.one.held == 0 and s.two.held == 0))
        and (s.copy == 1 or (s.copy == 2 and s.one.key == s.two.key and s.one.key > 0))
    )


def _key(number: int) -> bytes | None:
    # Three ways through a condition are cheaper to follow than a symbol that indexes a tuple.
    if number == 0:
        return None
    return b"A" if number == 1 else b"B"


def _load(s: State, kind: type[BlockPool] = BlockPool) -> tuple[BlockPool, list[KVCacheBlock]]:
    """Return a pool in a state, and its blocks 1 and 2."""
    pool = kind(3)
    blocks = pool.free_block_queue.popleft_n(2)
    for block, (held, key) in zip(blocks, s[:2], strict=True):
        block.ref_cnt, block.block_hash = held, _key(key)
    for block in blocks if s.head == 1 else blocks[::-1]:
        if block.ref_cnt == 0:
            pool.free_block_queue.append(block)
    for block in blocks if s.copy == 1 else blocks[::-1]:
        if block.block_hash is not None:
            pool.index.add(block)
    return pool, blocks


def _read(pool: BlockPool) -> object:
    """Return all that a pool keeps, after it has checked itself."""
    pool.check()
    queue = pool.free_block_queue.get_all_free_blocks()
    copies = [pool.index.copies(key) for key in (b"A", b"B")]
    return [(b.ref_cnt, b.block_hash) for b in pool.blocks], queue, copies


def take_hands_out_victims_clean(s: State, wanted: int) -> None:
    """`get_new_blocks` hands out the first of the queue, held once and found by nobody any more."""
    assert s.head == 1
    assert _valid(s)
    assert 0 <= wanted <= (s.one.held == 0) + (s.two.held == 0)
    pool, _ = _load(s)
    queue = pool.free_block_queue.get_all_free_blocks()
    taken = pool.get_new_blocks(wanted)
    assert taken == queue[:wanted]
    assert all((b.ref_cnt, b.block_hash) == (1, None) for b in taken)
    pool.check()
    assert pool.free_block_queue.get_all_free_blocks() == queue[wanted:]


def take_leaves_the_others_alone(s: State) -> None:
    """`get_new_blocks` changes neither count nor key of a block that it does not hand out."""
    assert s.head == 1
    assert _valid(s)
    assert s.one.held == 0 or s.two.held == 0
    pool, blocks = _load(s)
    (taken,) = pool.get_new_blocks(1)
    for block, (held, key) in zip(blocks, s[:2], strict=True):
        assert block is taken or (block.ref_cnt, block.block_hash) == (held, _key(key))
    pool.check()


def take_refuses_what_is_not_there(s: State, wanted: int) -> None:
    """`get_new_blocks` refuses fewer than 0 and more than are free, and changes nothing."""
    assert s.head == 1
    assert _valid(s)
    assert wanted == -1 or wanted == 1 + (s.one.held == 0) + (s.two.held == 0)
    pool, _ = _load(s)
    before, refused = _read(pool), False
    try:
        pool.get_new_blocks(wanted)
    except (errors.NegativeBlockCount, errors.NotEnoughBlocks):
        refused = True
    assert refused
    assert _read(pool) == before


def touch_adds_a_reference(s: State) -> None:
    """`touch` adds one reference to a sealed block, takes it out of the queue, keeps its key."""
    assert _valid(s)
    assert s.one.key > 0
    pool, (one, two) = _load(s)
    pool.touch([pool.null_block, one])
    assert (one.ref_cnt, one.block_hash) == (s.one.held + 1, _key(s.one.key))
    assert (two.ref_cnt, two.block_hash) == (s.two.held, _key(s.two.key))
    assert pool.free_block_queue.get_all_free_blocks() == ([two] if s.two.held == 0 else [])
    pool.check()


def touch_refuses_what_is_not_sealed(s: State) -> None:
    """`touch` refuses a block without a key, held or idle, and changes nothing."""
    assert _valid(s)
    assert s.one.key == 0
    assert s.two.key > 0
    pool, (one, two) = _load(s)
    before, refused = _read(pool), False
    try:
        pool.touch([two, one])
    except errors.TouchedUnsealed:
        refused = True
    assert refused
    assert _read(pool) == before


def release_takes_a_reference(s: State) -> None:
    """`free_blocks` takes one reference; with the last the block joins the tail, key and all."""
    assert _valid(s)
    assert s.one.held >= 1
    pool, (one, two) = _load(s)
    pool.free_blocks([pool.null_block, one])
    assert (one.ref_cnt, one.block_hash) == (s.one.held - 1, _key(s.one.key))
    assert (two.ref_cnt, two.block_hash) == (s.two.held, _key(s.two.key))
    before = [two] if s.two.held == 0 else []
    joined = [one] if s.one.held == 1 else []
    assert pool.free_block_queue.get_all_free_blocks() == before + joined
    pool.check()


def release_keeps_the_order_given(s: State) -> None:
    """`free_blocks` puts blocks that nobody holds any more into the queue in the order given."""
    assert _valid(s)
    assert s.one.held >= 1
    assert s.two.held >= 1
    pool, (one, two) = _load(s)
    pool.free_blocks([two, one])
    idle = [block for block, was in ((two, s.two), (one, s.one)) if was.held == 1]
    assert pool.free_block_queue.get_all_free_blocks() == idle
    pool.check()


def release_counts_a_block_named_twice(s: State) -> None:
    """`free_blocks` takes two references of a block named twice, or refuses and changes nothing."""
    assert _valid(s)
    pool, (one, _) = _load(s)
    before = _read(pool)
    try:
        pool.free_blocks([one, one])
    except errors.ReleasedTooOften:
        assert s.one.held < 2
        assert _read(pool) == before
    else:
        assert s.one.held >= 2
        assert one.ref_cnt == s.one.held - 2
    pool.check()


def seal_gives_the_only_holder_a_key(s: State, key: int) -> None:
    """`cache_full_blocks` gives a block held once its key, listed last, or refuses unchanged."""
    assert _valid(s)
    assert 1 <= key <= 2
    (pool, (one, _)), name = _load(s), b"A" if key == 1 else b"B"
    before, copies = _read(pool), pool.index.copies(name)
    try:
        pool.cache_full_blocks([one], [name], 0, 1)
    except (errors.AlreadySealed, errors.SealedByMany):
        assert s.one != (1, 0)
        assert _read(pool) == before
    else:
        assert s.one == (1, 0)
        assert (one.ref_cnt, one.block_hash) == (1, name)
        assert pool.index.copies(name) == (*copies, one)
    pool.check()


def unpublish_takes_the_key_of_its_writer_only(s: State) -> None:
    """`unpublish` clears the key of a sealed block held once, or refuses and changes nothing."""
    assert _valid(s)
    pool, (one, _) = _load(s)
    before = _read(pool)
    try:
        pool.unpublish([one])
    except errors.UnpublishRefused:
        assert s.one.held != 1 or s.one.key == 0
        assert _read(pool) == before
    else:
        assert s.one.held == 1
        assert s.one.key > 0
        assert (one.ref_cnt, one.block_hash) == (1, None)
    pool.check()


def reset_forgets_all_or_nothing(s: State) -> None:
    """`reset_prefix_cache` clears every key when nothing is held, in the same order; else none."""
    assert s.head == 1
    assert _valid(s)
    pool, _ = _load(s)
    before, queue = _read(pool), pool.free_block_queue.get_all_free_blocks()
    if pool.reset_prefix_cache():
        assert s.one.held == 0
        assert s.two.held == 0
        assert not list(pool.index)
        assert pool.free_block_queue.get_all_free_blocks() == queue
    else:
        assert s.one.held > 0 or s.two.held > 0
        assert _read(pool) == before
    pool.check()


class _IgnoresDuplicates(BlockPool):
    """A pool that looks at each block of a call once."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """A block named twice loses one reference."""
        super().free_blocks(dict.fromkeys(ordered_blocks))


class _ChecksNothing(BlockPool):
    """A pool that trusts its caller."""

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """A block that nobody holds loses a reference too."""
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append(block)


def wrong_a_release_may_ignore_duplicates(s: State) -> None:
    """A pool that ignores that a block is named twice takes two references of it."""
    assert _valid(s)
    assert s.one.held >= 2
    pool, (one, _) = _load(s, _IgnoresDuplicates)
    pool.free_blocks([one, one])
    assert one.ref_cnt == s.one.held - 2


def wrong_a_count_needs_no_guard(s: State) -> None:
    """A pool that releases whatever it is told keeps no count below 0."""
    assert _valid(s)
    pool, (one, _) = _load(s, _ChecksNothing)
    pool.free_blocks([one])
    assert one.ref_cnt >= 0


def wrong_a_first_hit_shares(s: State) -> None:
    """A hit makes a block shared, also one that nobody held."""
    assert _valid(s)
    assert s.one.key > 0
    pool, (one, _) = _load(s)
    pool.touch([one])
    assert one.ref_cnt > 1


def wrong_the_last_release_forgets_the_key(s: State) -> None:
    """A block that nobody holds any more carries no key."""
    assert _valid(s)
    assert s.one.held == 1
    pool, (one, _) = _load(s)
    pool.free_blocks([one])
    assert one.block_hash is None
