"""Holds the unification of workers' configurations against what it is for.

A request's block table is one list of ids for all workers. So every id that the manager may hand
out must be a block of the worker that has the fewest, and no block that all have is wasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from kvcache import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvcache.planning import unify_kv_cache_configs
from spec.workers import ids_are_valid_on_every_worker

IDS_ARE_VALID: Final = ids_are_valid_on_every_worker.__name__
"""The property: every id is below the number of blocks of each worker."""

MOST_WORKERS: Final = 4
MOST_BLOCKS: Final = 9


def proposal(num_blocks: int) -> KVCacheConfig:
    """Return what a worker of one small layer proposes that has room for so many blocks."""
    spec = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float16")
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors={"layer": KVCacheTensor(size=num_blocks * spec.page_size_bytes)},
        kv_cache_groups=(KVCacheGroupSpec(layer_names=("layer",), kv_cache_spec=spec),),
    )


def wrong_ids(room: Sequence[int]) -> str | None:
    """Return what is wrong with the ids of workers that have room for so many blocks each."""
    try:
        unified = unify_kv_cache_configs([proposal(num_blocks) for num_blocks in room])
    except ValidationError as error:
        return f"workers with room for {list(room)} blocks: {error.errors()[0]['msg']}"
    given = [config.num_blocks for config in unified]
    if given == [min(room)] * len(room):
        return None
    return f"workers with room for {list(room)} blocks are told {given}"
