"""Cases 83 and 84: requests that can never fit, and requests that wait for each other."""

from collections.abc import Callable
from typing import Any

Pool = Callable[..., Any]


def test_case_83_what_can_never_fit_is_refused_at_once(any_pool: Pool) -> None:
    """A request larger than the pool is told so by name, and the next one is served."""
    scene = any_pool(2)
    assert scene.refusal(scene.adm, "A", "abcdef") == "request_is_too_large"
    assert (scene.table("A"), scene.held) == ([], {})
    assert scene.new("B", "a").new == (1,)


def test_case_83_a_full_attention_request_is_refused_at_its_first_chunk(pool: Pool) -> None:
    """A small first chunk does not hide that the whole never fits."""
    scene = pool(2)
    assert scene.refusal(scene.adm, "A", "abcdef", tokens=2) == "request_is_too_large"
    assert scene.held == {}


def test_case_83_a_window_request_is_served_in_chunks_that_fit(pool: Pool) -> None:
    """With a window the rule speaks of one call: what was left behind makes room."""
    scene = pool(3, window=3)
    assert scene.refusal(scene.adm, "A", "abcdefgh") == "request_is_too_large"
    for _ in range(4):
        scene.new("A", tokens=2)
    assert scene.request("A").num_computed == 8
    assert scene.table("A") == [0, 0, 3, 1]


def test_case_83_a_request_that_outgrows_the_pool_is_refused_when_it_does(any_pool: Pool) -> None:
    """Generation may pass the limit later: the call that needs one block too many says so."""
    scene = any_pool(2)
    scene.new("A", "abcd", says="e")
    assert scene.refusal(scene.gen, "A") == "request_is_too_large"
    assert scene.table("A") == [1, 2]
    scene.free("A")
    assert scene.queue == [2, 1]


def test_case_84_two_requests_that_wait_for_each_other_both_hear_none(any_pool: Pool) -> None:
    """Seven blocks, four and three held, one more wanted by each: to give up one is the way out.

    The manager says None to both and changes nothing; the choice is the engine's.
    """
    scene = any_pool(7)
    scene.new("A", "abcdefgh", says="i")
    scene.new("B", "rstuvw", says="x")
    for _ in range(2):
        assert scene.gen("A").new is None
        assert scene.gen("B").new is None
    assert (scene.table("A"), scene.table("B"), scene.queue) == ([1, 2, 3, 4], [5, 6, 7], [])
    scene.pre("B")
    assert scene.gen("A").new == (7,)
    assert scene.adm("B") == ((5, 6), None)
    scene.free("A")
    assert scene.adm("B").hits == (5, 6)
