"""How fast a replay is, as ratios within one run: alone, in lockstep, and against a flat loop.

The flat loop is the peer: one function that does only the necessary work for prompts served
one after the other (sha256 chain, look-up, take, seal, release in reverse) with no interface, no
checks and no reference counts above one. It must find exactly the same hits.

    python benchmarks/replay.py [--trace FILE] [--rounds N] [--limit K]
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from statistics import median

from conformance.driving.replay import ReplayPlan, replay
from conformance.workloads.workload import GeneratedParams, GeneratedWorkload, Workload, open_trace
from kvcache.hashing import sha256_root


def flat_loop(workload: Workload, num_blocks: int) -> tuple[int, int]:
    """Return the hit blocks and all blocks of a sequential replay with blocks of one token."""
    queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
    keys: list[bytes | None] = [None] * num_blocks
    found: dict[bytes, int] = {}
    root = sha256_root(1)
    hit_blocks = all_blocks = 0
    for item in workload:
        parent, chain = root, []
        octets = memoryview(item.prompt_token_ids).cast("B")  # type: ignore[arg-type]  # an array
        for at in range(0, len(octets), 8):
            parent = sha256(parent + octets[at : at + 8]).digest()
            chain.append(parent)
        table = []
        for key in chain[:-1]:
            block = found.get(key)
            if block is None:
                break
            table.append(block)
        hit_blocks += len(table)
        for block in table:
            del queue[block]
        for key in chain[len(table) :]:
            block, _ = queue.popitem(last=False)
            old = keys[block]
            if old is not None and found.get(old) == block:
                del found[old]
            keys[block] = key
            found.setdefault(key, block)
            table.append(block)
        all_blocks += len(table)
        for block in reversed(table):
            queue[block] = None
    return hit_blocks, all_blocks


def measure(workload: Workload, num_blocks: int, rounds: int) -> None:
    """Print the medians and the ratios of alternating rounds."""
    rates: dict[str, list[float]] = {"flat loop": [], "off": [], "incremental": []}
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        hits, blocks = flat_loop(workload, num_blocks)
        rates["flat loop"].append(blocks / (time.perf_counter() - started))
        for check in ("off", "incremental"):
            report = replay(workload, ReplayPlan(num_blocks=num_blocks, check=check))
            rates[check].append(report.blocks_per_second)
            assert report.hit_tokens == hits * workload.tokens_per_id, (report.hit_tokens, hits)
            assert report.verdict in ("clean", "not checked"), report.violation
    print(f"{workload.name}, {num_blocks:,} blocks, {rounds} rounds, median blocks a second")
    for name, values in rates.items():
        print(f"  {name:12} {median(values):>10,.0f}  ({min(values):,.0f} to {max(values):,.0f})")
    against = [a / b for a, b in zip(rates["off"], rates["flat loop"], strict=True)]
    slower = [a / b for a, b in zip(rates["off"], rates["incremental"], strict=True)]
    print(f"  off against the flat loop: {median(against):.2f} of its rate")
    print(f"  incremental lockstep: {median(slower):.1f} times slower than off")


def main() -> None:
    """Measure the trace that is named, or a generated workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="default: the conversation trace, if there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    trace = options.trace
    if trace is None and (folder := os.environ.get("KVSPEC_TRACES")):
        trace = Path(folder) / "mooncake" / "conversation_trace.jsonl"
    params = GeneratedParams(branching=8, depth=40, max_tail=20)
    workload: Workload = (
        open_trace(trace, 1, options.limit)
        if trace
        else GeneratedWorkload(1, options.limit or 5_000, 1, params)
    )
    for num_blocks in (400_000, 10_001):
        measure(workload, num_blocks, options.rounds)


if __name__ == "__main__":
    main()
