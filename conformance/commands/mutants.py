"""The command `kvspec mutants`."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from conformance.contracts import installed
from conformance.faults.kills import (
    LAYERS,
    MAX_EXAMPLES,
    Outcome,
    Row,
    Trial,
    rows,
    run_trials,
    trials,
)
from conformance.faults.kills import summary as summary_of
from conformance.faults.mutants import MUTANTS, Mutant, select
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

ALL = "all"


def mutants_command(
    seeds: Annotated[
        int,
        typer.Option(
            help="Hold each fault against each layer with so many seeds.",
            callback=between(1, 1_000, "a fault needs a seed, and each costs time"),
        ),
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="A fault by name, or all of one number: M8. May be given again.", metavar="NAME"
        ),
    ] = None,
    layer: Annotated[
        str, typer.Option(help=f"Who makes the calls: {', '.join(LAYERS)} or {ALL}.")
    ] = ALL,
    max_examples: Annotated[
        int,
        typer.Option(
            help="How many examples a fault may survive.",
            callback=between(1, 1_000_000, "a layer needs an example to find anything"),
        ),
    ] = MAX_EXAMPLES,
    jobs: Annotated[
        int, typer.Option(help="Processes.", min=1, max=256, show_default="all cores")
    ] = os.cpu_count() or 1,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Plant each seeded fault in our manager and see which check kills it, and how soon.

    Prints a table: the fault, who killed it and under the name of which property, examples and
    seconds to the kill, least, median and most over the seeds. A star marks a name that is not the
    one of the catalogue and is explained there. Exit status: 0 when every fault is killed under a
    name that the catalogue gives or explains, 1 otherwise, 2 bad input, 130 interrupted.
    """
    if json is not None:
        refuse_bad_output(json)
    planned = trials(_chosen(only or []), _layers(layer), seeds, max_examples)
    if not planned:
        raise typer.BadParameter(
            f"{layer!r} sees none of these faults; name others", param_hint="--layer"
        )
    done: list[Outcome] = []
    try:
        with counted() as progress:
            task = progress.add_task("trials", total=len(planned))
            for outcome in run_trials(planned, jobs):
                done.append(outcome)
                progress.advance(task)
    except KeyboardInterrupt:
        _show(done, planned)
        err.print("kvspec: interrupted; the table shows the trials that ended", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    good = _show(done, planned)
    if json is not None:
        write_output(json, jsonlib.dumps(summary_of(rows(done)), indent=1) + "\n")
    raise typer.Exit(CLEAN if good else VIOLATION)


def _chosen(words: Sequence[str]) -> list[Mutant]:
    try:
        return select(words)
    except KeyError as error:
        raise typer.BadParameter(
            f"{error.args[0]!r} is no fault and no number; one of: {', '.join(MUTANTS)}",
            param_hint="--only",
        ) from error


def _layers(name: str) -> list[str]:
    if name != ALL and name not in LAYERS:
        raise typer.BadParameter(
            f"{name!r} is no layer; give {', '.join(LAYERS)} or {ALL}", param_hint="--layer"
        )
    chosen = list(LAYERS) if name == ALL else [name]
    if installed() or "contract" not in chosen:
        return chosen
    hint = "CrossHair is not installed; run: pip install -e '.[contracts]'"
    if name == "contract":
        err.print(f"kvspec: {hint}", style="red")
        raise typer.Exit(BAD_INPUT)
    err.print(f"kvspec: without contracts: {hint}", style="yellow")
    return [one for one in chosen if one != "contract"]


def _show(done: Sequence[Outcome], planned: Sequence[Trial]) -> bool:
    """Print the table and the verdict; return whether all is well."""
    wide = (Column(name, overflow="fold") for name in ("by", "examples", "seconds"))
    table = Table(Column("fault", no_wrap=True), "layer", "killed", *wide, title="Seeded faults")
    shown = rows(done)
    for row in shown:
        table.add_row(*_cells(row))
    out.print(table)
    survivors = [row for row in shown if row.survived]
    unexplained = [row for row in shown if row.unexplained]
    for row in survivors:
        seeds = ", ".join(map(str, row.survived))
        text = f"survived: {row.mutant.name} under {row.layer} with seeds {seeds}"
        out.print(f"{text}: {row.mutant.says}", style="red", soft_wrap=True)
    for row in unexplained:
        for name in row.unexplained:
            line = next(o.line for o in row.outcomes if o.killed_by == name)
            text = f"unexplained: {row.mutant.name} is about {row.mutant.caught_by} and was found"
            out.print(f"{text} as {line}", style="red", soft_wrap=True)
    good = not survivors and not unexplained
    faults = len({row.mutant.name for row in shown})
    out.print(
        f"verdict: {len(done)} of {len(planned)} trials of {faults} faults, {len(survivors)} "
        f"survivors, {len(unexplained)} killed under a name without explanation",
        style="green" if good else "red",
    )
    return good


def _cells(row: Row) -> tuple[str | Text, ...]:
    number = f" ({row.mutant.number})" if row.mutant.number else ""
    killed = len(row.outcomes) - len(row.survived)
    names = [
        name if name in (row.mutant.caught_by, *row.mutant.contracts) else f"{name}*"
        for name in row.names
    ]
    style = "red" if row.survived or row.unexplained else "green"
    return (
        row.mutant.name + number,
        row.layer,
        Text(f"{killed} of {len(row.outcomes)}", style),
        ", ".join(names) or "nobody",
        " / ".join(f"{n:g}" for n in row.spread("examples")),
        " / ".join(f"{n:.1f}" for n in row.spread("seconds")),
    )
