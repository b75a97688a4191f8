"""What is always true of a call: what it may hand out, change, refuse, and leave as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from spec.pool import Ids, Refused
from spec.registry import Broken, Step, always, block_of
from spec.state import NULL, Request, with_tokens
from spec.statemachine import Plan, leave_the_window, may_allocate, plan_of

ALLOCATE, LOOK_UP = ("allocate_slots",), ("get_computed_blocks",)


def _new(step: Step) -> Ids:
    """Return the blocks that the call handed out."""
    handing = step.action in ("allocate_slots", "get_new_blocks")
    return step.result if handing and isinstance(step.result, tuple) else ()


def _refused(step: Step) -> bool:
    return isinstance(step.result, Refused) or (
        step.action == "allocate_slots" and step.result is None
    )


def _request(step: Step) -> Request:
    return step.before.requests[step.args["rid"]]


def _admission(step: Step) -> tuple[Plan, int, bool] | None:
    """Return the plan of an `allocate_slots`, the free blocks it meets, and if it can never fit.

    None when the caller was at fault. The blocks that the window gives back count as free.
    """
    s, a, r = step.before, step.args, _request(step)
    c = s.config
    try:
        may_allocate(s, a["rid"], a["num_tokens"], tuple(a["hits"]), a["num_lookahead"])
    except Refused:
        return None
    plan = plan_of(s, a["rid"], a["num_tokens"], tuple(a["hits"]), a["num_lookahead"])
    left = (r.table or ())[: c.skipped_blocks(r.num_computed)]
    freed = sum(b != NULL and s.pool.blocks[b].ref_cnt == 1 for b in left)
    nulls = plan.nulls + sum(b != NULL for b in left)
    first = r.table is None and c.sliding_window is None
    never = plan.required - nulls > c.usable or (
        first and -(-len(r.tokens) // c.block_size) > c.usable
    )
    return plan, s.pool.num_free() + freed, never


@always(
    "step",
    "PM",
    "A request starts with a block that others can find or still read.",
    ("allocate_slots", "get_new_blocks"),
)
def a_block_handed_out_is_clean(step: Step) -> Iterator[Broken]:
    """A new block has one reference and no earlier key, and nobody had it before."""
    rid = step.args.get("rid")
    others = {b for name, r in step.before.requests.items() if name != rid for b in r.table or ()}
    others |= set(step.before.loose)
    own = step.after.requests[rid] if rid is not None and _new(step) else Request(())
    keys = dict(zip(own.table or (), own.keys, strict=False))
    for b in _new(step):
        block = block_of(step.after, b)
        if block.ref_cnt != 1 or block.key not in (None, keys.get(b)) or b in others:
            yield Broken(b, "one holder, no old key", block)


@always(
    "step", "M", "A request has nothing to run, or writes into a block that others read.", LOOK_UP
)
def a_hit_leaves_a_token_to_compute(step: Step) -> Iterator[Broken]:
    """A hit covers whole blocks and at least one confirmed token less than there are."""
    if isinstance(step.result, tuple):
        covered = len(step.result) * step.before.config.block_size
        if step.result and covered >= len(_request(step).tokens):
            yield Broken(step.result[-1], f"below {len(_request(step).tokens)}", covered)


@always(
    "step", "M", "A request is answered with the text of another user, adapter or image.", LOOK_UP
)
def equal_keys_mean_equal_prefixes(step: Step) -> Iterator[Broken]:
    """A block found at position `i` holds the request's own prefix up to it, extras included."""
    if isinstance(step.result, tuple):
        r = _request(step)
        # What a request is entitled to follows from its tokens and extras, not from its record.
        keys = with_tokens(r._replace(keys=()), r.tokens, step.before.config.block_size).keys
        for i, b in enumerate(step.result):
            block = block_of(step.before, b)
            named = block.key if block.pending is not None else block.content
            if b != NULL and (i >= len(keys) or named is not keys[i]):
                yield Broken(b, keys[i] if i < len(keys) else None, named)


@always("step", "M", "Prompts that were computed a moment ago are computed again.", LOOK_UP)
def a_repeated_prompt_hits(step: Step) -> Iterator[Broken]:
    """A look-up finds all that is cached and can be read again.

    So the second of two equal prompts hits `(n - 1) // block_size` blocks, null included, as long
    as nothing of the first was evicted or taken back.
    """
    if isinstance(step.result, tuple):
        r, c = _request(step), step.before.config
        asked = (len(r.tokens) - 1) // c.block_size if c.enable_caching else 0
        found = [step.before.pool.copies(key) != () for key in r.keys[:asked]]
        readable = (
            n for n in range(asked + 1) if all(found[c.skipped_blocks(n * c.block_size) : n])
        )
        expected = 0 if r.prompt_logprobs else max(readable)
        if len(step.result) != expected:
            yield Broken(None, expected, len(step.result))


@always("step", "M", "A request evicts the prefix that it was about to use.", ALLOCATE)
def hits_and_new_blocks_are_disjoint(step: Step) -> Iterator[Broken]:
    """No block is a hit and new in one call, and no table shows a block twice."""
    if (admission := _admission(step)) is not None:
        for b in admission[0].hits:
            key = block_of(step.before, b).key
            if b in _new(step) or block_of(step.after, b).key is not key:
                yield Broken(b, "a hit", "handed out")
        shown = Counter(b for b in step.after.requests[step.args["rid"]].table or () if b != NULL)
        for b, n in shown.items():
            if n > 1:
                yield Broken(b, 1, n)


@always("step", "M", "The server refuses what fits, or runs dry in the middle of a call.", ALLOCATE)
def admission_is_exact(step: Step) -> Iterator[Broken]:
    """`allocate_slots` succeeds exactly when its new blocks and idle hits are free.

    It takes what it planned, neither more nor less.
    """
    if (admission := _admission(step)) is not None:
        plan, free, never = admission
        got = len(step.result) if isinstance(step.result, tuple) else step.result
        expected = plan.new if plan.new + plan.idle <= free else None
        if not never and got != expected:
            yield Broken(None, expected, got)


@always("step", "M", "A request waits for ever for memory that does not exist.", ALLOCATE)
def what_cannot_fit_is_refused_at_once(step: Step) -> Iterator[Broken]:
    """What needs more blocks than the pool has is refused by name, and nothing else is."""
    if (admission := _admission(step)) is not None:
        told = isinstance(step.result, Refused) and step.result.rule == "request_is_too_large"
        if told != admission[2]:
            yield Broken(None, admission[2], told)


@always("step", "PM", "A refusal leaks blocks, so the server fills up while it says no.")
def a_refused_call_changes_nothing(step: Step) -> Iterator[Broken]:
    """A refused call leaves everything as it was, but for blocks that fell out of the window."""
    if not _refused(step):
        return
    expected = step.before
    if step.action == "allocate_slots" and _admission(step) is not None:
        expected = leave_the_window(step.before, step.args["rid"])
    old, new = expected.pool, step.after.pool
    for b, (x, y) in enumerate(zip(old.blocks, new.blocks, strict=True)):
        if x != y:
            yield Broken(b, x, y)
    whole = (old.queue, old.by_key, expected.requests, expected.loose)
    found = (new.queue, new.by_key, step.after.requests, step.after.loose)
    for was, now in zip(whole, found, strict=True):
        if was != now:
            yield Broken(None, was, now)


@always(
    "step",
    "M",
    "The shared beginning of prompts is lost before their private ends.",
    ("free", "preempt", "finish", "allocate_slots"),
)
def the_tail_is_evicted_before_the_head(step: Step) -> Iterator[Broken]:
    """Of a request's sealed blocks that one call made idle, a descendant goes before its ancestor.

    That is so when the request ends and when its window moves on.
    """
    if step.before.config.enable_caching:
        was, blocks = set(step.before.pool.queue), step.after.pool.blocks
        place = {b: at for at, b in enumerate(step.after.pool.queue) if b not in was}
        table = [b for b in _request(step).table or () if b in place and blocks[b].key]
        for head, tail in pairwise(table):
            if place[tail] > place[head]:
                yield Broken(tail, f"before {head}", f"after {head}")


@always("step", "PM", "What was just used is evicted, and what nobody wants is kept.")
def the_oldest_release_is_evicted_first(step: Step) -> Iterator[Broken]:
    """With `append`, blocks leave at the head, enter at the tail, and else keep their order."""
    if step.before.config.free_rule != "append":
        return
    touched = set(step.args["ids"]) if step.action == "touch" else set()
    if step.args.get("hits") and (admission := _admission(step)) is not None:
        touched |= set(admission[0].hits) if not _refused(step) else set()
    old = [b for b in step.before.pool.queue if b not in touched]
    new = [b for b in step.after.pool.queue if b not in touched]
    stayed = [b for b in old if b in set(new)]
    if stayed != old[len(old) - len(stayed) :] or stayed != new[: len(stayed)]:
        yield Broken(None, old, new)


@always("step", "PM", "A hit changes under the requests that share it.")
def a_settled_block_never_changes(step: Step) -> Iterator[Broken]:
    """From the run that filled a sealed block its content and key stay, until it is evicted.

    Only a direct caller, or a reset, can take the key before.
    """
    new = set(_new(step))
    forgetting = step.action in ("reset_prefix_cache", "unpublish")
    for b, old in enumerate(step.before.pool.blocks):
        if old.key is not None and old.pending is None and b not in new:
            now = step.after.pool.blocks[b]
            lost = now.key is not old.key and not forgetting
            if lost or (now.key is old.key and now.content is not old.content):
                yield Broken(b, (old.key, old.content), (now.key, now.content))


@always("step", "M", "Attention reads the right slots of the wrong blocks.")
def positions_never_move(step: Step) -> Iterator[Broken]:
    """Within one admission a table grows at its end, and an entry only ever turns into null."""
    for rid, r in step.before.requests.items():
        after = step.after.requests.get(rid)
        if r.table is not None and after is not None and after.table is not None:
            if len(after.table) < len(r.table):
                yield Broken(None, len(r.table), len(after.table))
            for was, now in zip(r.table, after.table, strict=False):
                if now not in (was, NULL):
                    yield Broken(was, was, now)


@always("step", "P", "New weights answer with memory of the old ones.", ("reset_prefix_cache",))
def reset_only_when_idle(step: Step) -> Iterator[Broken]:
    """A reset succeeds exactly when nothing is in use: then no key is left, else all stays."""
    idle = step.before.pool.num_free() == step.before.config.usable
    if step.result is not idle:
        yield Broken(None, idle, step.result)
    for b, block in enumerate(step.after.pool.blocks):
        if (block.key is not None) if idle else (block != step.before.pool.blocks[b]):
            yield Broken(b, None if idle else step.before.pool.blocks[b], block)
