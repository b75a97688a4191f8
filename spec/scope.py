"""What may happen in a small world: the moves that an exhaustive search tries.

Level 0 is the pool alone, moved block by block. Level 1 is requests: they arrive and are admitted
in one move (who is refused waits outside), run, are preempted, end. A move is one call, or a
look-up and the call that uses it; it comes with its `Step`s, so that calls can be checked too.

Some facts are dropped from a state because nothing reads them again; without that the world would
be larger, or endless, for no reason: what a free block without a key still holds, how often more
than once a request was preempted, and of a step that has run its end and its number of hits. That a
key was taken back is dropped too, so that prefix closure is checked in its strict form; these
worlds are too small to break it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from spec import statemachine as sm
from spec.registry import Step
from spec.state import Config, Key, Pool, Request, State
from spec.statemachine import Outcome, Refused

Ids = tuple[int, ...]


class Scope(NamedTuple):
    """How far the search looks: the configuration and what requests may do.

    `names` is empty at level 0, where a direct caller moves single blocks: then `keys` labels may
    be given to blocks and no block has more than `max_refs` references. At level 1 the requests
    `names` come with one of `prompts`, are computed whole or one token at a time, sample tokens of
    `alphabet` until they have `max_tokens`, and may be preempted or end at any moment.
    """

    config: Config
    names: tuple[str, ...] = ()
    prompts: tuple[Ids, ...] = ()
    alphabet: Ids = (0, 1)
    max_tokens: int = 3
    num_drafts: int = 0
    keys: int = 2
    max_refs: int = 2


class Move(NamedTuple):
    """One action with its arguments, as a step table shows it."""

    action: str
    args: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{name}={value}' for name, value in self.args)})"


Steps = tuple[Step, ...]
"""The calls of one move, in order."""


def _one(  # an action's arguments are of any type
    s: State,
    action: str,
    after: State,
    result: object,
    **args: Any,  # noqa: ANN401
) -> tuple[Move, Steps]:
    return Move(action, tuple(args.items())), (Step(s, action, args, result, after),)


def request_moves(s: State, rid: str, scope: Scope) -> Iterator[tuple[Move, Steps, State]]:
    """Yield what may happen to one request: the move, its calls, and where it leads.

    A request that arrives and is not admitted leaves no trace: it waits outside.
    """
    r = s.requests.get(rid)
    if r is None:
        for prompt in scope.prompts:
            born = sm.add_request(s, rid, Request(tokens=prompt))
            for move, steps in _admissions(born, rid):
                named = Move("arrive", (("rid", rid), ("prompt", prompt), *move.args[1:2]))
                admitted = isinstance(steps[-1].result, tuple)
                yield named, steps, steps[-1].after if admitted else s
        return
    for move, steps in _moves_of(s, rid, r, scope):
        yield move, steps, steps[-1].after


def _moves_of(s: State, rid: str, r: Request, scope: Scope) -> Iterator[tuple[Move, Steps]]:
    if r.table is None:
        yield from _admissions(s, rid)
    elif not r.in_flight:
        yield from _goes_on(s, rid, r, scope)
    for action in (sm.preempt, sm.finish) if r.table is not None else (sm.finish,):
        try:
            yield _one(s, action.__name__, action(s, rid), None, rid=rid)
        except Refused as refused:
            yield _one(s, action.__name__, s, refused, rid=rid)


def _admissions(s: State, rid: str) -> Iterator[tuple[Move, Steps]]:
    hits = sm.get_computed_blocks(s, rid)
    look_up = Step(s, "get_computed_blocks", {"rid": rid}, hits, s)
    left = len(s.requests[rid].tokens) - len(hits) * s.config.block_size
    for num_tokens in sorted({1, left}):
        move, steps = _allocate(s, rid, num_tokens, hits)
        yield move, (look_up, *steps)


def _goes_on(s: State, rid: str, r: Request, scope: Scope) -> Iterator[tuple[Move, Steps]]:
    if len(r.tokens) > r.num_computed:
        for num_tokens in sorted({1, len(r.tokens) + len(r.drafts) - r.num_computed}):
            yield _allocate(s, rid, num_tokens, ())
    if scope.num_drafts and not r.drafts and len(r.tokens) < scope.max_tokens:
        for drafts in product(scope.alphabet, repeat=scope.num_drafts):
            yield _one(s, "propose", sm.propose(s, rid, drafts), None, rid=rid, drafts=drafts)


def _allocate(s: State, rid: str, num_tokens: int, hits: Ids) -> tuple[Move, Steps]:
    after, result = sm.allocate_slots(s, rid, num_tokens, hits)
    args = {"rid": rid, "num_tokens": num_tokens, "hits": hits, "num_lookahead": 0}
    return _one(s, "allocate_slots", after, result, **args)


def shared_moves(s: State, scope: Scope) -> Iterator[tuple[Move, Steps]]:
    """Yield what concerns everybody: the scheduled step runs, the cache is reset."""
    flying = [rid for rid, r in s.requests.items() if r.in_flight]
    if flying:
        for outcomes in product(*(_outcomes(s.requests[rid], scope) for rid in flying)):
            run = dict(zip(flying, outcomes, strict=True))
            yield _one(s, "run_step", sm.run_step(s, run), None, outcomes=run)
    yield _one(s, "reset_prefix_cache", *sm.reset_prefix_cache(s))


def _outcomes(r: Request, scope: Scope) -> Iterator[Outcome]:
    """Yield every outcome of a step: a chunk, or accepted drafts and a sampled token."""
    drafted = r.end - len(r.tokens)
    if drafted < 0:
        yield Outcome()
        return
    for accepted in range(drafted + 1):
        room = len(r.tokens) + accepted < scope.max_tokens
        for token in scope.alphabet if room else ():
            yield Outcome(accepted, (token,))
        if not room:
            yield Outcome(accepted)


def pool_moves(s: State, scope: Scope) -> Iterator[tuple[Move, Steps]]:
    """Yield what a direct caller of the pool may do with one block."""
    if s.pool.queue:
        yield _one(s, "get_new_blocks", *sm.get_new_blocks(s, 1), n=1)
    for b, block in enumerate(s.pool.blocks[1:], 1):
        if block.key is not None and block.ref_cnt < scope.max_refs:
            yield _one(s, "touch", sm.touch(s, (b,)), None, ids=(b,))
        if block.ref_cnt > 0:
            yield _one(s, "free_blocks", sm.free_blocks(s, (b,)), None, ids=(b,))
        if block.ref_cnt == 1 and block.key is None:
            for label in range(scope.keys):
                key = Key(None, (label,))
                after = sm.cache_full_blocks(s, (b,), (key,), 0, 1)
                yield _one(s, "cache_full_blocks", after, None, table=(b,), keys=(key,))
        if block.ref_cnt == 1 and block.key is not None:
            yield _one(s, "unpublish", sm.unpublish(s, (b,)), None, ids=(b,))
    yield _one(s, "reset_prefix_cache", *sm.reset_prefix_cache(s))


def forget_in_pool(pool: Pool, scope: Scope) -> Pool:
    """Return the pool without what keyless blocks hold that nobody will read.

    At level 1 those are the free ones. At level 0 they are all: who seals a block there says what
    is in it.
    """
    stale = {
        b: block._replace(content=None)
        for b, block in enumerate(pool.blocks)
        if block.content is not None and block.key is None
        if block.ref_cnt == 0 or not scope.names
    }
    return pool.update(stale)


def forget_in_request(r: Request) -> Request:
    """Return the request without what nothing reads again."""
    if not r.in_flight:
        r = r._replace(num_hits=0, end=0 if r.table is None else r.num_computed)
    return r._replace(num_preemptions=min(1, r.num_preemptions))


def all_prompts(alphabet: Ids, most: int) -> tuple[Ids, ...]:
    """Return every prompt of one to `most` tokens."""
    return tuple(p for n in range(1, most + 1) for p in product(alphabet, repeat=n))
