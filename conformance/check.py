"""The main job on the embedded default: rows, each with what it covered and a verdict."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

from conformance.contracts import Result, Runner, installed, read_contracts
from conformance.driving.replay import ReplayPlan, Report, replay
from conformance.exhaustive.solvers import prover
from conformance.faults.kills import MAX_EXAMPLES, run_trials, trials
from conformance.faults.mutants import MUTANTS
from conformance.fuzzing.fuzz import Job, run_job
from conformance.machines.machine import MACHINES, run_machine
from conformance.subjects import find_subject
from conformance.workloads.workload import GeneratedWorkload
from spec.explore import Search
from spec.worlds import WORLDS

SEED = 1
NUM_REQUESTS = 400
EXPLORED = ("pool-4", "full-2", "no-caching", "unhashed-first")
"""Worlds that a search sees whole within seconds."""

FUZZED = ("reference", "reference-builtin")
"""Our manager with both kinds of keys."""

NUM_EXAMPLES = 30
NUM_CALLS = 20_000

CONTRACTS = (
    "remove_closes_the_gap",
    "no_skipped_block_is_read",
    "the_first_block_kept_is_read",
    "a_hit_leaves_a_token",
    "wrong_a_window_lets_go_one_token_early",
    "wrong_a_splice_needs_no_back_link",
)
"""Contracts that CrossHair answers within seconds; the last two are false and must be refuted."""

Verdict = Literal["clean", "violation", "not run"]


class Row(NamedTuple):
    """One line of the verdict table."""

    name: str
    covered: str
    verdict: Verdict
    seconds: float
    problem: str = ""


def rows() -> Iterator[Row]:
    """Do the main job, row by row."""
    yield from replay_rows()
    yield from explore_rows()
    yield prove_row()
    yield from fuzz_rows()
    yield contracts_row()
    yield mutants_row()


def num_rows() -> int:
    """Return how many rows there will be."""
    return len(list(replay_plans())) + len(EXPLORED) + len(FUZZED) + 3


def replay_plans() -> Iterator[ReplayPlan]:
    """Yield the ways in which the bundled sample is replayed, always with full checks."""
    for batch, window, caching in itertools.product((False, True), (None, 7), (True, False)):
        yield ReplayPlan(
            num_blocks=26 if batch else 20,
            block_size=4,
            batch=batch,
            check="full",
            window=window,
            caching=caching,
            num_drafts=2 if batch else 0,
            caching_hash_algo="builtin" if window else "sha256",
        )


def replay_rows() -> Iterator[Row]:
    """Replay the bundled sample in every way, one row each."""
    for plan in replay_plans():
        workload = GeneratedWorkload(SEED, NUM_REQUESTS, plan.block_size)
        started = time.perf_counter()
        report = replay(workload, plan)
        if report.verdict == "interrupted":
            raise KeyboardInterrupt
        yield _replay_row(plan, report, time.perf_counter() - started)


def _replay_row(plan: ReplayPlan, report: Report, seconds: float) -> Row:
    attention = "full" if plan.window is None else f"window {plan.window}"
    name = f"replay {report.mode}, {attention}{'' if plan.caching else ', no caching'}"
    covered = (
        f"{report.calls_checked:,} calls, {report.hit_rate:.0%} hit, "
        f"{report.evictions:,} evicted, {report.preemptions:,} preempted"
    )
    verdict: Verdict = "clean" if report.verdict == "clean" else "violation"
    return Row(name, covered, verdict, seconds, report.violation or "")


def explore_rows() -> Iterator[Row]:
    """Search some small worlds whole; their counts must be the frozen ones."""
    for name in EXPLORED:
        world = WORLDS[name]
        result = Search(world.scope).run()
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        problem = ""
        if result.found is not None:
            path = "; ".join(str(move) for move, _ in result.found.path)
            problem = f"kvspec violation: property={result.found.property} found_by=explore: {path}"
        elif (result.states, result.transitions, result.depth) != world.counts:
            problem = f"counts {result[:3]}, frozen {tuple(world.counts)}"
        covered = f"all {result.states:,} states, {result.transitions:,} transitions"
        verdict: Verdict = "violation" if problem else "clean"
        yield Row(f"explore {name}", covered, verdict, result.seconds, problem)


def prove_row() -> Row:
    """Prove the invariants for any size, where the solvers are installed.

    What `kvspec prove` does besides (faults that must be seen, the bridge) takes longer than this
    job may, and is left to it.
    """
    started = time.perf_counter()
    prove = prover()
    if prove is None:
        hint = "the solvers are not installed: pip install -e '.[proof]'"
        return Row("prove", hint, "not run", 0)
    verdicts = prove.judged(list(prove.proof.questions()), os.cpu_count() or 1, lambda: None)
    open_ones = [v for v in verdicts if v.status != "both"]
    covered = f"{len(verdicts) - len(open_ones)} of {len(verdicts)} obligations, two solvers"
    problem = "".join(f"{v.status}: {v}\n" for v in open_ones)
    verdict: Verdict = "violation" if open_ones else "clean"
    return Row("prove", covered, verdict, time.perf_counter() - started, problem)


def fuzz_rows() -> Iterator[Row]:
    """Run the machines and the plain walks on our manager, one row for each kind of keys."""
    for seed, name in enumerate(FUZZED, SEED):
        started = time.perf_counter()
        runs = [
            run_machine(kind, find_subject(name), max_examples=NUM_EXAMPLES, seed=seed)
            for kind in MACHINES.values()
        ]
        walked = run_job(Job(seed, NUM_CALLS, name))
        lines = [str(run.failure.divergence) for run in runs if run.failure is not None]
        lines += [finding.line for finding in walked.findings]
        calls = walked.calls + sum(run.calls for run in runs)
        examples = walked.episodes + sum(run.examples for run in runs)
        covered = (
            f"{calls:,} calls, {examples:,} examples, {len(walked.states):,} states, "
            f"{len(walked.transitions):,} transitions"
        )
        verdict: Verdict = "violation" if lines else "clean"
        seconds = time.perf_counter() - started
        yield Row(f"fuzz {name}", covered, verdict, seconds, "\n".join(lines))


def contracts_row() -> Row:
    """Let CrossHair follow all arguments of a few contracts, where it is installed."""
    if not installed():
        hint = "CrossHair is not installed: pip install -e '.[contracts]'"
        return Row("contracts", hint, "not run", 0)
    started = time.perf_counter()
    known = {contract.name: contract for contract in read_contracts()}
    results = list(Runner().run([known[name] for name in CONTRACTS], os.cpu_count() or 1))
    told = Counter(result.verdict.value for result in results)
    covered = ", ".join(f"{number} {verdict}" for verdict, number in sorted(told.items()))
    wrong = [told_of(result) for result in results if not result.as_expected]
    verdict: Verdict = "violation" if wrong else "clean"
    seconds = time.perf_counter() - started
    return Row("contracts", f"{covered}, as expected", verdict, seconds, "\n".join(wrong))


def told_of(result: Result) -> str:
    """Return what is wrong with a contract, in a line."""
    contract = result.contract
    expected = contract.expected.value
    return f"{contract.name}: expected {expected}, is {result.verdict.value}: {result.details}"


def mutants_row() -> Row:
    """Plant the collected faults in our manager one by one; the plain walks must find each."""
    started = time.perf_counter()
    chosen = [mutant for mutant in MUTANTS.values() if mutant.number]
    outcomes = list(run_trials(trials(chosen, ["driver"], 1, MAX_EXAMPLES), os.cpu_count() or 1))
    survivors = sorted(o.trial.mutant for o in outcomes if o.killed_by is None)
    covered = f"{len(outcomes) - len(survivors)} of {len(outcomes)} seeded faults found"
    problem = f"not found: {', '.join(survivors)}" if survivors else ""
    verdict: Verdict = "violation" if survivors else "clean"
    return Row("mutants", covered, verdict, time.perf_counter() - started, problem)
