"""The relation between the five states: a block moves along its edges and along no other one."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from spec import pool, statemachine
from spec.invariants import Step, broken
from spec.pool import TRANSITIONS, Refused
from spec.state import BlockState, Config, Key, State, block_state, initial

Perform = Callable[[State, str, Mapping[str, Any]], Step]

Edge = tuple[BlockState, BlockState]

EFFECT = {
    "get_new_blocks": "take",
    "cache_full_blocks": "seal",
    "touch": "touch",
    "free_blocks": "release",
    "unpublish": "unpublish",
    "reset_prefix_cache": "reset",
}
"""The one effect that each action of the pool has."""

KEYS = tuple(Key(None, (n,)) for n in range(3))


def random_call(s: State, rng: Random) -> tuple[str, dict[str, Any]]:
    """Return a call that mentions no block twice; it may well be refused."""
    ids = rng.sample(range(1, s.config.num_gpu_blocks), rng.randint(1, 2))
    match rng.choice([*EFFECT, "free_blocks"]):
        case "get_new_blocks":
            return "get_new_blocks", {"n": rng.randint(1, 2)}
        case "cache_full_blocks":
            keys = [rng.choice(KEYS) for _ in ids]
            return "cache_full_blocks", {
                "table": ids,
                "keys": keys,
                "num_cached": 0,
                "num_full": len(ids),
            }
        case "reset_prefix_cache":
            return "reset_prefix_cache", {}
        case action:
            return action, {"ids": ids}


def edges(step: Step) -> set[Edge]:
    """Return how blocks moved; one that is mentioned and stays shared moved from there to there."""
    mentioned = step.args["ids"] if step.action in ("touch", "free_blocks") else ()
    if isinstance(step.result, Refused):
        return set()
    moves = {
        b: (block_state(step.before, b), block_state(step.after, b))
        for b in range(1, step.before.config.num_gpu_blocks)
    }
    return {(was, now) for b, (was, now) in moves.items() if was != now or b in mentioned}


@pytest.fixture(scope="module")
def walked(request: pytest.FixtureRequest) -> Sequence[Step]:
    """Return the calls of a seeded walk over the pool's actions, from one state to the next."""
    rng, s, steps = Random(7), initial(Config(5, 1)), []  # noqa: S311  # repeatable, not secret
    perform: Perform = request.getfixturevalue("perform_call")
    for _ in range(1_500):
        step = perform(s, *random_call(s, rng))
        steps.append(step)
        s = step.after
    return steps


def test_a_walk_makes_only_allowed_transitions_and_every_one(walked: Sequence[Step]) -> None:
    """Each effect moves a block along its own edges, and all of them are seen."""
    seen: dict[str, set[Edge]] = {effect: set() for effect in EFFECT.values()}
    for step in walked:
        seen[EFFECT[step.action]] |= edges(step)
    assert seen == TRANSITIONS


def test_a_walk_breaks_nothing_that_a_pool_keeps(walked: Sequence[Step]) -> None:
    """A direct caller may do what the guards let it do, and every pool property holds."""
    found = [f for step in walked for s in (step, step.after) for f in broken(s, "P")]
    assert found == []
    refused = Counter(str(getattr(step.result, "rule", "done")) for step in walked)
    assert {
        "done",
        "not_enough_free_blocks",
        "touched_block_is_not_sealed",
        "released_more_often_than_held",
        "block_is_already_sealed",
        "sealed_block_has_not_one_holder",
        "unpublished_block_is_not_one_holders",
    } == set(refused)


def test_the_relation_is_the_same_through_both_doors() -> None:
    """The state machine offers the pool's relation and actions, not copies of them."""
    assert statemachine.TRANSITIONS is pool.TRANSITIONS
    assert all(getattr(statemachine, action) is getattr(pool, action) for action in EFFECT)


def test_every_state_can_be_entered_and_left() -> None:
    """No state is a trap, none is out of reach, and NULL takes part in nothing."""
    every = set().union(*TRANSITIONS.values())
    five = set(BlockState) - {BlockState.NULL}
    assert five == {was for was, now in every if was != now}
    assert five == {now for was, now in every if was != now}
