"""The command `kvspec plan`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from conformance.output import BAD_INPUT, between, err, out, refuse_bad_output, write_output
from conformance.planning.model_config import (
    BUNDLED,
    ModelConfig,
    ModelConfigError,
    find_model,
    load_model_config,
)
from conformance.planning.plan import (
    ModelFigures,
    Plan,
    PlanError,
    budget_of,
    make_plan,
    parse_size,
)
from kvcache.interface import DTYPE_SIZE_BYTES, DType
from kvcache.planning import PlanningConfig

MAX_TOKENS = 2**31


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _memory(text: str) -> int:
    size = _size(text)
    if size == 0:
        raise typer.BadParameter(f"{text!r} is no memory; give more than 0 bytes")
    return size


def _utilization(value: float | None) -> float | None:
    # A number that is not a number is in no interval.
    if value is not None and not 0 < value <= 1:
        raise typer.BadParameter(f"{value}: it is a part of the memory; give 0 < part <= 1")
    return value


Model = Annotated[
    str,
    typer.Option(
        help=f"A config.json, the folder that holds one, or one of: {', '.join(BUNDLED)}.",
        metavar="NAME|CONFIG.json",
        show_default=False,
    ),
]
GpuMemory = Annotated[
    list[int] | None,
    typer.Option(
        help="Memory of a GPU, for example 80GiB. Once, or once for each worker.",
        parser=_memory,
        metavar="SIZE",
    ),
]
Utilization = Annotated[
    float | None,
    typer.Option(help="The part of it that may be used. Default: 0.9.", callback=_utilization),
]
Weights = Annotated[
    int | None,
    typer.Option(help="Weights of one worker.", parser=_size, metavar="SIZE"),
]
Activations = Annotated[
    int | None,
    typer.Option(help="What a worker needs besides, at its peak.", parser=_size, metavar="SIZE"),
]
Available = Annotated[
    list[int] | None,
    typer.Option(
        help="Memory for the KV cache, said directly. Once, or once for each worker.",
        parser=_memory,
        metavar="SIZE",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        help="Workers that split the heads.",
        callback=between(1, 65_536, "a model needs at least one worker"),
    ),
]
BlockSize = Annotated[
    int,
    typer.Option(help="Tokens of a block.", callback=between(1, 1 << 20, "a block holds a token")),
]
ModelLen = Annotated[
    int | None,
    typer.Option(
        help="Tokens of the longest request. Default: what the model says.",
        callback=between(1, MAX_TOKENS, "a request has a token"),
    ),
]
BatchedTokens = Annotated[
    int,
    typer.Option(
        help="Tokens that one step computes at most; matters for a sliding window.",
        callback=between(1, MAX_TOKENS, "a step computes a token"),
    ),
]
CacheDType = Annotated[
    str | None,
    typer.Option(help="What the cache stores. Default: what the model says.", metavar="DTYPE"),
]
BlocksOverride = Annotated[
    int | None,
    typer.Option(
        help="Blocks to use, null included, whatever fits.",
        callback=between(2, MAX_TOKENS, "a pool has null and a block to hand out"),
    ),
]
JsonOut = Annotated[Path | None, typer.Option(help="Write the plan here.", metavar="OUT")]


def plan_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    model: Model,
    gpu_memory: GpuMemory = None,
    utilization: Utilization = None,
    weights: Weights = None,
    activations: Activations = None,
    available: Available = None,
    tp: Workers = 1,
    block_size: BlockSize = 16,
    max_model_len: ModelLen = None,
    max_num_batched_tokens: BatchedTokens = 2048,
    kv_cache_dtype: CacheDType = None,
    num_gpu_blocks_override: BlocksOverride = None,
    json: JsonOut = None,
) -> None:
    """Say how many blocks and tokens a model's KV cache has in the given memory.

    Arithmetic on what you give: nothing is measured. Exit status: 0 planned, 2 bad input or too
    little memory.
    """
    budgets, notes = _budgets(tp, gpu_memory, utilization, weights, activations, available)
    try:
        path = find_model(model)
        config = load_model_config(path)
        if json is not None:
            refuse_bad_output(json, path)
        figures = ModelFigures(model, config, block_size, _dtype(kv_cache_dtype, config))
        planning = PlanningConfig(
            max_model_len=max_model_len or _model_len(config),
            max_num_batched_tokens=max_num_batched_tokens,
            num_gpu_blocks_override=num_gpu_blocks_override,
        )
        plan = make_plan(figures, budgets, planning)
    except (ModelConfigError, PlanError) as error:
        err.print(f"kvspec: {error}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from error
    for note in notes + _notes(plan, config):
        err.print(f"kvspec: {note}", style="yellow", soft_wrap=True)
    _show(plan)
    if json is not None:
        write_output(json, plan.model_dump_json(indent=2) + "\n")


def _budgets(
    tp: int,
    gpu_memory: list[int] | None,
    utilization: float | None,
    weights: int | None,
    activations: int | None,
    available: list[int] | None,
) -> tuple[list[int], list[str]]:
    """Return the bytes for the cache of each worker, and what is doubtful about them."""
    if available:
        if gpu_memory or (utilization, weights, activations) != (None, None, None):
            raise typer.BadParameter(
                "it says what is left for the cache; give it without --gpu-memory, --utilization, "
                "--weights and --activations",
                param_hint="--available",
            )
        return _each("--available", available, tp), []
    if not gpu_memory:
        raise typer.BadParameter(
            "no memory is given; give --gpu-memory 80GiB or --available 40GiB",
            param_hint="--gpu-memory",
        )
    part = 0.9 if utilization is None else utilization
    notes = []
    if weights is None or activations is None:
        given = [("--weights", weights), ("--activations", activations)]
        absent = " and ".join(name for name, value in given if value is None)
        notes.append(f"without {absent}, 0 bytes are set aside: a server has fewer blocks")
    return [
        budget_of(total, part, weights or 0, activations or 0)
        for total in _each("--gpu-memory", gpu_memory, tp)
    ], notes


def _each(option: str, sizes: list[int], tp: int) -> list[int]:
    if len(sizes) not in (1, tp):
        raise typer.BadParameter(
            f"{len(sizes)} sizes are given for {tp} workers; give one, or one for each",
            param_hint=option,
        )
    return sizes if len(sizes) == tp else sizes * tp


def _dtype(name: str | None, config: ModelConfig) -> DType:
    if name is None:
        if config.dtype is None:
            raise ModelConfigError(
                "the model names no torch_dtype; add it or give --kv-cache-dtype float16"
            )
        return config.dtype
    for dtype in DTYPE_SIZE_BYTES:
        if dtype == name:
            return dtype
    raise typer.BadParameter(
        f"{name!r} is no dtype that is known; give one of {', '.join(DTYPE_SIZE_BYTES)}",
        param_hint="--kv-cache-dtype",
    )


def _model_len(config: ModelConfig) -> int:
    if config.max_position_embeddings is None:
        raise ModelConfigError(
            "the model names no max_position_embeddings; add it or give --max-model-len 4096"
        )
    return config.max_position_embeddings


def _notes(plan: Plan, config: ModelConfig) -> list[str]:
    """Return what a reader of the figures should know."""
    notes = []
    if len(plan.layers) > 1:
        notes.append(
            f"{plan.layers['sliding_window']} layers with a window keep everything, as the "
            f"{plan.layers['full_attention']} full ones do: one block table serves all"
        )
    if plan.kv_head_copies > 1:
        what = "the latent" if config.is_mla else f"each of {config.num_kv_heads} key-value heads"
        notes.append(f"{what} is kept by {plan.kv_head_copies} workers")
    limit = config.max_position_embeddings
    if limit is not None and plan.max_model_len > limit:
        notes.append(f"{plan.max_model_len} tokens are more than the model's {limit}")
    if plan.max_concurrency < 1:
        notes.append(
            f"{plan.num_blocks} blocks cannot hold one request of {plan.max_model_len} tokens"
        )
    if any(worker.tensor_bytes > worker.available_bytes for worker in plan.workers):
        notes.append(f"{plan.num_blocks} blocks need more than the memory of a worker")
    return notes


def _show(plan: Plan) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    s = "s" if plan.num_kv_heads > 1 else ""
    # Rounded down: 39.998 requests are not 40.
    concurrency = math.floor(plan.max_concurrency * 100) / 100
    layers = ", ".join(f"{count} {kind}" for kind, count in plan.layers.items())
    rows = {
        "model": plan.model,
        "layers": layers + (f", kept as {plan.kept_as}" if len(plan.layers) > 1 else ""),
        "a worker keeps": f"{plan.num_kv_heads} head{s} of {plan.head_size}, {plan.dtype}",
        "block": f"{plan.block_size:,} tokens",
        "page bytes": f"{plan.page_size_bytes:,}",
        "block bytes": f"{plan.block_bytes:,}",
        "token bytes": f"{plan.token_bytes:,}",
        "blocks": f"{plan.num_blocks:,}, null included",
        "tokens": f"{plan.usable_tokens:,}, null's not counted",
        "concurrency": f"{concurrency:,.2f} requests of {plan.max_model_len:,} tokens, "
        f"{plan.pages_per_request:,} blocks each",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)
    workers = Table("worker", title="each worker, in bytes")
    for name in ("for the cache", "tensors", "left over", "blocks"):
        workers.add_column(name, justify="right")
    for one in plan.workers:
        left = one.available_bytes - one.tensor_bytes
        figures = (one.available_bytes, one.tensor_bytes, left, one.num_blocks)
        workers.add_row(str(one.worker), *(f"{figure:,}" for figure in figures))
    out.print(workers)
