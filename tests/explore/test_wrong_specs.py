"""A specification with one thing wrong is refuted by a shortest path, and the path can be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from conformance.pictures.steptable import short, step_table
from spec import pool as right_pool
from spec import statemachine as right
from spec import world as worlds
from spec.explore import Found, Limits, Search
from spec.invariants import broken
from spec.registry import Broken, Step
from spec.scope import Scope, all_prompts
from spec.state import NULL, Block, Config, Frozen, Key, Pool, Request, State
from spec.world import World

FULL = Scope(Config(3, 1), ("A", "B"), all_prompts((0, 1), 2), (0, 1), 2)
WINDOW = Scope(Config(5, 1, sliding_window=2), ("A",), ((0, 0, 0),), (0,), 4)
Ids = tuple[int, ...]

original = vars(right).copy()
"""The right functions, whatever stands in their place."""


def free_with(order: Callable[[Ids], Sequence[int]], *, guard: bool = True) -> Any:  # noqa: ANN401
    """Return `free` with another order, or without its guard."""

    def free(s: State, rid: str) -> State:
        r = s.requests[rid]
        if guard or r.table is None:
            original["free"](s, rid)
        table = r.table or ()
        first = max(r.num_hits, r.num_computed // s.config.block_size)
        unwritten = [b for b in table[first : r.num_cached] if b != NULL]
        pool = original["unpublish_effect"](s.pool, unwritten)
        pool = original["release_effect"](pool, order(table), s.config.free_rule)
        r = r._replace(table=None, num_hits=0, num_cached=0, start=0, end=0)
        return s._replace(pool=pool, requests=s.requests.set(rid, r))

    return free


def take_and_leave_in_the_index(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Hand out blocks and leave them where a look-up finds them."""
    ids = pool.heads(n)
    return pool.dequeue(ids).update(dict.fromkeys(ids, Block(ref_cnt=1))), ids


def take_the_warmest(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Hand out the tail of the queue."""
    turned, ids = original["take_effect"](pool._replace(queue=pool.queue[::-1]), n)
    return turned._replace(queue=turned.queue[::-1]), ids


def eager_release(pool: Pool, ids: Sequence[int], _: str) -> Pool:
    """Decrement, then append every block that was mentioned."""
    mentioned = [b for b in ids if b != NULL]
    less = {b: pool.blocks[b]._replace(ref_cnt=pool.blocks[b].ref_cnt - 1) for b in mentioned}
    return pool.update(less).enqueue(mentioned)


def touch_in_the_queue(pool: Pool, ids: Sequence[int]) -> Pool:
    """Count a reference and leave the block where it is."""
    touched: Pool = original["touch_effect"](pool, ids)
    return touched._replace(queue=pool.queue)


def keys_without_parents(r: Request, tokens: Ids, size: int) -> Request:
    """Name blocks by their own tokens alone."""
    whole = range(len(tokens) // size)
    names = tuple(Key(None, tokens[i * size : (i + 1) * size]) for i in whole)
    return r._replace(tokens=tokens, keys=names)


def reset_in_use(s: State) -> tuple[State, bool]:
    """Forget every key, whoever is running."""
    ids = range(1, s.config.num_gpu_blocks)
    return s._replace(pool=right_pool.unpublish_effect(s.pool, ids)), True


def reset_the_index_alone(s: State) -> tuple[State, bool]:
    """Clear the index and leave the blocks their keys."""
    _, done = original["reset_prefix_cache"](s)
    return (s._replace(pool=s.pool._replace(by_key=Frozen())) if done else s), done


def withdraw_every_copy(pool: Pool, _: int, key: Key) -> Pool:
    """Delete the whole entry of the index when one of its blocks goes."""
    return pool._replace(by_key=pool.by_key.without(key))


HEAD_FIRST = free_with(tuple)

WRONG: dict[str, tuple[object, str, object, Scope, str, int]] = {
    "release the head first": (
        right, "free", HEAD_FIRST, FULL, "the_tail_is_evicted_before_the_head", 3,
    ),
    "take back what others hold": (
        right, "free", free_with(lambda table: table[::-1], guard=False), FULL,
        "the_cache_is_prefix_closed", 3,
    ),
    "take nothing back": (
        right, "unpublish_effect", lambda pool, _: pool, FULL, "nothing_unwritten_is_found", 2,
    ),
    "take and leave in the index": (
        right, "take_effect", take_and_leave_in_the_index, FULL,
        "the_index_and_the_blocks_agree", 4,
    ),
    "take the warmest": (
        right, "take_effect", take_the_warmest, FULL, "the_oldest_release_is_evicted_first", 1,
    ),
    "release while references are left": (
        right, "release_effect", eager_release, FULL,
        "a_block_is_free_exactly_when_nobody_holds_it", 3,
    ),
    "touch in the queue": (
        right, "touch_effect", touch_in_the_queue, FULL,
        "a_block_is_free_exactly_when_nobody_holds_it", 4,
    ),
    "find nothing": (
        right, "get_computed_blocks", lambda _, rid: (), FULL, "a_repeated_prompt_hits", 2,  # noqa: ARG005
    ),
    "name a block without its parent": (
        right, "with_tokens", keys_without_parents, FULL, "a_key_tells_the_content", 2,
    ),
    "withdraw every copy": (
        Pool, "withdraw", withdraw_every_copy, FULL, "the_index_and_the_blocks_agree", 3,
    ),
    "reset while in use": (
        right, "reset_prefix_cache", reset_in_use, FULL, "reset_only_when_idle", 2,
    ),
    "reset the index alone": (
        right, "reset_prefix_cache", reset_the_index_alone, FULL,
        "the_index_and_the_blocks_agree", 4,
    ),
    "never leave the window": (
        right, "leave_the_window", lambda s, _: s, WINDOW, "skipped_positions_show_null", 3,
    ),
}  # fmt: skip
"""What is replaced by what, in which scope, the property that notices, and after how many moves."""


def refuted(scope: Scope, *, symmetry: bool = True) -> Found:
    """Return what a search finds; a wrong specification may be endless, so it is limited."""
    found = Search(scope, symmetry=symmetry, limits=Limits(states=20_000, seconds=30)).run().found
    assert found is not None
    return found


def is_a_run(scope: Scope, found: Found) -> bool:
    """Return whether each move of a path leads from one of its states to the next, unrenamed."""
    world = World(scope, symmetry=False)
    here = world.initial()
    for move, state in found.path:
        after = [t for t, m in world.successors(here) if m == move and world.state(t) == state]
        if not after:
            return False
        here = after[0]
    return True


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_specification_is_refuted(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The named property is broken, after as few moves as can break it."""
    owner, attribute, wrong, scope, name, length = WRONG[name]
    monkeypatch.setattr(owner, attribute, wrong)
    found = refuted(scope)
    assert (found.property, len(found.path)) == (name, length)


@pytest.mark.parametrize("name", WRONG)
def test_renaming_does_not_shorten_or_lengthen_the_path(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without symmetry the path has the same length: a shortest one is a shortest one."""
    owner, attribute, wrong, scope, _, length = WRONG[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert len(refuted(scope, symmetry=False).path) == length


@pytest.mark.parametrize("name", WRONG)
def test_the_path_is_a_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every move leads from the state before it to the state beside it, with the same ids."""
    owner, attribute, wrong, scope, *_ = WRONG[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert is_a_run(scope, refuted(scope))


@pytest.mark.parametrize("name", WRONG)
def test_the_path_is_shown_as_a_table(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One numbered row for each move, and a column for each block."""
    owner, attribute, wrong, scope, *_ = WRONG[name]
    monkeypatch.setattr(owner, attribute, wrong)
    path = refuted(scope).path
    screen = StringIO()
    Console(file=screen, width=200, no_color=True).print(step_table(path, "a shortest path"))
    shown = screen.getvalue()
    assert "a shortest path" in shown
    assert all(f"block {b}" in shown for b in range(1, scope.config.num_gpu_blocks))
    lines = shown.splitlines()
    for number, (move, _) in enumerate(path, 1):
        (row,) = [line for line in lines if line.startswith(f"│ {number} ")]
        assert short(move) in row


def test_the_right_specification_is_not_refuted() -> None:
    """The scopes above are clean when nothing is replaced."""
    for scope in (FULL, WINDOW):
        assert Search(scope).run().found is None


def test_the_shortest_way_to_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head first, and nothing else asked: in four moves a parent goes and its child stays."""

    def only(
        subject: State | Step, levels: str = "PM", of: str = ""
    ) -> Iterator[tuple[str, Broken]]:
        found = broken(subject, levels, of)
        return (bad for bad in found if bad[0] == "the_cache_is_prefix_closed")

    monkeypatch.setattr(right, "free", HEAD_FIRST)
    monkeypatch.setattr(worlds, "broken", only)
    found = refuted(FULL)
    assert found.property == "the_cache_is_prefix_closed"
    assert [move.action for move, _ in found.path] == ["arrive", "run_step", "preempt", "arrive"]
    assert is_a_run(FULL, found)
    last = found.path[-1][1]
    assert found.broken.expected not in last.pool.by_key


def test_a_wrong_pool_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 0 too: a reset of the index alone, after take, seal and free."""
    monkeypatch.setattr(right, "reset_prefix_cache", reset_the_index_alone)
    found = refuted(Scope(Config(2, 1)))
    actions = [move.action for move, _ in found.path]
    assert found.property in {"the_index_and_the_blocks_agree", "reset_only_when_idle"}
    assert actions == ["get_new_blocks", "cache_full_blocks", "free_blocks", "reset_prefix_cache"]
