"""What a scheduler may do: one pure function an action, first its GUARD, then its EFFECT.

An action decides which blocks move and leaves the moving to the effects of `pool.py`. A guard that
fails raises `Refused` with the rule and the values; a refused call changes nothing. The pool's own
actions are offered here too: this module is the one door to everything that may happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from spec.pool import (
    TRANSITIONS,
    Ids,
    Refused,
    cache_full_blocks,
    free_blocks,
    get_new_blocks,
    must_be_of_this_pool,
    must_be_tokens,
    release_effect,
    reset_prefix_cache,
    seal_effect,
    take_effect,
    touch,
    touch_effect,
    unpublish,
    unpublish_effect,
)
from spec.state import NULL, Block, Key, Request, State, extra_keys, with_tokens

__all__ = [
    "TRANSITIONS",
    "Outcome",
    "Plan",
    "Refused",
    "add_request",
    "allocate_slots",
    "cache_full_blocks",
    "finish",
    "free",
    "free_blocks",
    "get_computed_blocks",
    "get_new_blocks",
    "leave_the_window",
    "may_allocate",
    "plan_of",
    "preempt",
    "propose",
    "reset_prefix_cache",
    "run_step",
    "touch",
    "unpublish",
]


def add_request(s: State, rid: str, request: Request) -> State:
    """A request arrives with its prompt and whatever else names its content."""
    # GUARD
    spans = sorted((offset, offset + n) for _, offset, n in request.media)
    bad = any(not 0 <= a < b for a, b in spans) or any(b > c for (_, b), (c, _) in pairwise(spans))
    if rid in s.requests or not request.tokens or bad:
        raise Refused("request_is_invalid", request=rid, prompt=request.tokens, media=spans)
    must_be_tokens(request.tokens)
    # EFFECT
    return _with(s, rid, with_tokens(request, request.tokens, s.config.block_size))


def propose(s: State, rid: str, drafts: Sequence[int]) -> State:
    """The drafter proposes tokens for a request's next step."""
    # GUARD
    if s.requests[rid].in_flight:
        raise Refused("drafts_while_a_step_is_in_flight", request=rid)
    must_be_tokens(tuple(drafts))
    # EFFECT
    return _with(s, rid, s.requests[rid]._replace(drafts=tuple(drafts)))


def get_computed_blocks(s: State, rid: str) -> Ids:
    """Look up the longest prefix that need not be computed. Changes nothing.

    At least the last token is computed, so that a hit never makes a request write a shared block.
    With a window the blocks that the next query cannot read need not be there: they show null.
    """
    r, size, window = s.requests[rid], s.config.block_size, s.config.sliding_window
    if not s.config.enable_caching or r.prompt_logprobs:
        return ()
    found: list[int] = []
    asked = r.keys[: (len(r.tokens) - 1) // size]
    if window is None:
        for key in asked:
            if not (copies := s.pool.copies(key)):
                break
            found.append(copies[0])
        return tuple(found)
    needed = -(-(window - 1) // size)
    for i in reversed(range(len(asked))):
        if not (copies := s.pool.copies(asked[i])):
            found = []
            continue
        found.append(copies[0])
        if len(found) == needed:
            return (NULL,) * i + tuple(reversed(found))
    return tuple(reversed(found))


class Plan(NamedTuple):
    """What one successful `allocate_slots` does, worked out before anything is done."""

    start: int
    hits: Ids
    new: int
    idle: int
    required: int
    nulls: int


def allocate_slots(
    s: State, rid: str, num_tokens: int, hits: Sequence[int] = (), num_lookahead: int = 0
) -> tuple[State, Ids | Refused | None]:
    """Reserve the slots of one step of `num_tokens` tokens, after the tokens that `hits` cover.

    The result is the new blocks; None, when they are not there now; the refusal
    `request_is_too_large`, when they never will be. Then only what left the window is released.
    """
    # GUARD
    may_allocate(s, rid, num_tokens, tuple(hits), num_lookahead)
    # EFFECT
    s = leave_the_window(s, rid)
    r, size, usable = s.requests[rid], s.config.block_size, s.config.usable
    plan = plan_of(s, rid, num_tokens, tuple(hits), num_lookahead)
    least = -(-len(r.tokens) // size)
    if r.table is None and s.config.sliding_window is None and least > usable:
        return s, Refused("request_is_too_large", request=rid, required=least, usable=usable)
    if plan.required - plan.nulls > usable:
        return s, Refused(
            "request_is_too_large", request=rid, required=plan.required, usable=usable
        )
    if plan.new + plan.idle > s.pool.num_free():
        return s, None
    pool, new = take_effect(touch_effect(s.pool, plan.hits), plan.new)
    if r.table is None:
        r = r._replace(table=(), num_hits=len(plan.hits), num_cached=len(plan.hits))
    table = (r.table or ()) + plan.hits + new
    r = r._replace(table=table, start=plan.start, end=plan.start + num_tokens)
    full = max(r.num_cached, min(r.end, len(r.tokens)) // size)
    if s.config.enable_caching:
        sealed: dict[int, Block] = {}
        for i in range(r.num_cached, full):
            if (b := table[i]) != NULL:
                writer = rid if (i + 1) * size > r.start else None
                sealed[b] = pool.blocks[b]._replace(key=r.keys[i], pending=writer)
        pool, r = seal_effect(pool, sealed), r._replace(num_cached=full)
    return _with(s._replace(pool=pool), rid, r), new


def may_allocate(s: State, rid: str, num_tokens: int, hits: Ids, num_lookahead: int) -> None:
    """Raise `Refused` when the caller breaks its side; the rules are tried in this order."""
    r, c = s.requests[rid], s.config
    start = r.num_computed + len(hits) * c.block_size
    if num_tokens < 1:
        raise Refused("num_tokens_is_below_one", num_tokens=num_tokens)
    if num_lookahead < 0:
        raise Refused("num_lookahead_tokens_is_negative", num_lookahead=num_lookahead)
    if start + num_tokens > len(r.tokens) + len(r.drafts):
        raise Refused("tokens_beyond_the_request", end=start + num_tokens, known=len(r.tokens))
    if start + num_tokens > c.max_model_len:
        raise Refused("tokens_beyond_max_model_len", end=start + num_tokens, limit=c.max_model_len)
    _may_use_hits(s, r, rid, hits)
    if r.in_flight:
        raise Refused("last_step_has_not_run", computed=r.num_computed, start=r.start)
    if start >= len(r.tokens):
        raise Refused("no_confirmed_token_to_compute", start=start, confirmed=len(r.tokens))
    if r.table is None and r.num_computed != 0:
        raise Refused("computed_tokens_without_blocks", computed=r.num_computed)
    if hits and r.prompt_logprobs:
        raise Refused("hits_with_prompt_logprobs", request=rid, hits=hits)


def _may_use_hits(s: State, r: Request, rid: str, hits: Ids) -> None:
    c, start = s.config, r.num_computed + len(hits) * s.config.block_size
    if hits and r.table is not None:
        raise Refused("hits_for_a_request_with_a_table", request=rid, hits=hits)
    if hits and not c.enable_caching:
        raise Refused("hits_while_caching_is_off", request=rid, hits=hits)
    must_be_of_this_pool(s, hits)
    for i, b in enumerate(hits):
        if b != NULL and (i >= len(r.keys) or s.pool.blocks[b].key is not r.keys[i]):
            raise Refused("hit_is_stale", block=b, position=i, key=s.pool.blocks[b].key)
    if NULL in hits[c.skipped_blocks(start) :]:
        raise Refused("null_hit_is_readable", hits=hits, next_query=start)


def plan_of(s: State, rid: str, num_tokens: int, hits: Ids, num_lookahead: int) -> Plan:
    """Return what the call takes. A hit wholly before the window is as good as null."""
    r, c = s.requests[rid], s.config
    start = r.num_computed + len(hits) * c.block_size
    skipped = c.skipped_blocks(start)
    hits = (NULL,) * min(skipped, len(hits)) + hits[skipped:]
    table = r.table or ()
    required = -(-min(start + num_tokens + num_lookahead, c.max_model_len) // c.block_size)
    new = max(0, required - len(table) - len(hits))
    idle = sum(b != NULL and s.pool.blocks[b].ref_cnt == 0 for b in hits)
    return Plan(start, hits, new, idle, required, (table + hits).count(NULL))


def leave_the_window(s: State, rid: str) -> State:
    """Release what the next query cannot read; its positions show null, so nothing moves."""
    r = s.requests[rid]
    skipped = s.config.skipped_blocks(r.num_computed)
    if r.table is None or all(b == NULL for b in r.table[:skipped]):
        return s
    pool = release_effect(s.pool, reversed(r.table[:skipped]), s.config.free_rule)
    r = r._replace(table=(NULL,) * skipped + r.table[skipped:])
    return _with(s._replace(pool=pool), rid, r)


class Outcome(NamedTuple):
    """What one request's step produced: how many drafts were right, and what was sampled."""

    accepted: int = 0
    sampled: Ids = ()


def run_step(s: State, outcomes: Mapping[str, Outcome]) -> State:
    """Everything scheduled runs: slots are written, drafts judged, pending blocks are settled."""
    # GUARD
    flying = sorted(rid for rid, r in s.requests.items() if r.in_flight)
    if flying != sorted(outcomes):
        raise Refused("a_step_runs_all_that_is_scheduled", scheduled=flying, ran=sorted(outcomes))
    for rid, (accepted, sampled) in outcomes.items():
        drafted = s.requests[rid].end - len(s.requests[rid].tokens)
        if not 0 <= accepted <= max(0, drafted) or (sampled and drafted < 0):
            raise Refused("outcome_is_impossible", request=rid, accepted=accepted, drafted=drafted)
    # EFFECT
    size = s.config.block_size
    for rid, (accepted, sampled) in outcomes.items():
        r = s.requests[rid]
        computed = min(r.end, len(r.tokens) + accepted)
        tokens = r.tokens + r.drafts[:accepted] + sampled
        r = with_tokens(r, tokens, size)
        changed: dict[int, Block] = {}
        for i in range(r.start // size, -(-computed // size)):
            b = (r.table or ())[i]
            old = changed.get(b, s.pool.blocks[b])
            written = _written(old.content, r, i, computed, size)
            pending = None if old.pending == rid else old.pending
            changed[b] = old._replace(content=written, pending=pending)
        r = r._replace(drafts=(), num_computed=computed)
        s = _with(s._replace(pool=s.pool.update(changed)), rid, r)
    return s


def _written(old: Key | None, r: Request, i: int, computed: int, size: int) -> Key:
    """Return what block `i` of a table holds once `r` has written `[r.start, computed)` of it."""
    own = r.tokens[i * size : min((i + 1) * size, computed)]
    before, parent = max(0, r.start - i * size), (r.keys[i - 1] if i else None)
    if not before and len(own) == size and r.keys[i].parent is parent:
        return r.keys[i]
    extra = extra_keys(r, i, size)
    torn = before and old is not Key(parent, own[:before], extra)
    return Key(old, own, (("torn",),)) if torn else Key(parent, own, extra)


def free(s: State, rid: str) -> State:
    """Give back a request's blocks, the tail first, and what it published but never wrote."""
    r = s.requests[rid]
    if r.table is None:
        return s
    # GUARD
    first = max(r.num_hits, r.num_computed // s.config.block_size)
    unwritten = [b for b in r.table[first : r.num_cached] if b != NULL]
    for b in unwritten:
        if s.pool.blocks[b].ref_cnt > 1:
            holders = sorted(name for name, other in s.requests.items() if b in (other.table or ()))
            raise Refused("pending_block_is_shared", block=b, writer=rid, holders=holders)
    # EFFECT
    order = tuple(reversed(r.table)) if s.config.enable_caching else r.table
    pool = release_effect(unpublish_effect(s.pool, unwritten), order, s.config.free_rule)
    r = r._replace(table=None, num_hits=0, num_cached=0, start=0, end=0)
    return _with(s._replace(pool=pool, taken_back=s.taken_back or bool(unwritten)), rid, r)


def preempt(s: State, rid: str) -> State:
    """Free a running request; it starts again from its confirmed tokens."""
    s = free(s, rid)
    times = s.requests[rid].num_preemptions + 1
    return _with(s, rid, s.requests[rid]._replace(num_computed=0, drafts=(), num_preemptions=times))


def finish(s: State, rid: str) -> State:
    """Free a request and forget it."""
    s = free(s, rid)
    return s._replace(requests=s.requests.without(rid))


def _with(s: State, rid: str, r: Request) -> State:
    return s._replace(requests=s.requests.set(rid, r))
