"""The named worlds are clean, have their frozen counts, and see what must be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from spec.explore import Result, Search
from spec.pool import TRANSITIONS
from spec.reachable import REACHABLE
from spec.scope import Scope, all_prompts
from spec.state import BlockState, Config
from spec.worlds import WORLDS, Counts

ROOT = Path(__file__).parents[2]
SMALL = tuple(name for name, world in WORLDS.items() if world.counts.transitions <= 120_000)
TINY = tuple(name for name in SMALL if WORLDS[name].counts.transitions <= 20_000)
POOLS = ("pool-1", "pool-2", "pool-3", "pool-4", "pool-4-unhashed-first", "pool-3-three-holders")

MADE = {
    "drafts": Scope(Config(3, 2), ("A",), ((0,),), (0,), 4, num_drafts=2),
    "window": Scope(Config(3, 1, sliding_window=2), ("A",), ((0, 0, 0),), (0,), 4),
    "three holders": Scope(Config(2, 1), max_refs=3),
    "three requests": Scope(Config(4, 1), ("A", "B", "C"), ((0, 0),), (0,), 2),
}
"""Tiny scopes for what the named worlds of this size do not see."""

SIGHTS = {
    "drafts": "a_draft_is_rejected_after_its_block_filled",
    "window": "a_request_with_nulls_ends",
    "three holders": "three_hold_one_block",
    "three requests": "three_hold_one_block",
}

PROGRAM = """
from hashlib import sha256
from spec.explore import Search
from spec.worlds import WORLDS

for name in ("pool-3", "full-2"):
    search = Search(WORLDS[name].scope)
    result = search.run()
    digest = sha256()
    for s in search.reached():
        digest.update(search.world.encode(search.world.node(s)))
    print(name, result[:3], digest.hexdigest(), sorted(result.seen))
"""


@cache
def whole(name: str) -> Result:
    """Return the result of a named or a tiny world, searched once for all tests."""
    return Search(MADE[name] if name in MADE else WORLDS[name].scope).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_world_is_clean_and_has_its_frozen_counts(name: str) -> None:
    """Nothing is broken, nothing is left, and the counts are exact."""
    result = whole(name)
    assert (result.found, result.stopped) == (None, None)
    assert Counts(*result[:3]) == WORLDS[name].counts


def test_there_are_enough_small_worlds() -> None:
    """What is searched here has pools, requests, both free rules, and no caching."""
    assert len(SMALL) >= 10
    assert {*POOLS, "full-1", "full-2", "no-caching"} <= set(SMALL)


@pytest.mark.slow
def test_the_pool_of_four_without_symmetry_is_the_one_that_others_counted() -> None:
    """The twins, written apart, give 37,025 states and 271,857 transitions too."""
    result = Search(WORLDS["pool-4"].scope, symmetry=False).run()
    assert (result.states, result.transitions) == (37_025, 271_857)
    assert result.found is None


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
def test_pool_worlds_see_no_edge_that_is_not_allowed(name: str) -> None:
    """A call that moves one block moves it along one edge of TRANSITIONS, or not at all."""
    allowed = set().union(*TRANSITIONS.values())
    changed = {(a, b) for a, b in whole(name).edges if a is not b}
    assert changed <= allowed


@pytest.mark.slow
def test_pool_worlds_see_every_edge() -> None:
    """Every edge of TRANSITIONS is seen: no way to move is written down for nothing."""
    seen = set().union(*(whole(name).edges for name in POOLS))
    needed = {(a, b) for edges in TRANSITIONS.values() for a, b in edges if a is not b}
    assert needed <= seen
    assert (BlockState.SHARED, BlockState.SHARED) in whole("pool-3-three-holders").edges
    assert not {edge for edge in seen if BlockState.NULL in edge}


@pytest.mark.slow
def test_everything_that_must_be_seen_is_seen() -> None:
    """Over small worlds no name of REACHABLE is left out, and no other is seen."""
    seen = set().union(*(whole(name).seen for name in (*TINY, *MADE)))
    assert sorted(REACHABLE) == sorted(seen)


@pytest.mark.parametrize("name", MADE)
def test_a_tiny_world_shows_what_it_was_made_for(name: str) -> None:
    """Drafts are rejected, a window's request ends, three hold one block; and all is clean."""
    result = whole(name)
    assert SIGHTS[name] in result.seen
    assert (result.found, result.stopped) == (None, None)


SYMMETRIC = {
    **{name: WORLDS[name].scope for name in ("pool-2", "pool-3", "pool-3-three-holders")},
    **MADE,
    "two requests": Scope(Config(3, 1), ("A", "B"), ((0,), (0, 0)), (0,), 2),
    "window of two": Scope(Config(4, 1, sliding_window=2), ("A",), ((0, 0),), (0,), 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYMMETRIC)
def test_renaming_hides_nothing(name: str) -> None:
    """With and without symmetry the same is seen, and both are clean."""
    short, long = (Search(SYMMETRIC[name], symmetry=on).run() for on in (True, False))
    assert short.seen == long.seen
    assert short.edges == long.edges
    assert short.depth <= long.depth
    assert (short.found, long.found) == (None, None)
    assert (short.states, short.transitions) <= (long.states, long.transitions)


@pytest.mark.parametrize(("name", "permutations"), [("two requests", 2), ("window of two", 6)])
def test_symmetry_saves_every_permutation(name: str, permutations: int) -> None:
    """Where requests hold the blocks, a state stands for N! states, and so does a transition."""
    short, long = (Search(SYMMETRIC[name], symmetry=on).run() for on in (True, False))
    assert long.states == permutations * short.states
    assert long.transitions == permutations * short.transitions


@pytest.mark.slow
def test_a_search_is_the_same_twice() -> None:
    """Counts, edges, sights and the order in which states are reached do not change."""
    scope = Scope(Config(3, 1), ("A", "B"), all_prompts((0, 1), 1), (0, 1), 2)
    one, two = Search(scope), Search(scope)
    first, second = one.run(), two.run()
    assert first[:3] == second[:3]
    assert (first.edges, first.seen) == (second.edges, second.seen)
    assert list(one.reached()) == list(two.reached())


@pytest.mark.slow
def test_a_search_is_the_same_in_another_process() -> None:
    """Another hash seed gives the same counts and the same states in the same order."""
    outputs = []
    for seed in ("0", "99"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(  # noqa: S603  # the test's own program
            [sys.executable, "-c", PROGRAM],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        outputs.append(done.stdout)
    assert "(264, 1631, 9)" in outputs[0]
    assert "(2291, 16631, 8)" in outputs[0]
    assert outputs[0] == outputs[1]
