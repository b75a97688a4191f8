"""The command `kvspec validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from conformance.commands.logs import opened, progressing, refuse, show
from conformance.lockstep import Check
from conformance.logs.log_runs import validate
from conformance.logs.oplog import LogError
from conformance.scheduler.log import is_states_log, validate_states


def validate_command(
    log: Annotated[Path, typer.Argument(help="An operation log.", show_default=False)],
    check: Annotated[
        str | None,
        typer.Option(
            help="full: evaluate every property at every call. incremental: compare what a line "
            "shows. Default: full in a pool of up to 64 blocks.",
            metavar="full|incremental",
        ),
    ] = None,
) -> None:
    """Run a log's calls through the specification and compare what was recorded.

    The manager itself is not needed. Where a line shows only an answer, the answer is compared;
    where it shows the whole manager, everything is.

    Exit status: 0 clean, 1 violation, 2 bad input, 130 interrupted.
    """
    if check not in (None, "full", "incremental"):
        raise typer.BadParameter(f"{check!r} is none of full, incremental", param_hint="--check")
    if is_states_log(log):
        raise _validate_states(log)
    opened_log = opened(log)
    try:
        with progressing(log.name) as on_progress:
            report = validate(opened_log, cast("Check | None", check), on_progress)
    except LogError as error:
        raise refuse(error) from error
    raise show(report)


def _validate_states(log: Path) -> typer.Exit:
    """Judge a log of a scheduler, which shows states and no calls of a manager."""
    try:
        with progressing(log.name) as on_progress:
            report = validate_states(log, on_progress)
    except LogError as error:
        raise refuse(error) from error
    return show(report)
