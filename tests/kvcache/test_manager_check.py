"""`KVCacheManager.check` compares tables, counts and keys, and says where they differ."""

from collections.abc import Callable

import pytest

from kvcache import KVCacheManager, Request


@pytest.fixture
def manager(
    manager_of: Callable[..., KVCacheManager],
    request_of: Callable[..., Request],
    new: Callable[..., Request],
) -> KVCacheManager:
    """Return a manager where A holds null, null, 3 (sealed) and 4; B holds 5 and 6."""
    manager = manager_of(sliding_window=3)
    request = new(manager, "A", "abcdef")
    request.append_output_token_ids(ord("g"))
    assert manager.allocate_slots(request, 1) is not None
    assert manager.allocate_slots(request_of("B", "xyz"), 3) is not None
    assert manager.get_block_ids("A") == [0, 0, 3, 4]
    manager.check()
    return manager


def test_a_chain_that_was_forgotten_is_made_anew(
    manager: KVCacheManager, request_of: Callable[..., Request]
) -> None:
    """The keys of a table are a function of its request, so they are compared without its chain."""
    manager.check()
    owner = manager._admissions["A"].request
    manager.free_block_hashes(owner)
    manager.check()
    manager.free(owner)
    manager.free(manager._admissions["B"].request)
    manager.check()
    assert (manager.usage, manager.reset_prefix_cache()) == (0, True)
    assert manager.get_computed_blocks(request_of("C", "abcdef")) == ([], 0)


@pytest.mark.parametrize(
    ("message", "spoil"),
    [
        ("stands 0 times in tables", lambda m: m._admissions["B"].table.pop()),
        (
            "stands 2 times in tables",
            lambda m: m._admissions["B"].table.append(m._admissions["A"].table[3]),
        ),
        ("null is no prefix", lambda m: m._admissions["A"].table.reverse()),
        ("left the window", lambda m: setattr(m._admissions["A"], "last_start", 8)),
        ("4 sealed of 2 blocks", lambda m: setattr(m._admissions["B"], "num_cached_blocks", 4)),
        ("should carry None", lambda m: setattr(m._admissions["A"], "num_cached_blocks", 2)),
        ("should carry b'", lambda m: m._admissions["B"].table.reverse()),
        ("the free queue", lambda m: setattr(m.block_pool.free_block_queue, "num_free_blocks", 9)),
    ],
)
def test_check_sees_a_disagreement(
    manager: KVCacheManager, message: str, spoil: Callable[[KVCacheManager], None]
) -> None:
    """A table that lost, gained or moved an entry, and a count that is off, are each named."""
    spoil(manager)
    with pytest.raises(AssertionError, match=message):
        manager.check()


def test_check_sees_keys_where_caching_is_off(manager_of: Callable[..., KVCacheManager]) -> None:
    """Without caching no block ever has a key."""
    manager = manager_of(enable_caching=False)
    pool = manager.block_pool
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [b"k"], 0, 1)
    pool.free_blocks(blocks)
    with pytest.raises(AssertionError, match="while caching is off"):
        manager.check()
