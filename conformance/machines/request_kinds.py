"""What the machine of a scheduler asks about requests, and what it makes out of a few numbers."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.machines.strategies import Ids
from spec.state import NULL, Request
from spec.statemachine import Outcome

NOTHING = 2
"""Stands for no token where one of two tokens is sampled otherwise."""


def waits(r: Request) -> bool:
    """Return True for a request that holds nothing."""
    return r.table is None


def flies(r: Request) -> bool:
    """Return True for a request whose step is scheduled and has not run."""
    return r.in_flight


def stands(r: Request) -> bool:
    """Return True for a request that holds blocks and may be scheduled."""
    return r.table is not None and not r.in_flight


def rests(r: Request) -> bool:
    """Return True for a request that may be given drafts."""
    return not r.in_flight


def holds(r: Request) -> bool:
    """Return True for a request that has something to give back."""
    return r.table is not None


def anyone(_: Request) -> bool:
    """Return True."""
    return True


def outcomes_of(requests: Mapping[str, Request], accepted: int, token: int) -> dict[str, Outcome]:
    """Return what the step of all that fly produces: drafts accepted, and one token or none.

    Who has tokens left to compute samples none.
    """
    outcomes = {}
    for rid, r in requests.items():
        if flies(r):
            drafted = r.end - len(r.tokens)
            sampled = (token,) if drafted >= 0 and token != NOTHING else ()
            outcomes[rid] = Outcome(min(accepted, max(0, drafted)), sampled)
    return outcomes


def broken(hits: Ids, n: int) -> Ids:
    """Return hits that no look-up returned, unless the look-up's are all alike."""
    first = hits[:1] or (1,)
    return (
        (NULL, *hits[1:]),
        (*hits[:-1], NULL),
        (*hits, NULL),
        hits[::-1],
        hits[1:],
        (*hits, *first),
    )[n % 6]
