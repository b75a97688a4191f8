"""The pool moves blocks between their states, and refuses misuse before anything changes."""

import logging
from collections.abc import Callable

import pytest

from kvcache import (
    AlreadySealed,
    BlockPool,
    BlockState,
    ForeignBlock,
    InvalidPoolSize,
    KVCacheBlock,
    KVCacheError,
    NegativeBlockCount,
    NotEnoughBlocks,
    ReleasedTooOften,
    SealedByMany,
    SealRangeInvalid,
    TouchedUnsealed,
    UnpublishRefused,
)

Snapshot = Callable[[BlockPool], object]
KEYS = [b"a", b"b", b"c", b"d"]


class Recorder:
    """A listener that writes everything down."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def take(self, block: KVCacheBlock) -> None:
        """Write a take down."""
        self.events.append(("take", block.block_id))

    def evict(self, block: KVCacheBlock, key: object) -> None:
        """Write an eviction down."""
        self.events.append(("evict", block.block_id, key))

    def seal(self, block: KVCacheBlock, key: object) -> None:
        """Write a seal down."""
        self.events.append(("seal", block.block_id, key))

    def touch(self, block: KVCacheBlock) -> None:
        """Write a touch down."""
        self.events.append(("touch", block.block_id))

    def release(self, block: KVCacheBlock) -> None:
        """Write a release down."""
        self.events.append(("release", block.block_id))

    def unpublish(self, block: KVCacheBlock, key: object) -> None:
        """Write an unpublication down."""
        self.events.append(("unpublish", block.block_id, key))

    def reset(self) -> None:
        """Write a reset down."""
        self.events.append(("reset",))


@pytest.fixture
def pool() -> BlockPool:
    """Return a pool of five usable blocks: 1 IN_USE_CACHED, 2 SHARED, 3 IN_USE, 4 FREE_CACHED."""
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks([blocks[0], blocks[1], blocks[3]], KEYS, 0, 3)
    pool.touch([blocks[1]])
    pool.free_blocks([blocks[3]])
    return pool


def queue(pool: BlockPool) -> list[int]:
    """Return the free queue by id, after the pool has checked itself."""
    pool.check()
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def test_the_null_block_is_taken_first_and_for_ever() -> None:
    """Block 0 is null: not queued, not counted; the others queue in id order."""
    pool = BlockPool(4)
    assert (pool.null_block.block_id, pool.null_block.state) == (0, BlockState.NULL)
    assert (queue(pool), pool.get_num_free_blocks()) == ([1, 2, 3], 3)


def test_usage_is_zero_when_idle_and_one_when_full() -> None:
    """The null block does not count as used."""
    pool = BlockPool(4)
    assert pool.get_usage() == 0
    pool.get_new_blocks(3)
    assert pool.get_usage() == 1


def test_the_states_are_those_of_the_chapter(pool: BlockPool) -> None:
    """Take, seal, touch and release lead to the five states and null."""
    assert [block.state.value for block in pool.blocks] == (
        ["NULL", "IN_USE_CACHED", "SHARED", "IN_USE", "FREE_CACHED", "FREE"]
    )
    assert queue(pool) == [5, 4]


def test_a_take_evicts(pool: BlockPool) -> None:
    """A cached victim leaves the index and loses its key before it is handed out."""
    taken = pool.get_new_blocks(2)
    assert [block.block_id for block in taken] == [5, 4]
    assert {BlockState.IN_USE} == {block.state for block in taken}
    assert pool.get_cached_block(b"c") is None
    assert (queue(pool), len(pool.index)) == ([], 2)
    assert pool.num_evictions == 1


def test_the_copy_of_an_evicted_block_stays_cached() -> None:
    """A key goes with its last copy; a look-up returns the first sealed."""
    pool = BlockPool(3)
    one, other = pool.get_new_blocks(2)
    pool.cache_full_blocks([one, other], [b"k", b"k"], 0, 2)
    pool.free_blocks([one])
    assert pool.get_cached_block(b"k") is one
    pool.get_new_blocks(1)
    assert pool.get_cached_block(b"k") is other
    pool.check()


def test_a_touch_of_an_idle_block_named_twice_unlinks_once(pool: BlockPool) -> None:
    """Two references are counted, and null is skipped."""
    idle = pool.blocks[4]
    pool.touch([idle, pool.null_block, idle])
    assert (idle.ref_cnt, pool.null_block.ref_cnt) == (2, 0)
    assert queue(pool) == [5]


def test_a_block_is_free_when_its_last_reference_goes(pool: BlockPool) -> None:
    """Blocks queue at the tail in the order in which their counts become 0; null is skipped."""
    null, one, two, three = pool.blocks[:4]
    pool.free_blocks(iter([two, null, one, two, three, null]))
    assert queue(pool) == [5, 4, 1, 2, 3]
    assert [block.state.value for block in (one, two, three)] == (
        ["FREE_CACHED", "FREE_CACHED", "FREE"]
    )


def test_a_seal_skips_null_and_starts_where_it_is_told() -> None:
    """Keys belong to positions; null and blocks outside the range get none."""
    pool = BlockPool(5)
    blocks = pool.get_new_blocks(4)
    table = [pool.null_block, pool.null_block, *blocks[2:]]
    pool.cache_full_blocks(table, KEYS, 0, 3)
    assert [block.block_hash for block in pool.blocks] == [None, None, None, b"c", None]
    pool.cache_full_blocks(table, KEYS, 3, 3)
    assert len(pool.index) == 1


def test_an_unpublished_block_is_in_use(pool: BlockPool) -> None:
    """Its key is found no more, and its holder keeps it."""
    pool.unpublish([pool.blocks[1]])
    assert (pool.blocks[1].state, pool.get_cached_block(b"a")) == (BlockState.IN_USE, None)
    pool.check()


def test_a_reset_needs_an_idle_pool(
    pool: BlockPool, snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused with the number of held blocks, or clears all keys and keeps the queue."""
    before = snapshot(pool)
    with caplog.at_level(logging.WARNING):
        assert not pool.reset_prefix_cache()
    assert "3 blocks are held" in caplog.text
    assert before == snapshot(pool)
    pool.free_blocks([pool.blocks[i] for i in (1, 2, 2)])
    assert not pool.reset_prefix_cache()
    pool.free_blocks([pool.blocks[3]])
    assert pool.reset_prefix_cache()
    assert queue(pool) == [5, 4, 1, 2, 3]
    assert {None} == {block.block_hash for block in pool.blocks}


STRANGER = BlockPool(3).blocks[1]
MISUSES: list[tuple[type[KVCacheError], Callable[[BlockPool, list[KVCacheBlock]], object]]] = [
    (NegativeBlockCount, lambda pool, _: pool.get_new_blocks(-1)),
    (NotEnoughBlocks, lambda pool, _: pool.get_new_blocks(3)),
    (TouchedUnsealed, lambda pool, b: pool.touch([b[4], b[3]])),
    (TouchedUnsealed, lambda pool, b: pool.touch([b[4], b[5]])),
    (ForeignBlock, lambda pool, b: pool.touch([b[4], STRANGER])),
    (ForeignBlock, lambda pool, b: pool.touch([b[4], KVCacheBlock(6)])),
    (ForeignBlock, lambda pool, b: pool.touch([b[4], KVCacheBlock(-1)])),
    (ForeignBlock, lambda pool, b: pool.free_blocks([b[1], 2])),  # type: ignore[list-item]  # the refusal is the fact
    (ForeignBlock, lambda pool, b: pool.free_blocks([b[1], STRANGER])),
    (ReleasedTooOften, lambda pool, b: pool.free_blocks([b[1], b[1]])),
    (ReleasedTooOften, lambda pool, b: pool.free_blocks([b[1], b[4]])),
    (ReleasedTooOften, lambda pool, b: pool.free_blocks([b[2], b[2], b[0], b[2]])),
    (SealRangeInvalid, lambda pool, b: pool.cache_full_blocks([b[3]], KEYS, 0, 2)),
    (SealRangeInvalid, lambda pool, b: pool.cache_full_blocks([b[3]] * 5, KEYS, 4, 5)),
    (SealRangeInvalid, lambda pool, b: pool.cache_full_blocks([b[3]], KEYS, 1, 0)),
    (SealRangeInvalid, lambda pool, b: pool.cache_full_blocks([b[3]], KEYS, -1, 1)),
    (AlreadySealed, lambda pool, b: pool.cache_full_blocks([b[3], b[1]], KEYS, 0, 2)),
    (AlreadySealed, lambda pool, b: pool.cache_full_blocks([b[3], b[2]], KEYS, 0, 2)),
    (AlreadySealed, lambda pool, b: pool.cache_full_blocks([b[3], b[0], b[3]], KEYS, 0, 3)),
    (SealedByMany, lambda pool, b: pool.cache_full_blocks([b[3], b[5]], KEYS, 0, 2)),
    (ForeignBlock, lambda pool, b: pool.cache_full_blocks([b[3], STRANGER], KEYS, 0, 2)),
    (UnpublishRefused, lambda pool, b: pool.unpublish([b[1], b[2]])),
    (UnpublishRefused, lambda pool, b: pool.unpublish([b[1], b[3]])),
    (UnpublishRefused, lambda pool, b: pool.unpublish([b[1], b[4]])),
    (UnpublishRefused, lambda pool, b: pool.unpublish([b[1], b[0]])),
    (UnpublishRefused, lambda pool, b: pool.unpublish([b[1], b[1]])),
    (ForeignBlock, lambda pool, b: pool.unpublish([b[1], STRANGER])),
]


@pytest.mark.parametrize(("refusal", "misuse"), MISUSES)
def test_misuse_changes_nothing(
    pool: BlockPool,
    snapshot: Snapshot,
    refusal: type[KVCacheError],
    misuse: Callable[[BlockPool, list[KVCacheBlock]], object],
) -> None:
    """A call with one wrong block is refused whole, and nobody is told anything."""
    listener = pool.listener = Recorder()
    before = snapshot(pool)
    with pytest.raises(refusal):
        misuse(pool, pool.blocks)
    assert before == snapshot(pool)
    assert listener.events == []
    pool.check()


def test_a_pool_holds_null_and_one_more() -> None:
    """Below two blocks nothing could ever be taken."""
    with pytest.raises(InvalidPoolSize, match="num_gpu_blocks=1"):
        BlockPool(1)


def test_a_listener_hears_everything_in_order() -> None:
    """Notices come after the call is applied, an eviction before its take, null never."""
    listener = Recorder()
    pool = BlockPool(3, listener=listener)
    one, two = pool.get_new_blocks(2)
    pool.cache_full_blocks([pool.null_block, one, two], KEYS, 0, 3)
    pool.unpublish([two])
    pool.free_blocks([two, pool.null_block, one])
    pool.touch([one, pool.null_block, one])
    pool.free_blocks([one, one])
    pool.get_new_blocks(2)
    pool.free_blocks([one, two])
    pool.reset_prefix_cache()
    assert listener.events == [
        ("take", 1),
        ("take", 2),
        ("seal", 1, b"b"),
        ("seal", 2, b"c"),
        ("unpublish", 2, b"c"),
        ("release", 2),
        ("release", 1),
        ("touch", 1),
        ("touch", 1),
        ("release", 1),
        ("release", 1),
        ("take", 2),
        ("evict", 1, b"b"),
        ("take", 1),
        ("release", 1),
        ("release", 2),
        ("reset",),
    ]


@pytest.mark.parametrize(
    ("message", "spoil"),
    [
        ("is held 0 times, in queue: False", lambda b: setattr(b[3], "ref_cnt", 0)),
        ("is held 1 times, in queue: True", lambda b: setattr(b[5], "ref_cnt", 1)),
        ("negative count", lambda b: setattr(b[3], "ref_cnt", -1)),
        ("is not sealed", lambda b: setattr(b[3], "ref_cnt", 2)),
        ("has links outside", lambda b: setattr(b[3], "next_free_block", b[5])),
        ("the null block is", lambda b: setattr(b[0], "ref_cnt", 1)),
        ("is marked null", lambda b: setattr(b[5], "is_null", True)),
        ("stands at position 3", lambda b: setattr(b[3], "block_id", 4)),
    ],
)
def test_check_sees_a_broken_block(
    pool: BlockPool, message: str, spoil: Callable[[list[KVCacheBlock]], None]
) -> None:
    """Counts, links and marks that contradict each other are named."""
    spoil(pool.blocks)
    with pytest.raises(AssertionError, match=message):
        pool.check()
