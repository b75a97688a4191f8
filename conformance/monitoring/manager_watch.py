"""What a monitor does around the calls of a manager: it says whose the calls of the pool are.

A manager's call carries a request, which the calls that it makes of the pool do not. Between them
tables and pool may differ, so a sweep that falls due waits for the end of the manager's call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from conformance.monitoring.owners import CALLER
from conformance.monitoring.profiles import argument
from conformance.monitoring.signature import around
from conformance.monitoring.violation import Found, Violation
from conformance.monitoring.watched import Watched
from spec.state import NULL

Method: TypeAlias = Callable[..., Any]


def watch_serve(w: Watched, inner: Method, verb: str) -> Method:
    """A request gets room, or is told that there is none and holds no more than before."""
    parts, counted = w.profile.retained(w.manager), dict[int, tuple[list[Any], int]]()

    def settled(rid: str, before: int, *, refused: bool) -> None:
        """Look at what the calls of the pool that were made since `before` come to."""
        if refused and w.grown > before:
            _undone(w, rid, before, verb)
        for part in parts:
            if pairs := part._pending_cow_copies:  # noqa: SLF001  # it cannot be asked without taking them
                known, n = counted.get(id(part), (pairs, 0))
                _retain(w, pairs[n if known is pairs else 0 :], rid)
                counted[id(part)] = pairs, len(pairs)
        if w.stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()

    def failed(rid: str, before: int, error: BaseException) -> None:
        """Look at what a call left that ended with an error; a violation has said it already."""
        w.who = w.base
        if not isinstance(error, Violation):
            settled(rid, before, refused=True)

    return around(inner, SERVE, w=w, settled=settled, failed=failed)


SERVE: Final = """
    def method(PARAMETERS):
        before = w.stamp
        w.who = request.request_id
        try:
            result = inner(ARGUMENTS)
        except BaseException as error:
            failed(request.request_id, before, error)
            raise
        w.who = w.base
        # Most calls find room in the last block, and call no pool.
        if w.stamp != before:
            settled(request.request_id, before, refused=result is None)
        return result
"""
"""What stands around the call that a scheduler makes for every request in every step: it is the
dearest part of a monitor, so it does as little as it can."""


def _undone(w: Watched, rid: str, before: int, verb: str) -> None:
    """Say that a request which got no room holds blocks that it got meanwhile."""
    stamps, mine = w.owners.stamps, w.owners.of(rid)
    got = [b for b in mine if stamps[b] > before]
    if got:
        what = f"{rid} is refused and holds {got}, since {w.last_call(got[0])}"
        w.report(verb, Found("a_refused_call_changes_nothing", got[0], 0, len(got), what))


def _retain(w: Watched, pairs: list[tuple[Any, Any]], rid: str) -> None:
    """Count what is kept for copies to come as the caller's, who gives it back after the copy.

    The release raises one count of a pair itself, past its pool; the other reference was the
    request's, whose table shows another block by now.
    """
    owners = w.owners
    for block in [block for pair in pairs for block in pair]:
        b = block.block_id
        if block.ref_cnt > owners.held[b] or owners.drop(b, rid):
            owners.add(b, CALLER)


def watch_end(w: Watched, inner: Method, verb: str) -> Method:
    """A request ends, and holds nothing afterwards."""
    counts = w.owners.counts

    def end(*args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the manager's
        rid, outer = _name((args, named)), w.who
        w.who = rid
        try:
            result = inner(*args, **named)
        finally:
            w.who = outer
        if rid in counts:
            _leaked(w, rid, verb)
        if w.stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return result

    return end


def _leaked(w: Watched, rid: str, verb: str) -> None:
    """Say that a request has ended and holds blocks; from now on another name holds them."""
    owners, leaked = w.owners, w.owners.of(rid)
    last = w.last_call(leaked[0])
    what = f"{rid} has ended and still holds {leaked}; block {leaked[0]} since {last}"
    held = owners.holders(leaked[0])[rid]
    try:
        w.report(verb, Found("ref_cnt_counts_the_holders", leaked[0], 0, held, what))
    finally:
        for b in leaked:
            while owners.drop(b, rid):
                owners.add(b, f"{rid}(ended)")


def watch_hand(w: Watched, inner: Method, verb: str) -> Method:
    """A request's blocks are handed to the caller, who gives them back later."""
    owners = w.owners

    def hand(*args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the manager's
        rid = _name((args, named))
        blocks = inner(*args, **named)
        for block in blocks:
            if block.block_id != NULL and w.is_own(block) and owners.drop(block.block_id, rid):
                owners.add(block.block_id, CALLER)
        if rid in owners.counts:
            _leaked(w, rid, verb)
        return blocks

    return hand


def watch_trim(w: Watched, inner: Method, verb: str) -> Method:  # noqa: ARG001  # the watches share one signature
    """A request gives up blocks that it does not read any more."""

    def trim(*args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the manager's
        outer, w.who = w.who, _name((args, named))
        try:
            return inner(*args, **named)
        finally:
            w.who = outer

    return trim


def _name(arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> str:
    """Return the id of the request that a call is about, given itself or by its id."""
    name = "request_id" if "request_id" in arguments[1] else "request"
    request = argument(arguments, 0, name)
    rid: str = getattr(request, "request_id", request)
    return rid


MANAGER_WATCHES: Final[Mapping[str, Callable[[Watched, Method, str], Method]]] = {
    "serve": watch_serve,
    "end": watch_end,
    "hand": watch_hand,
    "trim": watch_trim,
}
"""By whose call a method is."""
