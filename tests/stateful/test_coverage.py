"""What was seen is counted, and what was not is named."""

from __future__ import annotations

from functools import cache

import pytest

from conformance.adapters.reference import Reference
from conformance.exhaustive.coverage import ALL_STATES, ALL_TRANSITIONS, Covered, Reached
from conformance.exhaustive.tour import Graph
from conformance.lockstep import Lockstep
from conformance.machines.machine import PoolMachine, run_machine
from conformance.subject import Refusal, RequestSpec
from spec.reachable import REACHABLE
from spec.state import Config, Key
from spec.worlds import WORLDS

A, B = (Key(None, (label,)) for label in (0, 1))


@cache
def graph(name: str) -> Graph:
    """Return the graph of a named world."""
    return Graph(WORLDS[name].scope)


def pair_with(watcher: Reached | Covered, usable: int = 2) -> Lockstep:
    """Return a pair whose calls a watcher is told of."""
    pair = Lockstep(Reference(Config(usable + 1, 1)))
    pair.on_step = watcher.note
    return pair


def test_nothing_is_seen_before_the_first_call() -> None:
    """Every name is missing, and none is listed twice."""
    missing = Reached().missing()
    assert len(missing) == len(set(missing)) == len(REACHABLE) + len(ALL_STATES | ALL_TRANSITIONS)


def test_transitions_of_direct_calls_are_counted_by_their_effect() -> None:
    """A touch and a release may both leave a block shared; they are two transitions."""
    reached = Reached()
    pair = pair_with(reached)
    pair.get_new_blocks(1)
    pair.cache_full_blocks((1,), (A,), 0, 1)
    for _ in range(2):
        pair.touch((1,))
    for _ in range(3):
        pair.free_blocks((1,))
    pair.reset_prefix_cache()
    counts = dict(reached.counts())
    assert counts["take: FREE -> IN_USE"] == 1
    assert counts["touch: SHARED -> SHARED"] == counts["release: SHARED -> SHARED"] == 1
    assert counts["release: IN_USE_CACHED -> FREE_CACHED"] == 1
    assert counts["reset: FREE_CACHED -> FREE"] == counts["a_reset_succeeds"] == 1
    assert counts["SHARED"] == 3
    assert counts["three_hold_one_block"] == 1


def test_a_refused_call_shows_nothing() -> None:
    """It names a block that there is not, and leaves all as it was."""
    reached = Reached()
    pair = pair_with(reached)
    pair.add_request("a", RequestSpec([0, 0]))
    with pytest.raises(Refusal):
        pair.allocate_slots("a", 1, (9,), 0)
    assert len(reached.missing()) == len(Reached().missing())


def test_a_call_on_two_blocks_covers_two_transitions() -> None:
    """Two blocks are taken, sealed and released: six transitions of the world."""
    covered = Covered(graph("pool-2"))
    pair = pair_with(covered)
    pair.get_new_blocks(2)
    assert len(covered.taken) == 2
    pair.cache_full_blocks((1, 2), (A, B), 0, 2)
    assert len(covered.taken) == 4
    pair.free_blocks((2, 1))
    assert len(covered.taken) == 6
    assert covered.share == 6 / graph("pool-2").num_transitions


def test_the_same_up_to_the_names_of_blocks_is_covered_once() -> None:
    """Releasing the one or the other of two like blocks is one transition."""
    covered = Covered(graph("pool-2"))
    for b in (1, 2):
        pair = pair_with(covered)
        pair.get_new_blocks(2)
        pair.free_blocks((b,))
    assert len(covered.taken) == 4


def test_what_the_world_does_not_have_is_left_out() -> None:
    """Another size, a third reference, a refused call."""
    covered = Covered(graph("pool-2"))
    pair_with(covered, usable=3).get_new_blocks(1)
    pair = pair_with(covered)
    with pytest.raises(Refusal):
        pair.get_new_blocks(3)
    assert covered.taken == set()
    pair.get_new_blocks(1)
    pair.cache_full_blocks((1,), (A,), 0, 1)
    pair.touch((1,))
    before = len(covered.taken)
    pair.touch((1,))
    assert len(covered.taken) == before


@pytest.mark.slow
def test_the_pool_machine_covers_a_small_world() -> None:
    """Of the transitions of a pool of two blocks a third and more are taken in 100 examples."""
    covered = Covered(graph("pool-2"))
    run_machine(
        PoolMachine,
        lambda _: Reference(Config(3, 1)),
        max_examples=100,
        seed=0,
        on_step=covered.note,
    )
    assert covered.share > 0.33
