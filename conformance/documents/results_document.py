"""Writes `docs/results.md` from the recorded results, one function for each section."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from conformance.documents.generated import kept
from conformance.documents.peers import peers_section
from conformance.documents.results import read
from conformance.documents.tensor_document import tensor_section
from conformance.faults.mutants import MUTANTS, Mutant

DOCUMENT = Path(__file__).parents[2] / "docs" / "results.md"

TOP = """# What was measured

<!-- Written by `make docs` from the results in `docs/results/`. -->

Every figure here was recorded by a command that is named with it, and a test compares this file
with the recorded results. Seconds are those of the machine that recorded them.
"""

MATRIX = ("story", "machine", "driver", "contract", "steps", "tour")
"""The layers that may see a fault; what each is stands above the table."""


def document() -> str:
    """Return the whole document."""
    return "\n".join(
        (TOP, *mutants_section(), *contracts_section(), *peers_section(), *tensor_section())
    )


def mutants_section() -> Iterator[str]:
    """Yield the table of seeded faults, who sees each, and the names that are explained."""
    data = read("mutants")
    if not data:
        return
    yield "## Seeded faults\n"
    yield (
        f"Recorded by `make results ARGS=mutants` (kvspec {data['kvspec']}, Python "
        f"{data['python']}, {data['machine']}). Each of {len(MUTANTS)} faults is one place of our "
        "manager changed in memory; `conformance/faults/mutants.toml` lists them, and "
        "`kvspec mutants` repeats the table. An example is one program of the stateful machine, or "
        "one walk of the plain driver; the figures are least / median / most over the seeds.\n"
    )
    yield "| layer | faults | seeds | killed | examples allowed | median | most |"
    yield "|---|---|---|---|---|---|---|"
    for name, layer in data["layers"].items():
        killed = f"{layer['killed']} of {layer['trials']} trials"
        figures = f"{layer['max_examples']:,} | {layer['median_examples']:g}"
        if name == "contract":
            figures = "- | -"
        most = "-" if name == "contract" else f"{layer['most_examples']:,}"
        yield f"| {name} | {layer['faults']} | {layer['seeds']} | {killed} | {figures} | {most} |"
    rows = {(row["fault"], row["layer"]): row for row in data["rows"]}
    yield from _kills(rows)
    yield from _matrix(rows)
    yield from _explained(rows)


def contracts_section() -> Iterator[str]:
    """Yield the table of contracts: what each says, of which place, and the verdict."""
    data = read("contracts")
    if not data:
        return
    told = [entry["verdict"] for entry in data["contracts"].values()]
    yield "## Contracts\n"
    yield (
        "Recorded by `make results ARGS=contracts` "
        f"(CrossHair {data['versions']['crosshair-tool']}, z3 {data['versions']['z3-solver']}, "
        f"Python {data['python']}, {data['machine']}); `kvspec contracts` repeats it. "
        f"{told.count('confirmed')} are confirmed, {told.count('refuted')} are false "
        "and refuted as they must be. A bound is part of what is confirmed.\n"
    )
    yield "| contract | of | bound | verdict | seconds |\n|---|---|---|---|---|"
    for name, entry in data["contracts"].items():
        says = f"`{name.partition('.')[2]}`: {entry['says']}"
        bound = entry["bound"] or "none"
        verdict = entry["verdict"] if entry["verdict"] == entry["expected"] else "**unexpected**"
        yield f"| {says} | `{entry['on']}` | {bound} | {verdict} | {entry['seconds']:g} |"
    yield ""


def _kills(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    yield "\n### Who killed what\n"
    columns = ["by", "examples", "seconds"]
    both = [f"{layer}: {column}" for layer in ("machine", "driver") for column in columns]
    yield f"| fault | is about | {' | '.join(both)} |\n|---|---{'|---' * len(both)}|"
    for mutant in MUTANTS.values():
        cells = [_cells(mutant, rows.get((mutant.name, name))) for name in ("machine", "driver")]
        number = f" ({mutant.number})" if mutant.number else ""
        about = f"`{mutant.name}`{number}: {mutant.says} | `{mutant.caught_by}`"
        yield f"| {about} | {' | '.join(cell for three in cells for cell in three)} |"


def _cells(mutant: Mutant, row: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return who killed a fault, and the spreads; only names that are not the fault's are spelt."""
    if row is None:
        return "-", "-", "-"
    others = [f"`{name}`" for name in row["names"] if name != mutant.caught_by]
    names = [*(["its property"] if mutant.caught_by in row["names"] else []), *others]
    if row["survived"]:
        names.append(f"**survived {len(row['survived'])} of {row['seeds']} seeds**")
    return ", ".join(names), _spread(row["examples"], "g"), _spread(row["seconds"], ".1f")


def _spread(numbers: Sequence[float], form: str) -> str:
    return " / ".join(format(n, form) for n in (min(numbers), median(numbers), max(numbers)))


def seen_by(mutant: Mutant, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    """Return the layers that kill a fault, with every seed where there are seeds."""
    layers = ["story"] if mutant.stories else []
    layers += [name for name in ("machine", "driver", "contract") if _killed(rows, mutant, name)]
    return layers + (mutant.steps[1].split() if mutant.steps else [])


def _killed(rows: Mapping[tuple[str, str], Mapping[str, Any]], mutant: Mutant, layer: str) -> bool:
    row = rows.get((mutant.name, layer))
    return row is not None and not row["survived"]


def _matrix(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    yield "\n### Fault and layer\n"
    yield (
        "`story`: a fixed sequence of calls in `tests/cases`. `contract`: CrossHair, for all "
        "arguments. `steps` and `tour`: all calls, and all moves, of one small world in "
        "`tests/refinement`; an empty cell there may mean that the fault was not held against "
        "them. A layer with seeds counts when all its seeds killed.\n"
    )
    yield "| fault | " + " | ".join(MATRIX) + " | layers |\n|---" + "|---" * (len(MATRIX) + 1) + "|"
    for mutant in MUTANTS.values():
        seen = seen_by(mutant, rows)
        marks = " | ".join("x" if layer in seen else "" for layer in MATRIX)
        yield f"| `{mutant.name}` | {marks} | {len(seen)} |"


def _explained(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[str]:
    yield "\n### Names that are not the fault's own, and why\n"
    yield "| fault | is about | was found as | because |\n|---|---|---|---|"
    for mutant in MUTANTS.values():
        found = {n for layer in ("machine", "driver") for n in _names(rows, mutant, layer)}
        found |= {story.named for story in mutant.stories}
        for name, why in mutant.also.items():
            if name in found:
                yield f"| `{mutant.name}` | `{mutant.caught_by}` | `{name}` | {why} |"
    yield ""


def _names(
    rows: Mapping[tuple[str, str], Mapping[str, Any]], mutant: Mutant, layer: str
) -> Sequence[str]:
    return list(rows.get((mutant.name, layer), {}).get("names", ()))


def main(arguments: list[str] | None = None) -> int:
    """Write the document, or with `--check` say whether it is up to date (exit status 1 if not)."""
    return kept(DOCUMENT, document, "the results", arguments)


if __name__ == "__main__":
    sys.exit(main())
