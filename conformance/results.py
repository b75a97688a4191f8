"""Records what was explored, paired and proved, for the documents: `python -m conformance.results`.

A result carries the versions that it was made with and a digest of the specification. When the
specification changes, a test asks for new results.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.output import out
from conformance.solvers import prover
from spec.explore import Search
from spec.liveness import stuck
from spec.pairs import PairResult, salts_do_not_see_each_other, the_cache_changes_no_answer
from spec.scope import Scope, all_prompts
from spec.state import Config
from spec.worlds import BITS, WORLDS, Counts

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"

SPECIFIED = (
    "state",
    "pool",
    "statemachine",
    "registry",
    "steps",
    "invariants",
    "reachable",
    "scope",
    "world",
    "worlds",
    "liveness",
    "pairs",
)

LIVELY = ("full", "window-blocks-of-2", "drafts", "no-caching", "three-requests")
"""Worlds whose every state is asked whether it can come to rest and serve again."""


def digest_of_spec() -> str:
    """Return a digest of what the specification says and what a world is.

    The search is left out: it decides how a world is walked, and the frozen counts hold it.
    """
    files = [ROOT / "spec" / f"{name}.py" for name in SPECIFIED]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def stamp() -> dict[str, Any]:
    """Return what a result was made of and with."""
    return {
        "spec": digest_of_spec(),
        "python": platform.python_version(),
        "kvspec": version("kvspec"),
        "machine": platform.machine(),
    }


def read(name: str) -> Mapping[str, Any]:
    """Return a recorded result; empty where there is none."""
    file = RESULTS / f"{name}.json"
    data: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return data


def write(name: str, data: Mapping[str, Any]) -> None:
    """Write a result down."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**stamp(), **data}, indent=1, sort_keys=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def record_worlds() -> bool:
    """Search every named world whole; return whether all is clean and all counts are frozen."""
    worlds, good = {}, True
    for name, world in WORLDS.items():
        search = Search(world.scope)
        started = time.process_time()
        result = search.run()
        seconds = time.process_time() - started
        counts = Counts(result.states, result.transitions, result.depth)
        asked = name in LIVELY
        problem = stuck(search) if asked else None
        clean = result.found is None and result.stopped is None and counts == world.counts
        good = good and clean and problem is None
        worlds[name] = {
            "about": world.about,
            **counts._asdict(),
            "clean": clean,
            "comes_to_rest": None if not asked else problem is None,
            "processor_seconds": round(seconds, 1),
            "transitions_per_second": round(result.transitions / seconds),
            "memory_mib": result.memory >> 20,
            "edges": sorted([a.value, b.value] for a, b in result.edges),
            "seen": sorted(result.seen),
        }
        out.print(f"{name}: {counts}, {seconds:.1f} s, clean: {clean}, stuck: {problem}")
    write("explore", {"worlds": worlds})
    return good


def pairs() -> dict[str, PairResult]:
    """Return the results of the properties of two runs, by name and world."""
    full = Scope(Config(4, 1), ("A", "B"), all_prompts(BITS, 2), BITS, 3)
    window = full._replace(config=Config(4, 1, sliding_window=2))
    halves = Scope(Config(4, 2), ("A", "B"), all_prompts(BITS, 3), BITS, 3)
    small = Scope(Config(5, 1), ("A", "B"), all_prompts(BITS, 2), BITS, 2)
    return {
        "the_cache_changes_no_answer: full attention": the_cache_changes_no_answer(full),
        "the_cache_changes_no_answer: window": the_cache_changes_no_answer(window),
        "the_cache_changes_no_answer: blocks of 2": the_cache_changes_no_answer(halves),
        "salts_do_not_see_each_other: 4 blocks": salts_do_not_see_each_other(
            small, {"A": "mine", "B": "yours"}
        ),
    }


def record_pairs() -> bool:
    """Run the properties of two runs; return whether they hold."""
    found = pairs()
    data = {
        name: {"pairs": r.pairs, "moves": r.moves, "holds": r.found is None}
        for name, r in found.items()
    }
    out.print(json.dumps(data, indent=1))
    write("pairs", {"pairs": data})
    return all(r.found is None for r in found.values())


def record_proofs() -> bool:
    """Prove everything, the bridge on every call of a small world; return whether it holds."""
    prove = prover()
    if prove is None:
        out.print("prove: not recorded, the solvers are not installed")
        return False
    data = prove.run_proofs(steps=prove.explored(WORLDS["full-1"].scope))
    invariants: dict[str, dict[str, str]] = {}
    for row in data["obligations"]:
        proved = invariants.setdefault(row["invariant"], {})
        worst = row["status"] if proved.get(row["level"], "both") == "both" else None
        proved[row["level"]] = worst or proved[row["level"]]
    kept = ("versions", "assumptions", "lemmas", "counts", "seconds", "ok")
    bridge = {
        row["level"]: {k: sum(row[k].values()) for k in ("accepted", "rejected")}
        for row in data["bridge"]
    }
    faults = [[row["level"], row["fault"], row["breaks"], row["verdict"]] for row in data["faults"]]
    summary = {k: data[k] for k in kept} | {"invariants": invariants}
    write("prove", {**summary, "bridge": bridge, "faults": faults})
    out.print(f"prove: {data['counts']}, ok: {data['ok']}")
    return bool(data["ok"])


RECORDS = {"explore": record_worlds, "pairs": record_pairs, "prove": record_proofs}


def main(arguments: list[str] | None = None) -> int:
    """Record results below docs/results/; exit status 1 when something does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(RECORDS)}")
    names = parser.parse_args(arguments).names or list(RECORDS)
    if unknown := [name for name in names if name not in RECORDS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(RECORDS)}")
    held = [RECORDS[name]() for name in names]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
