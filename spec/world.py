"""The states of a small world, collapsed to integers and renamed, and the moves between them.

Two tricks make plain Python fast enough, and neither touches the actions.

*Collapse.* A state is stored as a few small integers: one for its pool, one for each request. What
one request does reads the pool and that request only, so it is computed, and its calls are checked,
once for each pair, and pasted into every state that has the pair. In the same way a property of a
state that reads the pool alone, or the pool and one request, is evaluated once for what it reads.

*Symmetry.* Block ids are interchangeable. A state is renamed so that ids count up in the order in
which they stand in the tables, then in the queue, then by key. It stands for up to N! others.
"""

from __future__ import annotations

from collections.abc import Iterator

from spec.encoding import (
    pool_as_bytes,
    pool_from_bytes,
    request_as_bytes,
    request_from_bytes,
)
from spec.invariants import Broken, broken
from spec.reachable import seen_in
from spec.scope import (
    Ids,
    Move,
    Scope,
    Steps,
    forget_in_pool,
    forget_in_request,
    pool_moves,
    request_moves,
    shared_moves,
)
from spec.state import NULL, BlockState, Frozen, Pool, Request, State, block_state, initial

Node = tuple[int, ...]
"""A collapsed state: the number of its pool, then the number of each request (0: not there)."""

Edge = tuple[BlockState, BlockState]


class World:
    """The states of a scope, collapsed, and the moves between them."""

    def __init__(self, scope: Scope, *, symmetry: bool = True) -> None:
        self.scope = scope
        self.symmetry = symmetry
        self.seen: set[str] = set()
        """The reachable properties that were seen."""
        self.edges: set[Edge] = set()
        """The changes of a block's state that one call made."""
        self.failed: tuple[str, Broken, Move, State] | None = None
        """The first call that broke a property, where its move led, and how."""
        self._pools: list[Pool] = []
        self._pool_ids: dict[Pool, int] = {}
        self._requests: list[Request | None] = [None]
        self._request_ids: dict[Request | None, int] = {None: 0}
        self._local: dict[tuple[int, int, int], list[tuple[int, int, Move]]] = {}
        self._shared: dict[Node, list[tuple[Node, Move]]] = {}
        self._renamed_pools: dict[tuple[int, Ids], int] = {}
        self._renamed_requests: dict[tuple[int, Ids], int] = {}
        self._checked: dict[tuple[object, ...], tuple[str, Broken] | None] = {}
        self._bytes: dict[tuple[str, int], bytes] = {}
        self._from_bytes: dict[bytes, int] = {}
        self._in_order = tuple(range(1, scope.config.num_gpu_blocks))

    def initial(self) -> Node:
        """Return the node of the initial state."""
        return (self._pool_id(initial(self.scope.config).pool), *[0] * len(self.scope.names))

    def state(self, node: Node) -> State:
        """Return the state that a node stands for."""
        pool = self._pools[node[0]]
        requests = {
            name: r
            for name, i in zip(self.scope.names, node[1:], strict=True)
            if (r := self._requests[i]) is not None
        }
        loose: Ids = ()
        if not self.scope.names:
            loose = tuple(b for b, block in enumerate(pool.blocks) for _ in range(block.ref_cnt))
        return State(self.scope.config, pool, Frozen(requests), loose)

    def node(self, s: State) -> Node:
        """Return the node of a state, not renamed."""
        requests = [self._request_id(s.requests.get(name)) for name in self.scope.names]
        return (self._pool_id(s.pool), *requests)

    def encode(self, node: Node) -> bytes:
        """Return the state of a node as bytes that every process understands."""
        parts = [self._encoded(("pool", node[0]))]
        parts += [self._encoded(("request", i)) for i in node[1:]]
        return b"\n".join(parts)

    def _encoded(self, part: tuple[str, int]) -> bytes:
        data = self._bytes.get(part)
        if data is None:
            kind, i = part
            pool = kind == "pool"
            data = pool_as_bytes(self._pools[i]) if pool else request_as_bytes(self._requests[i])
            self._bytes[part] = data
        return data

    def decode(self, data: bytes) -> Node:
        """Return the node of a state that another process encoded."""
        pool, *requests = data.split(b"\n")
        if pool not in self._from_bytes:
            self._from_bytes[pool] = self._pool_id(pool_from_bytes(pool))
        for r in requests:
            if r not in self._from_bytes:
                self._from_bytes[r] = self._request_id(request_from_bytes(r))
        return (self._from_bytes[pool], *[self._from_bytes[r] for r in requests])

    def successors(self, node: Node) -> Iterator[tuple[Node, Move]]:
        """Yield where each move leads, renamed."""
        pool = node[0]
        for at in range(1, len(node)):
            moves = self._local.get((pool, at, node[at]))
            if moves is None:
                moves = self._local[pool, at, node[at]] = self._compute_local(node, at)
            head, tail = node[1:at], node[at + 1 :]
            for next_pool, next_request, move in moves:
                yield self.canonical((next_pool, *head, next_request, *tail)), move
        flying = (pool, *[i if i and self._flies(i) else 0 for i in node[1:]])
        shared = self._shared.get(flying)
        if shared is None:
            shared = self._compute_shared(flying)
            if len(node) > 1:  # The pool alone is met once; a pool with requests, again and again.
                self._shared[flying] = shared
        for there, move in shared:
            # Who is not in flight has no part in it: its number stays.
            whole = [b if a else c for a, b, c in zip(flying, there, node, strict=True)]
            yield self.canonical((there[0], *whole[1:])), move

    def _flies(self, i: int) -> bool:
        r = self._requests[i]
        return r is not None and r.in_flight

    def _compute_local(self, node: Node, at: int) -> list[tuple[int, int, Move]]:
        """Compute and check what one request may do, in a world without the others."""
        name = self.scope.names[at - 1]
        alone = self.state((node[0], *[0] * (at - 1), node[at], *[0] * (len(node) - at - 1)))
        found = []
        for move, steps, after in request_moves(alone, name, self.scope):
            self._check_steps(move, steps)
            request = self._request_id(after.requests.get(name))
            found.append((self._pool_id(after.pool), request, move))
        return found

    def _compute_shared(self, flying: Node) -> list[tuple[Node, Move]]:
        s = self.state(flying)
        moves = shared_moves(s, self.scope) if self.scope.names else pool_moves(s, self.scope)
        found = []
        for move, steps in moves:
            self._check_steps(move, steps)
            found.append((self.node(steps[-1].after), move))
        return found

    def _check_steps(self, move: Move, steps: Steps) -> None:
        levels = "PM" if self.scope.names else "P"
        for step in steps:
            for name, instance in broken(step, levels):
                self.failed = self.failed or (name, instance, move, step.after)
            self.seen.update(seen_in(step))
            old, new = step.before.pool.blocks, step.after.pool.blocks
            for b in self._in_order:
                if old[b] is not new[b] and old[b] != new[b]:
                    self.edges.add((block_state(step.before, b), block_state(step.after, b)))

    def violation(self, node: Node) -> tuple[str, Broken] | None:
        """Return a property that a state breaks, if any; each part is evaluated once."""
        if not self.scope.names:
            return next(broken(self.state(node), "P"), None)
        pool, *requests = node
        tables = tuple(r and r.table for r in (self._requests[i] for i in requests))
        found = self._once(("pool", pool), node) or self._once(("tables", pool, tables), node)
        for at, i in enumerate(requests, 1):
            if i and not found:
                alone = (pool, *[0] * (at - 1), i, *[0] * (len(node) - at - 1))
                found = self._once(("request", pool, i), alone)
        flying = tuple(i if i and self._flies(i) else 0 for i in requests)
        return found or self._once(("state", pool, flying, tables), node)

    def _once(self, part: tuple[object, ...], node: Node) -> tuple[str, Broken] | None:
        if part not in self._checked:
            of = str(part[0])
            self._checked[part] = next(broken(self.state(node), of=of), None)
        return self._checked[part]

    def canonical(self, node: Node) -> Node:
        """Return the renamed node that stands for it and for its permutations."""
        if not self.symmetry:
            return node
        pool = self._pools[node[0]]
        order: dict[int, None] = {}
        for i in node[1:]:
            r = self._requests[i]
            if r is not None and r.table:
                order.update(dict.fromkeys(r.table))
        order.pop(NULL, None)
        order.update(dict.fromkeys(pool.queue))
        if len(order) < len(self._in_order):
            order.update(dict.fromkeys(_by_key(pool)))
        names = tuple(order)
        if names == self._in_order:
            return node
        renamed = self._renamed_pools.get((node[0], names))
        if renamed is None:
            renamed = self._pool_id(_rename_pool(pool, names))
            self._renamed_pools[node[0], names] = renamed
        return (renamed, *[self._rename_request(i, names) for i in node[1:]])

    def _rename_request(self, i: int, names: Ids) -> int:
        r = self._requests[i]
        if r is None or not r.table:
            return i
        renamed = self._renamed_requests.get((i, names))
        if renamed is None:
            to = {b: n for n, b in enumerate((NULL, *names))}
            renamed = self._request_id(r._replace(table=tuple(to[b] for b in r.table)))
            self._renamed_requests[i, names] = renamed
        return renamed

    def _pool_id(self, pool: Pool) -> int:
        pool = forget_in_pool(pool, self.scope)
        known = self._pool_ids.setdefault(pool, len(self._pools))
        if known == len(self._pools):
            self._pools.append(pool)
        return known

    def _request_id(self, r: Request | None) -> int:
        r = r and forget_in_request(r)
        known = self._request_ids.setdefault(r, len(self._requests))
        if known == len(self._requests):
            self._requests.append(r)
        return known


def _by_key(pool: Pool) -> Ids:
    """Return the blocks by key and place among its copies, those without a key last."""
    sealed = sorted((key.tokens, copies) for key, copies in pool.by_key.items())
    plain = [b for b, block in enumerate(pool.blocks) if b != NULL and block.key is None]
    return (*[b for _, copies in sealed for b in copies], *plain)


def _rename_pool(pool: Pool, names: Ids) -> Pool:
    to = {b: n for n, b in enumerate((NULL, *names))}
    return Pool(
        (pool.blocks[NULL], *[pool.blocks[b] for b in names]),
        tuple(to[b] for b in pool.queue),
        Frozen({key: tuple(to[b] for b in copies) for key, copies in pool.by_key.items()}),
    )
