"""Case 69: what drafts and look-ahead slots may publish, which is nothing."""

from collections.abc import Callable
from typing import Any

import pytest

Pool = Callable[..., Any]


def test_case_69_a_block_that_a_draft_fills_is_not_sealed(any_pool: Pool) -> None:
    """Three confirmed tokens and two drafts are five slots and one key."""
    scene = any_pool(4)
    scene.adm("A", "abc", drafts="de")
    assert (scene.table("A"), scene.sealed) == ([1, 2, 3], [1])
    assert scene.look("B", "abcdf") == (1,)


def test_case_69_a_rejected_draft_is_never_found(any_pool: Pool) -> None:
    """The block that held the draft is sealed with what was confirmed in its place."""
    scene = any_pool(5)
    scene.adm("A", "abc", drafts="de")
    scene.run(A="x")
    assert (scene.request("A").num_computed, scene.sealed) == (3, [1])
    scene.gen("A")
    assert scene.sealed == [1, 2]
    assert scene.new("B", "abcdf").hits == (1,)
    assert scene.look("C", "abcxf") == (1, 2)


@pytest.mark.parametrize("accepted", [1, 2])
def test_case_69_an_accepted_draft_is_sealed_at_the_next_call(
    any_pool: Pool, accepted: int
) -> None:
    """Accepted drafts are written already, so the next call seals their block, settled at once."""
    scene = any_pool(5)
    scene.adm("A", "abc", drafts="de")
    scene.run(accepted, A="x")
    assert scene.request("A").num_computed == 3 + accepted
    assert scene.sealed == [1]
    scene.adm("A")
    assert scene.sealed[:2] == [1, 2]
    assert scene.pair.state.pool.blocks[2].pending is None
    assert scene.look("B", "abcdf") == (1, 2)


def test_case_69_look_ahead_slots_are_reserved_and_never_sealed(any_pool: Pool) -> None:
    """Slots beyond the scheduled tokens take blocks; the tokens that come later seal them."""
    scene = any_pool(4)
    scene.new("A", "ab", lookahead=4, says="c")
    assert (scene.table("A"), scene.sealed) == ([1, 2, 3], [1])
    assert scene.gen("A", "d").new == ()
    assert scene.sealed == [1]
    scene.gen("A")
    assert scene.sealed == [1, 2]


def test_case_69_a_preempted_draft_step_leaves_what_was_confirmed(any_pool: Pool) -> None:
    """A step with drafts that is given up leaves the block of its confirmed, written tokens."""
    scene = any_pool(4)
    scene.new("A", "abc", says="d")
    scene.adm("A", drafts="ef")
    assert scene.sealed == [1, 2]
    scene.pre("A")
    assert scene.sealed == [1]
    assert scene.adm("A").hits == (1,)
