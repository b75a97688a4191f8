"""The command `kvspec explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.logs import factory, opened, progressing, refuse
from conformance.exhaustive.production import quiet
from conformance.logs.oplog import LogError
from conformance.output import (
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    between,
    err,
    out,
    refuse_bad_output,
    write_output,
)
from conformance.pictures.explain import Explained, explained
from conformance.pictures.explain_page import explain_page
from conformance.pictures.explain_text import show

LogFile = Annotated[
    Path, typer.Argument(help="An operation log, as `kvspec record` writes it.", show_default=False)
]
SubjectName = Annotated[
    str | None,
    typer.Option(
        "--subject", help="The manager to run it on. Default: the one that the log names."
    ),
]
HtmlOut = Annotated[
    Path | None, typer.Option("--html", help="Write it as one HTML page.", metavar="OUT")
]
Last = Annotated[
    int,
    typer.Option(
        "--last",
        help="Show the last N calls.",
        callback=between(1, 1_000_000, "a table needs a row"),
        metavar="N",
    ),
]


def explain_command(
    log: LogFile,
    subject: SubjectName = None,
    html: HtmlOut = None,
    last: Last = 40,
) -> None:
    """Show a log call by call: what every block held, and where and why the two sides part.

    The calls are made again on a fresh manager beside the specification; what the log answers does
    not count (`kvspec validate` compares that).

    Exit status: 0 clean, 1 violation, 2 bad input, 130 interrupted.
    """
    if html is not None:
        refuse_bad_output(html, log, option="--html")
    try:
        seen = _performed(log, subject)
        show(seen, out, last)
        out.print(_verdict(seen))
        if html is not None:
            write_output(html, explain_page(seen))
    except KeyboardInterrupt as interrupt:
        err.print("kvspec: interrupted before there was everything to show", style="yellow")
        raise typer.Exit(INTERRUPTED) from interrupt
    if seen.divergence is not None:
        raise typer.Exit(VIOLATION)
    raise typer.Exit(INTERRUPTED if seen.interrupted else CLEAN)


def _performed(path: Path, subject: str | None) -> Explained:
    log = opened(path)
    make = factory(subject or log.header.subject, log.header.settings)
    try:
        program = log.program()
    except LogError as error:
        raise refuse(error) from error
    for notice in log.notices:
        err.print(f"kvspec: {notice}", style="yellow", soft_wrap=True)
    with quiet(), progressing("calls", len(program.operations)) as on_call:
        return explained(program, make, on_call=on_call)


def _verdict(seen: Explained) -> str:
    if seen.divergence is not None:
        return "verdict: violation"
    calls = f"{seen.total:,} call{'' if seen.total == 1 else 's'}"
    return f"verdict: interrupted after {calls}" if seen.interrupted else f"verdict: clean, {calls}"
