"""Replays a workload on a subject, alone or in lockstep with the specification, and reports."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from conformance.adapters.reference import Reference
from conformance.driving.batch import Batch, BatchLimits
from conformance.driving.driver import Tally, serve_sequentially
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.subject import Refusal, Served, Subject
from conformance.workloads.workload import Workload
from spec.state import Config

TOKEN_BUDGET = 8192
"""Tokens of the trace that a batch step may hold."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """How a workload is replayed. `num_blocks` counts the null block."""

    num_blocks: int = 10_001
    block_size: int = 1
    batch: bool = False
    check: Check = "incremental"
    window: int | None = None
    caching: bool = True
    num_drafts: int = 0
    caching_hash_algo: str = "sha256"
    sweep_every: int | None = None

    def config(self) -> Config:
        """Return the configuration of the pool; no model's length limits a replay."""
        return Config(
            num_gpu_blocks=self.num_blocks,
            block_size=self.block_size,
            enable_caching=self.caching,
            sliding_window=self.window,
        )


Verdict = Literal["clean", "not checked", "violation", "interrupted"]


class Report(BaseModel):
    """The outcome of a replay. Tokens are the trace's own."""

    model_config = ConfigDict(frozen=True)

    workload: str
    subject: str
    mode: Literal["sequential", "batch"]
    check: Check
    num_gpu_blocks: int
    block_size: int
    tokens_per_id: int
    window: int | None
    caching: bool
    requests: int
    served: int
    num_refused: int
    refused: dict[str, str]
    input_tokens: int
    output_tokens: int
    hit_tokens: int
    hit_rate: float
    blocks: int
    evictions: int
    preemptions: int
    no_room: int
    starved: int
    peak_usage: float
    steps: int
    calls: int
    calls_checked: int = 0
    seconds: float
    calls_per_second: float
    blocks_per_second: float
    verdict: Verdict = "not checked"
    violation: str | None = None
    details: str | None = None
    notices: list[str] = []


COUNTED = (
    "requests",
    "served",
    "num_refused",
    "refused",
    "input_tokens",
    "blocks",
    "preemptions",
    "no_room",
    "starved",
    "steps",
    "calls",
)
"""What a report takes over from a tally as it is."""


def replay(
    workload: Workload,
    plan: ReplayPlan,
    on_progress: Callable[[int], None] = lambda _: None,
    subject: Subject | None = None,
) -> Report:
    """Replay a workload to its end, to the first violation, or to Ctrl-C, and report.

    `on_progress` is told the number of requests that ended, now and then.
    """
    subject = subject or Reference(plan.config(), plan.caching_hash_algo)
    pair = None if plan.check == "off" else Lockstep(subject, plan.check, plan.sweep_every)
    served: Served = subject if pair is None else pair
    tally = Tally()
    ends = _driver(served, workload, tally, plan)
    verdict: Verdict = "not checked"
    violation = details = None
    # The pool lives as long as the run does: the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    try:
        _drain(ends, on_progress)
        if pair is not None:
            pair.sweep()
            verdict = "clean"
    except KeyboardInterrupt:
        verdict = "interrupted"
    except Divergence as found:
        verdict, violation, details = "violation", str(found), found.details
    except Refusal as refusal:
        verdict, details = "violation", f"  {refusal.text}"
        violation = (
            f"kvspec violation: property=refinement call={tally.calls} driver block=- "
            f"expected=accepted actual=refused:{refusal.rule} holders=- found_by=driver"
        )
    finally:
        gc.unfreeze()
    seconds = max(time.perf_counter() - started, 1e-9)
    report = _report(workload, plan, subject, tally, seconds)
    return report.model_copy(
        update={
            "calls_checked": 0 if pair is None else pair.calls,
            "verdict": verdict,
            "violation": violation,
            "details": details,
        }
    )


def _report(
    workload: Workload, plan: ReplayPlan, subject: Subject, tally: Tally, seconds: float
) -> Report:
    scale, usable = workload.tokens_per_id, plan.num_blocks - 1
    return Report(
        workload=printable(workload.name),
        subject=subject.name,
        mode="batch" if plan.batch else "sequential",
        check=plan.check,
        num_gpu_blocks=plan.num_blocks,
        block_size=plan.block_size,
        tokens_per_id=scale,
        window=plan.window,
        caching=plan.caching,
        output_tokens=tally.output_tokens * scale,
        hit_tokens=tally.hit_tokens * scale,
        hit_rate=tally.hit_tokens * scale / max(1, tally.input_tokens),
        evictions=subject.num_evictions(),
        peak_usage=0.0 if tally.least_free is None else 1 - tally.least_free / usable,
        seconds=seconds,
        calls_per_second=tally.calls / seconds,
        blocks_per_second=tally.blocks / seconds,
        notices=[printable(notice) for notice in workload.notices],
        **{name: getattr(tally, name) for name in COUNTED},
    )


def _driver(served: Served, workload: Workload, tally: Tally, plan: ReplayPlan) -> Iterator[int]:
    if not plan.batch:
        return serve_sequentially(served, workload, tally)
    budget = max(1, TOKEN_BUDGET // workload.tokens_per_id)
    return Batch(served, workload, tally, BatchLimits(budget, num_drafts=plan.num_drafts)).serve()


def _drain(ends: Iterator[int], on_progress: Callable[[int], None]) -> None:
    for step, requests in enumerate(ends):
        if step % 64 == 0:
            on_progress(requests)


def printable(text: str) -> str:
    """Return a text in which bytes that are no characters, as in file names, are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
