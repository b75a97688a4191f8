"""A search that stops early says why, what it saw until then, and blames nobody."""

from __future__ import annotations

import pytest

from spec.explore import NO_LIMITS, Limits, Result, Search
from spec.worlds import WORLDS

SCOPE = WORLDS["pool-4"].scope
COUNTS = WORLDS["pool-4"].counts

LIMITED = {
    "time": (Limits(seconds=0), "time limit of 0 s"),
    "states": (Limits(states=20), "limit of 20 states"),
    "memory": (Limits(memory=2**20), "memory limit of 1 MiB"),
}


def is_a_part(result: Result) -> bool:
    """Return whether a result tells less than the whole world, and no violation."""
    less = result.states < COUNTS.states and result.transitions < COUNTS.transitions
    return less and result.depth < COUNTS.depth and result.found is None


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_is_told_and_is_no_violation(name: str) -> None:
    """The reason names the limit, and the counts are those of a part."""
    limits, reason = LIMITED[name]
    result = Search(SCOPE, limits=limits).run()
    assert result.stopped == reason
    assert is_a_part(result)


@pytest.mark.slow
def test_a_limit_keeps_what_was_seen() -> None:
    """Edges and sights until then are in the result, and are some of the whole world's."""
    part = Search(SCOPE, limits=Limits(states=20)).run()
    whole = Search(SCOPE).run()
    assert part.states > 20
    assert part.transitions > 0
    assert part.edges
    assert part.edges <= whole.edges
    assert part.seen < whole.seen


def test_without_a_limit_nothing_stops_a_search() -> None:
    """The default has no limits, and what ends by itself has no reason."""
    assert Limits() == NO_LIMITS
    result = Search(WORLDS["pool-2"].scope, limits=NO_LIMITS).run()
    assert result.stopped is None
    assert result[:3] == WORLDS["pool-2"].counts


def test_a_limit_that_is_not_reached_is_not_told() -> None:
    """A limit as large as the world leaves the search whole."""
    limits = Limits(seconds=600, states=47, memory=1 << 50)
    result = Search(WORLDS["pool-2"].scope, limits=limits).run()
    assert (result.stopped, result.states) == (None, 47)


def test_ctrl_c_ends_a_search_with_what_it_saw() -> None:
    """An interrupt is a reason to stop, not a crash and not a violation."""

    def interrupt(search: Search) -> None:
        if search.depth == 4:
            raise KeyboardInterrupt

    result = Search(SCOPE).run(interrupt)
    assert result.stopped == "interrupted"
    assert result.depth == 4
    assert is_a_part(result)
    assert result.edges
    assert result.seen


@pytest.mark.slow
def test_progress_is_told_at_every_level() -> None:
    """Whoever watches sees the depth go up by one, and the states never go down."""
    told: list[tuple[int, int]] = []
    Search(SCOPE).run(lambda s: told.append((s.depth, s.states)))
    assert [depth for depth, _ in told] == list(range(COUNTS.depth + 1))
    assert [states for _, states in told] == sorted(states for _, states in told)
