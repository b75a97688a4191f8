"""In all that a few small worlds can reach, nothing is broken, and what matters is seen.

The searches here are bounded and plain; they hold the specification against its own properties.
"""

from collections.abc import Callable
from typing import Any

import pytest

Explore = Callable[..., Any]

EVERYWHERE = {
    "FREE",
    "FREE_CACHED",
    "IN_USE_CACHED",
    "SHARED",
    "room",
    "no room",
    "an eviction",
    "an idle hit",
    "no room for an idle hit",
    "a preempted request hits",
    "pending_block_is_shared",
    "reset True",
    "reset False",
}
"""What every complete search must come by, or it proved nothing."""

UP_TO_THREE = "a b aa ab ba bb aaa aab aba abb baa bab bba bbb"


@pytest.mark.slow
def test_nothing_is_broken_with_full_attention(explore: Explore) -> None:
    """Two usable blocks of one token and two requests: every reachable state, every call."""
    found = explore(2, "b ab", 2)
    assert (found.broken, found.complete) == (set(), True)
    assert set(found.seen) == EVERYWHERE


@pytest.mark.slow
def test_nothing_is_broken_with_a_window(explore: Explore) -> None:
    """Requests of four tokens pass through two blocks of one; parents leave before children."""
    found = explore(2, "ab", 4, sliding_window=2)
    assert (found.broken, found.complete) == (set(), True)
    assert EVERYWHERE | {"a null in a table", "request_is_too_large"} == set(found.seen)


@pytest.mark.slow
def test_nothing_is_broken_with_drafts(explore: Explore) -> None:
    """Blocks of two tokens are filled by drafts that are accepted or rejected."""
    found = explore(2, "ab", 3, block_size=2, drafts="b")
    assert (found.broken, found.complete) == (set(), True)
    assert EVERYWHERE | {"IN_USE"} == set(found.seen)


@pytest.mark.slow
def test_nothing_is_broken_when_plain_blocks_go_first(explore: Explore) -> None:
    """With the other free rule the same properties hold."""
    found = explore(2, "b ab", 2, free_rule="unhashed_first")
    assert (found.broken, found.complete, EVERYWHERE - set(found.seen)) == (set(), True, set())


def test_nothing_is_broken_without_caching(explore: Explore) -> None:
    """No block is ever sealed, found or shared."""
    found = explore(2, "ab", 2, enable_caching=False)
    assert (found.broken, found.complete) == (set(), True)
    assert set(found.seen) == {"FREE", "IN_USE", "room", "no room", "reset True", "reset False"}


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 2])
def test_nothing_is_broken_with_any_short_prompt(explore: Explore, window: int | None) -> None:
    """All prompts of up to three letters, three usable blocks: the first states, shallow ones."""
    found = explore(3, UP_TO_THREE, 3, sliding_window=window, limit=2_000)
    assert (found.broken, found.states) == (set(), 2_000)


@pytest.mark.slow
def test_nothing_is_broken_with_a_window_across_blocks(explore: Explore) -> None:
    """W=3 over blocks of two tokens: what leaves the window is not what begins in it."""
    found = explore(3, "abab", 6, block_size=2, sliding_window=3, limit=3_000)
    assert (found.broken, found.states) == (set(), 3_000)
    assert "a null in a table" in found.seen
