"""What is wrong with a call to `allocate_slots` is found first, in order, and changes nothing."""

from collections.abc import Callable

import pytest

from kvcache import (
    BlockPool,
    ComputedWithoutBlocks,
    ForeignBlock,
    HitsForRunningRequest,
    HitsWithoutCaching,
    HitsWithPromptLogprobs,
    InvalidLookahead,
    InvalidRunningCount,
    InvalidTokenCount,
    KVCacheBlock,
    KVCacheError,
    KVCacheManager,
    NothingConfirmed,
    NullHitIsReadable,
    Request,
    RequestIdInUse,
    StaleHit,
    StepHasNotRun,
    TokensBeyondModelLength,
    TokensBeyondRequest,
)

New = Callable[..., Request]
Refused = Callable[..., None]


@pytest.fixture
def refused(snapshot: Callable[[BlockPool], object]) -> Refused:
    """Return a check that a call is refused for a reason and that nothing has changed."""

    def check(
        refusal: type[KVCacheError],
        manager: KVCacheManager,
        request: Request,
        num_tokens: int,
        hits: list[KVCacheBlock] | None = None,
        num_lookahead_tokens: int = 0,
    ) -> None:
        before = snapshot(manager.block_pool), manager.get_block_ids(request.request_id)
        with pytest.raises(refusal):
            manager.allocate_slots(request, num_tokens, hits, num_lookahead_tokens)
        after = snapshot(manager.block_pool), manager.get_block_ids(request.request_id)
        assert before == after
        manager.check()
        assert manager.make_prefix_cache_stats().requests == 0

    return check


@pytest.fixture
def manager(manager_of: Callable[..., KVCacheManager], new: New) -> KVCacheManager:
    """Return a manager of 20 blocks and a model of 12 tokens that has cached `abcdef`."""
    manager = manager_of(usable=20, max_model_len=12)
    manager.free(new(manager, "A", "abcdef"))
    manager.make_prefix_cache_stats()
    return manager


def test_a_call_schedules_a_token(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """At least one token, and no negative look-ahead; the count is looked at first."""
    request = request_of("B", "xyz")
    refused(InvalidTokenCount, manager, request, 0)
    refused(InvalidTokenCount, manager, request, -1, None, -1)
    refused(InvalidLookahead, manager, request, 1, None, -1)


def test_scheduled_tokens_exist_and_fit_the_model(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """Drafts count as tokens of the request; hits count as computed."""
    request = request_of("B", "abcdxyz")
    hits, _ = manager.get_computed_blocks(request)
    refused(TokensBeyondRequest, manager, request, 8)
    refused(TokensBeyondRequest, manager, request, 4, hits)
    request.spec_token_ids = [1] * 6
    refused(TokensBeyondRequest, manager, request, 14)
    refused(TokensBeyondModelLength, manager, request, 13)
    refused(TokensBeyondModelLength, manager, request, 9, hits)
    assert manager.allocate_slots(request, 8, hits) is not None


def test_hits_come_at_the_first_call(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """A request with a table has no use for hits, not even before its step has run."""
    request = request_of("B", "abcdxyz")
    hits, _ = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 1, hits)
    manager.make_prefix_cache_stats()
    refused(HitsForRunningRequest, manager, request, 1, hits)


def test_without_caching_there_are_no_hits(
    manager_of: Callable[..., KVCacheManager], request_of: New, refused: Refused
) -> None:
    """Even null is a hit; an empty list is none."""
    manager = manager_of(enable_caching=False)
    request = request_of("B", "abcde")
    assert manager.get_computed_blocks(request) == ([], 0)
    refused(HitsWithoutCaching, manager, request, 1, [manager.block_pool.null_block])
    assert manager.allocate_slots(request, 1, []) is not None


def test_a_hit_carries_the_request_s_key_at_its_position(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """A hit of another prefix, at another position, without a key, or beyond the chain is stale."""
    blocks = manager.block_pool.blocks
    request = request_of("B", "abcdxyz")
    refused(StaleHit, manager, request, 1, [blocks[1], blocks[3]])
    refused(StaleHit, manager, request, 1, [blocks[2]])
    refused(StaleHit, manager, request, 1, [blocks[1], blocks[9]])
    short = request_of("C", "ab")
    short.spec_token_ids = [1, 2, 3, 4]
    refused(StaleHit, manager, short, 1, [blocks[1], blocks[2]])


def test_a_hit_goes_stale_by_eviction_only(
    manager: KVCacheManager, request_of: New, refused: Refused, new: New
) -> None:
    """A result whose blocks still carry their keys is still good, however old."""
    request = request_of("B", "abcdxyz")
    hits, _ = manager.get_computed_blocks(request)
    manager.free(new(manager, "C", "abcdq"))
    assert manager.allocate_slots(request, 1, hits) is not None
    manager.free(request)
    manager.block_pool.free_blocks(manager.block_pool.get_new_blocks(20))
    manager.make_prefix_cache_stats()
    refused(StaleHit, manager, request, 1, hits)


def test_a_hit_of_another_pool_is_foreign(
    manager: KVCacheManager, request_of: New, new: New, refused: Refused
) -> None:
    """It is refused though it carries the right key."""
    stranger = KVCacheManager(manager.config)
    new(stranger, "A", "abcdef")
    request = request_of("B", "abcdxyz")
    hits, _ = stranger.get_computed_blocks(request_of("B", "abcdxyz"))
    refused(ForeignBlock, manager, request, 1, hits)


def test_a_hit_that_is_read_is_not_null(
    manager: KVCacheManager,
    manager_of: Callable[..., KVCacheManager],
    request_of: New,
    new: New,
    refused: Refused,
) -> None:
    """With full attention all are read; with W=3 and blocks of 2, all but what ends before n-2."""
    null = manager.block_pool.null_block
    refused(NullHitIsReadable, manager, request_of("B", "abcdxyz"), 1, [null])
    manager = manager_of(sliding_window=3)
    manager.free(new(manager, "A", "abcdef"))
    manager.make_prefix_cache_stats()
    null, one, two, three = manager.block_pool.blocks[:4]
    request = request_of("B", "abcdefg")
    refused(NullHitIsReadable, manager, request, 1, [null])
    refused(NullHitIsReadable, manager, request, 1, [one, two, null])
    assert manager.allocate_slots(request, 1, [one, null, three]) is not None
    assert manager.get_block_ids("B")[:3] == [0, 0, 3]
    assert one.ref_cnt == 0
    assert manager.make_prefix_cache_stats().hits == 1
    manager.check()


def test_a_step_runs_before_the_next_call(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """Rejected drafts may leave the count below the last call's end, never at its start."""
    request = request_of("B", "xyz")
    request.spec_token_ids = [1, 2]
    manager.allocate_slots(request, 5)
    manager.make_prefix_cache_stats()
    refused(StepHasNotRun, manager, request, 1)
    request.num_computed_tokens = 3
    request.append_output_token_ids(9)
    assert manager.allocate_slots(request, 1) == []
    refused(StepHasNotRun, manager, request, 1)
    request.num_computed_tokens = 2
    refused(StepHasNotRun, manager, request, 1)


def test_a_call_computes_a_confirmed_token(
    manager: KVCacheManager, request_of: New, refused: Refused, new: New
) -> None:
    """Drafts alone could never advance, and hits may not cover everything."""
    request = new(manager, "B", "xyz")
    manager.make_prefix_cache_stats()
    request.spec_token_ids = [1]
    refused(NothingConfirmed, manager, request, 1)
    covered = request_of("C", "abcd")
    covered.spec_token_ids = [1]
    refused(NothingConfirmed, manager, covered, 1, manager.block_pool.blocks[1:3])


def test_computed_tokens_lie_in_blocks(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """A request without a table has nothing computed: blocks nobody wrote would be published."""
    request = request_of("B", "xyz")
    request.num_computed_tokens = 1
    refused(ComputedWithoutBlocks, manager, request, 1)
    request.num_computed_tokens = -1
    refused(ComputedWithoutBlocks, manager, request, 1)


def test_prompt_logprobs_need_every_position(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """Such a request finds nothing, may be given nothing, and still publishes its blocks."""
    request = request_of("B", "abcdxyz", prompt_logprobs=0)
    assert manager.get_computed_blocks(request) == ([], 0)
    refused(HitsWithPromptLogprobs, manager, request, 1, [manager.block_pool.blocks[1]])
    assert manager.allocate_slots(request, 7) is not None
    found, _ = manager.get_computed_blocks(request_of("C", "abcdxyq"))
    assert [block.block_id for block in found] == [1, 2, 6]


def test_faults_are_found_in_order(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """A call with many faults is refused for the first; each repair shows the next."""
    request = request_of("B", "abcdxyz", prompt_logprobs=1)
    blocks = manager.block_pool.blocks
    null, stale, good = blocks[0], blocks[9], blocks[1]
    request.num_computed_tokens = 9
    refused(InvalidTokenCount, manager, request, 0, [stale, null], -1)
    refused(InvalidLookahead, manager, request, 1, [stale, null], -1)
    refused(TokensBeyondRequest, manager, request, 1, [stale, null])
    request.spec_token_ids = [1] * 9
    refused(TokensBeyondModelLength, manager, request, 1, [stale, null])
    request.num_computed_tokens = 7
    refused(StaleHit, manager, request, 1, [stale, null])
    refused(NullHitIsReadable, manager, request, 1, [good, null])
    refused(NothingConfirmed, manager, request, 1, [good])
    request.num_computed_tokens = 1
    refused(ComputedWithoutBlocks, manager, request, 1, [good])
    request.num_computed_tokens = 0
    refused(HitsWithPromptLogprobs, manager, request, 1, [good])
    assert manager.allocate_slots(request, 1) is not None


def test_an_id_belongs_to_one_request(
    manager: KVCacheManager, request_of: New, refused: Refused
) -> None:
    """While table or chain are kept, another object of that name is refused everywhere, first."""
    owner, namesake = request_of("B", "xyz"), request_of("B", "abcde")
    manager.get_computed_blocks(owner)
    refused(RequestIdInUse, manager, namesake, 0)
    manager.allocate_slots(owner, 3)
    manager.free_block_hashes(owner)
    manager.make_prefix_cache_stats()
    refused(RequestIdInUse, manager, namesake, 0)
    for call in (manager.get_computed_blocks, manager.free, manager.free_block_hashes):
        with pytest.raises(RequestIdInUse, match="'B'"):
            call(namesake)
    with pytest.raises(RequestIdInUse):
        manager.get_num_common_prefix_blocks(namesake, 1)
    manager.free(owner)
    assert manager.allocate_slots(namesake, 5) is not None


def test_a_common_prefix_is_common_to_somebody(manager: KVCacheManager, request_of: New) -> None:
    """Fewer than one running request is refused."""
    with pytest.raises(InvalidRunningCount):
        manager.get_num_common_prefix_blocks(request_of("B", "xyz"), 0)
