"""The command `kvspec shrink`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.logs import (
    factory,
    opened,
    progressing,
    refuse,
    show_rows,
    show_verdict,
)
from conformance.exhaustive.production import quiet
from conformance.logs.oplog import LogError, record_program
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
from conformance.shrinking.paste import as_test
from conformance.shrinking.shrink import NoFailureError, Shrinker

LogFile = Annotated[Path, typer.Argument(help="An operation log.", show_default=False)]
SubjectName = Annotated[
    str | None,
    typer.Option(
        "--subject",
        help="The manager that fails: reference, reference-builtin, module:Class. Default: the one "
        "that the log names.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write the small program to this file, as a log.")
]
Test = Annotated[
    Path | None,
    typer.Option(help="Write the test to this file; without it the test is printed."),
]
Seconds = Annotated[
    int,
    typer.Option(
        help="Stop after so long with what there is.",
        callback=between(1, 1 << 20, "there is something to try"),
    ),
]


def shrink_command(
    log: LogFile,
    subject: SubjectName = None,
    out_: Out = None,
    test: Test = None,
    seconds: Seconds = 20,
) -> None:
    """Make a failing log small, and print it as a test to paste.

    The calls are made again on the manager; what the log answers does not count.

    Exit status: 0 when nothing fails, 1 when it fails and was made small, 2 bad input,
    130 interrupted, with the smallest program until then.
    """
    for path, option in ((out_, "--out"), (test, "--test")):
        if path is not None:
            refuse_bad_output(path, log, option=option)
    opened_log = opened(log)
    name = subject or opened_log.header.subject
    make = factory(name, opened_log.header.settings)
    started = time.perf_counter()
    try:
        program = opened_log.program()
        for notice in opened_log.notices:
            err.print(f"kvspec: {notice}", style="yellow", soft_wrap=True)
        with quiet():
            shrinker = Shrinker(program, make, max_seconds=seconds)
    except LogError as error:
        raise refuse(error) from error
    except NoFailureError as error:
        out.print(f"{log}: {error}; kvspec validate compares what was recorded", soft_wrap=True)
        raise typer.Exit(CLEAN) from error
    interrupted = False
    with quiet(), progressing("calls left", len(program.operations)) as on_progress:
        shrinker.on_try = on_progress
        try:
            shrinker.run()
        except KeyboardInterrupt:
            interrupted = True
    text = as_test(shrinker.program, shrinker.divergence, name, shrinker.check)
    if out_ is not None:
        record_program(out_, shrinker.program, make, name, made_by="kvspec shrink")
    if test is not None:
        write_output(test, text)
    else:
        out.print(text, soft_wrap=True)
    before, after = len(program.operations), len(shrinker.program.operations)
    show_rows({"calls": f"{before:,}, made {after:,}", "tried": f"{shrinker.tries:,} programs"})
    taken = time.perf_counter() - started
    found = shrinker.divergence
    verdict = "interrupted" if interrupted else "violation"
    show_verdict(verdict, taken, str(found), found.details)
    raise typer.Exit(INTERRUPTED if interrupted else VIOLATION)
