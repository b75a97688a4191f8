"""The command `kvspec contracts`."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from conformance.contracts import (
    SECONDS,
    Contract,
    ContractError,
    Result,
    Runner,
    Verdict,
    installed,
    read_contracts,
    result_data,
)
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

STYLES = {Verdict.CONFIRMED: "green", Verdict.REFUTED: "cyan"}


def contracts_command(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run the contracts whose name holds this text. May be given again.",
            metavar="NAME",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Processor seconds for one contract.", min=1, max=86_400)
    ] = SECONDS,
    jobs: Annotated[
        int, typer.Option(help="Processes.", min=1, max=256, show_default="all cores")
    ] = os.cpu_count() or 1,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Check the contracts on the production code for all arguments, with CrossHair.

    A contract states a fact about a function; one that states what is false must be refuted, so
    that the tool is seen to work. Prints a table of contracts and verdicts. Exit status: 0 when
    every verdict is the expected one, 1 otherwise, 2 bad input or CrossHair is missing, 130
    interrupted.
    """
    if json is not None:
        refuse_bad_output(json)
    contracts = _chosen(only or [])
    if not installed():
        err.print(
            "kvspec: CrossHair is not installed; run: pip install -e '.[contracts]'", style="red"
        )
        raise typer.Exit(BAD_INPUT)
    results: list[Result] = []
    try:
        with counted() as progress:
            task = progress.add_task("contracts", total=len(contracts))
            for result in Runner(seconds=seconds).run(contracts, jobs):
                results.append(result)
                progress.advance(task)
    except KeyboardInterrupt:
        _show(results, contracts)
        err.print("kvspec: interrupted; the table shows what ended", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    _show(results, contracts)
    if json is not None:
        write_output(json, jsonlib.dumps(result_data(results), indent=1, sort_keys=True) + "\n")
    odd = [result for result in results if not result.as_expected]
    for result in odd:
        out.print(f"{result.contract.name}: {result.details}", style="red", soft_wrap=True)
    out.print(
        f"verdict: {len(odd)} of {len(results)} contracts are not as expected"
        if odd
        else f"verdict: {len(results)} contracts as expected: {_counts(results)}",
        style="red" if odd else "green",
    )
    raise typer.Exit(VIOLATION if odd else CLEAN)


def _chosen(only: Sequence[str]) -> list[Contract]:
    try:
        contracts = read_contracts()
    except ContractError as error:
        err.print(f"kvspec: {error}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from error
    full = {f"{c.module}.{c.name}": c for c in contracts}
    for part in only:
        if not any(part in name for name in full):
            raise typer.BadParameter(
                f"{part!r} is in no name of a contract; one of: {', '.join(full)}",
                param_hint="--only",
            )
    return [c for name, c in full.items() if not only or any(part in name for part in only)]


def _show(results: Sequence[Result], contracts: Sequence[Contract]) -> None:
    """Print what ended, in the order of the table of contracts."""
    table = Table(
        Column("contract, what it says, of what", ratio=1, overflow="fold"),
        Column("bound", max_width=13),
        "expected",
        "verdict",
        Column("seconds", justify="right"),
        title="kvspec contracts",
        expand=True,
    )
    for result in sorted(results, key=lambda result: contracts.index(result.contract)):
        contract, verdict = result.contract, result.verdict
        style = STYLES.get(verdict, "yellow") if result.as_expected else "bold red"
        table.add_row(
            Text.assemble((contract.name, "bold"), f"\n{contract.says}\n", (contract.on, "dim")),
            contract.bound or "none",
            contract.expected.value,
            Text(verdict.value, style),
            f"{result.seconds:.1f}",
        )
        table.add_section()
    out.print(table)


def _counts(results: Sequence[Result]) -> str:
    found = [result.verdict for result in results]
    return ", ".join(f"{found.count(v)} {v.value}" for v in Verdict if v in found)
