"""Workers agree on one list of ids, and each predicate about them can say no."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

import pytest

from spec import workers as right
from spec.invariants import REGISTRY
from spec.workers import (
    WORKERS_REGISTRY,
    WORKERS_WORLDS,
    Proposal,
    Workers,
    WorkersResult,
    broken_in_workers,
    explore_workers,
    perform,
)

TWO, THREE, LATENT = Proposal(2), Proposal(3), Proposal(3, "latent")

BROKEN: dict[str, tuple[Workers, ...]] = {
    "ids_are_valid_on_every_worker": (
        Workers((THREE, TWO), 3),
        Workers((TWO, THREE), 3),
        Workers((THREE, TWO), 2, frozenset({2})),
        Workers((THREE, THREE), 3, frozenset({-1})),
        Workers((THREE, None), None, frozenset({1})),
    ),
    "no_block_that_all_workers_have_is_left_out": (Workers((THREE, THREE), 2),),
    "workers_that_are_unified_keep_the_same": (Workers((THREE, LATENT), 3),),
}
GOOD = (
    Workers((THREE, TWO), 2, frozenset({1})),
    Workers((THREE, LATENT)),
    Workers((None, TWO)),
    Workers((THREE,), 3, frozenset({1, 2})),
)


@cache
def whole(name: str) -> WorkersResult:
    """Return the result of a named world, searched once for all tests."""
    return explore_workers(WORKERS_WORLDS[name].scope)


@pytest.mark.parametrize("name", WORKERS_REGISTRY)
def test_each_predicate_flags_its_violations_and_only_those(name: str) -> None:
    """Every state made by hand breaks this property and no other; good ones break none."""
    for state in BROKEN[name]:
        assert {broken for broken, _ in broken_in_workers(state)} == {name}
    assert not [broken for state in GOOD for broken in broken_in_workers(state)]


def test_the_registry_stands_apart_and_is_complete() -> None:
    """Each property has a statement, a reason and a violation; no name is taken twice."""
    assert sorted(BROKEN) == sorted(WORKERS_REGISTRY)
    assert not WORKERS_REGISTRY.keys() & REGISTRY.keys()
    for p in WORKERS_REGISTRY.values():
        assert p.statement.endswith(".")
        assert p.why.endswith(".")
        assert p.levels == "W"


@pytest.mark.parametrize("name", WORKERS_WORLDS)
def test_a_world_is_clean_and_has_its_frozen_counts(name: str) -> None:
    """Nothing is broken and the counts are exact."""
    assert whole(name).found is None
    assert whole(name).counts == WORKERS_WORLDS[name].counts


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_the_states_can_be_counted_by_hand(num_workers: int) -> None:
    """Each worker is silent or has 2, 3 or 4 blocks; then any of the common ids are handed out."""
    rooms = list(product((2, 3, 4), repeat=num_workers))
    states = 4**num_workers + sum(2 ** (min(room) - 1) for room in rooms)
    assert states == whole(f"workers-{num_workers}").counts.states


def test_everything_that_must_be_seen_is_seen() -> None:
    """Any worker may have the fewest, all ids are handed out, and every rule refuses something."""
    fewest: Counter[tuple[int, ...]] = Counter()
    for s in whole("workers-3").states:
        if s.num_blocks is not None and len(s.handed_out) == s.num_blocks - 1:
            fewest[tuple(r for r, p in enumerate(s.proposed) if p.num_blocks == s.num_blocks)] += 1
    assert len(fewest) == 7
    rules = whole("workers-3").rules | whole("workers-differ").rules
    assert rules == {
        "worker_has_proposed",
        "worker_has_not_proposed",
        "workers_are_unified",
        "workers_have_different_specs",
        "block_id_is_not_valid_on_every_worker",
        "block_is_handed_out",
    }


def test_a_refusal_changes_nothing_and_names_the_worker() -> None:
    """The first worker that differs from worker 0, or that has said nothing."""
    differ = Workers((TWO, TWO, LATENT, LATENT))
    step = perform(differ, "unify", {})
    assert step.refused is not None
    assert (step.refused.rule, step.refused.values) == (
        "workers_have_different_specs",
        {"worker": 2},
    )
    assert step.after is differ
    silent = perform(Workers((TWO, None, None)), "unify", {}).refused
    assert silent is not None
    assert silent.values == {"worker": 1}


# The specification with one thing wrong.


def largest(proposals: tuple[Proposal, ...]) -> int:
    """Give all what the one with the most blocks has."""
    return max(proposal.num_blocks for proposal in proposals)


def first(proposals: tuple[Proposal, ...]) -> int:
    """Give all what worker 0 has."""
    return proposals[0].num_blocks


def one_less(proposals: tuple[Proposal, ...]) -> int:
    """Keep a block back."""
    return min(proposal.num_blocks for proposal in proposals) - 1


def anything_goes(*_: object) -> None:
    """Refuse nothing."""


WRONG: dict[str, tuple[str, object, str, str, list[str]]] = {
    "the largest number": (
        "common_number",
        largest,
        "workers-2",
        "ids_are_valid_on_every_worker",
        ["propose", "propose", "unify"],
    ),
    "the number of worker 0": (
        "common_number",
        first,
        "workers-2",
        "ids_are_valid_on_every_worker",
        ["propose", "propose", "unify"],
    ),
    "one block less": (
        "common_number",
        one_less,
        "workers-1",
        "no_block_that_all_workers_have_is_left_out",
        ["propose", "unify"],
    ),
    "no comparison of what is kept": (
        "must_keep_the_same",
        anything_goes,
        "workers-differ",
        "workers_that_are_unified_keep_the_same",
        ["propose"] * 3 + ["unify"],
    ),
    "any id": (
        "must_be_valid",
        anything_goes,
        "workers-1",
        "ids_are_valid_on_every_worker",
        ["hand_out"],
    ),
}
"""What is replaced, by what, the world, what breaks, and the calls of a shortest path."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_specification_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends with the property and a shortest path."""
    function, wrong, world, breaks, calls = WRONG[name]
    monkeypatch.setattr(right, function, wrong)
    found = explore_workers(WORKERS_WORLDS[world].scope).found
    assert found is not None
    assert (found[0], [action for action, _ in found[2]]) == (breaks, calls)


def test_worker_0_is_wrong_only_where_it_has_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that refutes it shows worker 0 with more blocks than worker 1."""
    monkeypatch.setattr(right, "common_number", first)
    found = explore_workers(WORKERS_WORLDS["workers-2"].scope).found
    assert found is not None
    rooms = {args["worker"]: args["proposal"].num_blocks for _, args in found[2][:2]}
    assert rooms[0] > rooms[1]
