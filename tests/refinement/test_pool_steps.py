from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest

from conformance.exhaustive.production import Names, PoolCall, Refined, refine
from conformance.exhaustive.tour import Graph
from spec.invariants import broken
from spec.scope import Scope
from spec.state import Block, Config, Frozen, Key, Pool, State

States = Callable[[Scope], Iterator[State]]
Calls = Callable[..., list[PoolCall]]

TWO, THREE, FOUR = (Scope(Config(n + 1, 1)) for n in (2, 3, 4))


def pools_of_any_kind() -> Iterator[Pool]:
    """Yield pools of two usable blocks that are right and, nearly always, wrong.

    Any count and key for each block, any three ids or fewer as the queue, with null and repeated
    ones, and any blocks in any order, or none, as the entry of each key.
    """
    labels = [Key(None, (label,)) for label in range(TWO.keys)]
    facts = [Block(n, key, key) for n in range(3) for key in (None, *labels)]
    queues = [queue for size in range(4) for queue in product(range(3), repeat=size)]
    entries = [None, *(ids for size in range(3) for ids in permutations((1, 2), size))]
    indexes = [
        Frozen({key: ids for key, ids in zip(labels, pair, strict=True) if ids is not None})
        for pair in product(entries, repeat=2)
    ]
    for pair in product(facts, repeat=2):
        for queue, index in product(queues, indexes):
            yield Pool((Block(), *pair), queue, index)


@pytest.mark.slow
def test_all_states_that_satisfy_the_invariants_are_made(pool_states: States) -> None:
    """With two blocks, of all pools that can be written down just the made ones break nothing."""
    sound = set()
    for pool in pools_of_any_kind():
        held = tuple(b for b, block in enumerate(pool.blocks) for _ in range(block.ref_cnt))
        if next(broken(State(TWO.config, pool, loose=held), "P"), None) is None:
            sound.add(pool)
    made = {s.pool for s in pool_states(TWO)}
    assert made == sound
    assert len(made) == 93


def test_pools_of_three_blocks_step_as_specified(pool_states: States, pool_calls: Calls) -> None:
    """From a tenth of the states of three blocks, calls that name one block commute."""
    calls = pool_calls(THREE, single=True)
    done = refine(list(pool_states(THREE))[::10], calls, Names(THREE.config))
    assert done == Refined(156, 4_212, 2_890)


@pytest.mark.slow
def test_every_state_of_four_blocks_steps_as_specified(
    pool_states: States, pool_calls: Calls
) -> None:
    """From all 37,025 states that satisfy the invariants, calls that name one block commute.

    These states are exactly those that can be reached, so the invariants are as strong as can be.
    """
    states = list(pool_states(FOUR))
    assert next((s for s in states if next(broken(s, "P"), None)), None) is None
    reached = set(Graph(FOUR, symmetry=False).states())
    assert len(states) == len(reached) == 37_025
    assert set(states) == reached
    done = refine(states, pool_calls(FOUR, single=True), Names(FOUR.config))
    assert done == Refined(37_025, 1_221_825, 833_195)


@pytest.mark.slow
def test_calls_that_name_several_blocks_step_as_specified(
    pool_calls: Calls, graph_of: Callable[[str], Graph]
) -> None:
    """From each of the 1,569 states of four blocks up to renaming, all other calls commute."""
    calls = pool_calls(FOUR, single=False)
    done = refine(graph_of("pool-4").states(), calls, Names(FOUR.config))
    assert done == Refined(1_569, 431_475, 352_606)
