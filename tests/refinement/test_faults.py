"""One fault of the catalogue at a time is planted in production; the layers that see it are named.

`steps` compares every call from loaded states, `tour` walks from the initial state. Which of the
two see a fault, and in which world, stands in `conformance/faults/mutants.toml`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.exhaustive.production import Names, PoolCall, refine
from conformance.exhaustive.tour import Graph, replay
from conformance.faults.mutants import MUTANTS, planted
from spec.scope import Scope
from spec.state import Config, State

Graphs = Callable[[str], Graph]
THREE = Scope(Config(4, 1))
POOL = "pool-3"

STEPS = {mutant.name: mutant.steps for mutant in MUTANTS.values() if mutant.steps is not None}
"""The world of each fault that is held against steps and tours, and the layers that see it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (world, _) in STEPS.items() if world == POOL])
def test_a_faulty_pool_is_seen(
    name: str,
    graph_of: Graphs,
    pool_states: Callable[[Scope], Iterator[State]],
    pool_calls: Callable[..., list[PoolCall]],
) -> None:
    """The step is compared from every state of three blocks, and the tour takes every move."""
    graph = graph_of(POOL)
    calls = [*pool_calls(THREE, single=True), *pool_calls(THREE, single=False)]
    with planted(MUTANTS[name]):
        steps = refine(pool_states(THREE), calls, Names(THREE.config))
        tour = replay(graph, Reference)
    seen = {"steps": steps.found, "tour": tour.found}
    assert [layer for layer, found in seen.items() if found] == STEPS[name][1].split()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (world, _) in STEPS.items() if world != POOL])
def test_a_faulty_manager_is_seen(
    name: str, graph_of: Graphs, steps_of: Callable[[Graph], Any]
) -> None:
    """Moves and misuse are compared from the states of a small world, and a tour takes its moves.

    A fault that a tour sees is shown by a shortest path, of a dozen moves or fewer.
    """
    world, layers = STEPS[name]
    graph = graph_of(world)
    steps = steps_of(graph)
    with planted(MUTANTS[name]):
        found = replay(graph, Reference).found
        seen = {"steps": steps.moves() or steps.misuse(20), "tour": found}
    assert [layer for layer, shown in seen.items() if shown] == layers.split()
    assert found is None or (found.shortest and len(found.path) <= 12)
