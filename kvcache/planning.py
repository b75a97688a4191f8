"""From bytes of memory to blocks, and to one configuration that holds on every worker.

The order is: unify the layers to one kind, refuse what cannot hold one request, divide the bytes,
and, when every worker has done so, take the smallest number of blocks. An id below that number is
then valid on every worker. All functions are pure: they change no argument, and what one worker
computes from the same input is what another computes. Chapter 5.6.3 and 5.8.

Layers are unified *before* the memory is checked, because a window layer that keeps everything
needs what a full one needs: checked the other way round, a budget would pass that cannot hold a
single request.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final

from pydantic import Field

from kvcache.interface import (
    FrozenModel,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from kvcache.planning_errors import (
    LayersDiffer,
    MemoryBelowOneRequest,
    NoAttentionLayers,
    NoMemoryForBlocks,
    NoWorkers,
    WorkersDiffer,
)

_LOG: Final = logging.getLogger(__name__)


class PlanningConfig(FrozenModel):
    """What the engine is to serve: the part of a plan that is not measured.

    `max_model_len` counts the tokens of the longest request, `max_num_batched_tokens` those that
    one step computes at most, `num_gpu_blocks_override` the blocks to use in place of the computed
    number, the null block included. A value out of range raises pydantic's `ValidationError`.
    """

    max_model_len: int = Field(ge=1, lt=2**62)
    max_num_batched_tokens: int = Field(ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=2)


def num_blocks_of(available_bytes: int, page_size_bytes: int, num_layers: int) -> int:
    """The blocks that fit, the null block included (chapter 5.6.3)."""
    return max(0, available_bytes) // page_size_bytes // num_layers


def max_concurrency_of(num_blocks: int, pages_per_request: int) -> float:
    """How many requests of the greatest length fit at once; the null block serves none."""
    return (num_blocks - 1) / pages_per_request


def needed_bytes_of(
    specs: Mapping[str, KVCacheSpec], max_model_len: int, max_num_batched_tokens: int
) -> int:
    """The bytes that one request of `max_model_len` tokens needs, beside the null block."""
    return sum(
        spec.max_memory_usage_bytes(max_model_len, max_num_batched_tokens) + spec.page_size_bytes
        for spec in specs.values()
    )


def estimate_max_model_len(
    specs: Mapping[str, KVCacheSpec], available_bytes: int, planning: PlanningConfig
) -> int:
    """The greatest length up to `max_model_len` of which one request fits; 0 where none does.

    The need never falls as the length grows, so bisection finds the last length that fits.
    """
    return bisect_right(
        range(1, planning.max_model_len + 1),
        available_bytes,
        key=lambda length: needed_bytes_of(specs, length, planning.max_num_batched_tokens),
    )


def check_enough_kv_cache_memory(
    specs: Mapping[str, KVCacheSpec], available_bytes: int, planning: PlanningConfig
) -> None:
    """Raise unless the bytes hold one request of `max_model_len` and the null block.

    Raises `NoAttentionLayers`, `NoMemoryForBlocks`, or `MemoryBelowOneRequest`, which carries the
    need, the bytes there are, and the greatest length that would fit.
    """
    if not specs:
        raise NoAttentionLayers
    if available_bytes <= 0:
        raise NoMemoryForBlocks(available_bytes=available_bytes)
    needed = needed_bytes_of(specs, planning.max_model_len, planning.max_num_batched_tokens)
    if needed > available_bytes:
        raise MemoryBelowOneRequest(
            max_model_len=planning.max_model_len,
            needed_bytes=needed,
            available_bytes=available_bytes,
            greatest_model_len=estimate_max_model_len(specs, available_bytes, planning),
        )


def unify_hybrid_kv_cache_specs(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """The specs with window layers kept as full ones, where there are full ones too.

    Such a layer still reads its window only; it keeps everything, because one block table serves
    all layers. Layers of one kind come back as they are.
    """
    if not any(isinstance(spec, FullAttentionSpec) for spec in specs.values()):
        return dict(specs)
    return {name: _as_full(spec) for name, spec in specs.items()}


def _as_full(spec: KVCacheSpec) -> KVCacheSpec:
    if not isinstance(spec, SlidingWindowSpec):
        return spec
    return FullAttentionSpec(
        block_size=spec.block_size,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        dtype=spec.dtype,
    )


def get_kv_cache_config(
    specs: Mapping[str, KVCacheSpec], available_bytes: int, planning: PlanningConfig
) -> KVCacheConfig:
    """The configuration of a worker whose layers share the bytes equally (chapter 5.6.3).

    `specs` maps each layer's name to what it keeps. An override of the number of blocks is used
    whatever fits, and logged. Raises what `check_enough_kv_cache_memory` raises, and `LayersDiffer`
    where the layers are not of one kind even after unification.
    """
    unified = unify_hybrid_kv_cache_specs(specs)
    check_enough_kv_cache_memory(unified, available_bytes, planning)
    spec = _the_one_spec(unified)
    num_blocks = num_blocks_of(available_bytes, spec.page_size_bytes, len(unified))
    if planning.num_gpu_blocks_override is not None:
        _LOG.info(
            "num_gpu_blocks_override=%d is used; the memory holds %d blocks",
            planning.num_gpu_blocks_override,
            num_blocks,
        )
        num_blocks = planning.num_gpu_blocks_override
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors={name: KVCacheTensor(size=num_blocks * spec.page_size_bytes) for name in unified},
        kv_cache_groups=(KVCacheGroupSpec(layer_names=tuple(unified), kv_cache_spec=spec),),
        windows_kept_as_full={
            name: before.sliding_window
            for name, before in specs.items()
            if isinstance(before, SlidingWindowSpec) and before != unified[name]
        },
    )


def _the_one_spec(specs: Mapping[str, KVCacheSpec]) -> KVCacheSpec:
    (first_layer, first), *others = specs.items()
    for layer, spec in others:
        if spec != first:
            raise LayersDiffer(layer=layer, spec=spec, other_layer=first_layer, other_spec=first)
    return first


def unify_kv_cache_configs(configs: Sequence[KVCacheConfig]) -> list[KVCacheConfig]:
    """The configurations of all workers, with the smallest number of blocks in each (chapter 5.8).

    `configs[i]` is what worker `i` proposes; the result has the same order, with each worker's
    groups sorted by type. Tensors keep their size: using the first blocks of a larger tensor is
    valid. Workers may have layers of other names (a pipeline), but their groups must keep the same.
    Raises `NoWorkers` and, for the first worker that differs from worker 0, `WorkersDiffer`.
    """
    if not configs:
        raise NoWorkers
    groups = [sorted(config.kv_cache_groups, key=_by_type) for config in configs]
    for worker, (config, theirs) in enumerate(zip(configs, groups, strict=True)):
        _refuse_other_groups(worker, theirs, groups[0])
        _refuse_other_windows(worker, config, configs[0])
    num_blocks = min(config.num_blocks for config in configs)
    return [
        KVCacheConfig(
            num_blocks=num_blocks,
            tensors=config.tensors,
            kv_cache_groups=tuple(sorted_groups),
            windows_kept_as_full=config.windows_kept_as_full,
        )
        for config, sorted_groups in zip(configs, groups, strict=True)
    ]


def _by_type(group: KVCacheGroupSpec) -> tuple[str, str]:
    # Specs of one type id may differ, 8 heads of 128 and 16 of 64 for one; without the second part
    # the order of such groups would be that of the argument.
    return group.kv_cache_spec.type_id, repr(group.kv_cache_spec)


def _refuse_other_groups(
    worker: int, groups: Sequence[KVCacheGroupSpec], expected: Sequence[KVCacheGroupSpec]
) -> None:
    for mine, theirs in zip_longest(groups, expected):
        specs = [group and group.kv_cache_spec for group in (mine, theirs)]
        if specs[0] != specs[1]:
            found, wanted = (repr(spec) if spec else "no such group" for spec in specs)
            layer = (mine or theirs).layer_names[0]
            raise WorkersDiffer(worker=worker, layer=layer, found=found, expected=wanted)


def _refuse_other_windows(worker: int, config: KVCacheConfig, expected: KVCacheConfig) -> None:
    known = expected.layer_specs
    for layer in config.layer_specs:
        if layer not in known:
            continue
        mine, theirs = (one.windows_kept_as_full.get(layer) for one in (config, expected))
        if mine != theirs:
            raise WorkersDiffer(
                worker=worker,
                layer=layer,
                found=f"a window of {mine} tokens as full attention",
                expected=f"one of {theirs} tokens",
            )
