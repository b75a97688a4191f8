"""Runs the proofs for any number of blocks and shows them as tables.

`run_proofs` does everything and returns plain data: the verdict of both solvers on each obligation,
whether the actions are possible, what the seeded faults break, and how the machines of the proofs
compare with the Python specification on the steps of seeded walks.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

from rich.table import Table

from conformance.driving.walk import Walk
from conformance.lockstep import ACTIONS, Lockstep
from conformance.subject import Capabilities, Refusal, Subject
from spec import proof
from spec.explore import Search
from spec.proof.logic import Level
from spec.proof.unfold import RealStep
from spec.scope import Scope, pool_moves, request_moves, shared_moves
from spec.state import Config
from spec.statemachine import Refused

WALK_MOVES = 400
WALKS = (
    Config(8, 2),
    Config(7, 1),
    Config(9, 2, free_rule="unhashed_first"),
    Config(8, 1, free_rule="unhashed_first"),
    Config(8, 2, sliding_window=3),
    Config(8, 1, sliding_window=2, free_rule="unhashed_first"),
    Config(8, 2, enable_caching=False),
)
SHORT = {"both": "proved", "refuted": "REFUTED", "disagreement": "DISAGREE", "unknown": "unknown"}


class Recorder(Lockstep):
    """The verbs of a subject on the specification alone; notes every call that is not refused."""

    def __init__(self, config: Config) -> None:
        nobody = SimpleNamespace(
            name="specification",
            config=config,
            capabilities=Capabilities(free_rule=config.free_rule),
        )
        super().__init__(cast("Subject", nobody), check="off")
        self.steps: list[RealStep] = []

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # each verb casts its own
        before = self.state
        try:
            self.state, result = ACTIONS[action](before, **args)
        except Refused as refused:
            raise Refusal(refused.rule, str(refused)) from refused
        self.steps.append((before, action, args, self.state))
        if isinstance(result, Refused):
            raise Refusal(result.rule, str(result))
        return result


def walked(configs: Iterable[Config] = WALKS, num_moves: int = WALK_MOVES) -> Iterator[RealStep]:
    """Yield the steps of one seeded walk of the specification for each configuration."""
    for seed, config in enumerate(configs):
        recorder = Recorder(config)
        Walk(recorder, seed).run(num_moves)
        yield from recorder.steps


def explored(scope: Scope) -> Iterator[RealStep]:
    """Yield every call that may happen in every reachable state of a world."""
    search = Search(scope)
    search.run()
    for state in search.reached():
        local = (request_moves(state, rid, scope) for rid in scope.names)
        calls = [steps for moves in local for _, steps, _ in moves]
        shared = shared_moves(state, scope) if scope.names else pool_moves(state, scope)
        calls += [steps for _, steps in shared]
        for step in chain(*calls):
            if not isinstance(step.result, Refused):
                yield step.before, step.action, step.args, step.after


def judged(
    questions: Sequence[proof.Question], processes: int, tick: Callable[[], None]
) -> list[proof.Verdict]:
    """Return the verdicts, in the order of the questions, from a number of processes."""
    found = []
    if processes == 1:
        for question in questions:
            found.append(proof.judge(question))
            tick()
        return found
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for verdict in pool.map(proof.judge, questions, chunksize=4):
            found.append(verdict)
            tick()
    return found


def run_proofs(
    processes: int = 2,
    steps: Iterable[RealStep] | None = None,
    tick: Callable[[], None] = lambda: None,
    levels: Sequence[Level] = proof.LEVELS,
) -> dict[str, Any]:
    """Prove everything and return plain data. `steps` are for the bridge; else walks make them.

    `tick` is called after each obligation.
    """
    started = time.perf_counter()
    verdicts = judged(list(proof.questions(levels)), processes, tick)
    solved = time.perf_counter()
    possible = [{**p._asdict(), "ok": p.ok} for p in proof.possibilities(levels)]
    faults = [{**f._asdict(), "picture": list(f.picture), "ok": f.ok} for f in proof.faults(levels)]
    checked = time.perf_counter()
    real = walked() if steps is None else steps
    bridges = [proof.bridge_data(b) for b in proof.bridge(real, levels)]
    counts = Counter(verdict.status for verdict in verdicts)
    return {
        "versions": proof.versions(),
        "assumptions": {level.name: list(level.assumptions) for level in levels},
        "lemmas": {level.name: proof.lemmas(level) for level in levels},
        "counts": dict(sorted(counts.items())),
        "obligations": [verdict.data() for verdict in verdicts],
        "possible": [{**p, "still": list(p["still"])} for p in possible],
        "faults": faults,
        "bridge": bridges,
        "seconds": {
            "solvers": round(solved - started, 1),
            "vacuity": round(checked - solved, 1),
            "bridge": round(time.perf_counter() - checked, 1),
        },
        "ok": set(counts) == {"both"} and all(row["ok"] for row in (*possible, *faults, *bridges)),
    }


def tables(data: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the results as tables: invariant by action for each level, then the checks."""
    for level in dict.fromkeys(row["level"] for row in data["obligations"]):
        yield _verdict_table(level, data)
    table = Table("level", "seeded fault", "breaks", "with it", "without it", title="Seeded faults")
    for row in data["faults"]:
        names = (row["level"], row["fault"], row["breaks"])
        table.add_row(*names, row["verdict"], row["control"])
    yield table
    table = Table("level", "steps", "accepted", "wrong rejected", "outside", title="Bridge")
    for row in data["bridge"]:
        sums = [sum(row[k].values()) for k in ("accepted", "rejected", "outside_the_assumptions")]
        table.add_row(row["level"], str(row["real_steps"]), *map(str, sums))
    yield table


def _verdict_table(level: str, data: Mapping[str, Any]) -> Table:
    rows = [row for row in data["obligations"] if row["level"] == level]
    cells = {(row["invariant"], row["action"]): row for row in rows}
    actions = list(dict.fromkeys(row["action"] for row in rows))
    table = Table("invariant (* lemma)", *actions, title=f"Level {level}, processor seconds")
    for invariant in dict.fromkeys(row["invariant"] for row in rows):
        mark = "*" if invariant in data["lemmas"][level] else ""
        table.add_row(invariant + mark, *(_cell(cells.get((invariant, a))) for a in actions))
    return table


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return (
        f"{SHORT.get(row['status'], row['status'])} {row['z3_seconds'] + row['cvc5_seconds']:.2f}"
    )
