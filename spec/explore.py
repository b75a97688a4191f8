"""Explores every reachable state of a small world, breadth first.

A path to a violation is therefore a shortest one. A search ends when there is nothing new, at the
first violation, or at a limit, and says which.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from spec.registry import Broken
from spec.scope import Move, Scope
from spec.state import State
from spec.world import Edge, Node, World


class Limits(NamedTuple):
    """When to stop though there is more. `memory` is in bytes, of this process."""

    seconds: float = float("inf")
    states: float = float("inf")
    memory: float = float("inf")


NO_LIMITS = Limits()

Last = tuple[Move, State] | None
"""The move that broke something, and where it led in a world without the others."""


class Found(NamedTuple):
    """A broken property, and the moves that lead to it from the initial state."""

    property: str
    broken: Broken
    path: tuple[tuple[Move, State], ...]


class Result(NamedTuple):
    """What a search saw. `stopped` says why it ended early; None means that nothing is left."""

    states: int
    transitions: int
    depth: int
    seconds: float
    memory: int
    stopped: str | None
    found: Found | None
    edges: frozenset[Edge]
    seen: frozenset[str]


class Search:
    """One search in one process. The figures are right at every moment."""

    def __init__(self, scope: Scope, *, symmetry: bool = True, limits: Limits = NO_LIMITS) -> None:
        self.world = World(scope, symmetry=symmetry)
        self.limits = limits
        self.transitions = 0
        self.depth = 0
        self.found: Found | None = None
        self.stopped: str | None = None
        root = self.world.initial()
        self._came: dict[Node, Node | None] = {root: None}
        """Every node seen, with the one from which it was first reached."""
        self._frontier = [root]
        self._started = time.perf_counter()

    @property
    def states(self) -> int:
        """The number of states seen."""
        return len(self._came)

    def reached(self) -> Iterator[State]:
        """Yield every state seen, in the order in which it was first reached."""
        for node in self._came:
            yield self.world.state(node)

    def run(self, on_progress: Callable[[Search], None] = lambda _: None) -> Result:
        """Search to the end. `on_progress` is called every few thousand nodes."""
        try:
            while self._frontier and not self.found and not self.stopped:
                self._level(on_progress)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        return self.result()

    def result(self) -> Result:
        """Return what was seen so far."""
        return Result(
            self.states,
            self.transitions,
            self.depth,
            time.perf_counter() - self._started,
            memory_in_use(),
            self.stopped,
            self.found,
            frozenset(self.world.edges),
            frozenset(self.world.seen),
        )

    def _level(self, on_progress: Callable[[Search], None]) -> None:
        came, world, following = self._came, self.world, []
        for done, node in enumerate(self._frontier):
            if done % 2048 == 0:
                on_progress(self)
                if (reason := self._limit()) is not None:
                    self.stopped = reason
                    return
            for there, _ in world.successors(node):
                self.transitions += 1
                if there not in came:
                    came[there] = node
                    following.append(there)
                    if (bad := world.violation(there)) is not None:
                        self.found = Found(*bad, self._path(there))
                        return
            if world.failed is not None:
                name, broken, move, after = world.failed
                self.found = Found(name, broken, self._path(node, (move, after)))
                return
        self._frontier = following
        self.depth += bool(following)

    def _limit(self) -> str | None:
        if time.perf_counter() - self._started > self.limits.seconds:
            return f"time limit of {self.limits.seconds:g} s"
        if self.states > self.limits.states:
            return f"limit of {self.limits.states:,} states"
        if memory_in_use() > self.limits.memory:
            return f"memory limit of {self.limits.memory / 2**20:,.0f} MiB"
        return None

    def _path(self, node: Node, last: Last = None) -> tuple[tuple[Move, State], ...]:
        """Return the moves to a node, and out of it."""
        nodes = [node]
        while (parent := self._came[nodes[-1]]) is not None:
            nodes.append(parent)
        world = self.world
        return run_again(world, [target.__eq__ for target in reversed(nodes[:-1])], last)


def run_again(
    world: World, targets: Sequence[Callable[[Node], bool]], last: Last = None
) -> tuple[tuple[Move, State], ...]:
    """Return the moves of a path, in states whose blocks keep their ids all the way.

    `targets` recognise the renamed node after each move; `last` is one more move, that broke
    something where the path ends.
    """
    plain = World(world.scope, symmetry=False)
    here, path = plain.initial(), []
    for is_target in targets:
        for there, move in plain.successors(here):
            if is_target(world.canonical(world.node(plain.state(there)))):
                here = there
                path.append((move, plain.state(here)))
                break
    if last is not None:
        wanted, led_to = last
        like = [
            (move, plain.state(there))
            for there, move in plain.successors(here)
            if _without_blocks(move) == _without_blocks(wanted)
        ]
        # Of the moves that differ in their blocks only, the one that leads to the same state.
        target = world.canonical(world.node(led_to))
        same = (m for m in like if world.canonical(world.node(m[1])) == target)
        path.append(next(same, like[0]))
    return tuple(path)


def _without_blocks(move: Move) -> tuple[object, ...]:
    """Return a move without the ids that renaming changes."""
    named = ((n, value) for n, value in move.args if n not in ("hits", "ids", "table"))
    return (move.action, *named)


def memory_in_use() -> int:
    """Return the most bytes that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
