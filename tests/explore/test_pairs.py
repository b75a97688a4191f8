"""Two runs of one schedule: the cache changes no answer, and salts do not see each other."""

from __future__ import annotations

import pytest

from spec import state, statemachine
from spec.pairs import salts_do_not_see_each_other, the_cache_changes_no_answer
from spec.scope import Scope
from spec.state import Config, Extra, Key, Request

NAMES = ("A", "B")
FULL = Scope(Config(4, 1), NAMES, ((0,), (1, 0)), (0,), 3)
SMALL = Scope(Config(3, 1), NAMES, ((0,), (0, 0)), (0, 1), 2)
WINDOW = Scope(Config(4, 1, sliding_window=2), NAMES, ((0, 0), (1,)), (0,), 3)
SALTED = Scope(Config(5, 1), NAMES, ((0, 0), (0,)), (0,), 2)
SALTS = {"A": "mine", "B": "yours"}


def keys_without_parents(r: Request, tokens: tuple[int, ...], size: int) -> Request:
    """Name blocks by their own tokens alone."""
    whole = range(len(tokens) // size)
    names = tuple(Key(None, tokens[i * size : (i + 1) * size]) for i in whole)
    return r._replace(tokens=tokens, keys=names)


@pytest.mark.slow
@pytest.mark.parametrize("scope", [SMALL, WINDOW], ids=["full", "window"])
def test_the_cache_changes_no_answer(scope: Scope) -> None:
    """With and without a cache every request holds the same, in every schedule."""
    result = the_cache_changes_no_answer(scope)
    assert result.found is None
    assert result.moves > result.pairs > 300


@pytest.mark.slow
def test_salts_do_not_see_each_other() -> None:
    """Another salt's requests make no hit of mine longer or shorter."""
    result = salts_do_not_see_each_other(SALTED, SALTS)
    assert result.found is None
    assert result.moves > result.pairs > 300


def test_one_salt_for_all_is_no_subject() -> None:
    """When all have one salt, both sides are one run, and nothing can differ."""
    same = {"A": "mine", "B": "mine"}
    scope = SALTED._replace(config=Config(4, 1), prompts=((0, 0),))
    assert salts_do_not_see_each_other(scope, same).found is None


@pytest.mark.slow
def test_keys_that_forget_their_parents_change_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """B finds a block that A filled after another prefix: one position holds something else."""
    monkeypatch.setattr(statemachine, "with_tokens", keys_without_parents)
    found = the_cache_changes_no_answer(FULL).found
    assert found is not None
    assert (found.property, found.request) == ("the_cache_changes_no_answer", "B")
    assert found.first != found.second
    actions = [move.action for move in found.path]
    assert actions == ["arrive", "arrive", "run_step", "preempt", "preempt", "compute", "run_step"]


def test_a_salt_left_out_of_the_keys_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two moves: another salt's request arrives, and mine hits what it published."""
    right = state.extra_keys

    def without_salt(r: Request, i: int, block_size: int) -> Extra:
        return tuple(part for part in right(r, i, block_size) if part[0] != "salt")

    monkeypatch.setattr(state, "extra_keys", without_salt)
    monkeypatch.setattr(statemachine, "extra_keys", without_salt)
    found = salts_do_not_see_each_other(SALTED, SALTS).found
    assert found is not None
    assert found[:4] == ("salts_do_not_see_each_other", "A", 1, 0)
    assert [str(move) for move in found.path] == [
        "arrive(rid=B, prompt=(0, 0))",
        "arrive(rid=A, prompt=(0, 0))",
    ]
