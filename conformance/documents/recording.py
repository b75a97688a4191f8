"""Records what was explored, paired, proved and found: what `make results` runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from conformance.contracts import Runner, read_contracts, result_data
from conformance.documents.peers import record_conform, record_monitor, record_scheduler
from conformance.documents.results import write
from conformance.documents.tensor_document import record_gpu, record_kernels
from conformance.encoder_lockstep import refine_encoder
from conformance.exhaustive.solvers import prover
from conformance.faults.kills import LAYERS, MAX_EXAMPLES, rows, run_trials, summary, trials
from conformance.faults.mutants import MUTANTS
from conformance.output import out
from spec.encoder_explore import calls_of, explore_encoder
from spec.encoder_worlds import ENCODER_WORLDS
from spec.explore import Search
from spec.liveness import stuck
from spec.pairs import PairResult, salts_do_not_see_each_other, the_cache_changes_no_answer
from spec.scope import Scope, all_prompts
from spec.state import Config
from spec.worlds import BITS, WORLDS, Counts

LIVELY = ("full", "window-blocks-of-2", "drafts", "no-caching", "three-requests")
"""Worlds whose every state is asked whether it can come to rest and serve again."""


MUTANT_SEEDS = 5
"""With so many seeds each layer must kill each seeded fault."""


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


def record_encoder() -> bool:
    """Search the worlds of the encoder cache, and compare our manager from every state."""
    worlds, good = {}, True
    for name, world in ENCODER_WORLDS.items():
        result = explore_encoder(world.scope)
        refined = refine_encoder(result.states, calls_of(world.scope))
        clean = result.found is None and result.counts == world.counts and refined.found is None
        good = good and clean
        worlds[name] = {
            "about": world.about,
            **result.counts._asdict(),
            "clean": clean,
            "steps_compared": refined.checks,
            "edges": sorted([a.value, b.value] for a, b in result.edges),
            "seen": sorted(result.seen),
            "rules": sorted(result.rules),
        }
        out.print(f"{name}: {result.counts}, steps compared: {refined.checks}, clean: {clean}")
    write("encoder", {"worlds": worlds})
    return good


def record_mutants() -> bool:
    """Hold every seeded fault against every layer; return whether each is killed, and in time.

    Says how far it is after every so many trials; it takes a quarter of an hour or more.
    """
    planned = trials(MUTANTS.values(), list(LAYERS), MUTANT_SEEDS, MAX_EXAMPLES)
    done = []
    for number, outcome in enumerate(run_trials(planned, os.cpu_count() or 1), 1):
        done.append(outcome)
        if outcome.killed_by is None:
            out.print(f"mutants: survived: {outcome.trial}", soft_wrap=True)
        if number % 50 == 0:
            out.print(f"mutants: {number} of {len(planned)} trials")
    shown = rows(done)
    found = summary(shown)
    write("mutants", found)
    good = not any(row.survived or row.unexplained for row in shown)
    out.print(f"mutants: {found['layers']}, ok: {good}")
    return good


def record_contracts() -> bool:
    """Run every contract; return whether each verdict is the expected one."""
    found = result_data(list(Runner().run(read_contracts(), os.cpu_count() or 1)))
    write("contracts", found)
    out.print(f"contracts: {len(found['contracts'])}, ok: {found['ok']}")
    return bool(found["ok"])


RECORDS = {
    "explore": record_worlds,
    "pairs": record_pairs,
    "prove": record_proofs,
    "encoder": record_encoder,
    "mutants": record_mutants,
    "contracts": record_contracts,
    "gpu": record_gpu,
    "kernels": record_kernels,
}

PEER_RECORDS = {
    "conform": record_conform,
    "scheduler": record_scheduler,
    "monitor": record_monitor,
}
"""What needs the releases of `make peers`; recorded only when it is named."""


def main(arguments: list[str] | None = None) -> int:
    """Record results below docs/results/; exit status 1 when something does not hold."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(RECORDS)}")
    names = parser.parse_args(arguments).names or list(RECORDS)
    known = RECORDS | PEER_RECORDS
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(known)}")
    held = [known[name]() for name in names]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
