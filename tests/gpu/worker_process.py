"""What one worker process of a test does; `conftest.py` starts it with a `task` and an `out` path.

It writes down, as JSON, how it came out and how long that took.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from gpu.errors import BlockIdNotValid
from gpu.layout import LocalKVCache
from gpu.workers import WorkerGroup, connect, start_kv_cache
from kvcache import BlockPool, FullAttentionSpec, KVCacheError, PlanningConfig

NUM_LAYERS = 2
PLANNING = PlanningConfig(max_model_len=8, max_num_batched_tokens=8)


def fall_silent(how: str) -> None:
    """Die, stop or sleep, as a worker does that is never heard of again."""
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def fall_silent_when(task: dict[str, Any], moment: str) -> None:
    """Do what the task says for this moment."""
    if task.get("when") == moment:
        fall_silent(task["how"])


def fall_silent_in_the_gather(task: dict[str, Any]) -> None:
    """Let the collective be where the worker falls silent, when the others are in it."""
    if task.get("when") == "in the gather":

        def silent(*_: object) -> None:
            fall_silent(task["how"])

        vars(dist)["all_gather"] = silent


def read_slowly(task: dict[str, Any]) -> None:
    """Let the last look into the store take longer than the others need to end."""
    read = TCPStore.get

    def slow(store: TCPStore, key: str) -> bytes:
        if "after gathering" in key:
            time.sleep(task["slow_s"])
        return read(store, key)

    if task.get("slow_s"):
        setattr(TCPStore, "get", slow)  # noqa: B010  # the stub says that methods stay


def serve(cache: LocalKVCache, seed: int) -> dict[str, Any]:
    """Allocate at random from a pool of the agreed size and write each block on this worker.

    The pool is a scheduler's: every worker is told the same ids, so all run it with one seed. A
    block's bytes are its id; at the end each block still shows what was written last.
    """
    num_blocks = cache.config.num_blocks
    pool, rng = BlockPool(num_blocks), Random(seed)  # noqa: S311  # a test's choices
    held: list[Any] = []
    written: dict[int, int] = {}
    ids: list[int] = []
    for turn in range(200):
        while held and (pool.get_num_free_blocks() == 0 or rng.random() < 0.5):
            pool.free_blocks([held.pop(rng.randrange(len(held)))])
        blocks = pool.get_new_blocks(rng.randint(1, pool.get_num_free_blocks()))
        held += blocks
        for block in blocks:
            ids.append(block.block_id)
            written[block.block_id] = turn % 100
            for layer in cache.views:
                cache.block(layer, block.block_id).fill_(turn % 100)
    for block_id, value in written.items():
        assert all((cache.block(layer, block_id) == value).all() for layer in cache.views)
    refused = []
    for wrong in (-1, num_blocks, num_blocks + 7):
        try:
            cache.block("layers.0", wrong)
        except BlockIdNotValid as error:
            refused.append([error.rank, error.block_id])
    num_local = {view.shape[1] for view in cache.views.values()}
    return {"ids": ids, "refused": refused, "num_local": sorted(num_local)}


def work(group: WorkerGroup, task: dict[str, Any]) -> dict[str, Any]:
    """Agree with the others and serve."""
    spec = FullAttentionSpec(
        block_size=2, num_kv_heads=1, head_size=task.get("head_size", 4), dtype="float16"
    )
    specs = {f"layers.{index}": spec for index in range(NUM_LAYERS)}
    available = task["blocks"] * NUM_LAYERS * spec.page_size_bytes
    cache = start_kv_cache(group, specs, available, PLANNING)
    return {"num_blocks": cache.config.num_blocks, **serve(cache, task["seed"])}


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Do the task; what is returned says how it came out.

    All start together, and a worker falls silent when all are connected. Connecting has more time,
    so that a loaded machine, which is slow to start many processes, is not what is measured.
    """
    torch.set_num_threads(1)
    fall_silent_in_the_gather(task)
    read_slowly(task)
    where: tuple[str, int, int, int] = ("127.0.0.1", task["port"], task["rank"], task["world_size"])
    start, connected = task["barriers"]
    start.wait()
    started = time.monotonic()
    try:
        with connect(*where, timeout_s=task["connect_s"]) as group:
            connected.wait()
            group.timeout_s = task["timeout_s"]
            fall_silent_when(task, "before it proposes")
            started = time.monotonic()
            outcome = work(group, task)
    except KVCacheError as error:
        values = {"rule": error.rule, "says": str(error), "ranks": getattr(error, "ranks", None)}
        outcome = {"error": values}
    return outcome | {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    result = main(globals()["task"])
    out = Path(globals()["out"])
    out.with_suffix(".part").write_text(json.dumps(result), encoding="utf-8")
    out.with_suffix(".part").rename(out)
