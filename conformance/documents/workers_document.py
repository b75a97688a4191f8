"""Writes what `docs/invariants.md` says of many workers, from their registry and a search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from conformance.faults.mutants import MUTANTS
from spec.registry import Property
from spec.workers import WORKERS_REGISTRY, WORKERS_WORLDS, explore_workers

WORKERS_KEPT_BY: Final[dict[str, list[str]]] = {
    "ids_are_valid_on_every_worker": [
        "kvcache.planning.unify_kv_cache_configs",
        "gpu.layout.LocalKVCache.check_block_ids",
    ],
    "no_block_that_all_workers_have_is_left_out": ["kvcache.planning.unify_kv_cache_configs"],
    "workers_that_are_unified_keep_the_same": [
        "kvcache.planning.unify_kv_cache_configs",
        "gpu.workers.agree",
    ],
}
"""Where production keeps each property."""

TOP: Final = """## Many workers

A request's block table is one list of ids for all workers, and each worker's memory has room for
another number of blocks. Every worker proposes what it has, all are given the smallest number, and
ids below it are handed out; a worker with other layers stops all. `spec/workers.py` says so, as a
machine of its own.

Every state, and from each of them every call, with ids that no worker has among them.
"""


def workers_section() -> Iterator[str]:
    """Yield the parts of the section. The search takes a part of a second, so it is made here."""
    yield TOP
    yield "| world | what | states | transitions | refused | depth |\n|---|---|---|---|---|---|"
    states, clean = 0, True
    for name, world in WORKERS_WORLDS.items():
        result = explore_workers(world.scope)
        good = result.found is None and result.counts == world.counts
        states, clean = states + result.counts.states, clean and good
        counts = " | ".join(f"{count:,}" for count in result.counts)
        yield f"| `{name}`{'' if good else ' **not clean**'} | {world.about} | {counts} |"
    yield ""
    explored = f"{len(WORKERS_WORLDS)} worlds, {states:,} states, none breaks it" if clean else "no"
    for p in WORKERS_REGISTRY.values():
        yield _property(p, explored)


def _property(p: Property, explored: str) -> str:
    faults = [mutant.name for mutant in MUTANTS.values() if mutant.caught_by == p.name]
    kept = ", ".join(f"`{place}`" for place in WORKERS_KEPT_BY[p.name])
    return (
        f"### {p.name}\n\n{p.statement}\n\n"
        f"- **If it breaks:** {p.why}\n"
        "- **Holds for:** the workers; a property of a state.\n"
        f"- **Explored:** {explored}\n"
        "- **Proved:** no\n"
        "- **Matched to code:** every unification of these worlds, "
        "`tests/refinement/test_unify_steps.py`; real processes, "
        "`tests/gpu/test_worker_processes.py`\n"
        "- **Seeded faults that it kills**, of `conformance/faults/mutants.toml`: "
        f"{', '.join(faults) or 'none; it is held by its own violations'}\n"
        f"- **Kept by:** {kept}\n"
        f"- **Predicate:** `{p.check.__module__}.{p.name}`\n"
    )
