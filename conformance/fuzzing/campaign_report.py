"""Says what a long run did: one line of figures, a summary for people, and plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.fuzzing.campaign import Plan, Summary
from conformance.fuzzing.shapes import EDGES
from spec.reachable import REACHABLE


def figures(summary: Summary, seconds: float) -> tuple[str, str]:
    """Return the counts of a run that has taken some seconds so far, in two short lines."""
    jobs = summary.jobs
    made = f"{summary.examples:,} examples, {summary.calls:,} calls"
    speed = f"{summary.calls / max(1e-9, seconds):,.0f} calls a second"
    seen = f"{len(jobs.states):,} states, {len(jobs.transitions):,} transitions"
    return f"{made}, {speed}", f"{seen}, {int(summary.failed)} failures"


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield what a run did and what it saw, a line each."""
    jobs = summary.jobs
    yield ", ".join(figures(summary, summary.seconds))
    yield (
        f"{summary.tried} kept failures tried, {summary.machine_examples:,} examples of machines, "
        f"{jobs.episodes:,} walks in {jobs.jobs:,} jobs; how many is a matter of time, what each "
        "does is not"
    )
    if summary.failed or not jobs.jobs:
        return
    unseen = [name for name in REACHABLE if not jobs.reachable[name]]
    yield (
        f"the walks saw {len(jobs.edges)} of {len(EDGES)} transitions of a block and "
        f"{len(REACHABLE) - len(unseen)} of {len(REACHABLE)} situations"
        + (f"; not seen: {', '.join(unseen)}" if unseen else "")
    )


def as_json(plan: Plan, profile: str, summary: Summary) -> dict[str, Any]:
    """Return a run as plain data; `failure` is for whoever shrinks it."""
    return {
        "verdict": summary.verdict,
        "subjects": list(plan.subjects),
        "profile": profile,
        "seed": plan.seed,
        "seconds": round(summary.seconds, 3),
        "kept_failures_tried": summary.tried,
        "machine_examples": summary.machine_examples,
        "machine_calls": summary.machine_calls,
        "examples": summary.examples,
        "calls": summary.calls,
        "walks": summary.jobs.as_json(),
        "notices": summary.notices,
        "failure": None,
        "lost": None if summary.lost is None else summary.lost._asdict(),
    }
