"""The specification with one thing wrong is refuted, by a property that says what is wrong."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from spec import pool as right_pool
from spec import statemachine as right
from spec.state import NULL, Block, Frozen, Key, Pool, Request, State, with_tokens
from spec.statemachine import Refused

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Explore = Callable[..., Any]
Ids = tuple[int, ...]
Answer = tuple[State, Ids | Refused | None]

original = vars(right).copy()
"""The right functions, whatever stands in their place."""


def free_with(
    order: Callable[[Ids], Iterable[int]] = reversed, *, guard: bool = True
) -> Callable[[State, str], State]:
    """Return `free` with another order, or without its guard."""

    def free(s: State, rid: str) -> State:
        r = s.requests[rid]
        if guard or r.table is None:
            original["free"](s, rid)
        first = max(r.num_hits, r.num_computed // s.config.block_size)
        unwritten = [b for b in (r.table or ())[first : r.num_cached] if b != NULL]
        pool = original["unpublish_effect"](s.pool, unwritten)
        pool = original["release_effect"](pool, order(r.table or ()), s.config.free_rule)
        r = r._replace(table=None, num_hits=0, num_cached=0, start=0, end=0)
        s = s._replace(pool=pool, taken_back=s.taken_back or bool(unwritten))
        return s._replace(requests=s.requests.set(rid, r))

    return free


def forgetful_take(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Hand out blocks and leave them in the index."""
    ids = pool.heads(n)
    return pool.dequeue(ids).update(dict.fromkeys(ids, Block(ref_cnt=1))), ids


def warm_take(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Hand out the tail of the queue."""
    turned: tuple[Pool, Ids] = original["take_effect"](pool._replace(queue=pool.queue[::-1]), n)
    return turned[0]._replace(queue=turned[0].queue[::-1]), turned[1]


def take_and_keep_the_key(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Withdraw blocks from the index and leave them their keys."""
    taken, ids = original["take_effect"](pool, n)
    return taken.update({b: pool.blocks[b]._replace(ref_cnt=1) for b in ids}), ids


def eager_release(pool: Pool, ids: Iterable[int], _: str) -> Pool:
    """Decrement, then append every block that was mentioned."""
    mentioned = [b for b in ids if b != NULL]
    less = {b: pool.blocks[b]._replace(ref_cnt=pool.blocks[b].ref_cnt - 1) for b in mentioned}
    return pool.update(less).enqueue(mentioned)


def touch_in_the_queue(pool: Pool, ids: Iterable[int]) -> Pool:
    """Count a reference and leave the block where it is."""
    return original["touch_effect"](pool, ids)._replace(queue=pool.queue)  # type: ignore[no-any-return]


def take_before_touch(patch: pytest.MonkeyPatch) -> None:
    """Put the two effects of an admission in the wrong order."""
    late: list[int] = []

    def touch(pool: Pool, ids: Sequence[int]) -> Pool:
        late[:] = ids
        return pool

    def take(pool: Pool, n: int) -> tuple[Pool, Ids]:
        pool, ids = original["take_effect"](pool, n)
        return original["touch_effect"](pool, late), ids

    patch.setattr(right, "touch_effect", touch)
    patch.setattr(right, "take_effect", take)


def hit_to_the_end(s: State, rid: str) -> Ids:
    """Look up `len` tokens instead of `len - 1`."""
    r = s.requests[rid]
    longer = s._replace(requests=s.requests.set(rid, r._replace(tokens=(*r.tokens, 0))))
    return original["get_computed_blocks"](longer, rid)  # type: ignore[no-any-return]


def find_nothing(_: State, rid: str) -> Ids:  # noqa: ARG001  # a look-up has this argument
    """Answer every look-up with a miss."""
    return ()


def seal_drafts(s: State, rid: str, num_tokens: int, hits: Ids, num_lookahead: int) -> Answer:
    """Take drafts for confirmed tokens."""
    r = s.requests[rid]
    sure = with_tokens(r, r.tokens + r.drafts, s.config.block_size)._replace(drafts=())
    s = s._replace(requests=s.requests.set(rid, sure))
    s, result = original["allocate_slots"](s, rid, num_tokens, hits, num_lookahead)
    back = s.requests[rid]._replace(tokens=r.tokens, drafts=r.drafts, keys=r.keys)
    return s._replace(requests=s.requests.set(rid, back)), result


def refuse_and_touch(s: State, rid: str, num_tokens: int, hits: Ids, num_lookahead: int) -> Answer:
    """Touch the hits before there is room for the rest."""
    s, result = original["allocate_slots"](s, rid, num_tokens, hits, num_lookahead)
    return (
        s if result is not None else s._replace(pool=original["touch_effect"](s.pool, hits))
    ), result


def keys_without_parents(r: Request, tokens: Ids, size: int) -> Request:
    """Name blocks by their own tokens alone."""
    whole = range(len(tokens) // size)
    return r._replace(
        tokens=tokens, keys=tuple(Key(None, tokens[i * size : (i + 1) * size]) for i in whole)
    )


def withdraw_every_copy(pool: Pool, _: int, key: Key) -> Pool:
    """Delete the whole entry of the index when one of its blocks goes."""
    return pool._replace(by_key=pool.by_key.without(key))


def reset_in_use(s: State) -> tuple[State, bool]:
    """Forget every key, whoever is running."""
    ids = range(1, s.config.num_gpu_blocks)
    return s._replace(pool=right_pool.unpublish_effect(s.pool, ids)), True


def reset_the_index_alone(s: State) -> tuple[State, bool]:
    """Clear the index and leave the blocks their keys."""
    _, done = original["reset_prefix_cache"](s)
    return (s._replace(pool=s.pool._replace(by_key=Frozen())) if done else s), done


FULL = {"usable": 2, "prompts": "b ab", "longest": 2}
WINDOW = {"usable": 2, "prompts": "ab", "longest": 4, "sliding_window": 2}
DRAFTS = {"usable": 2, "prompts": "a ab", "longest": 3, "block_size": 2, "drafts": "b"}

Variant = tuple[object, str, object, Mapping[str, Any], str]

VARIANTS: Mapping[str, Variant] = {
    "release the head first": (
        right, "free", free_with(tuple), FULL, "the_tail_is_evicted_before_the_head",
    ),
    "take back what others hold": (
        right, "free", free_with(guard=False), FULL, "a_request_reads_its_own_prefix",
    ),
    "take nothing back": (
        right, "unpublish_effect", lambda pool, _: pool, FULL, "nothing_unwritten_is_found",
    ),
    "take and forget to withdraw": (
        right, "take_effect", forgetful_take, FULL, "the_index_and_the_blocks_agree",
    ),
    "take the warmest": (
        right, "take_effect", warm_take, FULL, "the_oldest_release_is_evicted_first",
    ),
    "take and keep the key": (
        right, "take_effect", take_and_keep_the_key, DRAFTS, "a_block_handed_out_is_clean",
    ),
    "release while references are left": (
        right, "release_effect", eager_release, FULL,
        "a_block_is_free_exactly_when_nobody_holds_it",
    ),
    "touch in the queue": (
        right, "touch_effect", touch_in_the_queue, FULL,
        "a_block_is_free_exactly_when_nobody_holds_it",
    ),
    "hit the last token": (
        right, "get_computed_blocks", hit_to_the_end, FULL, "a_hit_leaves_a_token_to_compute",
    ),
    "find nothing": (
        right, "get_computed_blocks", find_nothing, FULL, "a_repeated_prompt_hits",
    ),
    "seal drafts": (
        right, "allocate_slots", seal_drafts, DRAFTS, "unconfirmed_tokens_are_never_sealed",
    ),
    "refuse and touch": (
        right, "allocate_slots", refuse_and_touch, FULL, "a_refused_call_changes_nothing",
    ),
    "forget that idle hits are free blocks": (
        right, "plan_of", lambda *a: original["plan_of"](*a)._replace(idle=0), DRAFTS,
        "admission_is_exact",
    ),
    "name a block without its parent": (
        right, "with_tokens", keys_without_parents, {**FULL, "usable": 3, "longest": 3},
        "a_key_tells_the_content",
    ),
    "withdraw every copy": (
        Pool, "withdraw", withdraw_every_copy, FULL, "the_index_and_the_blocks_agree",
    ),
    "reset while in use": (
        right, "reset_prefix_cache", reset_in_use, FULL, "reset_only_when_idle",
    ),
    "reset the index alone": (
        right, "reset_prefix_cache", reset_the_index_alone, FULL, "reset_only_when_idle",
    ),
    "never leave the window": (
        right, "leave_the_window", lambda s, _: s, {**WINDOW, "usable": 4},
        "skipped_positions_show_null",
    ),
}  # fmt: skip
"""What is replaced by what, where it is searched, and the property that must notice."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_variant_is_refuted(
    explore: Explore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The search finds a run in which the named property is broken, and it is a short one."""
    owner, attribute, wrong, scope, violated = VARIANTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    found = explore(**scope)
    assert violated in found.broken
    assert len(found.path) <= 6


def test_taking_before_touching_is_refuted(
    explore: Explore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request evicts the block that it was about to hit, at the head of the queue."""
    take_before_touch(monkeypatch)
    assert "hits_and_new_blocks_are_disjoint" in explore(**FULL).broken


def test_the_shortest_way_to_an_orphan(explore: Explore, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the head is released first, a parent is evicted in four moves and its child stays."""
    monkeypatch.setattr(right, "free", free_with(tuple))
    found = explore(**FULL, sought="the_cache_is_prefix_closed")
    assert found.path == ("admit A ab 2", "run 0", "preempt A", "admit B b 1")


@pytest.mark.parametrize(("order", "hits"), [(reversed, (1,)), (tuple, ())])
def test_the_order_of_release_decides_what_a_third_request_finds(
    world: World, monkeypatch: pytest.MonkeyPatch, order: Callable[[Ids], Ids], hits: Ids
) -> None:
    """Only a later request under pressure sees the difference: the head of A survives, or not."""
    monkeypatch.setattr(right, "free", free_with(order))
    w = world(3)
    for rid, letters in (("A", "abcde"), ("C", "wxyz")):
        w.new(rid, letters)
        w.end(rid)
    w.add("B", "abcdf")
    assert w.look("B") == hits
