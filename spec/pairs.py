"""Properties of two runs: the same schedule is served twice, and the answers are compared.

What a cache must never do cannot be seen in one run: change an answer, or tell one user what
another one asked. Here two states move together through every schedule of a small world. Where
either side has no room, the move is left out on both, so that the schedules stay the same.

`the_cache_changes_no_answer`: one side caches and the other does not; every written position of
every request must hold the same content, as far as it can still be read.

`salts_do_not_see_each_other`: both sides serve the requests of one salt, and one side serves
another salt's too; as long as nothing is evicted, refused or reset, the first salt's hits must be
equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

from spec import statemachine as sm
from spec.scope import Move, Scope
from spec.state import NULL, Config, Key, Request, State, initial
from spec.statemachine import Outcome, Refused
from spec.world import Node, World

Pair = tuple[State, State]


class Difference(NamedTuple):
    """Where two runs differ, and the moves that lead there."""

    property: str
    request: str
    first: object
    second: object
    path: tuple[Move, ...]


class PairResult(NamedTuple):
    """How many pairs of states were seen, how many moves tried, and what differs, if anything."""

    pairs: int
    moves: int
    found: Difference | None


def the_cache_changes_no_answer(scope: Scope) -> PairResult:
    """Serve every schedule with and without a cache; what each request reads must be the same."""
    plain = scope.config._replace(enable_caching=False)

    def differs(_: Move, pair: Pair) -> tuple[str, object, object] | None:
        for rid in pair[0].requests:
            with_cache, without = (_contents(s, rid) for s in pair)
            if with_cache != without:
                return rid, with_cache, without
        return None

    name = "the_cache_changes_no_answer"
    return _search(name, scope, (scope.config, plain), lambda _rid: (True, True), differs)


def salts_do_not_see_each_other(scope: Scope, salts: Mapping[str, str]) -> PairResult:
    """Serve every schedule with and without the requests of all salts but the first one.

    The pool must be so large that nothing is evicted: a schedule that evicts is left out.
    """
    mine = salts[scope.names[0]]

    def differs(_: Move, pair: Pair) -> tuple[str, object, object] | None:
        for rid, r in pair[0].requests.items():
            if salts[rid] == mine and r.num_hits != pair[1].requests[rid].num_hits:
                return rid, r.num_hits, pair[1].requests[rid].num_hits
        return None

    name = "salts_do_not_see_each_other"
    return _search(
        name,
        scope,
        (scope.config, scope.config),
        lambda rid: (True, salts[rid] == mine),
        differs,
        salts,
    )


def _contents(s: State, rid: str) -> tuple[tuple[Key | None, int], ...]:
    """Return what a request's readable written positions hold: the block's content and the slot."""
    r, size = s.requests[rid], s.config.block_size
    if r.table is None:
        return ()
    window = s.config.sliding_window
    first = 0 if window is None else max(0, r.num_computed - window + 1)
    held = []
    for p in range(first, r.num_computed):
        b = r.table[p // size]
        content = None if b == NULL else s.pool.blocks[b].content
        tokens = () if content is None else content.tokens[: p % size + 1]
        parent = None if content is None else content.parent
        extra = () if content is None else content.extra
        held.append((Key(parent, tokens, extra), p % size))
    return tuple(held)


def _search(  # the parts of one search, put together above
    name: str,
    scope: Scope,
    configs: tuple[Config, Config],
    sides: Callable[[str], tuple[bool, bool]],
    differs: Callable[[Move, Pair], tuple[str, object, object] | None],
    salts: Mapping[str, str] | None = None,
) -> PairResult:
    worlds = [World(scope._replace(config=config)) for config in configs]
    start: Pair = (initial(configs[0]), initial(configs[1]))
    came: dict[tuple[Node, Node], tuple[Move, ...]] = {_node(worlds, start): ()}
    frontier, moves = [start], 0
    while frontier:
        following = []
        for pair in frontier:
            path = came[_node(worlds, pair)]
            for move, there in _moves(pair, scope, sides, salts or {}):
                moves += 1
                if (bad := differs(move, there)) is not None:
                    return PairResult(len(came), moves, Difference(name, *bad, (*path, move)))
                node = _node(worlds, there)
                if node not in came:
                    came[node] = (*path, move)
                    following.append(there)
        frontier = following
    return PairResult(len(came), moves, None)


def _node(worlds: list[World], pair: Pair) -> tuple[Node, Node]:
    one, other = (world.canonical(world.node(s)) for world, s in zip(worlds, pair, strict=True))
    return one, other


def _moves(
    pair: Pair,
    scope: Scope,
    sides: Callable[[str], tuple[bool, bool]],
    salts: Mapping[str, str],
) -> Iterator[tuple[Move, Pair]]:
    for rid in scope.names:
        for move, step in _request_steps(pair[0], rid, scope, salts):
            there = tuple(
                step(s) if takes else s for s, takes in zip(pair, sides(rid), strict=True)
            )
            if None not in there:
                yield move, there  # type: ignore[misc]  # neither is None
    flying = [rid for rid, r in pair[0].requests.items() if r.in_flight]
    for sampled in product(scope.alphabet, repeat=len(flying)) if flying else ():
        outcomes = {
            rid: _outcome(pair[0].requests[rid], token, scope)
            for rid, token in zip(flying, sampled, strict=True)
        }
        move = Move("run_step", (("outcomes", outcomes),))
        yield (
            move,
            tuple(  # type: ignore[misc]  # two states give two states
                sm.run_step(s, {rid: o for rid, o in outcomes.items() if rid in s.requests})
                if any(rid in s.requests for rid in outcomes)
                else s
                for s in pair
            ),
        )


def _outcome(r: Request, token: int, scope: Scope) -> Outcome:
    more = r.end >= len(r.tokens) and len(r.tokens) < scope.max_tokens
    return Outcome(0, (token,) if more else ())


def _request_steps(
    s: State, rid: str, scope: Scope, salts: Mapping[str, str]
) -> Iterator[tuple[Move, Callable[[State], State | None]]]:
    r = s.requests.get(rid)
    if r is None:
        for prompt in scope.prompts:
            born = Request(tokens=prompt, salt=salts.get(rid))
            move = Move("arrive", (("rid", rid), ("prompt", prompt)))
            yield move, partial(_arrive, rid=rid, born=born, may_evict=not salts)
        return
    for end in () if r.in_flight else range(r.num_computed + 1, len(r.tokens) + 1):
        move = Move("compute", (("rid", rid), ("end", end)))
        yield move, partial(_advance, rid=rid, end=end, may_evict=not salts)
    for action in (sm.preempt, sm.finish):
        yield Move(action.__name__, (("rid", rid),)), partial(_unless_refused, action, rid)


def _arrive(s: State, *, rid: str, born: Request, may_evict: bool) -> State | None:
    """Add a request and schedule its whole prompt."""
    return _advance(sm.add_request(s, rid, born), rid, len(born.tokens), may_evict=may_evict)


def _advance(s: State, rid: str, end: int, *, may_evict: bool) -> State | None:
    """Schedule a request up to a position; None when there is no room, or a hit reaches further."""
    r = s.requests[rid]
    hits = () if r.table is not None else sm.get_computed_blocks(s, rid)
    start = r.num_computed + len(hits) * s.config.block_size
    if end <= start:
        return None
    after, new = sm.allocate_slots(s, rid, end - start, hits)
    evicts = isinstance(new, tuple) and any(s.pool.blocks[b].key is not None for b in new)
    return after if isinstance(new, tuple) and (may_evict or not evicts) else None


def _unless_refused(action: Callable[[State, str], State], rid: str, s: State) -> State | None:
    try:
        return action(s, rid)
    except Refused:
        return None
