"""The main job on the embedded default: rows, each with what it covered and a verdict."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

from conformance.replay import ReplayPlan, Report, replay
from conformance.workload import GeneratedWorkload

SEED = 1
NUM_REQUESTS = 400


class Row(NamedTuple):
    """One line of the verdict table."""

    name: str
    covered: str
    ok: bool
    seconds: float
    problem: str = ""


def replay_plans() -> Iterator[ReplayPlan]:
    """Yield the ways in which the bundled sample is replayed, always with full checks."""
    for batch, window, caching in itertools.product((False, True), (None, 7), (True, False)):
        yield ReplayPlan(
            num_blocks=26 if batch else 20,
            block_size=4,
            batch=batch,
            check="full",
            window=window,
            caching=caching,
            num_drafts=2 if batch else 0,
            caching_hash_algo="builtin" if window else "sha256",
        )


def replay_rows() -> Iterator[Row]:
    """Replay the bundled sample in every way, one row each."""
    for plan in replay_plans():
        workload = GeneratedWorkload(SEED, NUM_REQUESTS, plan.block_size)
        started = time.perf_counter()
        report = replay(workload, plan)
        if report.verdict == "interrupted":
            raise KeyboardInterrupt
        yield _row(plan, report, time.perf_counter() - started)


def num_rows() -> int:
    """Return how many rows there will be."""
    return len(list(replay_plans()))


def _row(plan: ReplayPlan, report: Report, seconds: float) -> Row:
    attention = "full" if plan.window is None else f"window {plan.window}"
    name = f"replay {report.mode}, {attention}{'' if plan.caching else ', no caching'}"
    covered = (
        f"{report.calls_checked:,} calls, {report.hit_rate:.0%} hit, "
        f"{report.evictions:,} evicted, {report.preemptions:,} preempted"
    )
    return Row(name, covered, report.verdict == "clean", seconds, report.violation or "")
