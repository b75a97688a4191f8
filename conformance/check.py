"""The main job on the embedded default: rows, each with what it covered and a verdict."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

from conformance.replay import ReplayPlan, Report, replay
from conformance.solvers import prover
from conformance.workload import GeneratedWorkload
from spec.explore import Search
from spec.worlds import WORLDS

SEED = 1
NUM_REQUESTS = 400
EXPLORED = ("pool-4", "full-2", "no-caching", "unhashed-first")
"""Worlds that a search sees whole within seconds."""

Verdict = Literal["clean", "violation", "not run"]


class Row(NamedTuple):
    """One line of the verdict table."""

    name: str
    covered: str
    verdict: Verdict
    seconds: float
    problem: str = ""


def rows() -> Iterator[Row]:
    """Do the main job, row by row."""
    yield from replay_rows()
    yield from explore_rows()
    yield prove_row()


def num_rows() -> int:
    """Return how many rows there will be."""
    return len(list(replay_plans())) + len(EXPLORED) + 1


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
        yield _replay_row(plan, report, time.perf_counter() - started)


def _replay_row(plan: ReplayPlan, report: Report, seconds: float) -> Row:
    attention = "full" if plan.window is None else f"window {plan.window}"
    name = f"replay {report.mode}, {attention}{'' if plan.caching else ', no caching'}"
    covered = (
        f"{report.calls_checked:,} calls, {report.hit_rate:.0%} hit, "
        f"{report.evictions:,} evicted, {report.preemptions:,} preempted"
    )
    verdict: Verdict = "clean" if report.verdict == "clean" else "violation"
    return Row(name, covered, verdict, seconds, report.violation or "")


def explore_rows() -> Iterator[Row]:
    """Search some small worlds whole; their counts must be the frozen ones."""
    for name in EXPLORED:
        world = WORLDS[name]
        result = Search(world.scope).run()
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        problem = ""
        if result.found is not None:
            path = "; ".join(str(move) for move, _ in result.found.path)
            problem = f"kvspec violation: property={result.found.property} found_by=explore: {path}"
        elif (result.states, result.transitions, result.depth) != world.counts:
            problem = f"counts {result[:3]}, frozen {tuple(world.counts)}"
        covered = f"all {result.states:,} states, {result.transitions:,} transitions"
        verdict: Verdict = "violation" if problem else "clean"
        yield Row(f"explore {name}", covered, verdict, result.seconds, problem)


def prove_row() -> Row:
    """Prove the invariants for any size, where the solvers are installed.

    What `kvspec prove` does besides (faults that must be seen, the bridge) takes longer than this
    job may, and is left to it.
    """
    started = time.perf_counter()
    prove = prover()
    if prove is None:
        hint = "the solvers are not installed: pip install -e '.[proof]'"
        return Row("prove", hint, "not run", 0)
    verdicts = prove.judged(list(prove.proof.questions()), os.cpu_count() or 1, lambda: None)
    open_ones = [v for v in verdicts if v.status != "both"]
    covered = f"{len(verdicts) - len(open_ones)} of {len(verdicts)} obligations, two solvers"
    problem = "".join(f"{v.status}: {v}\n" for v in open_ones)
    verdict: Verdict = "violation" if open_ones else "clean"
    return Row("prove", covered, verdict, time.perf_counter() - started, problem)
