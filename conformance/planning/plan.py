"""From a model and the memory of its workers to blocks, tokens and concurrency.

This is arithmetic on figures that are given. A server measures what its weights and activations
take; here they are what the user says they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from conformance.planning.model_config import ModelConfig
from kvcache.errors import KVCacheError
from kvcache.interface import DType, KVCacheConfig
from kvcache.planning import (
    PlanningConfig,
    get_kv_cache_config,
    max_concurrency_of,
    unify_kv_cache_configs,
)

MAX_SIZE_BYTES: Final = 2**60
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
UNITS: Final = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}b": 1000**power for letter, power in _POWERS.items()},
    **{f"{letter}ib": 1024**power for letter, power in _POWERS.items()},
}
"""Bytes of a unit, by its name in small letters."""


class PlanError(Exception):
    """One worker's memory cannot serve the model; `str()` names the worker."""


class ModelFigures(NamedTuple):
    """What every worker is planned for."""

    name: str
    config: ModelConfig
    block_size: int
    dtype: DType


class WorkerPlan(BaseModel):
    """What one worker allocates, in bytes, and how many blocks its own memory holds."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    worker: int
    available_bytes: int
    num_blocks: int
    tensor_bytes: int


class Plan(BaseModel):
    """The figures of a plan; sizes are those of one worker.

    `num_blocks` is what all workers hold, the null block included. `usable_tokens` and
    `max_concurrency` leave the null block out.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    layers: dict[str, int]
    """How many layers there are of each kind of attention."""
    kept_as: str
    num_kv_heads: int
    head_size: int
    dtype: str
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    page_size_bytes: int
    block_bytes: int
    token_bytes: int
    num_blocks: int
    usable_tokens: int
    pages_per_request: int
    max_concurrency: float
    kv_head_copies: int
    """How many workers keep the same key-value head, or the same latent."""
    workers: tuple[WorkerPlan, ...]


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `80GiB`, `1.5 GB` or `1024`, rounded down.

    pydantic's `ByteSize` is not used: it reads `1,000` as one byte and rounds large numbers.
    Raises `ValueError` with the text, what is wrong and what to do.
    """
    found = re.fullmatch(r"\s*(-?)([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[3].lower() not in UNITS:
        raise ValueError(
            f"{text!r} is no size; give a number and one of bytes, kB, MB, GB, TB, KiB, MiB, GiB, "
            "TiB, for example 80GiB"
        )
    if found[1]:
        raise ValueError(f"{text!r} is below zero; give 0 or more")
    size = int(Decimal(found[2]) * UNITS[found[3].lower()])
    if size > MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is more than {MAX_SIZE_BYTES} bytes; check the unit")
    return size


def budget_of(total_bytes: int, utilization: float, weights: int, activations: int) -> int:
    """Return what is left for the cache of the part of the memory that may be used."""
    return int(total_bytes * utilization) - weights - activations


def make_plan(model: ModelFigures, budgets: Sequence[int], planning: PlanningConfig) -> Plan:
    """Return the plan of workers that have these many bytes for the cache, one number each.

    Raises `ModelConfigError` for a number of workers that the model does not allow, and `PlanError`
    where a worker's bytes cannot hold one request.
    """
    specs = model.config.kv_cache_specs(len(budgets), model.block_size, model.dtype)
    configs = []
    for worker, budget in enumerate(budgets):
        try:
            configs.append(get_kv_cache_config(specs, budget, planning))
        except KVCacheError as error:
            raise PlanError(f"worker {worker}: {error}") from error
    unified = unify_kv_cache_configs(configs)[0]
    spec = unified.kv_cache_groups[0].kv_cache_spec
    pages = spec.num_pages(planning.max_model_len, planning.max_num_batched_tokens)
    kinds = [one.kind for one in specs.values()]
    return Plan(
        model=model.name,
        layers={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        kept_as=spec.kind,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        dtype=spec.dtype,
        block_size=spec.block_size,
        max_model_len=planning.max_model_len,
        max_num_batched_tokens=planning.max_num_batched_tokens,
        page_size_bytes=spec.page_size_bytes,
        block_bytes=spec.page_size_bytes * len(specs),
        token_bytes=spec.page_size_bytes * len(specs) // spec.block_size,
        num_blocks=unified.num_blocks,
        usable_tokens=(unified.num_blocks - 1) * spec.block_size,
        pages_per_request=pages,
        max_concurrency=max_concurrency_of(unified.num_blocks, pages),
        kv_head_copies=spec.num_kv_heads * len(budgets) // model.config.num_kv_heads,
        workers=tuple(
            WorkerPlan(
                worker=worker,
                available_bytes=budget,
                num_blocks=config.num_blocks,
                tensor_bytes=_tensor_bytes(config),
            )
            for worker, (budget, config) in enumerate(zip(budgets, configs, strict=True))
        ),
    )


def _tensor_bytes(config: KVCacheConfig) -> int:
    return sum(tensor.size for tensor in config.tensors.values())
