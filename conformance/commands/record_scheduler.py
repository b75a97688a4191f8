"""What `kvspec record --scheduler` does."""

from __future__ import annotations

from pathlib import Path

import typer

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.commands.logs import progressing, refuse, show_rows
from conformance.logs.oplog import LogError
from conformance.output import CLEAN, INTERRUPTED, err
from conformance.scheduler import stand_in
from conformance.scheduler.log import record_states
from conformance.scheduler.script import POLICIES, SCHEDULERS
from conformance.scheduler.search import Aim

LEAST_BLOCKS = 3


def record_scheduler(path: Path, aim: Aim, num_requests: int) -> typer.Exit:
    """Record the states of vLLM's own scheduler; return the way out."""
    for option, value, names in (
        ("--policy", aim.policy, POLICIES),
        ("--scheduler", aim.scheduler, SCHEDULERS),
    ):
        if value not in names:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(names)}", param_hint=option)
    if aim.num_blocks is not None and aim.num_blocks < LEAST_BLOCKS:
        problem = f"{aim.num_blocks}: null, and two that can be handed out; give at least 3"
        raise typer.BadParameter(problem, param_hint="--blocks")
    try:
        with err.status("loading vLLM"):
            stand_in.load()
        with progressing(path.name) as on_progress:
            calls, steps, interrupted = record_states(path, aim, num_requests, on_progress)
    except (PeerMissingError, LogError) as error:
        raise refuse(error) from error
    show_rows(
        {
            "log": str(path),
            "subject": f"vLLM {stand_in.release()}, policy {aim.policy}, {aim.scheduler}",
            "requests": f"{num_requests:,}",
            "moments": f"{calls:,} in {steps:,} scheduler steps",
        }
    )
    return typer.Exit(INTERRUPTED if interrupted else CLEAN)
