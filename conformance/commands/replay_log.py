"""What `kvspec replay` does with an operation log."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, cast

import typer

from conformance.commands.logs import factory, opened, progressing, refuse, show
from conformance.exhaustive.production import quiet
from conformance.lockstep import Check
from conformance.logs.log_runs import replay_log
from conformance.logs.oplog import LogError
from conformance.output import write_output

FIXED = ("blocks", "block_size", "sequential", "limit", "window", "no_caching")
"""Options of a trace's replay that a log answers itself."""


def replay_log_command(
    ctx: typer.Context, path: Path, subject: str | None, check: str, json: Path | None
) -> NoReturn:
    """Make a log's calls again, in lockstep. Raises `typer.Exit`."""
    for name in FIXED:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"{str(path)!r} is an operation log, which says that itself; leave the option out",
                param_hint=f"--{name.replace('_', '-')}",
            )
    if check == "off":
        what = "'off': a log is replayed in lockstep only; give full or incremental"
        raise typer.BadParameter(what, param_hint="--check")
    log = opened(path)
    make = factory(subject or log.header.subject, log.header.settings)
    try:
        with quiet(), progressing(path.name) as on_progress:
            report = replay_log(log, make, cast("Check", check), on_progress)
    except LogError as error:
        raise refuse(error) from error
    if json is not None:
        write_output(json, report.model_dump_json(indent=2) + "\n")
    raise show(report)
