"""Seeded faults: our manager with one place changed, and the property that lockstep names.

A check that cannot fail proves nothing. The catalogue is `conformance/faults/mutants.toml`. Each
fault is driven by its stories in the notation of the cases, under full checks and under incremental
ones; a sweep ends a story.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from conformance.faults.mutants import MUTANTS, Mutant, Story, planted
from conformance.lockstep import Divergence
from conformance.subject import Refusal

Scene = Any

STORIES = {
    f"{mutant.name}-{number}": (mutant, story)
    for mutant in MUTANTS.values()
    for number, story in enumerate(mutant.stories, 1)
}


@pytest.fixture(params=STORIES)
def told(request: pytest.FixtureRequest) -> Iterator[tuple[Mutant, Story]]:
    """Return a fault that is planted for the time of the test, and a story that exposes it."""
    mutant, story = STORIES[request.param]
    with planted(mutant):
        yield mutant, story


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_seeded_fault_is_named(
    told: tuple[Mutant, Story], check: str, unchecked_pool: Scene
) -> None:
    """The fault is seen, under the name that stands beside the story.

    Where an incremental check cannot look, a later call or the sweep sees it; what has an empty
    name is seen by full checks only.
    """
    mutant, story = told
    expected: str | None = story.named
    if check == "incremental" and story.incremental is not None:
        expected = story.incremental or None
    seen = None
    try:
        unchecked_pool.told(story.told, check).pair.sweep()
    except Divergence as divergence:
        seen = divergence.property
    assert seen == expected, mutant.says


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_clean_without_a_fault(name: str, check: str, unchecked_pool: Scene) -> None:
    """What is seen in a story is the fault's doing; a refusal is an answer, the last of a story."""
    with suppress(Refusal):
        unchecked_pool.told(STORIES[name][1].told, check).pair.sweep()


@pytest.mark.parametrize(
    ("name", "story"),
    [
        ("forward-release", "pool(3); new(A,abcde); free(A); new(C,wxyz); free(C); new(B,abcdf)"),
        (
            "taken-before-touched",
            "pool(4); new(A,abc); free(A); new(C,wxyz); free(C); new(B,abpqr)",
        ),
    ],
)
def test_the_two_that_survive_naive_tests_have_their_sequences(name: str, story: str) -> None:
    """They need an eviction and a third request in between, so the sequences stay as they are."""
    assert story in [s.told for s in MUTANTS[name].stories]
