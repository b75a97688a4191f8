"""The command `kvspec replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table

from conformance.commands.logs import factory
from conformance.commands.replay_log import replay_log_command
from conformance.driving.replay import ReplayPlan, Report, replay
from conformance.lockstep import Check
from conformance.logs.oplog import is_log
from conformance.output import (
    BAD_INPUT,
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    between,
    counted,
    err,
    out,
    refuse_bad_output,
    write_output,
)
from conformance.workloads.workload import TraceError, open_trace

MAX_BLOCKS = 20_000_000

TraceFile = Annotated[
    Path,
    typer.Argument(
        help="A Mooncake JSONL or a kv-cache-tester JSON file, or an operation log.",
        show_default=False,
    ),
]
SubjectName = Annotated[
    str | None,
    typer.Option(
        "--subject",
        help="The manager: reference, reference-builtin, module:Class. Default: reference, and for "
        "a log the one that it names.",
    ),
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
        help="Tokens of a block. 1 replays one token for each id of the trace: the same hits as "
        "with blocks of one id, and figures in the trace's own tokens.",
        callback=between(1, 1 << 20, "a block holds at least one token"),
    ),
]
Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential/--batch",
        help="One prompt to its end before the next; or many at once, with chunks, decode and "
        "preemption.",
    ),
]
Checked = Annotated[
    str,
    typer.Option(
        "--check",
        help="full: everything after every call. incremental: what a call touched, and everything "
        "now and then. off: the manager alone.",
        metavar="full|incremental|off",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        help="Use the first K requests.",
        callback=between(1, 1 << 31, "a replay needs a request"),
        metavar="K",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        help="Sliding window, in tokens of the replay. Default: full attention.",
        callback=between(2, 1 << 31, "a query reads itself and at least one token before it"),
    ),
]
NoCaching = Annotated[bool, typer.Option("--no-caching", help="Switch prefix caching off.")]
JsonOut = Annotated[
    Path | None, typer.Option(help="Write the report to this file too.", metavar="OUT")
]


def replay_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    ctx: typer.Context,
    trace: TraceFile,
    subject: SubjectName = None,
    blocks: Blocks = 10_001,
    block_size: BlockSize = 1,
    sequential: Sequential = True,  # noqa: FBT002  # a flag of the command line is a boolean
    check: Checked = "incremental",
    limit: Limit = None,
    window: Window = None,
    no_caching: NoCaching = False,  # noqa: FBT002  # the same
    json: JsonOut = None,
) -> None:
    """Replay a request trace or an operation log on a manager, in lockstep with the specification.

    A log says itself what pool it was recorded on; the options for that are refused.

    Exit status: 0 clean, 1 violation, 2 bad input, 130 interrupted.
    """
    _refuse_bad_options(check, json, trace)
    if is_log(trace):
        replay_log_command(ctx, trace, subject, check, json)
    plan = ReplayPlan(
        num_blocks=blocks,
        block_size=block_size,
        batch=not sequential,
        check=cast("Check", check),
        window=window,
        caching=not no_caching,
    )
    made = factory(subject, plan.config())(plan.config()) if subject else None
    try:
        workload = open_trace(trace, block_size, limit)
        for notice in workload.notices:
            err.print(f"kvspec: {notice}", style="yellow", soft_wrap=True)
        with counted() as progress:
            task = progress.add_task(workload.name, total=workload.num_requests)
            report = replay(workload, plan, lambda n: progress.update(task, completed=n), made)
            progress.update(task, completed=report.requests)
    except TraceError as error:
        err.print(f"kvspec: {error}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from error
    _show(report)
    if json is not None:
        write_output(json, report.model_dump_json(indent=2) + "\n")
    raise typer.Exit(
        {"violation": VIOLATION, "interrupted": INTERRUPTED}.get(report.verdict, CLEAN)
    )


def _refuse_bad_options(check: str, json: Path | None, trace: Path) -> None:
    if check not in ("full", "incremental", "off"):
        raise typer.BadParameter(
            f"{check!r} is none of full, incremental, off", param_hint="--check"
        )
    if json is not None:
        refuse_bad_output(json, trace)


def _show(report: Report) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "workload": f"{report.workload}, {report.mode}",
        "pool": f"{report.num_gpu_blocks:,} blocks with null, of {_block(report)}, "
        + _attention(report)
        + ("" if report.caching else ", caching off"),
        "requests": f"{report.requests:,}: {report.served:,} served, "
        f"{report.num_refused:,} refused",
        "input tokens": f"{report.input_tokens:,}",
        "hit tokens": f"{report.hit_tokens:,}",
        "hit rate": f"{report.hit_rate:.2%}",
        "evictions": f"{report.evictions:,}",
        "preemptions": f"{report.preemptions:,}",
        "refusals": f"{report.no_room:,} for now, {report.num_refused:,} for ever"
        + (f", {report.starved:,} given up" if report.starved else ""),
        "peak usage": f"{report.peak_usage:.2%}",
        "calls": f"{report.calls:,}, {report.calls_per_second:,.0f} a second",
        "blocks": f"{report.blocks:,}, {report.blocks_per_second:,.0f} a second",
        "calls checked": f"{report.calls_checked:,} ({report.check})",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)
    for rid, text in report.refused.items():
        out.print(f"refused: {rid}: {text}", style="yellow", soft_wrap=True)
    if report.num_refused > len(report.refused):
        out.print(f"refused: {report.num_refused - len(report.refused):,} more like these")
    if report.violation:
        out.print(report.violation, style="red", soft_wrap=True)
        out.print(report.details or "", soft_wrap=True)
    style = {"clean": "green", "violation": "red"}.get(report.verdict, "yellow")
    out.print(f"verdict: {report.verdict} ({report.seconds:.1f} s)", style=style)


def _attention(report: Report) -> str:
    if report.window is None:
        return "full attention"
    scale = report.tokens_per_id
    of_trace = f" ({report.window * scale:,} of the trace)" if scale > 1 else ""
    return f"window {report.window:,}{of_trace}"


def _block(report: Report) -> str:
    size = f"{report.block_size:,} token{'s' if report.block_size > 1 else ''}"
    if report.tokens_per_id > 1:
        return f"{size} for {report.tokens_per_id:,} of the trace"
    return size
