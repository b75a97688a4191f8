"""Requests arrive, propose drafts, run, are preempted and end; each call has one meaning."""

from collections.abc import Callable
from typing import Any

import pytest

from spec.state import Block, Frozen, Key, Pool, Request, State
from spec.statemachine import Outcome

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Chain = Callable[..., tuple[Key, ...]]


def test_a_request_arrives_with_the_chain_of_its_prompt(world: World, chain: Chain) -> None:
    """It has keys for its full blocks and nothing else, and the pool does not see it."""
    w = world(2)
    start = w.state
    w.add("A", "abcde")
    request = Request((97, 98, 99, 100, 101), keys=chain("abcd"))
    assert State(start.config, start.pool, Frozen({"A": request})) == w.state
    assert not w.state.requests["A"].in_flight


@pytest.mark.parametrize(
    ("rid", "request_", "spans"),
    [
        ("A", Request((1,)), []),
        ("B", Request(()), []),
        ("B", Request((1,), media=(("x", -1, 2),)), [(-1, 1)]),
        ("B", Request((1,), media=(("x", 0, 0),)), [(0, 0)]),
        ("B", Request((1,), media=(("x", 2, 2), ("y", 0, 3))), [(0, 3), (2, 4)]),
    ],
    ids=["name twice", "no prompt", "before the prompt", "no tokens", "overlap"],
)
def test_a_request_that_cannot_be_is_refused(
    world: World, rid: str, request_: Request, spans: list[tuple[int, int]]
) -> None:
    """It has a name of its own, a prompt, and media items that stand side by side."""
    w = world(2)
    w.add("A", "a")
    expected = {"request": rid, "prompt": request_.tokens, "media": spans}
    assert w.refused("add_request", rid=rid, request=request_) == ("request_is_invalid", expected)


def test_items_may_touch_and_end_after_the_prompt(world: World) -> None:
    """Where one item ends the next may begin."""
    w = world(2)
    w.add("A", "abc", media=(("x", 0, 2), ("y", 2, 9)))
    assert w.state.requests["A"].keys[0].extra == (("mm", "x", 0, 2),)


@pytest.mark.parametrize("token", [-1, 1 << 63])
def test_a_token_that_is_no_63_bit_number_is_refused(world: World, token: int) -> None:
    """In a prompt and among drafts; the values are the lowest and the highest token."""
    w = world(2)
    tokens = (5, token)
    values = {"lowest": min(tokens), "highest": max(tokens)}
    refusal = w.refused("add_request", rid="A", request=Request(tokens))
    assert refusal == ("token_id_is_out_of_range", values)
    w("add_request", rid="A", request=Request((0, (1 << 63) - 1)))
    refusal = w.refused("propose", rid="A", drafts=tokens)
    assert refusal == ("token_id_is_out_of_range", values)


def test_drafts_are_proposed_between_steps(world: World) -> None:
    """A new proposal replaces the last one; during a step there is none."""
    w = world(2)
    w.add("A", "a")
    w("propose", rid="A", drafts=[1, 2])
    w("propose", rid="A", drafts=[3])
    assert w.state.requests["A"] == Request((97,), drafts=(3,))
    w.allocate("A", 1)
    expected = ("drafts_while_a_step_is_in_flight", {"request": "A"})
    assert expected == w.refused("propose", rid="A", drafts=[4])


def test_a_step_writes_its_slots_and_settles_its_blocks(world: World, chain: Chain) -> None:
    """What was pending is there; the partial block holds what was written of it."""
    w = world(3)
    w.add("A", "abc")
    w.admit("A")
    w.run(A="d")
    first, second = chain("abcd")
    blocks = (Block(), Block(1, first, first), Block(1, None, Key(first, (99,))), Block())
    assert w.state.pool == Pool(blocks, (3,), Frozen({first: (1,)}))
    expected = Request(
        (97, 98, 99, 100), num_computed=3, keys=(first, second), table=(1, 2), num_cached=1, end=3
    )
    assert w.state.requests == {"A": expected}
    assert not w.state.requests["A"].in_flight


@pytest.mark.parametrize("outcomes", [{}, {"A": Outcome()}, {n: Outcome() for n in "ABC"}])
def test_a_step_runs_all_that_is_scheduled(world: World, outcomes: dict[str, Outcome]) -> None:
    """Neither less nor more."""
    w = world(4)
    w.new("C", "x")
    for rid in "AB":
        w.add(rid, "a")
        w.admit(rid)
    rule, values = w.refused("run_step", outcomes=outcomes)
    assert rule == "a_step_runs_all_that_is_scheduled"
    assert values == {"scheduled": ["A", "B"], "ran": sorted(outcomes)}


@pytest.mark.parametrize(
    ("n", "outcome", "drafted"),
    [
        (4, Outcome(3), 2),
        (4, Outcome(-1), 2),
        (2, Outcome(1), 0),
        (1, Outcome(0, (9,)), -1),
    ],
    ids=["more than drafted", "less than none", "none drafted", "sampled before the end"],
)
def test_an_impossible_outcome_is_refused(
    world: World, n: int, outcome: Outcome, drafted: int
) -> None:
    """Only scheduled drafts are accepted, and only the last token's step samples."""
    w = world(4)
    w.add("A", "ab")
    w("propose", rid="A", drafts=(1, 2))
    w.allocate("A", n)
    expected = {"request": "A", "accepted": outcome.accepted, "drafted": drafted}
    assert w.refused("run_step", outcomes={"A": outcome}) == ("outcome_is_impossible", expected)


def test_an_accepted_draft_is_confirmed_and_sealed_by_the_next_call(
    world: World, chain: Chain
) -> None:
    """A block that accepted drafts filled is written when it is sealed: it is never pending."""
    w = world(4)
    w.add("A", "abc")
    w("propose", rid="A", drafts=(100, 101))
    assert w.allocate("A", 5) == (1, 2, 3)
    assert w.state.requests["A"].num_cached == 1
    w.run(A=(1, "x"))
    r, keys = w.state.requests["A"], chain("abcd")
    assert (r.tokens, r.num_computed, r.drafts) == ((97, 98, 99, 100, 120), 4, ())
    assert w.state.pool.blocks[2] == Block(1, None, keys[1])
    assert w.state.pool.blocks[3] == Block(1)
    w.allocate("A", 1)
    assert w.state.pool.blocks[2] == Block(1, keys[1], keys[1])
    w.run()
    assert w.broken() == []


def test_a_rejected_draft_leaves_no_trace(world: World, chain: Chain) -> None:
    """The sampled token takes its slot, and the block is sealed under what was confirmed."""
    w = world(4)
    w.add("A", "abc")
    w("propose", rid="A", drafts=(1,))
    w.allocate("A", 4)
    w.run(A=(0, "d"))
    r, keys = w.state.requests["A"], chain("abcd")
    assert (r.tokens, r.num_computed, r.keys) == ((97, 98, 99, 100), 3, keys)
    assert w.state.pool.blocks[2] == Block(1, None, Key(keys[0], (99,)))
    assert w.allocate("A", 1) == ()
    assert w.state.pool.blocks[2].pending == "A"
    w.run()
    assert w.state.pool.blocks[2] == Block(1, keys[1], keys[1])
    assert w.broken() == []


def test_a_slot_written_over_strange_memory_shows(world: World) -> None:
    """Content is what was written, so a torn block never passes for a whole one."""
    w = world(3)
    w.add("A", "abc")
    w.admit("A", 1)
    w.run()
    stranger = Key(None, (7,))
    w.state = w.with_block(1, content=stranger)
    w.allocate("A", 1)
    w.run()
    assert w.state.pool.blocks[1].content is Key(stranger, (97, 98), (("torn",),))
    assert "a_key_tells_the_content" in {name for name, _ in w.broken()}


def test_blocks_are_given_back_from_the_tail(world: World, chain: Chain) -> None:
    """The end of a prompt is evicted before its beginning; a second call finds nothing to do."""
    w = world(4)
    w.new("A", "abcde")
    assert w("free", rid="A") is None
    assert w.state.pool.queue == (4, 3, 2, 1)
    r = w.state.requests["A"]
    assert r == Request(r.tokens, num_computed=5, keys=chain("abcd"))
    before = w.state
    w("free", rid="A")
    assert before is w.state


def test_a_preempted_request_starts_again_and_hits_its_own_blocks(world: World) -> None:
    """It keeps its confirmed tokens, loses its drafts, and finds what it had written."""
    w = world(4)
    w.add("A", "abcd")
    w.admit("A")
    w.run(A="e")
    w("propose", rid="A", drafts=(1,))
    assert w("preempt", rid="A") is None
    r = w.state.requests["A"]
    assert (r.tokens, r.drafts, r.table) == ((97, 98, 99, 100, 101), (), None)
    assert (r.num_computed, r.num_preemptions, r.start, r.end) == (0, 1, 0, 0)
    assert (w.look("A"), w.admit("A")) == ((1, 2), (3,))
    w.run()
    assert w.state.requests["A"].num_computed == 5
    assert w.broken() == []


def test_a_finished_request_is_forgotten(world: World) -> None:
    """Its blocks are free and still cached."""
    w = world(3)
    w.new("A", "abc")
    assert w("finish", rid="A") is None
    assert (w.state.requests, w.state.pool.queue) == ({}, (3, 2, 1))
    assert list(w.state.pool.by_key.values()) == [(1,)]


def test_a_request_that_never_ran_ends_without_a_trace(world: World) -> None:
    """Free, preempt and finish of a waiting request leave the pool as it is."""
    w = world(3)
    pool = w.state.pool
    w.add("A", "abc")
    for action in ("free", "preempt", "finish"):
        assert w(action, rid="A") is None
    assert pool == w.state.pool


def test_a_reset_waits_for_the_last_block(world: World) -> None:
    """A running request is in the way; afterwards its prompt has to be computed again."""
    w = world(3)
    w.new("A", "abc")
    assert w("reset_prefix_cache") is False
    w("preempt", rid="A")
    assert w("reset_prefix_cache") is True
    assert w.look("A") == ()
    assert w.broken() == []
