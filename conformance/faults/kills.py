"""Which check kills which seeded fault, after how many examples, and under which name.

A trial is one fault, one layer and one seed; it is plain data, and so is its outcome, so trials run
on any number of processes. The layers are independent ways to make calls in lockstep with the
specification: `machine` is the stateful machine of Hypothesis, whose example is one program of
rules; `driver` is the plain seeded walk, whose example is one walk from an empty manager. Beside
them `contract` lets CrossHair follow all arguments of one contract; there an example is a contract.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random
from statistics import median
from typing import Any, Final, NamedTuple

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from conformance.contracts import Runner, Verdict, read_contracts
from conformance.driving.pool_walk import PoolWalk
from conformance.driving.walk import Walk
from conformance.exhaustive.production import quiet
from conformance.faults.mutants import MUTANTS, Mutant, planted
from conformance.faults.workers import IDS_ARE_VALID, MOST_BLOCKS, MOST_WORKERS, wrong_ids
from conformance.lockstep import Divergence, Lockstep
from conformance.machines.machine import MACHINES, run_machine
from conformance.subjects import find_subject
from spec.state import Config

MAX_EXAMPLES: Final = 2_000
"""What a fault may survive at most."""

MOVES_PER_WALK: Final = 200


class Trial(NamedTuple):
    """One fault, held against one layer with one seed."""

    mutant: str
    layer: str
    seed: int
    max_examples: int = MAX_EXAMPLES


class Outcome(NamedTuple):
    """What came of a trial. `killed_by` is a property or a contract; None is a survivor.

    `line` says more of it.
    """

    trial: Trial
    killed_by: str | None
    examples: int
    calls: int
    seconds: float
    line: str = ""


def walks(first: int) -> Iterator[tuple[bool, Config, int]]:
    """Yield walks without end: whether it uses the pool directly, where, and its seed."""
    rng = Random(first)  # noqa: S311 (a trial must be repeatable, not secret)
    while True:
        size = rng.randint(1, 3)
        config = Config(
            num_gpu_blocks=rng.randint(2, 9),
            block_size=size,
            max_model_len=rng.randint(1, 6 * size) if rng.random() < 0.1 else 1 << 30,
            enable_caching=rng.random() < 0.9,
            sliding_window=rng.randint(2, 3 * size + 2) if rng.random() < 0.4 else None,
        )
        yield rng.random() < 0.3, config, rng.getrandbits(64)


def by_driver(mutant: Mutant, trial: Trial) -> Outcome:
    """Walk until the fault is found; full checks."""
    if mutant.machine == "workers":
        rng = Random(trial.seed)  # noqa: S311 (as above)
        return of_workers(trial, (_room(rng) for _ in range(trial.max_examples)))
    make, drawn = find_subject(mutant.subject), walks(trial.seed)
    calls, begun = 0, time.perf_counter()
    for example in range(1, trial.max_examples + 1):
        pool, config, walk_seed = next(drawn)
        pair = Lockstep(make(config))
        try:
            (PoolWalk if pool else Walk)(pair, walk_seed).run(MOVES_PER_WALK)
        except Divergence as found:
            calls, seconds = calls + pair.calls, time.perf_counter() - begun
            return Outcome(trial, found.property, example, calls, seconds, str(found))
        calls += pair.calls
    return Outcome(trial, None, trial.max_examples, calls, time.perf_counter() - begun)


def _room(rng: Random) -> list[int]:
    return [rng.randint(2, MOST_BLOCKS) for _ in range(rng.randint(1, MOST_WORKERS))]


def of_workers(trial: Trial, rooms: Iterable[Sequence[int]]) -> Outcome:
    """Unify the configurations of workers with such room, up to the first wrong result."""
    begun, tried = time.perf_counter(), 0
    for tried, room in enumerate(rooms, 1):
        if (wrong := wrong_ids(room)) is not None:
            seconds = time.perf_counter() - begun
            return Outcome(trial, IDS_ARE_VALID, tried, tried, seconds, wrong)
    return Outcome(trial, None, tried, tried, time.perf_counter() - begun)


def drawn_rooms(trial: Trial) -> list[list[int]]:
    """Return what Hypothesis draws for the workers, example by example."""
    rooms: list[list[int]] = []

    @seed(trial.seed)
    @settings(
        max_examples=trial.max_examples, database=None, deadline=None, phases=[Phase.generate]
    )
    @given(st.lists(st.integers(2, MOST_BLOCKS), min_size=1, max_size=MOST_WORKERS))
    def draw(room: list[int]) -> None:
        rooms.append(room)

    draw()
    return rooms


def by_machine(mutant: Mutant, trial: Trial) -> Outcome:
    """Run the machine that sees the fault; nothing is made smaller."""
    if mutant.machine == "workers":
        return of_workers(trial, drawn_rooms(trial))
    run = run_machine(
        MACHINES[mutant.machine],
        find_subject(mutant.subject),
        max_examples=trial.max_examples,
        seed=trial.seed,
        shrink=False,
    )
    found = None if run.failure is None else run.failure.divergence
    name, line = (None, "") if found is None else (found.property, str(found))
    return Outcome(trial, name, run.examples, run.calls, run.seconds, line)


def by_contract(mutant: Mutant, trial: Trial) -> Outcome:
    """Run the contracts that the catalogue names, up to the first that is refuted."""
    planting = ("conformance.faults.mutants", "--planted", mutant.name, "--", "crosshair")
    runner = Runner(command=(sys.executable, "-m", *planting))
    known = {f"{contract.module}.{contract.name}": contract for contract in read_contracts()}
    begun, tried = time.perf_counter(), 0
    for tried, name in enumerate(mutant.contracts, 1):
        result = runner.check(known[name])
        if result.verdict is Verdict.REFUTED:
            return Outcome(trial, name, tried, 0, time.perf_counter() - begun, result.details)
    return Outcome(trial, None, tried, 0, time.perf_counter() - begun)


LAYERS: Final[Mapping[str, Callable[[Mutant, Trial], Outcome]]] = {
    "machine": by_machine,
    "driver": by_driver,
    "contract": by_contract,
}


def run_trial(trial: Trial, among: Mapping[str, Mutant] = MUTANTS) -> Outcome:
    """Plant the fault and run the layer: a function of the trial but for the seconds."""
    mutant = among[trial.mutant]
    with planted(mutant), quiet():
        return LAYERS[trial.layer](mutant, trial)


def sees(mutant: Mutant, layer: str) -> bool:
    """Return whether the catalogue says that a layer can see a fault."""
    return {"driver": mutant.driver, "contract": bool(mutant.contracts)}.get(layer, True)


def trials(
    mutants: Iterable[Mutant], layers: Sequence[str], seeds: int, max_examples: int
) -> list[Trial]:
    """Return every fault with every layer that can see it and every seed from 1 on.

    A contract needs no seed and is tried once.
    """
    return [
        Trial(mutant.name, layer, seed, max_examples)
        for mutant in mutants
        for layer in layers
        if sees(mutant, layer)
        for seed in range(1, 2 if layer == "contract" else seeds + 1)
    ]


def run_trials(planned: Sequence[Trial], jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes as they come, from a number of processes."""
    if jobs == 1:
        yield from map(run_trial, planned)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(run_trial, trial) for trial in planned]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


class Row(NamedTuple):
    """One fault under one layer, over all seeds."""

    mutant: Mutant
    layer: str
    outcomes: tuple[Outcome, ...]

    @property
    def survived(self) -> list[int]:
        """The seeds with which nothing was found."""
        return [o.trial.seed for o in self.outcomes if o.killed_by is None]

    @property
    def names(self) -> Counter[str]:
        """The properties or contracts that killed it, and how often each did."""
        return Counter(o.killed_by for o in self.outcomes if o.killed_by is not None)

    @property
    def unexplained(self) -> list[str]:
        """Properties that killed it and that the catalogue neither gives nor explains."""
        return (
            []
            if self.layer == "contract"
            else [name for name in self.names if not self.mutant.explains(name)]
        )

    def spread(self, what: str) -> tuple[float, float, float]:
        """Return least, median and most of a number over the seeds."""
        numbers = [getattr(outcome, what) for outcome in self.outcomes]
        return min(numbers), median(numbers), max(numbers)

    def data(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "fault": self.mutant.name,
            "layer": self.layer,
            "seeds": len(self.outcomes),
            "survived": self.survived,
            "names": dict(sorted(self.names.items())),
            "examples": [outcome.examples for outcome in self.outcomes],
            "seconds": [round(outcome.seconds, 2) for outcome in self.outcomes],
        }


def rows(outcomes: Iterable[Outcome], among: Mapping[str, Mutant] = MUTANTS) -> list[Row]:
    """Return the outcomes by fault and layer, in the order of the catalogue."""
    grouped: defaultdict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda o: o.trial):
        grouped[outcome.trial.mutant, outcome.trial.layer].append(outcome)
    return [
        Row(mutant, layer, tuple(found))
        for mutant in among.values()
        for layer in LAYERS
        if (found := grouped.get((mutant.name, layer)))
    ]


def summary(shown: Sequence[Row]) -> dict[str, Any]:
    """Return rows as plain data, with the figures of each layer over all its trials."""
    layers = {}
    for layer in dict.fromkeys(row.layer for row in shown):
        outcomes = [o for row in shown if row.layer == layer for o in row.outcomes]
        examples = [o.examples for o in outcomes]
        layers[layer] = {
            "faults": len({o.trial.mutant for o in outcomes}),
            "trials": len(outcomes),
            "killed": sum(o.killed_by is not None for o in outcomes),
            "seeds": len({o.trial.seed for o in outcomes}),
            "max_examples": max(o.trial.max_examples for o in outcomes),
            "median_examples": median(examples),
            "most_examples": max(examples),
        }
    return {"layers": layers, "rows": [row.data() for row in shown]}
