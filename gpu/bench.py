"""What the shield costs, always as a ratio of two things that were measured in the same run."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu import ops
from gpu.contents import Contents
from gpu.faults import make_run
from gpu.fingerprint import ms64_rows, row_keys, word_steps
from gpu.matrix import shared_prefix_work
from gpu.pool import KVPool
from gpu.reference import guesses, references
from gpu.runner import Runner
from gpu.shield import Shield
from kvcache.interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)

CPU_BYTES = 32 * 2**20
CUDA_BYTES = 2 * 2**30
NUM_REPEATS = 9


@dataclass(frozen=True)
class BenchRow:
    """One ratio: `value` of what `measured` and `against` say, in words; `wanted` is its bound.

    A value of None was not measured, and `note` says why.
    """

    name: str
    value: float | None
    wanted: str
    measured: str
    against: str
    note: str = ""
    is_bound_kept: bool = True


def seconds_of(run: Callable[[], object], device: str, repeats: int = NUM_REPEATS) -> float:
    """The median time of a call that was made once before, in seconds."""
    run()
    times = []
    for _ in range(repeats):
        _wait(device)
        begun = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def read_ceiling(device: str) -> float:
    """The bytes a second at which an int64 sum reads memory."""
    num_bytes = CUDA_BYTES if device == "cuda" else CPU_BYTES
    words = torch.zeros(num_bytes // 8, dtype=torch.int64, device=device)
    return num_bytes / seconds_of(words.sum, device)


def compiled_fingerprint() -> BenchRow:
    """MS64 by `torch.compile` on the CPU, against a plain int64 sum of the same bytes."""
    name = "compiled MS64 over an int64 sum, bytes a second"
    texts = ("torch.compile(ms64_rows)", "int64 sum, the same bytes")
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return BenchRow(name, None, ">= 0.4", *texts, note="no C++ compiler is on the PATH")
    words = torch.arange(CPU_BYTES // 8, dtype=torch.int64).view(-1, 256)
    keys = row_keys(
        torch.arange(len(words)), seed=1, layer=0, plane=0, block_size=16, num_words=256
    )
    steps = word_steps(256, words.device)
    compiled = torch.compile(ms64_rows, dynamic=False)
    equal = torch.equal(compiled(words, keys, steps), ms64_rows(words, keys, steps))
    ratio = seconds_of(words.sum, "cpu") / seconds_of(lambda: compiled(words, keys, steps), "cpu")
    note = "" if equal else "its numbers are WRONG"
    return BenchRow(name, ratio, ">= 0.4", *texts, note=note, is_bound_kept=equal and ratio >= 0.4)


def fingerprint_on_cuda() -> BenchRow:
    """The fingerprints of a pool's plane on a device, against reading as much memory."""
    row_bytes, block_size = 2048, 16
    num_blocks = CUDA_BYTES // (row_bytes * block_size) - 1
    shape = (num_blocks + 1, block_size, 8, row_bytes // 16)
    plane = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    slots = torch.arange(num_blocks * block_size, device="cuda")
    spent = seconds_of(lambda: ops.ms64_slots(plane, slots, 1, 0, 0), "cuda")
    ratio = len(slots) * row_bytes / spent / read_ceiling("cuda")
    return BenchRow(
        "MS64 over the read bandwidth",
        ratio,
        ">= 0.85",
        "ms64_slots of 2 GiB",
        "int64 sum of 2 GiB",
        is_bound_kept=ratio >= 0.85,
    )


def scatter_cost(device: str) -> BenchRow:
    """A write that is checked against the leases, over one that is not."""
    num_rows, num_blocks = 256, 512
    rows = torch.zeros(num_rows, 8, 128, dtype=torch.bfloat16, device=device)
    planes = torch.zeros(2, num_blocks + 1, 16, 8, 128, dtype=torch.bfloat16, device=device)
    slots = torch.arange(num_rows, device=device) * 16
    tags = torch.ones(num_rows, dtype=torch.int32, device=device)
    lease = torch.ones(num_blocks, dtype=torch.int32, device=device)
    log = ops.Log.empty(ops.LEASE_COLUMNS, device)

    def checked() -> None:
        ops.scatter_kv(rows, rows, planes[0], planes[1], slots, tags, lease, log.counts, log.ring)

    def plain() -> None:
        ops.write_rows(rows, rows, planes[0], planes[1], slots)

    ratio = seconds_of(checked, device) / seconds_of(plain, device)
    return BenchRow("scatter with leases over without", ratio, "-", "scatter_kv", "write_rows")


def guard_cost(device: str) -> list[BenchRow]:
    """A whole run of small requests with a shield over one without; the exact decoder is small."""
    run = make_run(4, device)
    work = shared_prefix_work(8, 4)
    known = references(run.model, work)
    config = run.model.kv_cache_config(run.setting.num_blocks(work), run.setting.block_size)

    def serve(*, shielded: bool) -> None:
        pool = KVPool(config, device)
        guard = Shield(pool, "log") if shielded else None
        limits = run.setting.limits(work)
        runner = Runner(run.model, pool, limits, guard=guard, drafter=guesses(known))
        if guard is not None:
            guard.watch(runner.manager)
        runner.serve(work)

    plain = seconds_of(lambda: serve(shielded=False), device, 5)
    guarded = seconds_of(lambda: serve(shielded=True), device, 5)
    text = "8 requests, all layers on, every step asked"
    return [BenchRow("run with shield over without", guarded / plain, "-", text, "no guard")]


@dataclass(frozen=True)
class Shape:
    """A model in the figures that a decode step moves; bytes of weights, requests, context."""

    num_parameters: int = 8 * 10**9
    num_layers: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    num_requests: int = 64
    num_tokens: int = 4096

    @property
    def weight_bytes(self) -> int:
        """What a step reads of the weights, in bfloat16."""
        return 2 * self.num_parameters

    @property
    def kv_bytes(self) -> int:
        """What a step reads of the cache, in bfloat16."""
        token = 2 * self.num_layers * self.num_kv_heads * self.head_size * 2
        return token * self.num_tokens * self.num_requests


def _contents_of(shape: Shape) -> Contents:
    """A pool of 1024 blocks of 16 tokens on CUDA, and what should lie in it."""
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        dtype="bfloat16",
    )
    names = tuple(f"layer.{n}" for n in range(shape.num_layers))
    size = KVCacheTensor(size=1024 * spec.page_size_bytes)
    config = KVCacheConfig(
        num_blocks=1024,
        tensors=dict.fromkeys(names, size),
        kv_cache_groups=(KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec),),
    )
    return Contents(KVPool(config, "cuda"), 1)


def _shield_step(contents: Contents, shape: Shape) -> Callable[[], None]:
    """The operations of one step: route, identities, the intent of each layer, and a look."""
    device, num_blocks = contents.pool.device, contents.pool.num_blocks
    rows = torch.zeros(
        shape.num_requests,
        shape.num_kv_heads,
        shape.head_size,
        dtype=torch.bfloat16,
        device=device,
    )
    slots = torch.arange(shape.num_requests, device=device) * 16 + 16
    tags = torch.ones(shape.num_requests, dtype=torch.int32, device=device)
    lease = torch.ones(num_blocks, dtype=torch.int32, device=device)
    leases = ops.Log.empty(ops.LEASE_COLUMNS, device)
    reads = ops.Log.empty(ops.IDENTITY_COLUMNS, device)
    cells = (shape.num_requests, shape.num_tokens // 16)
    table = torch.zeros(cells, dtype=torch.int32, device=device)
    identities = torch.zeros(cells, dtype=torch.int64, device=device)
    num_cells = torch.full((cells[0],), cells[1], device=device)
    epoch = torch.zeros(num_blocks, dtype=torch.int32, device=device)
    identity = torch.zeros(num_blocks, dtype=torch.int64, device=device)

    def step() -> None:
        routed = ops.route_slots(slots, tags, lease, leases.counts, leases.ring, 16)
        ops.check_identity(
            table, table, identities, num_cells, epoch, identity, reads.counts, reads.ring
        )
        for layer in range(shape.num_layers):
            contents.intend(layer, (rows, rows), routed)
        contents.look(routed)

    return step


def decode_step_cost(shape: Shape | None = None) -> BenchRow:
    """What a shield does in a decode step on CUDA, over the time to read weights and cache once.

    Its operations are those of `Shield` between two polls, captured in one graph and replayed.
    """
    shape = shape or Shape()
    step = _shield_step(_contents_of(shape), shape)
    # Kernels are compiled and loaded before the capture, on a stream of their own as it asks.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    spent = seconds_of(graph.replay, "cuda", 30)
    floor = (shape.weight_bytes + shape.kv_bytes) / read_ceiling("cuda")
    return BenchRow(
        "shield in a decode step over the step's reads",
        spent / floor,
        "<= 0.01",
        f"{shape.num_requests} rows, {shape.num_layers} layers, one graph",
        f"{shape.weight_bytes + shape.kv_bytes} bytes read once",
        is_bound_kept=spent / floor <= 0.01,
    )


def hit_cost(shape: Shape | None = None) -> BenchRow:
    """A look at all blocks of a hit, over the least time that the prefill which it saves takes.

    The prefill's time is its multiplications, 2 for each parameter and token, at the speed of a
    large product of matrices that is measured beside it.
    """
    shape = shape or Shape()
    contents = _contents_of(shape)
    slots = torch.arange(16, 16 + shape.num_tokens, device="cuda")
    spent = seconds_of(lambda: contents.look(slots), "cuda")
    matrix = torch.ones(8192, 8192, dtype=torch.bfloat16, device="cuda")
    rate = 2 * 8192**3 / seconds_of(lambda: matrix @ matrix, "cuda")
    prefill = 2 * shape.num_parameters * shape.num_tokens / rate
    return BenchRow(
        "look at a hit over the prefill that it saves",
        spent / prefill,
        "<= 0.005",
        f"{shape.num_tokens} tokens in {shape.num_layers} layers",
        f"2 * {shape.num_parameters} * {shape.num_tokens} operations at {rate:.3g} a second",
        is_bound_kept=spent / prefill <= 0.005,
    )
