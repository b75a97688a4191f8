"""Each fault put into the pool of vLLM 0.33.0 is found by random scripts, under its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.scheduler import stand_in
from conformance.scheduler.search import Aim, drawn

MOST_SCRIPTS = 25


@pytest.fixture(autouse=True, scope="module")
def _release() -> None:
    try:
        stand_in.load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    if stand_in.release() != stand_in.RELEASE:
        pytest.skip(f"vLLM {stand_in.RELEASE} is needed, {stand_in.release()} is installed")


def head_first(scheduler: Any) -> None:  # noqa: ANN401  # the release has types, we have not
    """Release the blocks of a request head first."""
    pool, inner = _pool(scheduler)
    pool.free_blocks = lambda blocks: inner.free_blocks(reversed(list(blocks)))


def one_reference_too_many(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Count a hit twice."""
    pool, inner = _pool(scheduler)

    def touch(blocks: Any) -> None:  # noqa: ANN401  # as above
        inner.touch(blocks)
        for block in blocks:
            block.ref_cnt += 1

    pool.touch = touch


def published_early(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Seal one full block more than is scheduled."""
    coordinator = scheduler.kv_cache_manager.coordinator
    inner, size = coordinator.cache_blocks, scheduler.block_size

    def cache_blocks(request: Any, num_tokens: int) -> None:  # noqa: ANN401  # as above
        table = coordinator.single_type_managers[0].req_to_blocks[request.request_id]
        inner(request, min(num_tokens + size, request.num_tokens, len(table) * size))

    coordinator.cache_blocks = cache_blocks


def evicted_by_half(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Leave an evicted block in the index."""
    pool, _ = _pool(scheduler)

    def evict(block: Any) -> bool:  # noqa: ANN401  # as above
        block.reset_hash()
        return True

    pool._maybe_evict_cached_block = evict


def a_lost_block(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Keep the counter of the queue one too high after each release."""
    pool, inner = _pool(scheduler)

    def free_blocks(blocks: Any) -> None:  # noqa: ANN401  # as above
        inner.free_blocks(blocks)
        pool.free_block_queue.num_free_blocks += 1

    pool.free_blocks = free_blocks


def moved_entries(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Turn the table of a request round when it grows."""
    manager = scheduler.kv_cache_manager
    inner = manager.allocate_slots

    def allocate_slots(request: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as above
        new = inner(request, *args, **named)
        if new is not None and request.num_computed_tokens:
            tables = manager.coordinator.single_type_managers[0].req_to_blocks
            tables[request.request_id].reverse()
        return new

    manager.allocate_slots = allocate_slots


def reset_while_in_use(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Claim that a reset succeeded that was refused."""
    inner = scheduler.kv_cache_manager.reset_prefix_cache
    scheduler.kv_cache_manager.reset_prefix_cache = lambda: inner() or True


def blind_to_the_prefix(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Hash a block by its last token alone."""
    inner, size = scheduler.add_request, scheduler.block_size

    def add_request(request: Any) -> None:  # noqa: ANN401  # as above
        def hashes() -> None:
            tokens = list(request.all_token_ids)
            for i in range(len(request.block_hashes), len(tokens) // size):
                request.block_hashes.append(bytes([tokens[(i + 1) * size - 1]]) * 32)

        request.block_hashes.clear()
        request.update_block_hashes = hashes
        hashes()
        inner(request)

    scheduler.add_request = add_request


def hits_all(scheduler: Any) -> None:  # noqa: ANN401  # as above
    """Find a prompt to its very end, so that a block is left that a request does not own."""
    pool, inner = _pool(scheduler)
    pool.touch = lambda blocks: inner.touch(list(blocks)[:-1])


class _Inner:
    """The methods of a pool as they are before one is replaced."""

    def __init__(self, pool: Any) -> None:  # noqa: ANN401  # as above
        self.free_blocks, self.touch = pool.free_blocks, pool.touch


def _pool(scheduler: Any) -> tuple[Any, _Inner]:  # noqa: ANN401  # as above
    pool = scheduler.kv_cache_manager.block_pool
    return pool, _Inner(pool)


SPOILT: dict[str, tuple[Callable[[Any], None], set[str]]] = {
    "head first": (head_first, {"the_cache_is_prefix_closed"}),
    "counted twice": (one_reference_too_many, {"ref_cnt_counts_the_holders"}),
    "early": (published_early, {"nothing_unwritten_is_found"}),
    "half evicted": (evicted_by_half, {"the_index_and_the_blocks_agree"}),
    "counter": (a_lost_block, {"the_free_queue_is_a_chain"}),
    "moved": (moved_entries, {"positions_never_move"}),
    "reset": (reset_while_in_use, {"reset_only_when_idle"}),
    "hash": (blind_to_the_prefix, {"equal_keys_mean_equal_prefixes"}),
    "not touched": (hits_all, {"ref_cnt_counts_the_holders"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", SPOILT)
def test_a_fault_is_found_under_its_name(fault: str) -> None:
    """Within a few scripts under `fcfs`, which is clean without the fault."""
    spoil, names = SPOILT[fault]

    def make(setting: Any) -> Any:  # noqa: ANN401  # as above
        scheduler = stand_in.make_scheduler(setting)
        spoil(scheduler)
        return scheduler

    found = set()
    for number in range(MOST_SCRIPTS):
        divergence = drawn(Aim("fcfs", "sync"), number, make).divergence
        if divergence is not None:
            found.add(divergence.property)
    assert names <= found, found
