"""Worlds to tour, and calls to make on the production manager."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice, permutations, product
from typing import Any

import pytest

from conformance.divergence import Divergence
from conformance.exhaustive.production import Names, PoolCall, load_manager, quiet, real, view
from conformance.exhaustive.tour import Graph, Pair
from spec.scope import Scope
from spec.state import Block, Config, Frozen, Key, Pool, State
from spec.worlds import WORLDS

NAMES = ("A", "B")
WINDOW = Config(3, 1, sliding_window=2)

SCOPES = {
    "full": Scope(Config(4, 1), NAMES, ((0, 0), (0, 0, 1)), max_tokens=3),
    "tight": Scope(Config(3, 1), NAMES, ((0,), (0, 0), (0, 1)), max_tokens=3),
    "blocks-of-2": Scope(Config(3, 2), NAMES, ((0, 0), (0, 0, 0), (0, 0, 1)), max_tokens=3),
    "drafts": Scope(Config(4, 1), NAMES, ((0,),), (0,), max_tokens=3, num_drafts=1),
    "window": Scope(WINDOW, NAMES, ((0, 0), (0, 1)), (0,), max_tokens=3),
    "window-leaves-two": Scope(
        WINDOW._replace(num_gpu_blocks=4), ("A",), ((0, 0, 0), (0, 0, 1)), max_tokens=4
    ),
    "window-blocks-of-2": Scope(
        Config(3, 2, sliding_window=3), NAMES, ((0,) * 3, (0,) * 5), (0,), max_tokens=5
    ),
    "no-caching": Scope(
        Config(4, 1, enable_caching=False), NAMES, ((0,), (0, 0)), (0,), max_tokens=3
    ),
}
"""Worlds of requests, smaller than those of `spec.worlds`, so that a tour takes seconds."""


@pytest.fixture(scope="session")
def graph_of() -> Callable[[str], Graph]:
    """Return a function from the name of a world, here or in `spec.worlds`, to its graph."""

    @cache
    def graph(name: str) -> Graph:
        return Graph(SCOPES[name] if name in SCOPES else WORLDS[name].scope)

    return graph


@pytest.fixture(scope="session")
def pool_states() -> Callable[[Scope], Iterator[State]]:
    """Return a maker of all states of a pool that satisfy the invariants, reachable or not.

    Count and label of each block are free, but that sharing needs a label; the queue is any order
    of the blocks that nobody holds, an index entry any order of the blocks that carry its key.
    """

    def states(scope: Scope) -> Iterator[State]:
        labels = [Key(None, (label,)) for label in range(scope.keys)]
        facts = [Block(n, key, key) for n in range(scope.max_refs + 1) for key in (None, *labels)]
        legal = [block for block in facts if block.ref_cnt < 2 or block.key is not None]
        for blocks in product(legal, repeat=scope.config.usable):
            numbered = list(enumerate(blocks, 1))
            carriers = {key: [b for b, block in numbered if block.key is key] for key in labels}
            sealed = {key: ids for key, ids in carriers.items() if ids}
            held = tuple(b for b, block in numbered for _ in range(block.ref_cnt))
            for queue in permutations(b for b, block in numbered if block.ref_cnt == 0):
                for orders in product(*map(permutations, sealed.values())):
                    by_key = Frozen(dict(zip(sealed, orders, strict=True)))
                    yield State(scope.config, Pool((Block(), *blocks), queue, by_key), loose=held)

    return states


@pytest.fixture(scope="session")
def pool_calls() -> Callable[..., list[PoolCall]]:
    """Return a maker of calls of every kind, legal or not.

    Those of one block name each usable one and one beyond, and take any number of blocks, one too
    few and one too many included. The others name null, a negative id, none, all pairs, repeated
    ones included, and some triples, and seal parts of a table, right or wrong outside the part.
    """

    def calls(scope: Scope, *, single: bool) -> list[PoolCall]:
        n = scope.config.num_gpu_blocks
        labels = [Key(None, (label,)) for label in range(scope.keys)]
        made: list[PoolCall] = []
        named: list[tuple[int, ...]] = [(b,) for b in range(1, n + 1)]
        if single:
            made += [("get_new_blocks", {"n": k}) for k in range(-1, n + 1)]
            made += [("reset_prefix_cache", {})]
        else:
            named = [(), (0,), (-1,), *product(range(n), repeat=2), (1, n), (n, 1), (-1, 1)]
            named += [(1, 2, 1), (2, 0, 1), (3, 2, 1), (2, 2, n)]
            parts = ((0, 0), (0, 1), (1, 1), (1, 2), (1, 0), (-1, 1), (0, 3))
            for table, part in product(((1, 2), (1, n), (n, 1)), parts):
                made += [seal(table, (labels[0],) * 2, *part)]
        for ids in named:
            made += [(action, {"ids": ids}) for action in ("touch", "free_blocks", "unpublish")]
            for keys in product(labels, repeat=len(ids)):
                made += [seal(ids, keys, 0, len(ids))]
        return made

    return calls


def seal(table: tuple[int, ...], keys: tuple[Key, ...], cached: int, full: int) -> PoolCall:
    """Return one call that seals a part of a table."""
    args = {"table": table, "keys": keys, "num_cached": cached, "num_full": full}
    return "cache_full_blocks", args


class ManagerSteps:
    """Steps of the manager from states that it is loaded with, each one compared in full.

    A view also shows what no snapshot does: the sealed front of a table, its hits, and the start
    and end of the last step.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scope = graph.world.scope
        self.names = Names(self.scope.config)
        self.checks = 0
        self.refused = 0

    def moves(self) -> str | None:
        """Make every move from every state; return the first difference."""
        same = tuple(range(1, self.scope.config.num_gpu_blocks))
        for node, edges in self.graph.edges.items():
            for _, move in edges:
                step = partial(Pair.make, move=move, names=same)
                if (found := self._compare(self.graph.world.state(node), step)) is not None:
                    return f"{move}: {found}"
        return None

    def misuse(self, every: int) -> str | None:
        """Make calls of all kinds from each `every`-th state; return the first difference.

        Most of them break one rule or several, of which the same one must be named.
        """
        for s in islice(self.graph.states(), 0, None, every):
            for action, args in self._calls(s):
                step = partial(Pair.call, action=action, **args)
                if (found := self._compare(s, step)) is not None:
                    return f"{action} {args}: {found}"
        return None

    def _calls(self, s: State) -> Iterator[tuple[str, dict[str, Any]]]:
        n = s.config.num_gpu_blocks
        hits = [(), *((b,) for b in range(-1, n + 1)), *product(range(n), repeat=2), (1, n), (n, 1)]
        sizes = [(1, 0), (2, 0), (0, 0), (9, 0), (1, -1), (1, 1), (1, 9)]
        for rid in s.requests:
            yield from ((action, {"rid": rid}) for action in ("get_computed_blocks", "free"))
            for (num_tokens, ahead), ids in product(sizes, hits):
                args = {"rid": rid, "num_tokens": num_tokens, "num_lookahead": ahead, "hits": ids}
                yield "allocate_slots", args

    def _compare(self, s: State, step: Callable[[Pair], object]) -> str | None:
        self.checks += 1
        try:
            subject = load_manager(s, self.names)
            pair = Pair(subject, self.scope)
            pair.state = s
            with quiet():
                step(pair)
            seen = view(subject, self.names)
        except (Divergence, AssertionError) as found:
            return str(found)
        self.refused += pair.refused
        return None if seen == real(pair.state) else f"{seen} instead of {real(pair.state)}"


@pytest.fixture(scope="session")
def steps_of() -> Callable[[Graph], ManagerSteps]:
    """Return a maker of the manager's steps on a graph."""
    return ManagerSteps
