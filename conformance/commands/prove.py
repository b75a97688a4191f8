"""The command `kvspec prove`."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from conformance.exhaustive.solvers import prover
from conformance.output import (
    BAD_INPUT,
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    counted,
    err,
    out,
    refuse_bad_output,
    write_output,
)
from spec.worlds import WORLDS


def prove_command(
    jobs: Annotated[
        int, typer.Option(help="Processes.", min=1, max=256, show_default="all cores")
    ] = os.cpu_count() or 1,
    bridge: Annotated[
        str | None,
        typer.Option(
            help="Compare the machines with every call of this named world, not with walks.",
            metavar="WORLD",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Write each obligation as SMT-LIB into this folder.", metavar="DIR"),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Prove the invariants for any number of blocks, requests and keys, with two solvers.

    Prints a table of actions and invariants, what is assumed, whether the actions can happen at
    all, what seeded faults break, and whether the machines of the proofs are the specification's.
    Exit status: 0 when both solvers prove everything and every check holds, 1 otherwise, 2 bad
    input or a missing solver, 130 interrupted.
    """
    if json is not None:
        refuse_bad_output(json)
    if bridge is not None and bridge not in WORLDS:
        raise typer.BadParameter(
            f"{bridge!r} is no named world; one of: {', '.join(WORLDS)}", param_hint="--bridge"
        )
    prove = prover()
    if prove is None:
        err.print(
            "kvspec: the solvers are not installed; run: pip install -e '.[proof]'", style="red"
        )
        raise typer.Exit(BAD_INPUT)
    if export is not None:
        _export(prove, export)
    data = _prove(prove, jobs, bridge)
    for table in prove.tables(data):
        out.print(table)
    for level, assumptions in data["assumptions"].items():
        out.print(f"{level} assumes:")
        for assumption in assumptions:
            out.print(f"  - {assumption}")
    if json is not None:
        write_output(json, jsonlib.dumps(data, indent=2) + "\n")
    proved = data["counts"].get("both", 0)
    total = len(data["obligations"])
    out.print(
        f"verdict: {proved} of {total} obligations proved by both solvers, "
        f"{'every check holds' if data['ok'] else 'and something does not hold'}",
        style="green" if data["ok"] else "red",
    )
    raise typer.Exit(CLEAN if data["ok"] else VIOLATION)


def _export(prove: ModuleType, folder: Path) -> None:
    try:
        count = len(prove.proof.export(folder))
    except OSError as error:
        err.print(f"kvspec: {folder}: cannot be written: {error.strerror}", style="red")
        raise typer.Exit(BAD_INPUT) from error
    out.print(f"{count} obligations written to {folder}")


def _prove(prove: ModuleType, jobs: int, bridge: str | None) -> dict[str, Any]:
    try:
        with counted() as progress:
            task = progress.add_task("obligations", total=len(list(prove.proof.questions())))
            steps = None if bridge is None else prove.explored(WORLDS[bridge].scope)
            data: dict[str, Any] = prove.run_proofs(
                jobs, steps, tick=lambda: progress.advance(task)
            )
    except KeyboardInterrupt:
        err.print("kvspec: interrupted", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    return data
