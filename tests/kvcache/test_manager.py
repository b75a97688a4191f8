"""The manager plans, then applies: admission, sealing, release and progress."""

from collections.abc import Callable

import pytest

from kvcache import (
    BlockPool,
    BlockState,
    CacheConfig,
    KVCacheBlock,
    KVCacheManager,
    PendingBlockShared,
    Request,
    RequestTooLarge,
)

New = Callable[..., Request]
ManagerOf = Callable[..., KVCacheManager]
Admit = Callable[[KVCacheManager, Request], list[KVCacheBlock] | None]
Generate = Callable[[KVCacheManager, Request, str], list[int] | None]


def ids(blocks: list[KVCacheBlock] | None) -> list[int] | None:
    """Return block ids."""
    return None if blocks is None else [block.block_id for block in blocks]


def free_ids(manager: KVCacheManager) -> list[int]:
    """Return the free queue by id, after the manager has checked itself."""
    manager.check()
    queue = manager.block_pool.free_block_queue.get_all_free_blocks()
    return [block.block_id for block in queue]


def test_the_scenario_of_the_chapter() -> None:
    """Chapter 5.9, with block ids: A and B are strangers, C shares A's first 32 tokens."""
    manager = KVCacheManager(CacheConfig(num_gpu_blocks=100, block_size=16, max_model_len=1000))
    a, b = Request("A", range(48)), Request("B", range(1000, 1080))
    assert manager.get_computed_blocks(a) == ([], 0)
    assert ids(manager.allocate_slots(a, 48)) == [1, 2, 3]
    a.num_computed_tokens = 48
    assert manager.get_computed_blocks(b) == ([], 0)
    assert ids(manager.allocate_slots(b, 80)) == [4, 5, 6, 7, 8]
    b.num_computed_tokens = 80
    taken = []
    for token in range(500, 515):
        a.append_output_token_ids(token)
        taken.append(ids(manager.allocate_slots(a, 1)))
        a.num_computed_tokens += 1
    a.append_output_token_ids(515)
    assert taken == [[9], *[[]] * 14]
    assert (a.num_tokens, a.num_computed_tokens) == (64, 63)
    manager.free(a)
    assert free_ids(manager) == [*range(10, 100), 9, 3, 2, 1]
    states = [manager.block_pool.blocks[i].state for i in (1, 2, 3, 9)]
    assert states == [*[BlockState.FREE_CACHED] * 3, BlockState.FREE]
    c = Request("C", [*range(32), *range(2000, 2048)])
    hits, num_tokens = manager.get_computed_blocks(c)
    assert (ids(hits), num_tokens) == ([1, 2], 32)
    assert ids(manager.allocate_slots(c, 48, hits)) == [10, 11, 12]
    assert manager.get_block_ids("C") == [1, 2, 10, 11, 12]
    assert free_ids(manager) == [*range(13, 100), 9, 3]


@pytest.mark.parametrize(("word", "num_hits"), [("abcd", 1), ("abcde", 2), ("ab", 0), ("a", 0)])
def test_a_repeated_prompt_leaves_its_last_token_to_compute(
    manager_of: ManagerOf, new: New, request_of: New, word: str, num_hits: int
) -> None:
    """A hit covers `(n - 1) // block_size` blocks and never the whole prompt."""
    manager = manager_of()
    manager.free(new(manager, "A", word))
    hits, num_tokens = manager.get_computed_blocks(request_of("B", word))
    assert (len(hits), num_tokens) == (num_hits, 2 * num_hits)


def test_a_look_up_changes_nothing(
    manager_of: ManagerOf, new: New, request_of: New, snapshot: Callable[[BlockPool], object]
) -> None:
    """Hits are touched by `allocate_slots` only."""
    manager = manager_of()
    manager.free(new(manager, "A", "abcde"))
    before = snapshot(manager.block_pool)
    manager.get_computed_blocks(request_of("B", "abcdx"))
    assert before == snapshot(manager.block_pool)
    assert manager.get_block_ids("B") == []


def test_hits_are_touched_before_anything_is_taken(manager_of: ManagerOf, new: New) -> None:
    """A hit at the head of the queue is not evicted by its own request."""
    manager = manager_of(usable=4)
    manager.free(new(manager, "A", "abc"))
    manager.free(new(manager, "C", "wxyz"))
    assert free_ids(manager) == [2, 1, 4, 3]
    new(manager, "B", "abpqr")
    assert manager.get_block_ids("B") == [1, 2, 4]
    manager.check()


def test_the_tail_is_evicted_before_the_head(
    manager_of: ManagerOf, new: New, request_of: New
) -> None:
    """Blocks are released last first, so what is left of a prefix can still be found."""
    manager = manager_of(usable=3)
    manager.free(new(manager, "A", "abcde"))
    manager.free(new(manager, "C", "wxyz"))
    hits, _ = manager.get_computed_blocks(request_of("B", "abcdf"))
    assert ids(hits) == [1]


def test_without_caching_blocks_return_in_order(manager_of: ManagerOf, new: New) -> None:
    """Nothing is sealed, and the order of release is the table's."""
    manager = manager_of(usable=4, enable_caching=False)
    manager.free(new(manager, "A", "abcde"))
    assert free_ids(manager) == [4, 1, 2, 3]


def test_idle_hits_need_room_too(
    manager_of: ManagerOf,
    new: New,
    request_of: New,
    admit: Admit,
    snapshot: Callable[[BlockPool], object],
) -> None:
    """Two idle hits and one new block do not fit into two free ones; the refusal changes nothing.

    The refused request has no table, and the same call succeeds when there is room.
    """
    manager = manager_of(usable=4)
    holder = new(manager, "Z", "z")
    manager.free(new(manager, "A", "abcde"))
    request = request_of("B", "abcdfgh")
    before = snapshot(manager.block_pool)
    assert admit(manager, request) is None
    assert (before, []) == (snapshot(manager.block_pool), manager.get_block_ids("B"))
    manager.free(holder)
    assert ids(admit(manager, request)) == [4, 1]
    assert manager.get_block_ids("B") == [2, 3, 4, 1]
    manager.check()


@pytest.mark.parametrize("window", [None, 3])
def test_what_can_never_fit_is_refused_at_once(
    manager_of: ManagerOf, new: New, request_of: New, window: int | None
) -> None:
    """With full attention the whole request counts; with a window only what this call needs."""
    manager = manager_of(usable=2, sliding_window=window)
    request = request_of("A", "abcdefg")
    with pytest.raises(RequestTooLarge, match="4 blocks are needed of 2"):
        manager.allocate_slots(request, 7)
    if window is None:
        with pytest.raises(RequestTooLarge):
            manager.allocate_slots(request, 1)
    else:
        assert ids(manager.allocate_slots(request, 4)) == [1, 2]
        request.num_computed_tokens = 4
        assert ids(manager.allocate_slots(request, 2)) == [1]
        manager.free(request)
    assert len(free_ids(manager)) == 2
    new(manager, "B", "x")


def test_window_blocks_stay_released_when_there_is_no_room(
    manager_of: ManagerOf, new: New, generate: Generate
) -> None:
    """None leaves the release of blocks outside the window standing, and changes nothing else."""
    manager = manager_of(usable=4, sliding_window=3)
    request = new(manager, "A", "abcd")
    new(manager, "B", "vwxy")
    request.append_output_token_ids([1, 2, 3])
    assert manager.allocate_slots(request, 3) is None
    assert (manager.get_block_ids("A"), free_ids(manager)) == ([0, 2], [1])
    with pytest.raises(RequestTooLarge):
        manager.allocate_slots(request, 3, None, 9)
    assert ids(manager.allocate_slots(request, 2)) == [1]
    request.num_computed_tokens = 6
    assert generate(manager, request, "z") == [2]
    assert manager.get_block_ids("A") == [0, 0, 1, 2]


def test_only_confirmed_tokens_are_sealed(manager_of: ManagerOf, request_of: New) -> None:
    """Drafts and look-ahead get blocks and no keys; accepted drafts are sealed at the next call."""
    manager = manager_of()
    request = request_of("A", "abc")
    request.spec_token_ids = [ord("d"), ord("e")]
    assert ids(manager.allocate_slots(request, 5, None, 3)) == [1, 2, 3, 4]
    assert len(manager.block_pool.index) == 1
    request.spec_token_ids = []
    request.append_output_token_ids([ord("d"), ord("x")])
    request.num_computed_tokens = 4
    assert manager.allocate_slots(request, 1) == []
    assert len(manager.block_pool.index) == 2
    hits, _ = manager.get_computed_blocks(request_of("B", "abcde"))
    assert ids(hits) == [1, 2]
    manager.check()


def test_look_ahead_ends_at_the_model_s_length(manager_of: ManagerOf, request_of: New) -> None:
    """No slot is reserved beyond `max_model_len`."""
    manager = manager_of(max_model_len=5)
    assert ids(manager.allocate_slots(request_of("A", "abcd"), 4, None, 99)) == [1, 2, 3]


def test_what_nobody_wrote_is_taken_back(
    manager_of: ManagerOf, request_of: New, admit: Admit, new: New
) -> None:
    """An abort before the step leaves no key behind; what was written or found keeps its key."""
    manager = manager_of()
    new(manager, "A", "abc")
    request = request_of("B", "abcdefgh")
    hits, _ = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 3, hits)
    request.num_computed_tokens = 5
    manager.allocate_slots(request, 3)
    assert manager.get_block_ids("B") == [1, 3, 4, 5]
    manager.free(request)
    sealed = [b.block_id for b in manager.block_pool.blocks if b.block_hash is not None]
    assert sealed == [1, 3]
    assert free_ids(manager) == [6, 7, 8, 5, 4, 3]
    aborted = request_of("C", "pqrs")
    admit(manager, aborted)
    manager.free(aborted)
    assert manager.get_computed_blocks(request_of("D", "pqrst")) == ([], 0)


def test_a_pending_block_that_others_hold_stays(
    manager_of: ManagerOf,
    request_of: New,
    admit: Admit,
    snapshot: Callable[[BlockPool], object],
) -> None:
    """Freeing its writer is refused with all holders; the latest scheduled goes first."""
    manager = manager_of()
    writer, reader = request_of("A", "abc"), request_of("B", "abd")
    admit(manager, writer)
    admit(manager, reader)
    before = snapshot(manager.block_pool)
    with pytest.raises(PendingBlockShared) as refusal:
        manager.free(writer)
    error = refusal.value
    assert (error.block_id, error.writer, error.holders) == (1, "A", ("A", "B"))
    assert before == snapshot(manager.block_pool)
    manager.free(reader)
    manager.free(writer)
    assert (free_ids(manager), len(manager.block_pool.index)) == ([4, 5, 6, 7, 8, 3, 2, 1], 0)


def test_a_second_free_does_nothing(manager_of: ManagerOf, new: New) -> None:
    """Neither count nor queue change, though another request holds the blocks by then."""
    manager = manager_of(usable=2)
    request = new(manager, "A", "abc")
    manager.free(request)
    new(manager, "B", "xyz")
    manager.free(request)
    assert free_ids(manager) == []


def test_a_preempted_request_resumes_from_its_own_blocks(
    manager_of: ManagerOf, new: New, admit: Admit
) -> None:
    """Its chain outlives the table, and its hits are not sealed again."""
    manager = manager_of()
    request = new(manager, "A", "abcde")
    manager.free(request)
    request.num_computed_tokens = 0
    request.append_output_token_ids([ord("f"), ord("g")])
    assert ids(admit(manager, request)) == [4, 5]
    assert manager.get_block_ids("A") == [1, 2, 4, 5]
    manager.check()


def test_common_prefix_blocks_are_held_by_all(manager_of: ManagerOf, new: New) -> None:
    """Leading blocks with as many holders as requests run; null and strangers end the count."""
    manager = manager_of()
    one = new(manager, "A", "abcde")
    other = new(manager, "B", "abcdx")
    assert manager.get_num_common_prefix_blocks(one, 2) == 2
    assert manager.get_num_common_prefix_blocks(other, 1) == 0
    manager.free(other)
    assert manager.get_num_common_prefix_blocks(one, 1) == 3
    assert manager.get_num_common_prefix_blocks(other, 1) == 0
