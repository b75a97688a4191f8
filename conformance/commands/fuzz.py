"""The command `kvspec fuzz`."""

from __future__ import annotations

import json as jsonlib
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from conformance.exhaustive.production import quiet
from conformance.fuzzing.campaign import PROFILES, Caught, Plan, Summary, run_campaign
from conformance.fuzzing.campaign_report import as_json, figures, summary_lines
from conformance.fuzzing.findings import DATABASE, Failing, Failures, write_finding
from conformance.fuzzing.fuzz import PROBE, SubjectCannotBeMadeError, made
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
from conformance.shrinking.shrink import Shrinker
from conformance.subjects import BUILT_IN, UnknownSubjectError, find_subject

MAX_MINUTES = 60 * 24 * 30
MAX_SEED = (1 << 63) - 1


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # What is not a number is in no interval.
    if not 0 < value <= MAX_MINUTES:
        raise typer.BadParameter(
            f"{text!r}: a run takes some time; give more than 0 and at most {MAX_MINUTES:,} minutes"
        )
    return value


def _profile(value: str) -> str:
    if value not in PROFILES:
        raise typer.BadParameter(f"{value!r} is no profile; give one of {', '.join(PROFILES)}")
    return value


def _subjects(values: list[str]) -> list[str]:
    for name in values:
        try:
            made(find_subject(name), name, PROBE)
        except (UnknownSubjectError, SubjectCannotBeMadeError) as error:
            raise typer.BadParameter(str(error)) from error
        except Exception as error:
            problem = f"{name!r} cannot be imported: {type(error).__name__}: {error}; mend it"
            raise typer.BadParameter(problem) from error
    return list(dict.fromkeys(values))


def _folder(option: str) -> Callable[[Path], Path]:
    """Return a check of an option's folder: it is there and can be written, or can be made."""

    def checked(path: Path) -> Path:
        refuse_bad_folder(path, option)
        return path

    return checked


Minutes = Annotated[
    float | None,
    typer.Option(
        help="How long to run. Default: by profile.",
        parser=_minutes,
        metavar="FLOAT",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Fixes what is tried. Default: drawn and printed; 0 in the profile ci.",
        callback=between(0, MAX_SEED, "a seed is a whole number"),
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option(help="Processes.", callback=between(1, 256, "somebody must do the work"))
]
Subjects = Annotated[
    list[str],
    typer.Option(
        "--subject",
        help="A block manager, ours or yours as module:Class. May be given several times.",
        metavar="NAME",
        callback=_subjects,
    ),
]
ProfileName = Annotated[
    str,
    typer.Option(
        help="dev: half a minute. ci: two minutes, the same every time. soak: an hour.",
        metavar="dev|ci|soak",
        callback=_profile,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", help="Write the files of a failure here.", metavar="DIR", callback=_folder("--out")
    ),
]
Database = Annotated[
    Path,
    typer.Option(
        help="Failures are kept here and tried first the next time.",
        metavar="DIR",
        callback=_folder("--database"),
    ),
]


def fuzz_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    minutes: Minutes = None,
    seed: Seed = None,
    jobs: Jobs = 1,
    subjects: Subjects = list(BUILT_IN),  # noqa: B006  # it is read only
    profile: ProfileName = "dev",
    out_folder: Out = Path(".kvspec/findings"),
    database: Database = DATABASE,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Make random calls on a block manager and on the specification until they part.

    What failed before is tried first, then the state machines, then long random walks. A failure is
    shrunk to a few calls and written as a test to paste, a log, a step table and a page.
    Exit status: 0 clean, 1 violation, 2 bad input, 130 interrupted.
    """
    if json is not None:
        refuse_bad_output(json)
    if out_folder.resolve() == database.resolve():
        raise typer.BadParameter(
            f"{str(out_folder)!r} is the database too; name another folder", param_hint="--out"
        )
    chosen = PROFILES[profile]
    if seed is None:
        seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    seconds = 60 * (chosen.minutes if minutes is None else minutes)
    plan = Plan(subjects, seed, seconds, chosen.examples, jobs)
    out.print(
        f"kvspec fuzz: {', '.join(subjects)}; profile {profile}, {seconds / 60:g} minutes, "
        f"seed {seed}, {jobs} process{'es' * (jobs > 1)}",
        soft_wrap=True,
    )
    failures = Failures(database)
    try:
        with _live(plan) as show:
            summary = run_campaign(plan, failures, show)
    except SubjectCannotBeMadeError as error:
        err.print(f"kvspec: {error}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from error
    for notice in summary.notices:
        out.print(notice, style="yellow", soft_wrap=True)
    report = as_json(plan, profile, summary)
    if summary.caught is not None:
        with quiet():
            report["failure"] = _explain(summary.caught, plan, out_folder, failures)
    _show(summary, plan)
    if json is not None:
        write_output(json, jsonlib.dumps(report, indent=2) + "\n")
    statuses = {"clean": CLEAN, "violation": VIOLATION, "interrupted": INTERRUPTED}
    raise typer.Exit(statuses[summary.verdict])


@contextmanager
def _live(plan: Plan) -> Iterator[Callable[[Summary], None]]:
    """Show on a terminal how far a run is; silent where nobody looks."""
    if not err.is_terminal:
        yield lambda _: None
        return
    spinner = Spinner("dots")
    shown = [Summary()]

    def picture() -> Table:
        summary = shown[0]
        passed = time.perf_counter() - summary.started
        spinner.update(text=f"{summary.stage}, {passed:.0f} of {plan.seconds:.0f} s")
        grid = Table.grid()
        grid.add_row(spinner)
        for line in figures(summary, passed):
            grid.add_row(Text(f"  {line}", no_wrap=True, overflow="ellipsis"))
        return grid

    def show(summary: Summary) -> None:
        shown[0] = summary

    with Live(get_renderable=picture, console=err, transient=True, refresh_per_second=8):
        yield show


def _explain(caught: Caught, plan: Plan, folder: Path, failures: Failures) -> dict[str, Any]:
    """Shrink a failure, print it, and write its files; return what the report says of it."""
    make = find_subject(caught.subject)
    found = _shrunk(caught)
    if found is None:
        out.print(caught.line, style="red", soft_wrap=True)
        out.print(
            f"found {caught.where}; performed once more, the program does not fail: the subject "
            "depends on something besides its calls. Nothing is written.",
            soft_wrap=True,
        )
        return {"line": caught.line, "subject": caught.subject, "files": []}
    program, divergence = found.program, found.divergence
    out.print(str(divergence), style="red", soft_wrap=True)
    out.print(divergence.details, soft_wrap=True)
    out.print(
        f"found {caught.where}; {len(caught.program.operations):,} calls, "
        f"shrunk to {len(program.operations):,}:",
        soft_wrap=True,
    )
    out.print(found.as_test(), style="dim", soft_wrap=True)
    files: list[str] = []
    try:
        files = [str(path) for path in write_finding(folder, found, make, plan.seed)]
        if not caught.kept:
            files.append(str(failures.keep(found)))
    except OSError as error:
        err.print(f"kvspec: not all files could be written: {error}", style="red", soft_wrap=True)
    for path in files:
        out.print(f"wrote {path}", soft_wrap=True)
    return {
        "property": divergence.property,
        "line": str(divergence),
        "subject": caught.subject,
        "calls": len(program.operations),
        "files": files,
    }


def _shrunk(caught: Caught) -> Failing | None:
    """Return the smallest program that fails in the same way; None when nothing fails again."""
    try:
        shrinker = Shrinker(caught.program, find_subject(caught.subject))
    except ValueError:
        return None
    try:
        if not caught.kept:
            with err.status("shrinking (Ctrl-C takes it as it is)"):
                shrinker.run()
    except KeyboardInterrupt:
        err.print("kvspec: interrupted; the program is as small as it is by now", style="yellow")
    return Failing(shrinker.program, shrinker.divergence, caught.subject, shrinker.check)


def _show(summary: Summary, plan: Plan) -> None:
    """Print the summary and the verdict."""
    for number, line in enumerate(summary_lines(summary)):
        out.print(line, style="dim" if number else None, soft_wrap=True)
    if summary.lost is not None:
        job = summary.lost.job
        out.print(
            f"the subject {job.subject!r} {summary.lost.why}, in the job of seed {job.seed}",
            style="red",
            soft_wrap=True,
        )
    if summary.verdict == "violation":
        out.print(f"verdict: violation; the same again: --seed {plan.seed}", style="red")
    elif summary.verdict == "interrupted":
        out.print("verdict: interrupted; what was done is clean", style="yellow")
    else:
        out.print("verdict: clean", style="green")
