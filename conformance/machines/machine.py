"""The stateful machines: random programs of calls on a manager and the specification in lockstep.

A rule is a verb of the API with what it needs fitted to the state: a request that has a table, a
block that somebody holds. Other rules make the call that no careful caller makes, which subject
and specification must refuse alike. Hypothesis leaves some rules out of every program, so each
flavour of a verb is a rule of its own: then there are programs of nothing but equal prompts, or
in which no request ever ends.

`run_machine` is the door. A machine makes its subject with a factory, so that anybody's manager,
or ours with a fault in it, runs under the same rules. A run is a function of its seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from conformance.exhaustive.production import quiet
from conformance.lockstep import Divergence
from conformance.machines.manager_machine import ManagerMachine
from conformance.machines.pair_machine import Failure, Machine, Tally
from conformance.machines.pool_machine import PoolMachine
from conformance.program import Factory
from spec.registry import Step

__all__ = [
    "MACHINES",
    "STEPS",
    "Failure",
    "Machine",
    "MachineRun",
    "ManagerMachine",
    "PoolMachine",
    "run_machine",
]

MACHINES: Final[Mapping[str, type[Machine]]] = {"pool": PoolMachine, "manager": ManagerMachine}
STEPS: Final = 32
"""How many rules make an example."""


class MachineRun(NamedTuple):
    """What a run of a machine did.

    `examples` and `calls` are those up to the first failure; `seconds` includes making it smaller.
    """

    machine: str
    examples: int
    calls: int
    seconds: float
    failure: Failure | None


def run_machine(  # noqa: PLR0913  # all that a run depends on, by name
    kind: type[Machine],
    make: Factory,
    *,
    max_examples: int,
    seed: int | None,
    shrink: bool = True,
    stateful_step_count: int = STEPS,
    on_step: Callable[[Step], None] | None = None,
    known: Callable[[Divergence], bool] = lambda _: False,
) -> MachineRun:
    """Run a machine on subjects of one make until it fails or has made its examples.

    With `shrink` the failure is the smallest one that Hypothesis comes to, otherwise the first.
    Without a seed every run is another one. `on_step` is told of every call. An example ends
    quietly at a divergence that is `known`, and the run goes on.
    """
    tally = Tally(on_step, known)
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    chosen = settings(
        max_examples=max_examples,
        stateful_step_count=stateful_step_count,
        phases=phases,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )

    def machine() -> Machine:
        return kind(make, tally)

    if seed is not None:
        machine = seeded(seed)(machine)
    begun = time.perf_counter()
    try:
        with quiet():
            # Whatever makes a machine will do, says the documentation; the annotation is narrower.
            run_state_machine_as_test(cast("type[Machine]", machine), settings=chosen)
    except (Divergence, Flaky):
        # What does not fail again when Hypothesis repeats it is a failure all the same.
        if tally.failure is None:
            raise
    seconds = time.perf_counter() - begun
    return MachineRun(kind.__name__, tally.examples, tally.calls, seconds, tally.failure)
