"""`allocate_slots` refuses a caller's mistake by name, and plans before it takes anything."""

from collections.abc import Callable
from typing import Any

from spec.state import Block, Key, Pool, Request
from spec.statemachine import Plan, Refused, allocate_slots, plan_of

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Chain = Callable[..., tuple[Key, ...]]


def test_an_admission_takes_seals_and_marks_as_pending(world: World, chain: Chain) -> None:
    """The block that the step fills is sealed at once, and pending on its writer."""
    w = world(3)
    w.add("A", "abc")
    assert w.admit("A") == (1, 2)
    (key,) = chain("ab")
    blocks = (Block(), Block(1, key, None, "A"), Block(1), Block())
    assert w.state.pool == Pool(blocks, (3,), w.state.pool.by_key)
    assert w.state.pool.by_key == {key: (1,)}
    expected = Request((97, 98, 99), keys=(key,), table=(1, 2), num_cached=1, end=3)
    assert w.state.requests == {"A": expected}
    assert w.state.requests["A"].in_flight


def test_hits_are_touched_and_the_rest_is_taken(world: World, chain: Chain) -> None:
    """A used hit becomes shared, an idle one leaves the queue; the request starts after them."""
    w = world(4)
    w.new("A", "abcd")
    w.end("A")
    w.new("B", "abx")
    assert (w.table("B"), w.state.pool.queue) == ((1, 3), (4, 2))
    w.add("C", "abcde")
    assert (w.look("C"), w.admit("C")) == ((1, 2), (4,))
    r = w.state.requests["C"]
    assert (r.table, r.num_hits, r.num_cached) == ((1, 2, 4), 2, 2)
    assert (r.start, r.end, r.num_computed, w.state.pool.queue) == (4, 5, 0, ())
    first, second = chain("abcd")
    assert w.state.pool.blocks[1:3] == (Block(2, first, first), Block(1, second, second))
    assert w.broken() == []


def test_a_prompt_may_be_computed_in_chunks(world: World, chain: Chain) -> None:
    """A block is sealed by the step that schedules its last token, whoever began it."""
    w = world(3)
    w.add("A", "abcde")
    keys = chain("abcd")
    for n, new, num_cached in ((1, (1,), 0), (2, (2,), 1), (2, (3,), 2)):
        assert w.admit("A", n) == new if n == 1 else w.allocate("A", n) == new
        assert w.state.requests["A"].num_cached == num_cached
        w.run()
    assert [w.state.pool.blocks[b].key for b in w.table("A")] == [*keys, None]
    assert [w.state.pool.blocks[b].content for b in w.table("A")] == [*keys, Key(keys[1], (101,))]
    assert w.broken() == []


def test_look_ahead_reserves_and_seals_nothing(world: World) -> None:
    """Blocks for tokens to come are taken now, and a later call finds them in the table."""
    w = world(4)
    w.add("A", "abc")
    assert w.allocate("A", 3, (), 3) == (1, 2, 3)
    assert w.state.requests["A"].num_cached == 1
    w.run(A="d")
    assert w.allocate("A", 1) == ()
    w.run()
    assert (w.table("A"), w.state.requests["A"].num_cached) == ((1, 2, 3), 2)
    assert w.broken() == []


def test_look_ahead_ends_at_the_longest_length(world: World) -> None:
    """No slot is reserved that no token can ever have."""
    w = world(4, max_model_len=4)
    w.add("A", "abc")
    assert w.allocate("A", 3, (), 9) == (1, 2)


def test_the_longest_length_may_be_reached(world: World) -> None:
    """A request may have exactly so many tokens as the model takes."""
    w = world(4, max_model_len=4)
    w.add("A", "abcd")
    assert w.admit("A") == (1, 2)


def test_hits_and_look_ahead_may_be_left_out(world: World) -> None:
    """Then there are none."""
    w = world(3)
    w.add("A", "abcd")
    assert allocate_slots(w.state, "A", 4) == allocate_slots(w.state, "A", 4, (), 0)


def test_no_room_is_an_answer(world: World) -> None:
    """New blocks and idle hits must be free together; a refusal leaves both as they were."""
    w = world(3)
    w.new("A", "abcd")
    w.end("A")
    w.new("B", "x")
    w.add("C", "abcde")
    before = w.state
    assert (w.table("B"), before.pool.queue, w.look("C")) == ((3,), (2, 1), (1, 2))
    assert w.admit("C") is None
    assert before == w.state
    assert plan_of(w.state, "C", 1, (1, 2), 0) == Plan(4, (1, 2), 1, 2, 3, 0)
    w.end("B")
    assert w.admit("C") == (3,)


def test_a_running_request_that_gets_no_room_waits_with_its_blocks(world: World) -> None:
    """None takes nothing from the request; it may ask again."""
    w = world(2)
    w.new("B", "xy")
    w.add("A", "ab")
    w.admit("A")
    w.run(A="c")
    before = w.state
    assert w.allocate("A", 1) is None
    assert before == w.state
    w.end("B")
    assert w.allocate("A", 1) == (1,)
    assert w.table("A") == (2, 1)


def test_what_the_pool_cannot_hold_is_refused_at_the_first_call(world: World) -> None:
    """With full attention all known tokens count, however small the first chunk is."""
    w = world(2)
    w.add("A", "abcde")
    refusal = w.allocate("A", 1)
    assert isinstance(refusal, Refused)
    expected = ("request_is_too_large", {"request": "A", "required": 3, "usable": 2})
    assert (refusal.rule, refusal.values) == expected
    assert w.state == w.steps[-1].before
    assert w.broken() == []


def test_what_outgrows_the_pool_is_refused_when_it_does(world: World) -> None:
    """A running request that needs one block more than there are never waits for it."""
    w = world(2)
    w.add("A", "abcd")
    w.admit("A")
    w.run(A="e")
    refusal = w.allocate("A", 1)
    assert isinstance(refusal, Refused)
    expected = ("request_is_too_large", {"request": "A", "required": 3, "usable": 2})
    assert (refusal.rule, refusal.values) == expected
    assert w.state == w.steps[-1].before
    assert w.broken() == []


def test_after_the_first_call_only_what_is_required_now_counts(world: World) -> None:
    """A running request whose next chunk fits goes on, though it will outgrow the pool."""
    w = world(2)
    w.add("A", "abc")
    w.admit("A")
    w.run(A="de")
    assert w.allocate("A", 1) == ()
    w.run()
    assert isinstance(w.allocate("A", 1), Refused)
    assert w.broken() == []


def test_the_pool_may_be_filled_to_the_last_block(world: World) -> None:
    """As large as the pool is not too large."""
    w = world(2)
    w.add("A", "abcd")
    assert w.admit("A") == (1, 2)


def test_without_caching_nothing_is_sealed(world: World) -> None:
    """No key, no index entry, no hit; the blocks are released in the order of the table."""
    w = world(3, enable_caching=False)
    w.new("A", "abcd")
    assert (w.state.pool.by_key, w.state.requests["A"].num_cached) == ({}, 0)
    assert w.state.pool.blocks[1].key is None
    w.add("B", "abcd")
    assert w.look("B") == ()
    w.end("A")
    assert w.state.pool.queue == (3, 1, 2)
    assert w.broken() == []
