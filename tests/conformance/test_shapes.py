"""Shapes follow the pool, tell pools apart, and are counted in flat memory."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.pool_walk import PoolWalk
from conformance.driving.walk import Walk
from conformance.fuzzing.shapes import EDGES, Distinct, Shapes, WatchedPair, WatchedTwin
from spec.pool import TRANSITIONS
from spec.state import NULL, Config, initial

PLACES = [
    (PoolWalk, Config(6, 2)),
    (Walk, Config(9, 2)),
    (Walk, Config(12, 1, sliding_window=3)),
    (PoolWalk, Config(60, 1)),
]


class Followed(WatchedPair):
    """A pair that works out every shape anew, and keeps what stands behind each."""

    def __init__(self, subject: Any, seen: Shapes) -> None:  # noqa: ANN401  # as a pair's
        super().__init__(subject, seen)
        self.known: dict[int, object] = {}
        self.wrong = 0

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
        try:
            return super()._call(action, **args)
        finally:
            pool = self._watched.frozen()
            self.wrong += WatchedTwin(pool, set()).shape != self._watched.shape
            facts = tuple((block.ref_cnt, block.key is None) for block in pool.blocks), pool.queue
            self.wrong += self.known.setdefault(self._watched.shape, facts) != facts


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "config"), PLACES)
def test_the_shape_follows_the_pool(kind: Callable[..., Any], config: Config) -> None:
    """After every call it is the shape worked out anew, and no two pools share one."""
    seen = Shapes()
    for seed in range(4):
        pair = Followed(Reference(config), seen)
        pair.sweep_every = 50
        kind(pair, seed).run(400)
        assert pair.wrong == 0
        assert len(set(pair.known.values())) == len(pair.known) > 20
    assert 0.9 * len(pair.known) < len(seen.states)


def test_every_transition_of_a_block_has_a_name() -> None:
    """No two transitions look alike, and all of the specification's are there."""
    assert len(EDGES) == sum(map(len, TRANSITIONS.values())) == 12
    assert {effect for effect, _, _ in EDGES.values()} == set(TRANSITIONS)


def test_transitions_of_blocks_are_seen() -> None:
    """Taking, sealing, sharing and dropping a block shows just that."""
    seen = Shapes()
    pair = WatchedPair(Reference(Config(3, 1)), seen)
    walk = PoolWalk(pair, 0)
    (b,) = pair.get_new_blocks(1)
    assert seen.edges() == {("take", "FREE", "IN_USE")}
    pair.cache_full_blocks([b], walk._keys[:1], 0, 1)
    pair.touch([b, NULL])
    pair.free_blocks([b])
    assert seen.edges() == {
        ("take", "FREE", "IN_USE"),
        ("seal", "IN_USE", "IN_USE_CACHED"),
        ("touch", "IN_USE_CACHED", "SHARED"),
        ("release", "SHARED", "IN_USE_CACHED"),
    }
    pair.touch([b, b])
    assert len(seen.edges()) == 4, "two references at once are two transitions in one"


def test_states_and_transitions_are_counted_once() -> None:
    """A pool that comes back to a shape has no new one; another verb is another transition."""
    seen = Shapes()
    pair = WatchedPair(Reference(Config(2, 1)), seen)
    assert (len(seen.states), len(seen.transitions)) == (1, 0)
    for _ in range(3):
        pair.get_new_blocks(1)
        pair.free_blocks([1])
    assert (len(seen.states), len(seen.transitions)) == (2, 2)
    pair.touch([])
    assert (len(seen.states), len(seen.transitions)) == (2, 3)


def test_pools_of_two_sizes_have_no_shape_in_common() -> None:
    """A pool of three blocks is not one of four."""
    shapes = {WatchedTwin(initial(Config(n, 1)).pool, set()).shape for n in range(2, 50)}
    assert len(shapes) == 48


@pytest.mark.parametrize("number", [0, 1, 1_000, 300_000])
def test_the_estimate_is_near(number: int) -> None:
    """Linear counting is off by less than one in a hundred, and by nothing at first."""
    rng, distinct = Random(1), Distinct()  # noqa: S311 (repeatable, not secret)
    for _ in range(number):
        distinct.add(rng.getrandbits(64))
    assert abs(len(distinct) - number) <= number // 100


def test_a_full_sketch_still_answers() -> None:
    """Where every bit is set the estimate is the most that can be told."""
    full = Distinct(b"\xff" * len(Distinct().bits))
    assert len(full) > 60_000_000


def test_a_union_counts_what_either_has() -> None:
    """What both have counts once."""
    a, b = Distinct(), Distinct()
    for number in range(1_000):
        a.add(hash((number,)))
        b.add(hash((number + 500,)))
    assert abs(len(a | b) - 1_500) <= 15
    assert a | b == b | a
    assert a | a == a
    assert a != b
