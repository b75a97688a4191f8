"""The command `kvspec check`."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from conformance import check as checks
from conformance.output import CLEAN, INTERRUPTED, VIOLATION, counted, err, out


def check_command() -> None:
    """Run the main job on the embedded default and print one verdict table.

    Exit status: 0 when every row is clean, 1 otherwise, 130 interrupted.
    """
    table = Table("row", "covered", "seconds", "verdict", title="kvspec check")
    styles = {"clean": "green", "violation": "red", "not run": "yellow"}
    done: list[checks.Row] = []
    try:
        with counted() as progress:
            task = progress.add_task("check", total=checks.num_rows())
            for row in checks.rows():
                done.append(row)
                progress.advance(task)
                verdict = Text(row.verdict, styles[row.verdict])
                table.add_row(row.name, row.covered, f"{row.seconds:.1f}", verdict)
    except KeyboardInterrupt:
        out.print(table)
        err.print("kvspec: interrupted; the table shows the rows that ended", style="yellow")
        raise typer.Exit(INTERRUPTED) from None
    out.print(table)
    failed = [row for row in done if row.verdict == "violation"]
    for row in failed:
        out.print(f"{row.name}: {row.problem}", style="red", soft_wrap=True)
    left = sum(row.verdict == "not run" for row in done)
    out.print(
        f"verdict: {len(failed)} of {len(done)} rows show a violation"
        if failed
        else f"verdict: {len(done) - left} rows clean" + (f", {left} not run" if left else ""),
        style="red" if failed else "green",
    )
    raise typer.Exit(VIOLATION if failed else CLEAN)
