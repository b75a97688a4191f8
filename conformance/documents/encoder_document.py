"""Writes what `docs/invariants.md` says of the encoder cache, from its registry and its results."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.documents.results import read
from spec.encoder_cache import ENTRY_TRANSITIONS, EntryState
from spec.encoder_properties import ENCODER_REGISTRY
from spec.registry import Property

_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("encoder.toml").read_text(encoding="utf-8")
)

ENCODER_KEPT_BY: dict[str, list[str]] = _TABLES["kept_by"]
"""Where production keeps each property, below `kvcache`."""

ENCODER_FAULTS: list[dict[str, Any]] = _TABLES["fault"]
"""Seeded faults; `encoder.toml` explains the fields."""

TOP = """## The encoder cache

Media are encoded before the model reads them, and a budget of encoder tokens says how much of that
is kept. It is a machine of its own, in `spec/encoder_cache.py`, with properties of its own. A
content is in one of four states; SHARED is HELD by several inputs. A holder is an input of a
request, not the request: each input is freed when its own tokens are computed, so a request that
shows one item twice holds it twice.

| state | has an entry | inputs that hold it | can be evicted |
|---|---|---|---|
| ABSENT | no | 0 | no |
| HELD | yes | 1 | no |
| SHARED | yes | 2 or more | no |
| IDLE | yes | 0 | yes |
"""

NOT_TRUE = """**Not true:** what `has_cache` finds has been encoded. Shortest path:
`allocate(A, 0)`, `free(A)`, in one step. The entry is idle and its content is still to come, so the
engine encodes whatever was allocated while it was absent, even if its holder has gone by then. And
an identifier in a report may have an entry: it was evicted and allocated again before the report. A
worker therefore drops what is reported first and encodes second; that this leads it to exactly the
entries is the last of the properties.
"""


def encoder_section() -> Iterator[str]:
    """Yield the parts of the section."""
    yield TOP
    yield "```mermaid\nstateDiagram-v2"
    for effect, moves in ENTRY_TRANSITIONS.items():
        for before, after in sorted(moves, key=lambda move: (move[0].value, move[1].value)):
            yield f"    {before.value} --> {after.value}: {effect}"
    yield "```\n"
    worlds = read("encoder").get("worlds", {})
    yield from _worlds(worlds)
    yield from _edges(worlds)
    yield NOT_TRUE
    yield "| property of the encoder cache | of |\n|---|---|"
    for p in ENCODER_REGISTRY.values():
        yield f"| [`{p.name}`](#{p.name}) | {_kind(p)} |"
    yield ""
    for p in ENCODER_REGISTRY.values():
        yield _property(p, worlds)


def _worlds(worlds: dict[str, Any]) -> Iterator[str]:
    yield (
        "Every state, and from each of them every call, with numbers that no input has among them. "
        "*Steps compared* are calls that were made, from every state, by the specification and by "
        "our manager, with equal answers and equal states after.\n"
    )
    yield "| world | what | states | transitions | refused | depth | steps compared |"
    yield "|---|---|---|---|---|---|---|"
    for name, w in worlds.items():
        verdict = "" if w["clean"] else " **not clean**"
        counts = f"{w['states']:,} | {w['transitions']:,} | {w['refused']:,} | {w['depth']}"
        yield f"| `{name}`{verdict} | {w['about']} | {counts} | {w['steps_compared']:,} |"
    yield ""


def _edges(worlds: dict[str, Any]) -> Iterator[str]:
    seen = {tuple(edge) for w in worlds.values() for edge in w["edges"]}
    names = [state.value for state in EntryState]
    yield (
        "Observed in one call that changes an entry, in all of these worlds. `free` may take away "
        "two holders at once, which leads from SHARED to IDLE.\n"
    )
    yield "| from / to | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|"
    for a in names:
        yield f"| {a} | " + " | ".join("yes" if (a, b) in seen else "" for b in names) + " |"
    yield ""


def _property(p: Property, worlds: dict[str, Any]) -> str:
    clean = [w for w in worlds.values() if w["clean"]]
    states = sum(w["states"] for w in clean)
    compared = sum(w["steps_compared"] for w in clean)
    explored = f"{len(clean)} worlds, {states:,} states, none breaks it" if clean else "no"
    kept = ", ".join(f"`kvcache.{place}`" for place in ENCODER_KEPT_BY[p.name])
    faults = [fault["name"] for fault in ENCODER_FAULTS if fault["named"] == p.name]
    return (
        f"### {p.name}\n\n{p.statement}\n\n"
        f"- **If it breaks:** {p.why}\n"
        f"- **Holds for:** the encoder cache; a property of {_kind(p)}.\n"
        f"- **Explored:** {explored}\n"
        f"- **Proved:** no\n"
        f"- **Matched to code:** {compared:,} steps compared, "
        "`tests/conformance/test_encoder_lockstep.py`, `tests/stateful/test_encoder_machine.py`\n"
        "- **Faults it names**, in `conformance/documents/encoder.toml`: "
        f"{'; '.join(faults) or 'none; it is held by its own violations'}\n"
        f"- **Kept by:** {kept}\n"
        f"- **Predicate:** `{p.check.__module__}.{p.name}`\n"
    )


def _kind(p: Property) -> str:
    return "a call" if p.kind == "step" else "a state"
