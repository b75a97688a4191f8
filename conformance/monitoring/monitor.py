"""Attaches the specification to a live pool: a ledger beside it, and a check at every call.

    with attach(manager, on_violation="warn"):
        serve()

A monitor puts a function of its own in the place of each public method of one pool, and of the
manager that uses it, as attributes of these objects; the classes stay as they are. It keeps who
holds which block how often, which the pool itself does not know, checks what each call touched, and
sweeps every `sweep_every` calls of the pool: it compares the counts of all blocks with the ledger,
and looks at a share of the queue, the index and the tables, at all of them in sixteen sweeps.
`Monitor.sweep` looks at everything at once.

What the arguments alone show to be misuse is said before the pool acts: in the mode `raise` the
error comes instead of the call, and nothing has changed. What a call left wrong is said after it:
then the error comes instead of the result, and the pool has done its work. In the other modes the
pool does exactly what it would do alone. A pool that refuses misuse itself, as ours does, is left
to it.

A reference belongs to the request whose call made it, where a manager is watched, and else to
`caller`. Who uses a bare pool for several parties says so: `with monitor.owner("r1"): ...`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from conformance.monitoring.key_watch import POOL_WATCHES
from conformance.monitoring.manager_watch import MANAGER_WATCHES
from conformance.monitoring.profiles import profile_of
from conformance.monitoring.violation import SAYING, Mode, Violation
from conformance.monitoring.watched import Watched

SWEEP_EVERY: Final = 1_000
MARK: Final = "_kvspec_monitor"
"""The attribute by which a watched pool knows its monitor."""
MISSING: Final = object()


class MonitorError(Exception):
    """A monitor cannot be attached or detached; the text says why, and what to do."""


class Monitor:
    """What watches one pool until it is detached. Made by `attach`; it is its own context."""

    def __init__(self, watched: Watched, held_methods: list[tuple[Any, str, Any, Any]]) -> None:
        self.watched = watched
        self._methods = held_methods
        """Each object, the name of its method, what it had as an attribute, and what it has now."""

    @property
    def num_calls(self) -> int:
        """How many calls of the pool were watched."""
        return self.watched.num_calls

    @property
    def num_violations(self) -> int:
        """How many violations were said."""
        return self.watched.num_violations

    def owner(self, who: str) -> AbstractContextManager[None]:
        """Return a context in which calls of the pool count as those of `who`."""
        return self.watched.owner(who)

    def holders(self, block_id: int) -> dict[str, int]:
        """Return who holds a block, and how often."""
        return self.watched.owners.holders(block_id)

    def last_call(self, block_id: int) -> str:
        """Return the last call that took, shared or released a block."""
        return self.watched.last_call(block_id)

    def sweep(self) -> None:
        """Look at the whole pool now. Costs O(pool)."""
        self.watched.sweep()

    def detach(self) -> None:
        """Put every method back as it was. A second call does nothing.

        Raises `MonitorError`, and changes nothing, when somebody else has replaced a method since.
        """
        for thing, name, _, ours in self._methods:
            if vars(thing).get(name) is not ours:
                raise MonitorError(
                    f"{type(thing).__name__}.{name} was replaced after the monitor was attached; "
                    "take that away first, then detach"
                )
        for thing, name, before, _ in self._methods:
            if before is MISSING:
                delattr(thing, name)
            else:
                setattr(thing, name, before)
        self._methods = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()


def attach(
    pool_or_manager: object,
    on_violation: Mode | Callable[[Violation], None] = "raise",
    sweep_every: int = SWEEP_EVERY,
) -> Monitor:
    """Watch a live pool, or a manager and its pool, from now on.

    `on_violation` is "raise", "warn" (the log `kvspec.monitor`) or a function that gets each
    `Violation`. A pool in use is taken as it is: what no table shows belongs to `caller`. Raises
    `MonitorError` for a pool that is watched already, `ValueError` for a mode or a number that
    makes no sense, `UnknownPoolError` for another kind of object, and what `on_violation` raises
    for a pool that is broken already.
    """
    say = SAYING.get(on_violation) if isinstance(on_violation, str) else on_violation
    if say is None:
        raise ValueError(
            f"on_violation={on_violation!r} is no mode; give 'raise', 'warn' or a function"
        )
    if sweep_every < 1:
        raise ValueError(f"sweep_every={sweep_every}: give the number of calls between two sweeps")
    profile, pool, manager = profile_of(pool_or_manager)
    if monitor_of(pool) is not None:
        raise MonitorError(
            f"the pool of {type(pool_or_manager).__name__} is watched already; detach its monitor "
            "first"
        )
    watched = Watched(profile, pool, manager, say, sweep_every)
    watched.sweep("attach")
    methods: list[tuple[Any, str, Any, Any]] = []
    for verb, kind in profile.pool_verbs.items():
        _replace(methods, pool, verb, POOL_WATCHES[kind](watched, getattr(pool, verb), verb))
    if manager is not None:
        for verb, kind in profile.manager_verbs.items():
            inner = getattr(manager, verb)
            _replace(methods, manager, verb, MANAGER_WATCHES[kind](watched, inner, verb))
    monitor = Monitor(watched, methods)
    _replace(methods, pool, MARK, monitor)
    return monitor


def _replace(methods: list[tuple[Any, str, Any, Any]], thing: Any, name: str, ours: Any) -> None:  # noqa: ANN401  # somebody else's objects
    methods.append((thing, name, vars(thing).get(name, MISSING), ours))
    setattr(thing, name, ours)


def monitor_of(pool: object) -> Monitor | None:
    """Return the monitor that watches a pool, if one does."""
    monitor: Monitor | None = vars(pool).get(MARK)
    return monitor
