"""Explores a world on several processes, here or on Ray, level by level.

Each state has one owner: its digest modulo the number of shards. A level is expanded by all shards
at once; what they find is handed to its owners, who drop what they know. A worker that is killed is
started again from the last level, and the counts come out the same.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from conformance.exhaustive.shard import Arrival, Failure, Shard, owner
from spec.encoding import digest
from spec.explore import NO_LIMITS, Found, Limits, Result, run_again
from spec.scope import Scope
from spec.world import Node, World

NONE: frozenset[Any] = frozenset()


class Workers(Protocol):
    """Where the shards live."""

    def call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every shard, each with its own arguments, at the same time.

        A worker that died is started again, restored to `level`, and called again.
        """

    level: int
    restarts: int

    def close(self) -> None:
        """End all workers."""


class Processes:
    """Shards in processes of this machine."""

    def __init__(self, scope: Scope, shards: int, symmetry: bool, folder: str) -> None:  # noqa: FBT001  # as `Shard`
        self.level = -1
        self.restarts = 0
        self._context = get_context("spawn")
        self._plans = [(scope, index, shards, symmetry, folder) for index in range(shards)]
        self.processes: list[Any] = [None] * shards
        self._pipes: list[Connection] = [self._start(index) for index in range(shards)]

    def _start(self, index: int) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, *self._plans[index]), daemon=True
        )
        process.start()
        theirs.close()
        self.processes[index] = process
        return ours

    def call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every shard."""
        for index, call in enumerate(arguments):
            self._send(index, method, call)
        return [self._receive(index, method, call) for index, call in enumerate(arguments)]

    def _send(self, index: int, method: str, call: tuple[Any, ...]) -> None:
        try:
            self._pipes[index].send((method, call))
        except (BrokenPipeError, ConnectionResetError):
            self._revive(index)
            self._pipes[index].send((method, call))

    def _receive(self, index: int, method: str, call: tuple[Any, ...]) -> Any:  # noqa: ANN401  # as the method's
        try:
            return self._pipes[index].recv()
        except (EOFError, ConnectionResetError):
            self._revive(index)
            self._pipes[index].send((method, call))
            return self._pipes[index].recv()

    def _revive(self, index: int) -> None:
        self.restarts += 1
        self._pipes[index].close()
        self._pipes[index] = self._start(index)
        if self.level >= 0:
            self._pipes[index].send(("restore", (self.level,)))
            self._pipes[index].recv()

    def close(self) -> None:
        """End all workers."""
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            pipe.close()
            process.terminate()
            process.join()


def _serve(pipe: Connection, *plan: Any) -> None:  # noqa: ANN401  # what `Shard` takes
    """Run a shard for a master at the other end of the pipe, until it closes."""
    shard = Shard(*plan)
    while True:
        try:
            method, call = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        pipe.send(getattr(shard, method)(*call))


class RayWorkers:
    """Shards as Ray actors, on this machine or on a cluster that shares `folder`."""

    def __init__(self, scope: Scope, shards: int, symmetry: bool, folder: str) -> None:  # noqa: FBT001  # as `Shard`
        self._ray = importlib.import_module("ray")
        if not self._ray.is_initialized():
            self._ray.init(include_dashboard=False, log_to_driver=False)
        self.level = -1
        self.restarts = 0
        self._plans = [(scope, index, shards, symmetry, folder) for index in range(shards)]
        self._actor = self._ray.remote(num_cpus=1)(Shard)
        self.actors = [self._actor.remote(*plan) for plan in self._plans]

    def call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every shard."""
        calls = [
            getattr(actor, method).remote(*call)
            for actor, call in zip(self.actors, arguments, strict=True)
        ]
        answers = []
        for index, call in enumerate(calls):
            try:
                answers.append(self._ray.get(call))
            except self._ray.exceptions.RayActorError:
                self.restarts += 1
                actor = self.actors[index] = self._actor.remote(*self._plans[index])
                if self.level >= 0:
                    self._ray.get(actor.restore.remote(self.level))
                answers.append(self._ray.get(getattr(actor, method).remote(*arguments[index])))
        return answers

    def close(self) -> None:
        """End all workers."""
        for actor in self.actors:
            self._ray.kill(actor)


def explore_in_parallel(
    scope: Scope,
    shards: int,
    *,
    symmetry: bool = True,
    limits: Limits = NO_LIMITS,
    workers: Callable[[Scope, int, bool, str], Workers] = Processes,
    on_level: Callable[[int, int, Workers], None] = lambda *_: None,
) -> Result:
    """Search a world on several workers. `on_level` is told depth, states and the workers."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvspec-") as folder:
        team = workers(scope, shards, symmetry, folder)
        try:
            return _explore(scope, team, shards, symmetry, limits, on_level, started)
        finally:
            team.close()


def _explore(  # noqa: PLR0913, PLR0917  # the settings of one search, handed on once
    scope: Scope,
    team: Workers,
    shards: int,
    symmetry: bool,  # noqa: FBT001  # the same
    limits: Limits,
    on_level: Callable[[int, int, Workers], None],
    started: float,
) -> Result:
    root = World(scope, symmetry=symmetry)
    first = root.encode(root.initial())
    inbox: list[list[Arrival]] = [[] for _ in range(shards)]
    inbox[owner(digest(first), shards)].append((first, b""))
    states, depth, failure, stopped = 0, -1, None, None
    try:
        while failure is None and stopped is None:
            answers = team.call_all("absorb", [(depth + 1, mail) for mail in inbox])
            new = sum(count for count, _ in answers)
            if not new:
                break
            depth, team.level, states = depth + 1, depth + 1, states + new
            failure = next((bad for _, bad in answers if bad), None)
            on_level(depth, states, team)
            stopped = _limit(limits, started, states, team, shards)
            if failure is None and stopped is None:
                expanded = team.call_all("expand", [(depth,)] * shards)
                failure = next((bad for _, bad in expanded if bad), None)
                inbox = [list(chain(*(out[i] for out, _ in expanded))) for i in range(shards)]
    except KeyboardInterrupt:
        stopped = "interrupted"
        team.close()
        return Result(states, 0, depth, time.perf_counter() - started, 0, stopped, None, NONE, NONE)
    found = failure and _found(scope, team, shards, failure, symmetry=symmetry)
    reports = team.call_all("report", [()] * shards)
    return Result(
        states,
        sum(count for count, _, _, _ in reports),
        depth,
        time.perf_counter() - started,
        sum(memory for _, _, _, memory in reports),
        stopped,
        found,
        frozenset().union(*(edges for _, edges, _, _ in reports)),
        frozenset().union(*(seen for _, _, seen, _ in reports)),
    )


def _limit(limits: Limits, started: float, states: int, team: Workers, shards: int) -> str | None:
    if time.perf_counter() - started > limits.seconds:
        return f"time limit of {limits.seconds:g} s"
    if states > limits.states:
        return f"limit of {limits.states:,} states"
    memory = sum(report[3] for report in team.call_all("report", [()] * shards))
    if memory > limits.memory:
        return f"memory limit of {limits.memory / 2**20:,.0f} MiB"
    return None


def _found(scope: Scope, team: Workers, shards: int, failure: Failure, *, symmetry: bool) -> Found:
    """Return the failure with the path to it, whose blocks keep their ids all the way."""
    names = [failure.at]
    while True:
        asked = owner(names[-1], shards)
        calls = [(names[-1],) if index == asked else (None,) for index in range(shards)]
        parent = team.call_all("parent", calls)[asked]
        if not parent:
            break
        names.append(parent)
    world = World(scope, symmetry=symmetry)
    last = None
    if failure.move is not None and failure.after is not None:
        last = (failure.move, failure.after)
    targets = [partial(_is_named, world, name) for name in reversed(names[:-1])]
    path = run_again(world, targets, last)
    return Found(failure.property, failure.broken, path)


def _is_named(world: World, name: bytes, node: Node) -> bool:
    return digest(world.encode(node)) == name
