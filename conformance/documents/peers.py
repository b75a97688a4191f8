"""Records what was found of real vLLM, and writes its section of `docs/results.md`.

Needs the releases that `make peers` installs, and runs with the interpreter beside them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from conformance.conforming.conform import Report, Violation, report_of
from conformance.conforming.declarations import declared_of
from conformance.conforming.search import Search
from conformance.documents.results import read, write
from conformance.output import out
from conformance.scheduler.report import known
from conformance.scheduler.search import Aim, Tally, search
from conformance.subjects import find_subject

SUBJECTS: Final = ("reference", "vllm-0.8.5", "vllm")
SECONDS: Final = 60
"""How long each subject is searched."""

SCHEDULER_SECONDS: Final = 120
MONITOR: Final = Path(__file__).parents[2] / "benchmarks" / "monitor.py"


def record_conform() -> bool:
    """Search each subject for all that is wrong with it; return whether all of it is declared."""
    found: dict[str, Any] = {}
    for name in SUBJECTS:
        make = find_subject(name)
        searched = Search(name, make, 0)
        searched.run(SECONDS)
        report = report_of(searched, make, declared_of(name))
        found[name] = _summary(report)
        out.print(f"conform {name}: {report.verdict}, {len(report.violations)} violations")
    write("conform", {"seconds": SECONDS, "subjects": found})
    return all(entry["verdict"] != "violation" for entry in found.values())


def _summary(report: Report) -> dict[str, Any]:
    return {
        "release": report.release,
        "verdict": report.verdict,
        "calls": report.calls,
        "examples": report.examples,
        "held": [one.property for one in report.held],
        "not_applicable": {one.name: one.why for one in report.not_applicable},
        "violations": [_violation(one) for one in report.violations],
        "rules_not_enforced": sorted({one.rule for one in report.misuse if one.silent}),
    }


def _violation(one: Violation) -> dict[str, Any]:
    return {
        "property": one.property,
        "action": one.action,
        "answer": one.answer,
        "observation": one.observation,
        "declared": one.declared,
        "calls": len(one.calls),
        "line": one.line,
        "after_seconds": one.found_after_seconds,
        "after_calls": one.found_after_calls,
    }


def record_scheduler() -> bool:
    """Search vLLM's schedulers; return whether what is known is found, and nothing else."""
    searches = [
        (policy, kind, search(Aim(policy, kind), SCHEDULER_SECONDS))
        for policy in ("fcfs", "priority")
        for kind in ("sync", "async")
    ]
    done = {f"{policy}, {kind}": _tally(tally) for policy, kind, tally in searches}
    write("scheduler", {"seconds": SCHEDULER_SECONDS, "searches": done})
    out.print(f"scheduler: {done}", soft_wrap=True)
    return all(
        tally.found is None if policy == "fcfs" else known(tally) is not None
        for policy, _, tally in searches
    )


def _tally(tally: Tally) -> dict[str, Any]:
    data: dict[str, Any] = {
        "scripts": tally.num_scripts,
        "steps": tally.num_steps,
        "preempted": tally.num_preempted,
        "steps_per_second": round(tally.steps_per_second),
    }
    if tally.found is not None:
        upstream = known(tally)
        data |= {
            "line": str(tally.found.divergence),
            "after_seconds": round(tally.found.seconds, 1),
            "steps_of_the_script": tally.found.run.script.num_steps,
            "upstream": list(upstream.where) if upstream else [],
        }
    return data


def record_monitor() -> bool:
    """Measure what watching costs vLLM's scheduler; return whether it is within the bound."""
    done = subprocess.run(  # noqa: S603  # our own benchmark, by our own interpreter
        [sys.executable, str(MONITOR)], capture_output=True, text=True, check=False
    )
    write("monitor", {"printed": done.stdout.splitlines()})
    out.print(done.stdout + done.stderr)
    return done.returncode == 0


def peers_section() -> Iterator[str]:
    """Yield what was found of real vLLM."""
    conform, scheduler, monitor = read("conform"), read("scheduler"), read("monitor")
    if not (conform and scheduler and monitor):
        return
    yield "## Real vLLM\n"
    yield (
        "Recorded by `.venv-peers/bin/python -m conformance.documents.recording conform scheduler "
        f"monitor` (Python {conform['python']}, {conform['machine']}), on the releases that "
        "`make peers` installs. "
        f"`kvspec conform SUBJECT` searches again; here {conform['seconds']} seconds each.\n"
    )
    yield "| subject | calls | properties held | violations | misuse let pass |"
    yield "|---|---|---|---|---|"
    for name, entry in conform["subjects"].items():
        silent = len(entry["rules_not_enforced"])
        counts = f"{len(entry['held'])} | {len(entry['violations'])} | {silent}"
        yield f"| `{name}` | {entry['calls']:,} | {counts} |"
    for name, entry in conform["subjects"].items():
        yield from _violations(name, entry)
    yield from _schedulers(scheduler)
    yield "\n### The live monitor\n"
    yield "`benchmarks/monitor.py` printed:\n\n```"
    yield from monitor["printed"]
    yield "```\n"


def _violations(name: str, entry: Mapping[str, Any]) -> Iterator[str]:
    if not entry["violations"]:
        return
    yield f"\n### What the search finds in `{name}`\n"
    yield "| property | call | the manager's answer | fewest calls | found after | known as |"
    yield "|---|---|---|---|---|---|"
    for one in entry["violations"]:
        answer = one["observation"] or one["answer"]
        after = f"{one['after_seconds']:.1f} s, {one['after_calls']:,} calls"
        says = one["declared"] or "**not declared**"
        cells = (f"`{one['property']}`", f"`{one['action']}`", answer, one["calls"], after, says)
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _schedulers(scheduler: Mapping[str, Any]) -> Iterator[str]:
    yield "\n### vLLM 0.33.0's own scheduler\n"
    yield (
        f"`kvspec scheduler`, up to {scheduler['seconds']} seconds each: random workloads, "
        "its pool checked at every step.\n"
    )
    yield "| policy, scheduler | steps checked | preempted | a second | found | after | script |"
    yield "|---|---|---|---|---|---|---|"
    for name, entry in scheduler["searches"].items():
        steps = f"{entry['steps']:,} | {entry['preempted']:,} | {entry['steps_per_second']:,}"
        line = entry.get("line")
        if line is None:
            yield f"| {name} | {steps} | nothing | - | - |"
            continue
        found = line.split("property=")[1].split()[0]
        upstream = ", ".join(entry["upstream"]) or "not known upstream"
        length = f"{entry['steps_of_the_script']} steps"
        yield (
            f"| {name} | {steps} | `{found}` ({upstream}) | {entry['after_seconds']} s | {length} |"
        )
