"""The command `kvspec conform`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.logs import refuse
from conformance.conforming.conform import Report, known_at, report_of
from conformance.conforming.conform_report import in_full, summary
from conformance.conforming.declarations import Declared, DeclaredError, declared_in, declared_of
from conformance.conforming.search import Search
from conformance.exhaustive.production import quiet
from conformance.fuzzing.findings import Failing, write_finding
from conformance.fuzzing.fuzz import SubjectCannotBeMadeError
from conformance.output import (
    BAD_INPUT,
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    between,
    err,
    out,
    refuse_bad_folder,
    refuse_bad_output,
    write_output,
)
from conformance.program import Factory
from conformance.subjects import UnknownSubjectError, find_subject

MAX_SECONDS = 60 * 60 * 24 * 30
MAX_SEED = (1 << 63) - 1

Name = Annotated[
    str,
    typer.Argument(
        help="reference, reference-builtin, vllm-0.8.5, vllm, or yours as module:Class.",
        metavar="SUBJECT",
        show_default=False,
    ),
]
Seconds = Annotated[
    int,
    typer.Option(
        help="How long to search; what was begun is ended.",
        callback=between(1, MAX_SECONDS, "a search takes some seconds"),
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Fixes what is tried.", callback=between(0, MAX_SEED, "a seed is a whole number")
    ),
]
Expect = Annotated[
    Path | None,
    typer.Option(
        help="Violations that are declared, as TOML. Default: those that come with the subject.",
        metavar="FILE",
        show_default=False,
    ),
]
Every = Annotated[
    bool, typer.Option("--every", help="Exit with 1, too, when a declared one is not found.")
]
Json = Annotated[Path | None, typer.Option(help="Write the report here.", metavar="OUT")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Write test, log, step table and page of each finding here.",
        metavar="DIR",
        show_default=False,
    ),
]


def conform_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    subject: Name,
    seconds: Seconds = 60,
    seed: Seed = 0,
    expect: Expect = None,
    every: Every = False,  # noqa: FBT002  # an option of a command is an argument with a default
    json: Json = None,
    out_folder: Out = None,
) -> None:
    """Search a block manager for everything that is wrong with it, and report.

    The search starts with nothing known. What it finds is shrunk, taken down, and known from then
    on, so that it comes to what lies behind.
    Exit status: 0 clean or declared, 1 violation, 2 bad input, 130 interrupted.
    """
    if json is not None:
        refuse_bad_output(json, *([expect] if expect else []))
    if out_folder is not None:
        refuse_bad_folder(out_folder)
    try:
        declared = declared_of(subject) if expect is None else declared_in(expect)
        make = find_subject(subject)
        with _told() as tell:
            search = Search(subject, make, seed, tell)
            interrupted = _searched(search, seconds)
    except (UnknownSubjectError, DeclaredError, SubjectCannotBeMadeError) as error:
        raise refuse(error) from error
    with quiet():
        report = report_of(search, make, declared, interrupted=interrupted)
    _show(report, declared)
    if json is not None:
        write_output(json, report.model_dump_json(indent=2) + "\n")
    if out_folder is not None:
        _write(search, make, out_folder)
    missed = every and bool(report.declared_and_not_found)
    statuses = {"violation": VIOLATION, "interrupted": INTERRUPTED}
    raise typer.Exit(statuses.get(report.verdict, VIOLATION if missed else CLEAN))


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; silent where nobody looks."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("starting") as status:
        yield status.update


def _searched(search: Search, seconds: int) -> bool:
    """Search; return True when somebody stopped it."""
    try:
        search.run(seconds)
    except KeyboardInterrupt:
        return True
    return False


def _show(report: Report, declared: tuple[Declared, ...]) -> None:
    new = [v for v in report.violations if v.declared is None]
    for violation in new:
        for part, style in in_full(violation):
            out.print(part, style=style, soft_wrap=True)
        out.print()
    out.print(summary(report))
    style = "red" if new else "green"
    said = f"{len(new)} of {len(report.violations)} violations not declared"
    if report.verdict == "interrupted":
        said, style = "interrupted; the report says what was found by then", "yellow"
    elif not report.violations:
        said = "clean"
    elif not new:
        said = f"no violations but {len(report.violations)} that are declared"
    elif not declared:
        said = f"{len(new)} violations"
    out.print(f"verdict: {said}", style=style, soft_wrap=True)


def _write(search: Search, make: Factory, folder: Path) -> None:
    """Write the files of each finding."""
    try:
        for found in search.tally.found:
            failing = Failing(found.program, found.divergence, search.name, "full", found.masked)
            forgiving = known_at(found).forgiving(make)
            with quiet():
                paths = write_finding(folder, failing, forgiving, search.seed, "kvspec conform")
            out.print(f"wrote {paths.test} and three more", soft_wrap=True)
    except OSError as error:
        err.print(f"kvspec: not all files could be written: {error}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from error
