"""Violations that hide: each of these was once missed by the property that is to see it."""

from collections.abc import Callable
from typing import Any

import pytest

from spec.invariants import REGISTRY, Broken, broken
from spec.state import NULL, Config, Frozen, Key, State
from spec.statemachine import Refused

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]

OTHER = Key(None, (7, 7))
"""A key that nobody is entitled to."""


def seen(name: str, subject: Any) -> list[Broken]:  # noqa: ANN401  # a state or a step
    """Return what one property says of a state or a step."""
    return [found for by, found in broken(subject) if by == name]


def test_a_hit_before_the_window_may_be_evicted_by_its_own_call(world: World) -> None:
    """B names the idle block 1, which it cannot read; being the next victim, it is handed out."""
    w = world(3, block_size=1, sliding_window=2)
    w.new("A", "abc")
    w.end("A")
    w("touch", ids=(2, 3))
    w("free_blocks", ids=(3, 2))
    w.add("B", "abc")
    assert w.state.pool.queue == (1, 3, 2)
    assert w.allocate("B", 1, (1, 2)) == (1,)
    assert w.broken() == []


REFUSED_AND_CHANGED: dict[str, Callable[[Scene], State]] = {
    "an empty table": lambda w: w.with_request("B", table=()),
    "lost tokens": lambda w: w.with_request("B", tokens=(1,)),
    "another's table": lambda w: w.with_request("Y", table=()),
    "a lost request": lambda w: w.state._replace(requests=w.state.requests.without("Y")),
    "a loose reference": lambda w: w.state._replace(loose=(1,)),
    "a lost entry": lambda w: w.with_pool(by_key=Frozen()),
    "one free block more": lambda w: w.with_pool(queue=(*w.state.pool.queue, 9)),
}


@pytest.mark.parametrize("name", REFUSED_AND_CHANGED)
def test_a_refusal_that_changes_anything_is_seen(world: World, name: str) -> None:
    """Requests, the index and the ledger stay too."""
    w = world(4)
    w.new("A", "abc")
    w.end("A")
    w.new("Y", "stu")
    w.add("B", "abcdefg")
    assert w.admit("B") is None
    step = w.steps[-1]._replace(after=REFUSED_AND_CHANGED[name](w))
    assert seen("a_refused_call_changes_nothing", step) != []


def test_a_refusal_that_turns_the_queue_is_seen_with_nulls_too(world: World) -> None:
    """A null that was there before the call excuses nothing."""
    w = world(4, sliding_window=2)
    w.add("A", "abcdef")
    w.admit("A", 4)
    w.run()
    w.allocate("A", 1)
    w.run()
    assert w.table("A")[0] == NULL
    assert isinstance(w.allocate("A", 0), Refused)
    step = w.steps[-1]._replace(after=w.with_pool(queue=w.state.pool.queue[::-1]))
    assert seen("a_refused_call_changes_nothing", step) != []


def test_a_window_release_that_is_undone_by_a_refusal_is_seen(world: World) -> None:
    """When `allocate_slots` returns, nothing wholly outside the window is held."""
    w = world(4, sliding_window=2)
    w.add("A", "abcdefg")
    w.admit("A", 4)
    w.run()
    w.new("B", "x")
    w.new("C", "y")
    assert w.allocate("A", 3) is None
    step = w.steps[-1]
    assert list(broken(step._replace(after=step.before))) != []


def test_a_window_that_releases_its_head_first_is_seen(world: World) -> None:
    """Blocks that leave the window at once are released in reverse order."""
    w = world(5, sliding_window=2)
    w.add("A", "abcdef")
    w.admit("A")
    w.run(A="g")
    w.allocate("A", 1)
    assert w.state.pool.queue == (5, 2, 1)
    assert list(broken(w.steps[-1]._replace(after=w.with_pool(queue=(5, 1, 2))))) != []


def test_a_shared_block_without_a_key_is_in_none_of_the_five_states(world: World) -> None:
    """SHARED means two references and a key."""
    w = world(3)
    w.new("A", "a")
    assert seen("every_block_is_in_one_of_five_states", w.with_block(1, ref_cnt=2)) != []


def test_a_window_that_ends_too_late_is_seen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With W=3 and two tokens a block, nothing of block 0 is read from position 4 on."""

    def one_token_late(config: Config, n: int) -> int:
        window = config.sliding_window
        return 0 if window is None else max(0, n - window) // config.block_size

    monkeypatch.setattr(Config, "skipped_blocks", one_token_late)
    w = world(4, sliding_window=3)
    w.add("A", "abcde")
    w.allocate("A", 4)
    w.run()
    w.allocate("A", 1)
    assert w.broken() != []


def test_a_hit_that_is_taken_back_is_seen(world: World) -> None:
    """What was written stays cached until it is evicted or the cache is reset."""
    w = world(4)
    w.new("A", "abc")
    w.end("A")
    w.add("B", "abd")
    w.admit("B")
    w.state = w.with_request("B", num_hits=0)
    w("preempt", rid="B")
    assert w.state.pool.by_key == {}
    assert w.broken() != []


def test_a_scheduled_slot_without_a_block_is_seen(world: World) -> None:
    """Every slot of a step has a block."""
    w = world(4)
    w.add("A", "abc")
    w.admit("A")
    w.state = w.with_request("A", table=w.table("A")[:1])
    assert seen("a_writer_owns_its_block", w.state) != []


def test_a_sealed_draft_is_seen_by_its_block(world: World) -> None:
    """A block whose tokens are not all confirmed has no key."""
    w = world(4)
    w.add("A", "abc")
    w("propose", rid="A", drafts=(1,))
    w.allocate("A", 4)
    assert seen("unconfirmed_tokens_are_never_sealed", w.with_block(2, key=OTHER)) != []


def test_a_chain_that_names_another_prompt_is_seen(world: World) -> None:
    """What a request is entitled to follows from its tokens and extras, not from its keys."""
    w = world(4)
    w.new("A", "abc")
    w.add("B", "xyz")
    w.state = w.with_request("B", keys=w.state.requests["A"].keys)
    assert w.look("B") == (1,)
    assert seen("equal_keys_mean_equal_prefixes", w.steps[-1]) != []


def test_a_new_block_with_an_old_key_of_its_own_request_is_seen(world: World) -> None:
    """Block 2 is handed out for the second position and carries the key of the first."""
    w = world(4)
    w.add("A", "abc")
    w.admit("A")
    bad = w.with_block(2, key=w.state.requests["A"].keys[0])
    assert seen("a_block_handed_out_is_clean", w.steps[-1]._replace(after=bad)) != []


def test_a_block_that_a_direct_caller_holds_is_not_new(world: World) -> None:
    """Nobody had a new block before, whoever asks for it."""
    w = world(4)
    w("get_new_blocks", n=1)
    w("get_new_blocks", n=1)
    assert seen("a_block_handed_out_is_clean", w.steps[-1]._replace(result=(1,))) != []


STRANGE_IDS: dict[str, Callable[[Scene], State]] = {
    "a table": lambda w: w.with_request("A", table=(9, 9)),
    "the index": lambda w: w.with_pool(by_key=w.state.pool.by_key.set(OTHER, (9,))),
    "a short table": lambda w: w.with_request("A", table=(), start=2, num_computed=2),
    "a long front": lambda w: w.with_request("A", num_cached=9),
}


@pytest.mark.parametrize("name", STRANGE_IDS)
def test_an_id_that_no_block_has_is_a_violation_and_not_a_crash(world: World, name: str) -> None:
    """Whatever a subject shows, a property answers."""
    w = world(3)
    w.add("A", "abc")
    w.admit("A")
    bad = STRANGE_IDS[name](w)
    assert [p.name for p in REGISTRY.values() if p.kind == "state" and list(p.check(bad))] != []


def test_a_child_may_outlive_its_parent_when_a_key_was_taken_back(world: World) -> None:
    """B's blocks, filled by drafts, are sealed behind A's pending copy, through which C finds them.

    B's own copy of the parent is evicted before the child that C held longer, then A gives up.
    """
    w = world(7)
    w.add("B", "a")
    w("propose", rid="B", drafts=tuple(map(ord, "bcd")))
    w.allocate("B", 4)
    w.run(B=(3, "e"))
    w.add("A", "abx")
    assert w.admit("A") == (3, 4)
    assert w.allocate("B", 1) == (5,)
    w.add("C", "abcdz")
    assert (w.look("C"), w.admit("C")) == ((3, 2), (6,))
    w.end("B")
    w.end("C")
    w.add("D", "stuvwx")
    assert w.admit("D") == (7, 5, 1)
    w("preempt", rid="A")
    assert w.key(2).parent not in w.state.pool.by_key
    assert w.broken() == []
    assert seen("the_cache_is_prefix_closed", w.state._replace(taken_back=False)) != []


def test_a_block_that_is_not_full_is_unwritten_and_no_lie(world: World) -> None:
    """Of two properties that look at the content of a sealed block, one speaks."""
    w = world(3)
    w.new("A", "abc")
    for content in (None, Key(None, (97,))):
        names = [name for name, _ in broken(w.with_block(1, content=content))]
        assert names == ["nothing_unwritten_is_found"]


def test_the_order_of_plain_blocks_is_nobodys_loss(world: World) -> None:
    """Only sealed blocks have descendants; where the rest stands in the queue is free."""
    w = world(4)
    w.new("A", "abcde")
    w.end("A")
    step = w.steps[-1]._replace(after=w.with_pool(queue=(4, 2, 1, 3)))
    assert seen("the_tail_is_evicted_before_the_head", step) == []
