"""The command `kvspec record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from conformance.commands.logs import factory, progressing, refuse, show_rows, show_verdict
from conformance.commands.record_scheduler import record_scheduler
from conformance.commands.replay import MAX_BLOCKS, Sequential, Window
from conformance.driving.replay import ReplayPlan, Report, replay
from conformance.logs.oplog import SMALL_POOL, Header, LogError, LogWriter, logged
from conformance.output import CLEAN, INTERRUPTED, VIOLATION, between, refuse_bad_output
from conformance.scheduler.search import Aim
from conformance.subject import Subject
from conformance.workloads.workload import GeneratedWorkload, TraceError, Workload, open_trace

Trace = Annotated[
    Path | None,
    typer.Argument(help="A Mooncake JSONL or a kv-cache-tester JSON file.", show_default=False),
]
Out = Annotated[Path, typer.Option(help="Write the log to this file.", show_default=False)]
Generated = Annotated[
    int | None,
    typer.Option(
        help="Make so many requests instead of reading a trace.",
        callback=between(1, 1 << 31, "a recording needs a request"),
        metavar="N",
    ),
]
Seed = Annotated[int, typer.Option(help="What determines the generated requests.")]
SubjectName = Annotated[
    str, typer.Option("--subject", help="The manager: reference, reference-builtin, module:Class.")
]
Blocks = Annotated[
    int,
    typer.Option(
        help="Blocks of the pool, null included.",
        callback=between(2, MAX_BLOCKS, "a pool has null and at least one block to hand out"),
    ),
]
BlockSize = Annotated[
    int,
    typer.Option(
        help="Tokens of a block. 1 makes one token of each id of a trace.",
        callback=between(1, 1 << 20, "a block holds at least one token"),
    ),
]
SnapshotEvery = Annotated[
    int | None,
    typer.Option(
        help="Show the whole manager at each K-th call. Default: at each call in a pool of up to "
        "64 blocks, else at each 1,000th.",
        callback=between(1, 1 << 31, "a log shows the manager at each so-manieth call"),
        metavar="K",
    ),
]

SchedulerKind = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        help="Record vLLM's own scheduler instead of a manager, with --generated N; --blocks is "
        "then drawn from the seed unless it is 64 or less.",
        metavar="sync|async",
    ),
]
Policy = Annotated[
    str, typer.Option(help="With --scheduler: whom it serves first.", metavar="priority|fcfs")
]


def record_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    out: Out,
    trace: Trace = None,
    generated: Generated = None,
    seed: Seed = 0,
    subject: SubjectName = "reference",
    blocks: Blocks = 10_001,
    block_size: BlockSize = 1,
    window: Window = None,
    sequential: Sequential = True,  # noqa: FBT002  # a flag of the command line is a boolean
    snapshot_every: SnapshotEvery = None,
    scheduler: SchedulerKind = None,
    policy: Policy = "fcfs",
) -> None:
    """Drive a workload on a manager alone and write down every call and its answer.

    With --scheduler the states of vLLM's own scheduler are written, which `validate` judges.

    Exit status: 0 recorded, 1 the manager crashed or refused what a driver may ask, 2 bad input,
    130 interrupted.
    """
    if (trace is None) == (generated is None):
        what = "give one of a trace and --generated N" + (", not both" if trace else "")
        raise typer.BadParameter(what, param_hint="TRACE")
    refuse_bad_output(out, *([trace] if trace else []), option="--out")
    if scheduler is not None:
        if generated is None:
            raise typer.BadParameter("a trace is not served so; give --generated N")
        aim = Aim(policy, scheduler, seed, blocks if blocks <= SMALL_POOL else None)
        raise record_scheduler(out, aim, generated)
    plan = ReplayPlan(
        num_blocks=blocks, block_size=block_size, batch=not sequential, check="off", window=window
    )
    made = factory(subject, plan.config())(plan.config())
    config = plan.config()._replace(free_rule=made.capabilities.free_rule)
    header = Header.of(config, subject, seed if generated else None, "kvspec record")
    try:
        work = _workload(trace, generated, seed, block_size)
        with LogWriter(out, header, snapshot_every) as writer:
            _record(work, plan, made, writer)
    except (LogError, TraceError) as error:
        raise refuse(error) from error


def _workload(trace: Path | None, generated: int | None, seed: int, block_size: int) -> Workload:
    if trace is not None:
        return open_trace(trace, block_size)
    return GeneratedWorkload(seed, cast("int", generated), block_size)


def _record(work: Workload, plan: ReplayPlan, made: Subject, writer: LogWriter) -> None:
    """Record to the end, to Ctrl-C, or to the manager's crash; print what was written and leave."""
    crash = None
    report: Report | None = None
    with progressing(work.name, work.num_requests) as on_progress:
        try:
            report = replay(work, plan, on_progress, logged(made, writer))
        except (LogError, TraceError):
            raise
        except Exception as error:  # noqa: BLE001  # a manager that crashes is a finding
            crash = f"call {writer.calls} raised {type(error).__name__}: {error}"
    rows = {"log": str(writer.path), "subject": made.name, "calls": f"{writer.calls:,}"}
    if report is None:
        show_rows(rows)
        show_verdict("violation", 0.0, crash, "  the log ends with that call: kvspec shrink it")
        raise typer.Exit(VIOLATION)
    rows["calls"] += f", {writer.calls / report.seconds:,.0f} a second"
    rows["requests"] = f"{report.requests:,}: {report.served:,} served"
    show_rows(rows)
    verdict = "recorded" if report.verdict == "not checked" else report.verdict
    show_verdict(verdict, report.seconds, report.violation, report.details)
    raise typer.Exit({"recorded": CLEAN, "interrupted": INTERRUPTED}.get(verdict, VIOLATION))
