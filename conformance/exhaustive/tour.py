"""Tours: every transition of a small world, made by a manager and compared with the specification.

The explorer gives the graph of a scope: one node for each state up to renaming of blocks, one edge
for each move. A tour is a set of walks from the initial state that together take every edge. The
other plan, the shortest path to each state and then one move, costs 7 to 14 moves for each edge,
and only ever sees managers that are young; walks cost 2 to 3, and carry along whatever a manager
hides. A walk goes to the farthest state that has a new edge, takes new edges as long as there are
any, and then goes to one that is near; it ends when none is near, or when it is long. A walk that
fails is followed by a shortest path to the same edge, which is what is shown when it fails too.

The nodes are renamed, a manager's blocks are not: the walk keeps the name that each block of the
manager has in the node. After every call the manager's answer and everything that can be seen of it
are compared with the specification, and after every move the node is compared with the planned one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from conformance.divergence import Call, Divergence, answer, diagnose
from conformance.exhaustive.production import quiet
from conformance.lockstep import ACTIONS
from conformance.subject import Refusal, RequestSpec, Subject
from conformance.view import differences
from spec.scope import Ids, Move, Scope
from spec.state import NULL, Config, State, initial
from spec.statemachine import Refused
from spec.world import Node, World

NEAR = 64
"""How many states are searched for one with a new edge before a walk ends."""
LONG = 1_000
"""After so many moves a walk ends."""

Edge = tuple[Node, int]
"""A transition: the node where it starts, and its place among the node's moves."""


class Graph:
    """All nodes of a scope, in the order in which breadth-first search meets them, and all edges.

    `came` gives for each node the edge by which it was met first: a shortest path, read backward.
    """

    def __init__(self, scope: Scope, *, symmetry: bool = True) -> None:
        self.world = World(scope, symmetry=symmetry)
        self.start = self.world.initial()
        self.came: dict[Node, Edge | None] = {self.start: None}
        self.edges: dict[Node, list[tuple[Node, Move]]] = {}
        queue = deque(self.came)
        while queue:
            node = queue.popleft()
            self.edges[node] = list(self.world.successors(node))
            for at, (there, _) in enumerate(self.edges[node]):
                if there not in self.came:
                    self.came[there] = (node, at)
                    queue.append(there)

    @property
    def num_states(self) -> int:
        """The number of nodes."""
        return len(self.edges)

    @property
    def num_transitions(self) -> int:
        """The number of edges, refused calls included."""
        return sum(map(len, self.edges.values()))

    def states(self) -> Iterator[State]:
        """Yield the state of each node."""
        return map(self.world.state, self.edges)

    def path_to(self, node: Node) -> list[Edge]:
        """Return the edges of a shortest path from the initial state."""
        return _back(self.came, node)

    def end(self, edge: Edge) -> Node:
        """Return the node where an edge leads."""
        return self.edges[edge[0]][edge[1]][0]


def walks(graph: Graph) -> Iterator[list[Edge]]:
    """Yield walks from the initial state that together take every edge."""
    new = {node: list(range(len(edges))) for node, edges in graph.edges.items()}
    """The edges that no walk takes yet, the next one of each node last."""
    for goal in reversed(list(graph.edges)):
        while new[goal]:
            walk = graph.path_to(goal)
            for node, at in walk:
                if at in new[node]:
                    new[node].remove(at)
            node = goal
            while len(walk) < LONG and (new[node] or (detour := _detour(graph, node, new))):
                if not new[node]:
                    walk += detour
                    node = graph.end(detour[-1])
                walk.append((node, new[node].pop()))
                node = graph.end(walk[-1])
            yield walk


def _detour(graph: Graph, start: Node, new: Mapping[Node, list[int]]) -> list[Edge]:
    """Return a shortest path to a node with a new edge; an empty one when there is none near."""
    came: dict[Node, Edge | None] = {start: None}
    queue = deque(came)
    for _ in range(NEAR):
        if not queue:
            break
        node = queue.popleft()
        for at, (there, _) in enumerate(graph.edges[node]):
            if there not in came:
                came[there] = (node, at)
                if new[there]:
                    return _back(came, there)
                queue.append(there)
    return []


def _back(came: Mapping[Node, Edge | None], node: Node) -> list[Edge]:
    """Return the path that led to a node."""
    path: list[Edge] = []
    while (edge := came[node]) is not None:
        path.append(edge)
        node = edge[0]
    return path[::-1]


class Pair:
    """A subject and the specification, compared after every call: the answers, then everything."""

    def __init__(self, subject: Subject, scope: Scope) -> None:
        config, rule = scope.config, subject.capabilities.free_rule
        if config.free_rule != rule:
            raise ValueError(f"{subject.name} frees by {rule!r}; tour a scope with that free_rule")
        self.subject = subject
        self.state = initial(config)
        self.levels = "PM" if scope.names else "P"
        self.calls = self.refused = 0

    def call(self, action: str, **args: Any) -> object:  # noqa: ANN401  # as the verb's
        """Make one call on both and return the answer, a `Refused` for a refused call.

        Raises `Divergence` at the first difference.
        """
        self.calls += 1
        before = self.state
        expected: object
        try:
            self.state, expected = ACTIONS[action](before, **args)
        except Refused as refused:
            expected = refused
        no_room = action == "allocate_slots" and expected is None
        self.refused += isinstance(expected, Refused) or no_room or expected is False
        actual = self._ask(action, args)
        seen = self.subject.snapshot()
        if answer(expected) != answer(actual) or next(differences(self.state, seen), None):
            call = Call(self.calls, action, args)
            raise diagnose(call, before, self.state, (expected, actual), seen, self.levels)
        return expected

    def _ask(self, action: str, args: Mapping[str, Any]) -> object:
        try:
            return getattr(self.subject, action)(**args)
        except Refusal as refusal:
            return Refused(refusal.rule, text=refusal.text)
        except Exception as crash:  # noqa: BLE001  # a subject that crashes is a finding
            return Refused(f"raised_{type(crash).__name__}", text=str(crash))

    def make(self, move: Move, names: Ids) -> None:
        """Make a move: the calls that it stands for. `names[n - 1]` is the block called `n` in it.

        A request that arrives and is not admitted is forgotten again.
        """
        args = {name: _renamed(name, value, names) for name, value in move.args}
        if move.action == "arrive":
            self.call("add_request", rid=args["rid"], request=RequestSpec(args.pop("prompt")))
        if move.action in ("arrive", "allocate_slots"):
            admitted = self.state.requests[args["rid"]].table is not None
            hits = () if admitted else self.call("get_computed_blocks", rid=args["rid"])
            found = self.call("allocate_slots", **args | {"hits": hits, "num_lookahead": 0})
            if move.action == "arrive" and not isinstance(found, tuple):
                self.call("finish", rid=args["rid"])
        elif move.action == "cache_full_blocks":
            self.call(move.action, **args, num_cached=0, num_full=len(args["table"]))
        else:
            self.call(move.action, **args)


def _renamed(name: str, value: Any, names: Ids) -> Any:  # noqa: ANN401  # an argument is of any type
    if name in ("ids", "table", "hits"):
        return tuple(b if b == NULL else names[b - 1] for b in value)
    return value


def names_in(s: State, world: World) -> Ids:
    """Return the blocks in the order in which a node numbers them: tables, queue, keys, others."""
    if not world.symmetry:
        return tuple(range(1, s.config.num_gpu_blocks))
    order: dict[int, None] = {}
    for name in world.scope.names:
        if (r := s.requests.get(name)) is not None:
            order.update(dict.fromkeys(r.table or ()))
    order.pop(NULL, None)
    order.update(dict.fromkeys(s.pool.queue))
    sealed = sorted((key.tokens, copies) for key, copies in s.pool.by_key.items())
    order.update(dict.fromkeys(b for _, copies in sealed for b in copies))
    order.update(dict.fromkeys(range(1, s.config.num_gpu_blocks)))
    return tuple(order)


class Found(NamedTuple):
    """A difference, the moves that lead to it, in names of the nodes, and if they are shortest."""

    divergence: Divergence
    path: tuple[Move, ...]
    shortest: bool


@dataclass(slots=True)
class Replayed:
    """What a tour did, up to the first difference. All but `covered` counts repetitions."""

    covered: set[Edge] = field(default_factory=set)
    walks: int = 0
    moves: int = 0
    calls: int = 0
    refused: int = 0
    """Calls that were refused: by a rule, for lack of room, or because a cache is in use."""
    found: Found | None = None


def replay(graph: Graph, make: Callable[[Config], Subject]) -> Replayed:
    """Take every transition of a graph on subjects, a new one for each walk; stop when one differs.

    `make` gets the configuration of the scope.
    """
    done = Replayed()
    with quiet():
        for walk in walks(graph):
            done.walks += 1
            taken, divergence = _follow(graph, make, walk, done)
            if divergence is not None:
                direct = [*graph.path_to(taken[-1][0]), taken[-1]]
                short, again = _follow(graph, make, direct, Replayed())
                path = tuple(graph.edges[node][at][1] for node, at in (short if again else taken))
                done.found = Found(again or divergence, path, again is not None)
                break
    return done


def _follow(
    graph: Graph, make: Callable[[Config], Subject], walk: list[Edge], done: Replayed
) -> tuple[list[Edge], Divergence | None]:
    """Walk with a new subject. Return the edges taken, the last one included if it differs."""
    world = graph.world
    taken: list[Edge] = []
    pair = Pair(make(world.scope.config), world.scope)
    try:
        for node, at in walk:
            taken.append((node, at))
            there, move = graph.edges[node][at]
            pair.make(move, names_in(pair.state, world))
            reached = world.node(pair.state)
            # What the explorer forgets is forgotten here too.
            pair.state = world.state(reached)
            met = world.canonical(reached)
            assert met == there, f"{move} leads from {node} to {met}, planned was {there}"
            done.covered.add((node, at))
            done.moves += 1
    except Divergence as divergence:
        return taken, divergence
    finally:
        done.calls += pair.calls
        done.refused += pair.refused
    return taken, None


def random_share(
    graph: Graph, num_moves: int, seed: int, restart_every: int | None = None
) -> float:
    """Return the share of the transitions that random moves reach.

    Each move is drawn evenly among those of the state that is reached; after `restart_every` moves
    the walk begins again, as an example of a stateful test does. No call is wasted on a refusal
    that the scope does not have, so this is kind to the random walk.
    """
    rng = Random(seed)  # noqa: S311  # a walk must be repeatable, not secret
    taken: set[Edge] = set()
    node = graph.start
    for done in range(num_moves):
        if restart_every is not None and done % restart_every == 0:
            node = graph.start
        at = rng.randrange(len(graph.edges[node]))
        taken.add((node, at))
        node = graph.edges[node][at][0]
    return len(taken) / graph.num_transitions
