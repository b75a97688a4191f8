"""A state is one immutable value: equal histories give equal states, in every process."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spec.state import (
    NULL,
    Block,
    BlockState,
    Config,
    Frozen,
    Key,
    Pool,
    State,
    block_state,
    initial,
)

World = Callable[..., Any]

FIXED_RUN = """
from spec import statemachine as sm
from spec.state import Config, Request, initial

s = initial(Config(6, 2))
for rid, adapter in (("B", ("x", 1)), ("A", None), ("C", None)):
    s = sm.add_request(s, rid, Request((1, 2, 3), lora=adapter, salt="x"))
    s, _ = sm.allocate_slots(s, rid, 1 if rid == "C" else 3)
s = sm.run_step(s, {rid: sm.Outcome() for rid in ("A", "B", "C")})
s = sm.finish(sm.preempt(s, "B"), "A")
print(s)
"""


def test_a_frozen_mapping_is_changed_by_making_another() -> None:
    """`set` and `without` leave the mapping that they start from as it is."""
    one: Frozen[str, int] = Frozen({"a": 1})
    two = one.set("b", 2)
    assert (one, two, two.without("a")) == ({"a": 1}, {"a": 1, "b": 2}, {"b": 2})
    assert type(two) is type(two.without("a")) is Frozen


CHANGES: dict[str, Callable[[Any], object]] = {
    "=": lambda f: f.__setitem__("a", 2),
    "del": lambda f: f.__delitem__("a"),
    "update": lambda f: f.update(b=1),
    "|=": lambda f: f.__ior__({"b": 1}),
    "pop": lambda f: f.pop("a"),
    "popitem": lambda f: f.popitem(),
    "clear": lambda f: f.clear(),
    "setdefault": lambda f: f.setdefault("b", 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_frozen_mapping_refuses_every_change(name: str) -> None:
    """No method of a dict changes it."""
    frozen = Frozen({"a": 1})
    with pytest.raises(TypeError, match="not changed"):
        CHANGES[name](frozen)
    assert frozen == {"a": 1}


def test_the_order_of_insertion_makes_no_difference() -> None:
    """Mappings with equal items are equal and have equal hashes."""
    one = Frozen({"a": 1, "b": 2})
    two = Frozen({"b": 2, "a": 1})
    assert one == two
    assert hash(one) == hash(two)
    assert hash(one) != hash(one.set("a", 2))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(1, 1), "num_gpu_blocks is 1"),
        (Config(0, 1), "num_gpu_blocks is 0"),
        (Config(2, 0), "block_size is 0"),
        (Config(2, 1, sliding_window=1), "sliding_window is 1"),
        (Config(2, 1, free_rule="appned"), "free_rule is 'appned'"),
    ],
)
def test_a_world_that_cannot_be_is_refused(config: Config, message: str) -> None:
    """Each number has a least value, and a rule that nobody knows is a mistake."""
    with pytest.raises(ValueError, match=message):
        initial(config)


def test_at_first_every_usable_block_is_free_in_id_order() -> None:
    """The smallest world has one usable block; null stands in no queue."""
    assert initial(Config(2, 1)) == State(Config(2, 1), Pool((Block(), Block()), (1,), Frozen()))
    assert initial(Config(5, 1)).pool.queue == (1, 2, 3, 4)
    assert Config(5, 1).usable == 4


def test_the_window_leaves_whole_blocks_behind() -> None:
    """With W=3 and two tokens a block, the query at 3 reads from 1, the query at 4 from 2."""
    config = Config(9, 2, sliding_window=3)
    assert [config.skipped_blocks(n) for n in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    config = Config(9, 1, sliding_window=3)
    assert [config.skipped_blocks(n) for n in range(6)] == [0, 0, 0, 1, 2, 3]
    assert [Config(9, 2).skipped_blocks(n) for n in (0, 4, 99)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (Block(0), BlockState.FREE),
        (Block(0, Key(None, (1,))), BlockState.FREE_CACHED),
        (Block(1), BlockState.IN_USE),
        (Block(1, Key(None, (1,))), BlockState.IN_USE_CACHED),
        (Block(2, Key(None, (1,))), BlockState.SHARED),
        (Block(9, Key(None, (1,))), BlockState.SHARED),
    ],
)
def test_the_state_of_a_block_is_derived(block: Block, expected: BlockState) -> None:
    """Reference count and key tell the five states apart; block 0 is NULL whatever it shows."""
    s = initial(Config(2, 1))
    s = s._replace(pool=s.pool.update({NULL: block, 1: block}))
    assert (BlockState.NULL, expected) == (block_state(s, NULL), block_state(s, 1))


def test_a_negative_count_is_no_state() -> None:
    """The table of the five states has no row for it."""
    s = initial(Config(2, 1))
    with pytest.raises(ValueError, match="-1"):
        block_state(s._replace(pool=s.pool.update({1: Block(-1)})), 1)


def test_a_state_survives_pickling(world: World) -> None:
    """A state can be sent to another process."""
    w = world()
    w.new("A", "abc")
    assert pickle.loads(pickle.dumps(w.state)) == w.state  # noqa: S301  # our own bytes


def test_equal_histories_give_equal_states(world: World) -> None:
    """A state can be kept in a set, also one with a request, a key and a loose reference."""
    states = set()
    for _ in range(2):
        w = world()
        w.new("A", "abc", salt="x")
        w("get_new_blocks", n=1)
        states.add(w.state)
    assert len(states) == 1
    w.end("A")
    assert w.state not in states


def test_a_state_is_the_same_in_every_process() -> None:
    """The last state of a fixed run does not depend on how Python hashes strings."""
    root = Path(__file__).parents[2]
    shown = {
        subprocess.run(  # noqa: S603  # the program is the constant above
            [sys.executable, "-c", FIXED_RUN],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (text,) = shown
    assert "('lora', 'x', 1)" in text
