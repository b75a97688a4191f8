"""`allocate_slots` names the first rule that a caller breaks, and changes nothing."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spec.state import NULL
from spec.statemachine import Refused, may_allocate

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Sources = Callable[..., dict[str, str]]


def _plain(world: World) -> Scene:
    """Return a world with `ab` in block 1, and a request A that waits with five tokens."""
    w = world(4, max_model_len=6)
    w.new("X", "ab")
    w.add("A", "abcde")
    return w


def _running(world: World) -> Scene:
    w = _plain(world)
    w.allocate("A", 2)
    w.run()
    return w


def _flying(world: World) -> Scene:
    w = _plain(world)
    w.allocate("A", 2)
    return w


def _off(world: World) -> Scene:
    w = world(4, enable_caching=False)
    w.add("A", "abcde")
    return w


def _freed(world: World) -> Scene:
    """Return a world in which B was freed and nobody reset what it has computed."""
    w = _plain(world)
    w.new("B", "ab")
    w("propose", rid="B", drafts=(1,))
    w("free", rid="B")
    return w


def _freed_with_logprobs(world: World) -> Scene:
    w = _plain(world)
    w.add("B", "abcd", prompt_logprobs=True)
    w.allocate("B", 1)
    w.run()
    w("free", rid="B")
    return w


def _logprobs(world: World) -> Scene:
    w = _plain(world)
    w.add("B", "abc", prompt_logprobs=True)
    return w


def _windowed(world: World) -> Scene:
    w = world(4, sliding_window=3)
    w.new("X", "abcd")
    w.add("A", "abcde")
    w.add("B", "ab")
    w("propose", rid="B", drafts=(1,))
    return w


def _long(world: World) -> Scene:
    w = world(4, max_model_len=4)
    w.add("A", "abcde")
    w.allocate("A", 2)
    w.run()
    return w


Args = tuple[str, int, tuple[int, ...], int]

REFUSALS: Mapping[str, tuple[Callable[[World], Scene], Args, dict[str, object]]] = {
    "num_tokens_is_below_one": (_plain, ("A", 0, (), 0), {"num_tokens": 0}),
    "num_lookahead_tokens_is_negative": (_plain, ("A", 1, (), -1), {"num_lookahead": -1}),
    "tokens_beyond_the_request": (_plain, ("A", 6, (), 0), {"end": 6, "known": 5}),
    "tokens_beyond_max_model_len": (_long, ("A", 3, (), 0), {"end": 5, "limit": 4}),
    "hits_for_a_request_with_a_table": (
        _running,
        ("A", 1, (1,), 0),
        {"request": "A", "hits": (1,)},
    ),
    "hits_while_caching_is_off": (_off, ("A", 1, (1,), 0), {"request": "A", "hits": (1,)}),
    "block_is_not_of_this_pool": (_plain, ("A", 1, (1, 5), 0), {"block": 5, "blocks": 5}),
    "hit_is_stale": (_plain, ("A", 1, (1, 2), 0), {"block": 2, "position": 1, "key": None}),
    "null_hit_is_readable": (_windowed, ("A", 1, (1, NULL), 0), {"hits": (1, 0), "next_query": 4}),
    "last_step_has_not_run": (_flying, ("A", 1, (), 0), {"computed": 0, "start": 0}),
    "no_confirmed_token_to_compute": (_freed, ("B", 1, (), 0), {"start": 2, "confirmed": 2}),
    "computed_tokens_without_blocks": (_freed_with_logprobs, ("B", 1, (), 0), {"computed": 1}),
    "hits_with_prompt_logprobs": (_logprobs, ("B", 1, (1,), 0), {"request": "B", "hits": (1,)}),
}
"""Every mistake of a caller: where, its arguments, and the values that are told."""


@pytest.mark.parametrize("rule", REFUSALS)
def test_a_mistake_is_refused_by_name_with_its_values(world: World, rule: str) -> None:
    """A refused call changes nothing, and the guard alone answers the same."""
    make, args, values = REFUSALS[rule]
    w = make(world)
    named = dict(zip(("rid", "num_tokens", "hits", "num_lookahead"), args, strict=True))
    assert w.refused("allocate_slots", **named) == (rule, values)
    assert w.broken() == []
    with pytest.raises(Refused, match=rule):
        may_allocate(w.state, *args)


def test_a_hit_beyond_the_confirmed_blocks_is_stale(world: World) -> None:
    """Drafts leave room for the position, and no key for it."""
    w = world(4)
    w.new("X", "abcd")
    w.add("A", "abc")
    w("propose", rid="A", drafts=(100, 1, 1))
    args = {"rid": "A", "num_tokens": 1, "hits": (1, 2), "num_lookahead": 0}
    rule, values = w.refused("allocate_slots", **args)
    assert (rule, values["block"], values["position"]) == ("hit_is_stale", 2, 1)


TWO_AT_ONCE: tuple[tuple[str, Callable[[World], Scene], Args], ...] = (
    ("num_tokens_is_below_one", _plain, ("A", 0, (), -1)),
    ("num_lookahead_tokens_is_negative", _plain, ("A", 6, (), -1)),
    ("tokens_beyond_the_request", _long, ("A", 4, (), 0)),
    ("tokens_beyond_max_model_len", _long, ("A", 1, (1,), 0)),
    ("hits_for_a_request_with_a_table", _running, ("A", 1, (9,), 0)),
    ("hits_while_caching_is_off", _off, ("A", 1, (9,), 0)),
    ("block_is_not_of_this_pool", _plain, ("A", 1, (2, 9), 0)),
    ("hit_is_stale", _plain, ("A", 1, (NULL, 2), 0)),
    ("null_hit_is_readable", _windowed, ("B", 1, (NULL,), 0)),
    ("no_confirmed_token_to_compute", _freed, ("B", 1, (), 0)),
    ("computed_tokens_without_blocks", _freed_with_logprobs, ("B", 1, (1,), 0)),
)
"""Calls that break a rule and one of the rules after it."""


@pytest.mark.parametrize(("rule", "make", "args"), TWO_AT_ONCE)
def test_the_first_broken_rule_is_named(
    world: World, rule: str, make: Callable[[World], Scene], args: Args
) -> None:
    """The rules are tried in the order in which the specification lists them."""
    named = dict(zip(("rid", "num_tokens", "hits", "num_lookahead"), args, strict=True))
    assert make(world).refused("allocate_slots", **named)[0] == rule


def test_every_rule_of_the_specification_is_provoked(sources_of: Sources) -> None:
    """A guard that no test of this folder names is a guard that nobody has seen at work."""
    rules = set(re.findall(r'Refused\(\s*"(\w+)"', "".join(sources_of("spec").values())))
    assert set(REFUSALS) < rules
    tests = "".join(text for path, text in sources_of("tests").items() if "/spec/" in path)
    assert {rule for rule in rules if f'"{rule}"' not in tests} == set()
