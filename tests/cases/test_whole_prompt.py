"""Cases 46 to 48: hits on whole prompts, prompt log-probabilities, and what counts as a hit."""

from collections.abc import Callable
from typing import Any

import pytest

Pool = Callable[..., Any]


def test_case_46_a_hit_on_a_whole_prompt_leaves_its_last_block_to_compute(any_pool: Pool) -> None:
    """The same four tokens again: one block is hit, two tokens run, in a block of their own."""
    scene = any_pool(4)
    scene.play("new(A,abcd); free(A)")
    assert scene.adm("B", "abcd") == ((1,), (3,))
    assert (scene.request("B").start, scene.request("B").end) == (2, 4)
    assert scene.table("B") == [1, 3]
    assert scene.sealed == [1, 2, 3]


@pytest.mark.parametrize("length", range(1, 9))
def test_case_46_a_repeated_prompt_hits_all_but_the_block_of_its_last_token(
    any_pool: Pool, length: int
) -> None:
    """`(n - 1) // block_size` blocks are hit, so a hit is a whole number of blocks and below n."""
    scene = any_pool(8)
    text = "abcdefgh"[:length]
    scene.new("A", text)
    assert scene.new("B", text).hits == (1, 2, 3)[: (length - 1) // 2]


def test_case_47_prompt_logprobs_do_not_read_the_cache(any_pool: Pool) -> None:
    """Logits are not cached, so a request that needs all of them computes all of its prompt."""
    scene = any_pool(8)
    scene.play("new(W,abcd); free(W)")
    assert scene.new("B", "abcde", logprobs=True).hits == ()
    assert scene.new("C", "abcde").hits == (1, 2)


def test_case_47_prompt_logprobs_fill_the_cache(any_pool: Pool) -> None:
    """What such a request computed is found by others."""
    scene = any_pool(8)
    scene.play("new(B,abcde,logprobs=1)")
    assert scene.table("B") == [1, 2, 3]
    assert scene.new("C", "abcde").hits == (1, 2)


def test_case_47_hits_that_are_pressed_on_prompt_logprobs_are_refused(any_pool: Pool) -> None:
    """An engine that sets the option late hands in hits: they are refused by name."""
    scene = any_pool(4)
    scene.play("new(W,abcd); free(W); look(B,abcde,logprobs=1)")
    assert scene.refusal(scene.adm, "B", hits=(1, 2)) == "hits_with_prompt_logprobs"
    assert (scene.held, scene.table("B")) == ({}, [])


def test_case_48_a_resumed_request_does_not_count_as_a_hit(any_pool: Pool) -> None:
    """A preempted request meets its own blocks again; users see no hits on random prompts."""
    scene = any_pool(8)
    scene.play("new(A,abcde); new(B,vwxyz); pre(A)")
    assert scene.new("A").hits == (1, 2)
    stats = scene.manager.make_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (2, 4, 0)
    assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 2, 2)
    assert scene.manager.make_prefix_cache_stats().preempted_hits == 0
