"""Writes `docs/invariants.md` from the registry, so that the document cannot drift from it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from conformance.documents.encoder_document import encoder_section
from conformance.documents.generated import kept
from conformance.documents.results import read
from conformance.documents.tensor_document import on_tensors
from conformance.documents.workers_document import workers_section
from conformance.faults.mutants import MUTANTS
from spec.invariants import REGISTRY
from spec.pool import TRANSITIONS
from spec.registry import Property
from spec.state import BlockState

REPORTS = Path(__file__).with_name("reports.toml")
DOCUMENT = Path(__file__).parents[2] / "docs" / "invariants.md"

LEVELS = {
    "P": "the pool, whoever uses it",
    "M": "the manager",
    "PM": "the pool and the manager",
}

KEPT_BY: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("kept_by.toml").read_text(encoding="utf-8")
)
"""Where production keeps each property, below `kvcache`."""

TOP = """# The properties

<!-- Written by `make docs` from the registry in `spec/` and the results in `docs/results/`. -->

## For somebody with five minutes

A paged, prefix-shared, reference-counted, evicting cache is right when no request can tell it from
a private, contiguous one. That is the property `a_request_reads_its_own_prefix`. The others serve
it, or say that memory is neither lost nor refused without need.

* **What is specified.** `spec/` holds a manager as pure functions over immutable states: blocks in
  five states, reference counts, the free queue, sealing, sharing of full blocks only, windows,
  drafts, preemption, and what a step that never ran leaves behind. The cache of encoded media is a
  machine of its own, with a section of its own, and so are many workers with one list of ids.
* **How far each property is checked** stands beside it, in these words and no others:
  - *explored*: true in every reachable state, and of every call, of the named small worlds below;
    bounded by them, and exhaustive within them;
  - *proved*: true for any number of blocks, requests and keys, by induction, answered by two
    solvers; under the assumptions that stand with the proof;
  - *matched to code*: the production manager was compared with the specification, call by call, in
    `kvspec check`, `kvspec replay`, seeded walks and tests; bounded by the calls that were made.
  - *on tensors*: a shield compares the bytes of every layer with what their writers meant, in runs
    of a small decoder without rounding; bounded by those runs, which are listed in `results.md`.
    The figures there name their device; what needs CUDA and had none says that it was not run.
* **What is not true**, though one might think so, stands at the end with its shortest path.

A **P** property holds for any user of a pool, an **M** property when requests are the only users.
*State* properties are true between any two calls, *call* properties of every single call. A test
gives every predicate hand-made violations that it must flag.
"""

STATES = """## The five states

A block's state is derived from its reference count, its key and its place in the free queue; it is
never stored. The null block (id 0) is in none of the five.

| state | `ref_cnt` | key | in the free queue |
|---|---|---|---|
| FREE | 0 | none | yes |
| FREE_CACHED | 0 | set | yes |
| IN_USE | 1 | none | no |
| IN_USE_CACHED | 1 | set | no |
| SHARED | above 1 | set | no |
"""

DIAGRAM_NOTE = """
Three edges differ from the diagram that is often drawn of this machine: the first hit on a
FREE_CACHED block leads to IN_USE_CACHED, not to SHARED, because it makes the count 1; from SHARED
the last release does not lead to FREE_CACHED in one step, because two releases lie between; and
FREE_CACHED leads to IN_USE when the block is taken and its key is evicted.
"""


NOT_TRUE = """## What is not true

* **No two blocks carry one key.** Shortest path, two moves: `arrive(A, prompt 0)`,
  `arrive(B, prompt 0)`. The last token is always computed, so B seals a block of its own under A's
  key. Both are kept: a block table never changes behind a request's back.
* **The cache is prefix-closed with a window.** Two usable blocks of one token, a window of 2, one
  request: `arrive(A, prompt 00)`, `run`, one more token. The head leaves the window and is evicted
  at once; its child stays cached.
* **The cache is prefix-closed whatever happens.** A key that is taken back, because nobody wrote
  its block, may have been the copy through which a child was found. `tests/proof/test_order.py`
  holds two runs in which the child then outlives its parent. Both need a block that is found behind
  a pending one, so the property is stated up to the first key that is taken back.
* **The cache is prefix-closed when blocks are released in forward order.** Two usable blocks of one
  token: `admit(A, ab)`, `run`, `end(A)` in forward order, `admit(B, b)`: the head of A is evicted
  and its child stays. `tests/spec/test_wrong_variants.py` finds this path, and no shorter one.
"""


def document() -> str:
    """Return the whole document."""
    parts = (
        TOP,
        *_worlds(),
        *_pairs(),
        *_proofs(),
        STATES,
        *_diagram(),
        DIAGRAM_NOTE,
        *_matrix(),
        *_summary(),
        *_properties(),
        *encoder_section(),
        *workers_section(),
        NOT_TRUE,
    )
    return "\n".join(parts)


def _worlds() -> Iterator[str]:
    yield "## The worlds that were explored\n"
    yield "Every state up to renaming of blocks. `kvspec explore --config NAME` repeats one.\n"
    yield "| world | what | states | transitions | depth | processor s |\n|---|---|---|---|---|---|"
    for name, w in read("explore").get("worlds", {}).items():
        verdict = "" if w["clean"] else " **not clean**"
        counts = f"{w['states']:,} | {w['transitions']:,} | {w['depth']}"
        yield f"| `{name}`{verdict} | {w['about']} | {counts} | {w['processor_seconds']} |"
    lively = [n for n, w in read("explore").get("worlds", {}).items() if w["comes_to_rest"]]
    yield (
        "\n**Progress.** From every state of these worlds all requests can end, run or unrun, and "
        f"then every prompt that fits is admitted: {', '.join(f'`{name}`' for name in lively)}.\n"
    )


def _pairs() -> Iterator[str]:
    yield "## Properties of two runs\n"
    yield "Two states move through every schedule of a small world together.\n"
    yield "| property and world | pairs of states | moves | holds |\n|---|---|---|---|"
    for name, found in read("pairs").get("pairs", {}).items():
        holds = "yes" if found["holds"] else "**no**"
        yield f"| {name} | {found['pairs']:,} | {found['moves']:,} | {holds} |"
    yield ""


def _proofs() -> Iterator[str]:
    data = read("prove")
    if not data:
        return
    solvers = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    yield "## What the proofs assume\n"
    total = sum(data["counts"].values())
    yield (
        f"{data['counts'].get('both', 0)} of {total} obligations answered by both solvers "
        f"({solvers}); {len(data['faults'])} seeded faults each break a named obligation in a "
        "finite instance. `kvspec prove` repeats it. The machines of the proofs were compared with "
        "every call of the world `full-1`: "
        + ", ".join(f"{level} {n['accepted']:,}" for level, n in data["bridge"].items())
        + " steps accepted, and as many with one wrong value rejected.\n"
    )
    for level, assumptions in data["assumptions"].items():
        yield f"* **{level}**: " + "; ".join(assumptions) + "."
    yield ""


def _matrix() -> Iterator[str]:
    worlds = read("explore").get("worlds", {})
    pool = [w for name, w in worlds.items() if name.startswith("pool")]
    seen = {(a, b) for w in pool for a, b in w["edges"]}
    states = [state.value for state in BlockState if state is not BlockState.NULL]
    yield "Observed in one call that moves one block, in all worlds of the pool alone; the other"
    yield "cells were never seen:\n"
    yield "| from / to | " + " | ".join(states) + " |\n|---" + "|---" * len(states) + "|"
    for a in states:
        yield f"| {a} | " + " | ".join("yes" if (a, b) in seen else "" for b in states) + " |"
    yield ""


def _diagram() -> Iterator[str]:
    yield "```mermaid\nstateDiagram-v2"
    for effect, moves in TRANSITIONS.items():
        for before, after in sorted(moves, key=lambda move: (move[0].value, move[1].value)):
            yield f"    {before.value} --> {after.value}: {effect}"
    yield "```"


def _summary() -> Iterator[str]:
    yield "## All of them\n"
    yield "| property | holds for | of |\n|---|---|---|"
    for p in REGISTRY.values():
        yield f"| [`{p.name}`](#{p.name}) | {p.levels} | {_kind(p)} |"
    yield ""


def _properties() -> Iterator[str]:
    for p in REGISTRY.values():
        kept = ", ".join(f"`kvcache.{place}`" for place in KEPT_BY[p.name])
        yield (
            f"## {p.name}\n\n{p.statement}\n\n"
            f"- **If it breaks:** {p.why}\n"
            f"- **Holds for:** {LEVELS[p.levels]}; a property of {_kind(p)}.\n"
            f"- **Explored:** {_explored(p)}\n"
            f"- **Proved:** {_proved(p)}\n"
            f"- **Matched to code:** `kvspec check`, `kvspec replay --check full`, "
            f"`tests/cases`, `tests/refinement`\n"
            f"- **On tensors:** {on_tensors(p.name)}\n"
            "- **Seeded faults that it kills**, of `conformance/faults/mutants.toml`: "
            f"{_faults(p)}\n"
            f"- **Reports of its kind:** {_reports(p)}\n"
            f"- **Kept by:** {kept}\n"
            f"- **Predicate:** `{p.check.__module__}.{p.name}`\n"
        )


def _faults(p: Property) -> str:
    """Return the faults that the property is about, then those that are met under its name."""
    own = [mutant.name for mutant in MUTANTS.values() if mutant.caught_by == p.name]
    also = [mutant.name for mutant in MUTANTS.values() if p.name in mutant.also]
    met = f"; also met under its name: {', '.join(also)}" if also else ""
    return (", ".join(own) or "none; it is held by its own violations") + met


def _reports(p: Property) -> str:
    return "; ".join(_table(REPORTS).get(p.name, ["none known to us"]))


@cache
def _table(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _explored(p: Property) -> str:
    worlds = read("explore").get("worlds", {})
    clean = {n: w for n, w in worlds.items() if w["clean"]}
    used = [w for n, w in clean.items() if not n.startswith("pool") or "P" in p.levels]
    states = sum(w["states"] for w in used)
    return f"{len(used)} worlds, {states:,} states, none breaks it" if used else "no"


def _proved(p: Property) -> str:
    levels = read("prove").get("invariants", {}).get(p.name, {})
    proved = [level for level, status in levels.items() if status == "both"]
    return f"for any size, in the machine of {' and '.join(proved)}" if proved else "no"


def _kind(p: Property) -> str:
    return {"state": "a state"}.get(p.kind, "a call")


def main(arguments: list[str] | None = None) -> int:
    """Write the document, or with `--check` say whether it is up to date (exit status 1 if not)."""
    return kept(DOCUMENT, document, "the registry", arguments)


if __name__ == "__main__":
    sys.exit(main())
