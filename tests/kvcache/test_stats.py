"""Hits are counted at admission, in blocks, first-time and resumed apart."""

from collections.abc import Callable

import pytest

from kvcache import KVCacheBlock, KVCacheManager, PrefixCacheStats, PrefixCachingMetrics, Request

Admit = Callable[[KVCacheManager, Request], list[KVCacheBlock] | None]


def test_an_admission_is_counted_once(
    manager_of: Callable[..., KVCacheManager],
    request_of: Callable[..., Request],
    admit: Admit,
    new: Callable[..., Request],
) -> None:
    """Look-ups are free; a refusal counts nothing; decodes count nothing; reports start anew."""
    manager = manager_of(usable=4)
    holder = new(manager, "A", "abcdef")
    waiting = request_of("B", "abcdxyz")
    assert admit(manager, waiting) is None
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(requests=1, queries=2)
    manager.free(holder)
    assert admit(manager, waiting) is not None
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(requests=1, queries=3, hits=2)
    waiting.num_computed_tokens = waiting.num_tokens
    waiting.append_output_token_ids(1)
    assert manager.allocate_slots(waiting, 1) == []
    assert manager.make_prefix_cache_stats() == PrefixCacheStats()


def test_a_resumed_request_is_counted_apart(
    manager_of: Callable[..., KVCacheManager], admit: Admit, new: Callable[..., Request]
) -> None:
    """Its hits on its own blocks are no hits that a user would see."""
    manager = manager_of()
    request = new(manager, "A", "abcde")
    manager.free(request)
    request.num_computed_tokens = 0
    request.num_preemptions += 1
    admit(manager, request)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(
        requests=1, queries=2, preempted_requests=1, preempted_queries=2, preempted_hits=2
    )


def test_prompt_logprobs_ask_for_nothing(
    manager_of: Callable[..., KVCacheManager], new: Callable[..., Request]
) -> None:
    """Such a request is counted, and has no queries."""
    manager = manager_of()
    new(manager, "A", "abcde", prompt_logprobs=0)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(requests=1)


def test_without_caching_nothing_is_counted(
    manager_of: Callable[..., KVCacheManager], new: Callable[..., Request]
) -> None:
    """There is no cache to have a hit rate."""
    manager = manager_of(enable_caching=False)
    new(manager, "A", "abcde")
    assert manager.make_prefix_cache_stats() == PrefixCacheStats()


def test_a_successful_reset_is_reported(
    manager_of: Callable[..., KVCacheManager], new: Callable[..., Request]
) -> None:
    """A refused reset is not."""
    manager = manager_of()
    request = new(manager, "A", "abcde")
    assert not manager.reset_prefix_cache()
    assert not manager.make_prefix_cache_stats().reset
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.make_prefix_cache_stats().reset
    assert not manager.make_prefix_cache_stats().reset


def test_the_hit_rate_is_that_of_recent_first_time_requests() -> None:
    """Old reports go when the others hold enough requests; resumed look-ups never count."""
    metrics = PrefixCachingMetrics(max_recent_requests=3)
    assert metrics.hit_rate == 0
    metrics.observe(PrefixCacheStats(requests=2, queries=10, hits=0))
    metrics.observe(PrefixCacheStats(preempted_requests=9, preempted_queries=9, preempted_hits=9))
    metrics.observe(PrefixCacheStats(requests=1, queries=10, hits=10))
    assert metrics.hit_rate == 0.5
    metrics.observe(PrefixCacheStats(requests=2, queries=10, hits=10))
    assert metrics.hit_rate == 1
    metrics.observe(PrefixCacheStats(requests=5, queries=4, hits=1))
    assert metrics.hit_rate == 0.25


def test_a_reset_clears_the_rate() -> None:
    """What was asked before the cache was emptied says nothing about it."""
    metrics = PrefixCachingMetrics()
    metrics.observe(PrefixCacheStats(requests=1, queries=4, hits=4))
    metrics.observe(PrefixCacheStats(requests=1, queries=4, hits=1, reset=True))
    assert metrics.hit_rate == 0.25


def test_the_rate_needs_a_request() -> None:
    """A window of no requests has no rate."""
    with pytest.raises(ValueError, match="max_recent_requests=0"):
        PrefixCachingMetrics(max_recent_requests=0)
