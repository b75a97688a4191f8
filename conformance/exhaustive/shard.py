"""One worker's share of a search: the states whose digest falls to it.

After each level a shard writes down what was new to it and what it counted, so that a worker that
is killed can be started again from there, and a level that is expanded twice counts once.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spec.encoding import digest
from spec.explore import memory_in_use
from spec.registry import Broken
from spec.scope import Move, Scope
from spec.state import State
from spec.world import Edge, Node, World

Arrival = tuple[bytes, bytes]
"""A state as bytes, and the digest of the state that it was reached from."""


class Failure(NamedTuple):
    """A broken property at the state with this digest, or by a move out of it."""

    property: str
    broken: Broken
    at: bytes
    move: Move | None = None
    after: State | None = None


class Shard:
    """The states that one worker owns. Lives in the worker."""

    def __init__(self, scope: Scope, index: int, shards: int, symmetry: bool, folder: str) -> None:  # noqa: FBT001  # it travels to a worker by position
        self.world = World(scope, symmetry=symmetry)
        self.index = index
        self.shards = shards
        self.folder = Path(folder)
        self.came: dict[bytes, bytes] = {}
        self.frontier: list[tuple[Node, bytes]] = []
        self.transitions: dict[int, int] = {}
        """By level, so that a level that is expanded twice counts once."""

    def absorb(self, level: int, arrivals: Sequence[Arrival]) -> tuple[int, Failure | None]:
        """Keep what is new and ours, write it down, and check it. Return how much it was."""
        new: list[Arrival] = []
        for data, parent in arrivals:
            name = digest(data)
            if name not in self.came:
                self.came[name] = parent
                new.append((data, parent))
        self._file("new", level).write_bytes(pickle.dumps(new))
        self.frontier = [(self.world.decode(data), digest(data)) for data, _ in new]
        for node, name in self.frontier:
            if (bad := self.world.violation(node)) is not None:
                return len(new), Failure(*bad, name)
        return len(new), None

    def expand(self, level: int) -> tuple[list[list[Arrival]], Failure | None]:
        """Return what a level leads to, sorted by owner, each state once."""
        found: list[list[Arrival]] = [[] for _ in range(self.shards)]
        sent: set[Node] = set()
        transitions = 0
        for node, name in self.frontier:
            for there, _ in self.world.successors(node):
                transitions += 1
                if there not in sent:
                    sent.add(there)
                    data = self.world.encode(there)
                    found[owner(digest(data), self.shards)].append((data, name))
            if self.world.failed is not None:
                broken_name, broken, move, after = self.world.failed
                return found, Failure(broken_name, broken, name, move, after)
        self.transitions[level] = transitions
        counted = (transitions, self.world.edges, self.world.seen)
        self._file("counted", level).write_bytes(pickle.dumps(counted))
        return found, None

    def report(self) -> tuple[int, set[Edge], set[str], int]:
        """Return the transitions, edges and sights counted here, and the memory in use."""
        return (
            sum(self.transitions.values()),
            self.world.edges,
            self.world.seen,
            memory_in_use(),
        )

    def parent(self, name: bytes | None) -> bytes | None:
        """Return the digest of the state from which one of ours was first reached."""
        return None if name is None else self.came[name]

    def restore(self, level: int) -> None:
        """Take up the work of a shard that wrote down its levels up to `level`."""
        new: list[Arrival] = []
        for done in range(level + 1):
            new = pickle.loads(self._file("new", done).read_bytes())  # noqa: S301  # our own
            for data, parent in new:
                self.came[digest(data)] = parent
            if (file := self._file("counted", done)).exists():
                counted = pickle.loads(file.read_bytes())  # noqa: S301  # the same
                self.transitions[done], edges, seen = counted
                self.world.edges |= edges
                self.world.seen |= seen
        self.frontier = [(self.world.decode(data), digest(data)) for data, _ in new]

    def _file(self, kind: str, level: int) -> Path:
        return self.folder / f"shard-{self.index}.{kind}-{level}"


def owner(name: bytes, shards: int) -> int:
    """Return the shard that owns a digest."""
    return int.from_bytes(name[:8], "little") % shards
