"""The tensor level in one command: `python -m gpu.ci --device cpu|cuda --budget SECONDS`.

Stages run in order, each within its share of the time that is left, and each says one line. The
exit status is 0 for a clean verdict, 1 for a violation or where something did not fit into the
budget, 2 for what cannot be done here, 130 after Ctrl-C. With `--json OUT` every figure is written
down, also where the run was broken off. No network is used and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from conformance.workloads.workload import GeneratedWorkload, TraceError, Workload, open_trace
from gpu.scheduling import Work
from gpu.stages import STAGES, Outcome, Plan

CLEAN, VIOLATION, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

DEFAULT_BUDGET_S: Final = {"cpu": 150.0, "cuda": 520.0}
TRACES_VARIABLE: Final = "KVSPEC_TRACES"
NUM_TRACED: Final = 40
MAX_TOKENS: Final = 400
MIN_OUTPUT, MAX_OUTPUT = 2, 6


@dataclass(frozen=True)
class Ran:
    """A stage that ran, or that had no time left."""

    name: str
    verdict: str
    line: str
    seconds: float
    figures: Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages and return the exit status."""
    given = _arguments(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        return _refuse("--device cuda: torch finds no CUDA device; use --device cpu")
    if not given.budget > 0:
        return _refuse(f"--budget {given.budget:g}: give more than 0 seconds")
    if given.json is not None and not given.json.parent.is_dir():
        return _refuse(f"--json {given.json}: {given.json.parent} is no folder; make it first")
    torch.set_num_threads(1)
    # Faults are meant to be seen; what a shield says of each would drown the lines below.
    logging.getLogger("kvspec.shield").setLevel(logging.CRITICAL)
    begun, ran, is_broken_off = time.monotonic(), [], False
    try:
        for one in run_stages(given.device, given.budget, given.stage or list(STAGES)):
            ran.append(one)
            _say(f"{one.name:<12} {one.verdict:<11} {one.seconds:6.1f} s  {one.line}")
    except KeyboardInterrupt:
        is_broken_off = True
    verdict = "interrupted" if is_broken_off else verdict_of(ran)
    spent = time.monotonic() - begun
    if given.json is not None:
        _write(given.json, given.device, verdict, spent, ran)
    _say(f"verdict: {verdict} ({len(ran)} stages, {spent:.0f} s of {given.budget:g} s)")
    if is_broken_off:
        return INTERRUPTED
    return CLEAN if verdict == "clean" else VIOLATION


def run_stages(device: str, budget_s: float, names: Sequence[str]) -> Iterator[Ran]:
    """Yield each stage when it is over; one that has no time left is not begun."""
    begun = time.monotonic()
    workloads, missing = workloads_for()
    plan = Plan(device, workloads, missing)
    wanted = [name for name in STAGES if name in names]
    for number, name in enumerate(wanted):
        stage, share = STAGES[name]
        left = budget_s - (time.monotonic() - begun)
        if left <= 0:
            yield Ran(name, "incomplete", "not run: the budget was used up", 0.0, {})
            continue
        later = sum(STAGES[other][1] for other in wanted[number:])
        started = time.monotonic()
        outcome: Outcome = stage(plan, left * share / later)
        spent = time.monotonic() - started
        line = outcome.line
        if outcome.verdict == "incomplete":
            line += "; the rest did not fit into the budget"
        yield Ran(name, outcome.verdict, line, spent, outcome.figures)


def verdict_of(ran: Sequence[Ran]) -> str:
    """`violation` where one stage has one, else `incomplete` where one is, else `clean`."""
    verdicts = {one.verdict for one in ran}
    return next((v for v in ("violation", "incomplete") if v in verdicts), "clean")


def workloads_for() -> tuple[dict[str, tuple[int, list[Work]]], list[str]]:
    """The requests of the bundled sample and of a Mooncake trace at reduced length.

    A trace is there when `KVSPEC_TRACES` names the folder of the traces; else it is named as
    missing, with the reason. Each of its blocks of 512 tokens becomes a block of one token.
    """
    found = {"generated": (4, _work_of(GeneratedWorkload(1, NUM_TRACED, 4)))}
    folder = os.environ.get(TRACES_VARIABLE)
    if not folder:
        return found, [f"Mooncake: {TRACES_VARIABLE} is not set"]
    path = Path(folder) / "mooncake" / "conversation_trace.jsonl"
    try:
        found["mooncake"] = (1, _work_of(open_trace(path, 1, NUM_TRACED)))
    except (OSError, TraceError) as error:
        return found, [f"Mooncake: {error}"]
    return found, []


def _work_of(workload: Workload) -> list[Work]:
    return [
        Work(
            item.request_id,
            list(item.prompt_token_ids)[:MAX_TOKENS],
            min(max(MIN_OUTPUT, item.output_length), MAX_OUTPUT),
        )
        for item in islice(workload, NUM_TRACED)
    ]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu.ci", description=main.__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every figure there")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this; may repeat")
    given = parser.parse_args(arguments)
    if given.budget is None:
        given.budget = DEFAULT_BUDGET_S[given.device]
    return given


def _write(path: Path, device: str, verdict: str, seconds: float, ran: Sequence[Ran]) -> None:
    """Write the figures; a reader never finds half a file."""
    stages = {
        one.name: {
            "verdict": one.verdict,
            "line": one.line,
            "seconds": round(one.seconds, 2),
            **one.figures,
        }
        for one in ran
    }
    data = {"device": device, "verdict": verdict, "seconds": round(seconds, 1), "stages": stages}
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")
    partial.replace(path)


def _refuse(text: str) -> int:
    sys.stderr.write(f"gpu.ci: {text}\n")
    return BAD_INPUT


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
