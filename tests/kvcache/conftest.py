"""Fixtures that build managers and requests, and run requests as a small engine does.

A letter is a token, so prompts are words; the block size is 2 unless a test says otherwise.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kvcache import BlockPool, CacheConfig, KVCacheBlock, KVCacheManager, Request


@pytest.fixture
def manager_of() -> Callable[..., KVCacheManager]:
    """Return a maker of managers with a number of usable blocks, the null block not counted."""

    def make(usable: int = 8, **options: Any) -> KVCacheManager:  # noqa: ANN401  # any option
        settings = {"block_size": 2, "max_model_len": 100} | options
        return KVCacheManager(CacheConfig(num_gpu_blocks=usable + 1, **settings))

    return make


@pytest.fixture
def request_of() -> Callable[..., Request]:
    """Return a maker of requests: a name, a word, and the options of `Request`."""

    def make(name: str, word: str, **options: Any) -> Request:  # noqa: ANN401  # any option
        return Request(name, [ord(letter) for letter in word], **options)

    return make


@pytest.fixture
def admit() -> Callable[[KVCacheManager, Request], list[KVCacheBlock] | None]:
    """Return a call that looks a request up and allocates the rest; its step has not run."""

    def call(manager: KVCacheManager, request: Request) -> list[KVCacheBlock] | None:
        hits, num_hit_tokens = manager.get_computed_blocks(request)
        return manager.allocate_slots(request, request.num_tokens - num_hit_tokens, hits)

    return call


@pytest.fixture
def new(
    request_of: Callable[..., Request],
    admit: Callable[[KVCacheManager, Request], list[KVCacheBlock] | None],
) -> Callable[..., Request]:
    """Return a call that makes a request, admits it, and runs its step."""

    def call(manager: KVCacheManager, name: str, word: str, **options: Any) -> Request:  # noqa: ANN401  # any option
        request = request_of(name, word, **options)
        assert admit(manager, request) is not None
        request.num_computed_tokens = request.num_tokens
        return request

    return call


@pytest.fixture
def generate() -> Callable[[KVCacheManager, Request, str], list[int] | None]:
    """Return a call that confirms one token, schedules it, and runs the step."""

    def call(manager: KVCacheManager, request: Request, letter: str) -> list[int] | None:
        request.append_output_token_ids(ord(letter))
        blocks = manager.allocate_slots(request, request.num_tokens - request.num_computed_tokens)
        if blocks is None:
            return None
        request.num_computed_tokens = request.num_tokens
        return [block.block_id for block in blocks]

    return call


@pytest.fixture
def snapshot() -> Callable[[BlockPool], object]:
    """Return a function from a pool to plain data that shows all of its state."""

    def take(pool: BlockPool) -> object:
        return (
            [(b.ref_cnt, b.block_hash, b.is_null, b.state) for b in pool.blocks],
            [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
            {key: [b.block_id for b in pool.index.copies(key)] for key in pool.index},
        )

    return take
