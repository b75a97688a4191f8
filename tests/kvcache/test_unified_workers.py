"""All workers agree on the smallest number of blocks, or on nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    NoWorkers,
    SlidingWindowSpec,
    WorkersDiffer,
    unify_kv_cache_configs,
)

SHAPE: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 8, "dtype": "float16"}
FULL = FullAttentionSpec(**SHAPE)
WINDOW = SlidingWindowSpec(**SHAPE, sliding_window=6)


def worker(blocks: int, *groups: tuple[str, KVCacheSpec], **changes: Any) -> KVCacheConfig:  # noqa: ANN401  # any field
    """Return what a worker proposes: named layers, each a group of its own."""
    return KVCacheConfig(
        num_blocks=blocks,
        tensors={name: KVCacheTensor(size=blocks * spec.page_size_bytes) for name, spec in groups},
        kv_cache_groups=tuple(
            KVCacheGroupSpec(layer_names=(name,), kv_cache_spec=spec) for name, spec in groups
        ),
        **changes,
    )


@given(st.lists(st.integers(2, 10**6), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_all_workers_get_the_smallest_number(blocks: list[int], shuffle: Random) -> None:
    """In whatever order a worker lists its groups; tensors keep their size, arguments theirs."""
    same_type = FullAttentionSpec(**SHAPE | {"head_size": 4, "num_kv_heads": 4})
    groups: list[tuple[str, KVCacheSpec]] = [("a", WINDOW), ("b", FULL), ("c", same_type)]
    configs = [worker(count, *shuffle.sample(groups, 3)) for count in blocks]
    before = [config.model_dump_json() for config in configs]
    unified = unify_kv_cache_configs(configs)
    assert [min(blocks)] * len(blocks) == [config.num_blocks for config in unified]
    assert [config.tensors for config in configs] == [config.tensors for config in unified]
    assert len({config.kv_cache_groups for config in unified}) == 1
    types = [group.kv_cache_spec.type_id for group in unified[0].kv_cache_groups]
    assert sorted(types) == types
    assert before == [config.model_dump_json() for config in configs]
    assert unified == unify_kv_cache_configs(unified)
    unified[0].tensors.clear()
    assert before == [config.model_dump_json() for config in configs]


def test_workers_of_a_pipeline_have_other_layers() -> None:
    """What must agree is what a layer keeps, not its name."""
    unified = unify_kv_cache_configs([worker(9, ("a", FULL)), worker(7, ("b", FULL))])
    assert [config.num_blocks for config in unified] == [7, 7]


OTHER = FullAttentionSpec(**SHAPE | {"head_size": 16})
DIFFERENT: dict[str, tuple[KVCacheConfig, KVCacheConfig, str]] = {
    "head size": (
        worker(9, ("a", FULL)),
        worker(7, ("a", OTHER)),
        r"worker 2, layer 'a': it keeps Full.*head_size=16.* worker 0 keeps Full.*head_size=8",
    ),
    "a group more": (
        worker(9, ("a", FULL)),
        worker(9, ("a", FULL), ("b", WINDOW)),
        r"layer 'b': it keeps Sliding.* worker 0 keeps no such group",
    ),
    "a group less": (
        worker(9, ("a", FULL), ("b", WINDOW)),
        worker(9, ("a", FULL)),
        r"layer 'b': it keeps no such group and worker 0 keeps Sliding",
    ),
    "a kept window": (
        worker(9, ("a", FULL), windows_kept_as_full={"a": 6}),
        worker(9, ("a", FULL), windows_kept_as_full={"a": 7}),
        r"layer 'a': it keeps a window of 7 tokens as full attention and worker 0 keeps one of 6",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_worker_that_differs_is_named(name: str) -> None:
    """With its layer and with what both keep; the workers before it agree."""
    first, odd, problem = DIFFERENT[name]
    with pytest.raises(WorkersDiffer, match=problem) as caught:
        unify_kv_cache_configs([first, first, odd, first])
    assert caught.value.worker == 2


def test_no_worker_is_refused() -> None:
    """The smallest of nothing is no number."""
    with pytest.raises(NoWorkers, match="give one for each worker"):
        unify_kv_cache_configs([])
