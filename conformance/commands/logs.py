"""What the commands that read an operation log share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.table import Table

from conformance.logs.log_runs import LogReport
from conformance.logs.oplog import Log, LogError, read_log
from conformance.output import BAD_INPUT, CLEAN, INTERRUPTED, VIOLATION, counted, err, out
from conformance.program import Factory
from conformance.subjects import UnknownSubjectError, find_subject
from spec.state import Config


def refuse(problem: object) -> typer.Exit:
    """Say what is wrong with what was given and return the way out."""
    err.print(f"kvspec: {problem}", style="red", soft_wrap=True)
    return typer.Exit(BAD_INPUT)


def opened(path: Path) -> Log:
    """Return the log in a file; say what is wrong with it and end where it is none."""
    try:
        return read_log(path)
    except LogError as error:
        raise refuse(error) from error


def factory(name: str, config: Config) -> Factory:
    """Return what makes the subject; say why and end where there is none, or it does not start."""
    try:
        make = find_subject(name)
    except UnknownSubjectError as error:
        raise refuse(f"--subject {error}") from error
    try:
        make(config)
    except Exception as error:
        what = f"--subject {name!r} does not start with {config}: {type(error).__name__}: {error}"
        raise refuse(f"{what}; give another configuration or subject") from error
    return make


@contextmanager
def progressing(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar while the work lasts; yield what tells it how far the work is."""
    with counted() as progress:
        task = progress.add_task(title, total=total)
        yield lambda n: progress.update(task, completed=n)


def show(report: LogReport) -> typer.Exit:
    """Print a report and return the way out that its verdict means."""
    for notice in report.notices:
        err.print(f"kvspec: {notice}", style="yellow", soft_wrap=True)
    left_out = report.calls - report.calls_checked
    rows = {
        "log": report.log,
        "subject": report.subject,
        "calls": f"{report.calls:,}" + (f", {left_out:,} left out" if left_out else ""),
        "checked": f"{report.calls_checked:,}, {report.calls_per_second:,.0f} a second",
    }
    if report.snapshots is not None:
        rows["snapshots"] = f"{report.snapshots:,}"
    show_rows(rows)
    show_verdict(report.verdict, report.seconds, report.violation, report.details)
    ends = {"violation": VIOLATION, "interrupted": INTERRUPTED}
    return typer.Exit(ends.get(report.verdict, CLEAN))


def show_rows(rows: Mapping[str, str]) -> None:
    """Print figures, a name and a value a line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)


def show_verdict(verdict: str, seconds: float, violation: str | None, details: str | None) -> None:
    """Print the violation, where there is one, and the verdict."""
    if violation is not None:
        out.print(violation, style="red", soft_wrap=True)
        out.print(details or "", soft_wrap=True)
    style = {"clean": "green", "recorded": "green", "violation": "red"}.get(verdict, "yellow")
    out.print(f"verdict: {verdict} ({seconds:.1f} s)", style=style)
