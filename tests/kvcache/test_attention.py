"""The kinds of attention decide what is a hit and what is let go."""

from collections.abc import Callable

import pytest

from kvcache import (
    BlockPool,
    CacheConfig,
    FullAttention,
    KVCacheBlock,
    KVCacheManager,
    Request,
    SlidingWindow,
    attention_kind,
)


def pool_with(cached: str) -> BlockPool:
    """Return a pool where the letters of a word, a dot apart, are keys of blocks 1, 2, ..."""
    pool = BlockPool(len(cached) + 1)
    blocks = pool.get_new_blocks(len(cached))
    for position, letter in enumerate(cached):
        if letter != ".":
            pool.cache_full_blocks([blocks[position]], [letter.encode()], 0, 1)
    return pool


def keys(word: str) -> list[bytes]:
    """Return one key a letter."""
    return [letter.encode() for letter in word]


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    """Return block ids."""
    return [block.block_id for block in blocks]


def test_the_kind_is_chosen_by_the_configuration() -> None:
    """A window makes the difference."""
    config = CacheConfig(num_gpu_blocks=2, block_size=2, max_model_len=9)
    assert attention_kind(config) == FullAttention()
    window = config.model_copy(update={"sliding_window": 3})
    assert attention_kind(window) == SlidingWindow(3)


@pytest.mark.parametrize(
    ("cached", "num_keys", "hit"),
    [("abcd", 4, [1, 2, 3, 4]), ("abcd", 3, [1, 2, 3]), ("ab.d", 4, [1, 2]), (".bcd", 4, [])],
)
def test_a_full_hit_is_the_longest_prefix(cached: str, num_keys: int, hit: list[int]) -> None:
    """The look-up stops at the first key that is absent, or that may not be asked for."""
    pool = pool_with(cached)
    assert hit == ids(FullAttention().find_longest_cache_hit(pool, keys("abcd"), num_keys, 2))


@pytest.mark.parametrize(
    ("window", "cached", "hit"),
    [
        (3, "abcd", [0, 0, 0, 4]),
        (3, "abc.", [0, 0, 3]),
        (3, "a...", [1]),
        (3, "....", []),
        (4, "abcd", [0, 0, 3, 4]),
        (4, "ab.d", [1, 2]),
        (4, ".bc.", [0, 2, 3]),
        (4, "a.cd", [0, 0, 3, 4]),
        (4, "a.c.", [1]),
        (5, "a.c.", [1]),
        (6, "abc.", [1, 2, 3]),
        (6, ".bc.", []),
        (99, "ab..", [1, 2]),
    ],
)
def test_a_window_hit_is_the_right_most_run(window: int, cached: str, hit: list[int]) -> None:
    """A run fills the window, or starts at block 0; what stands before it is null."""
    pool = pool_with(cached)
    found = SlidingWindow(window).find_longest_cache_hit(pool, keys("abcd"), 4, 2)
    assert hit == ids(found)


@pytest.mark.parametrize(
    ("window", "num_computed", "block_size", "skipped"),
    [
        (3, 0, 2, 0),
        (3, 3, 2, 0),
        (3, 4, 2, 1),
        (3, 5, 2, 1),
        (3, 6, 2, 2),
        (2, 1, 1, 0),
        (2, 2, 1, 1),
        (4, 4, 2, 0),
        (4, 5, 2, 1),
        (100, 50, 2, 0),
    ],
)
def test_the_window_arithmetic(
    window: int, num_computed: int, block_size: int, skipped: int
) -> None:
    """The query at `n` reads `n - W + 1 .. n`: W=3 and blocks of 2 let go of 0 at 3 and 1 at 4."""
    kind = SlidingWindow(window)
    assert skipped == kind.num_skipped_blocks(num_computed, block_size)
    assert FullAttention().num_skipped_blocks(num_computed, block_size) == 0


def test_what_is_let_go_shows_null_in_its_place() -> None:
    """Blocks come last first, positions stay put, and a second call finds nothing."""
    null, *blocks = [KVCacheBlock(block_id) for block_id in range(5)]
    table = list(blocks)
    assert FullAttention().remove_skipped_blocks(table, 7, 2, null) == []
    removed = SlidingWindow(3).remove_skipped_blocks(table, 7, 2, null)
    assert (ids(removed), ids(table)) == ([2, 1], [0, 0, 3, 4])
    assert SlidingWindow(3).remove_skipped_blocks(table, 7, 2, null) == []
    assert ids(SlidingWindow(3).remove_skipped_blocks(table, 8, 2, null)) == [3]
    assert ids(SlidingWindow(3).remove_skipped_blocks(table, 99, 2, null)) == [4]


def test_blocks_leave_the_window_at_the_next_call(
    manager_of: Callable[..., KVCacheManager],
    new: Callable[..., Request],
    generate: Callable[[KVCacheManager, Request, str], list[int] | None],
) -> None:
    """A prompt of 6 with W=3 lets go of blocks 1 and 2 at its first decode, tail first."""
    manager = manager_of(sliding_window=3)
    request = new(manager, "A", "abcdef")
    assert manager.get_block_ids("A") == [1, 2, 3]
    assert generate(manager, request, "g") == [4]
    assert manager.get_block_ids("A") == [0, 0, 3, 4]
    queue = manager.block_pool.free_block_queue.get_all_free_blocks()
    assert ids(queue) == [5, 6, 7, 8, 2, 1]
    manager.check()


def test_null_hits_are_neither_touched_nor_counted(
    manager_of: Callable[..., KVCacheManager],
    request_of: Callable[..., Request],
    admit: Callable[[KVCacheManager, Request], list[KVCacheBlock] | None],
    new: Callable[..., Request],
) -> None:
    """A hit of null and block 2 and one new block fit into two free blocks, block 2 included."""
    manager = manager_of(usable=3, sliding_window=3)
    manager.free(new(manager, "A", "abcd"))
    other = request_of("Z", "z")
    manager.allocate_slots(other, 1)
    assert ids(manager.block_pool.free_block_queue.get_all_free_blocks()) == [2, 1]
    request = request_of("B", "abcde")
    assert ids(admit(manager, request) or []) == [1]
    assert manager.get_block_ids("B") == [0, 2, 1]
    assert manager.block_pool.null_block.ref_cnt == 0
    manager.check()
    stats = manager.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (3, 3, 1)
