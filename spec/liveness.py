"""Progress: from every reachable state the world can come to rest, and then it serves again.

These are properties of what *can* happen next, so they are checked on each state of a finished
search, not as predicates of the registry.
"""

from __future__ import annotations

from typing import NamedTuple

from spec import statemachine as sm
from spec.explore import Search
from spec.state import Request, State
from spec.statemachine import Outcome, Refused


class Stuck(NamedTuple):
    """A state that cannot come to rest or does not serve again, and why."""

    why: str
    state: State


def stuck(search: Search) -> Stuck | None:
    """Return a reachable state from which there is no progress, if any.

    From every state: all that is scheduled can run and every request end; all that is scheduled can
    be given up unrun, in some order; and then the pool is whole and admits every prompt that fits.
    """
    for s in search.reached():
        for why, rested in (("after a run", _run_and_end(s)), ("given up unrun", _give_up(s))):
            if rested is None:
                return Stuck(f"{why}: a request may not end", s)
            if rested.pool.num_free() != s.config.usable:
                return Stuck(f"{why}: blocks are missing", s)
            for prompt in search.world.scope.prompts:
                if not _serves(rested, prompt):
                    return Stuck(f"{why}: {prompt} is not admitted", s)
    return None


def _run_and_end(s: State) -> State | None:
    flying = {rid: Outcome() for rid, r in s.requests.items() if r.in_flight}
    return _give_up(sm.run_step(s, flying) if flying else s)


def _give_up(s: State) -> State | None:
    """Finish everybody, whoever may go first; None when nobody may go."""
    while s.requests:
        for rid in s.requests:
            try:
                s = sm.finish(s, rid)
            except Refused:
                continue
            break
        else:
            return None
    return s


def _serves(s: State, prompt: tuple[int, ...]) -> bool:
    """Return whether an idle world admits a prompt, or says that it never will."""
    fits = -(-len(prompt) // s.config.block_size) <= s.config.usable
    s = sm.add_request(s, "next", Request(tokens=prompt))
    hits = sm.get_computed_blocks(s, "next")
    left = len(prompt) - len(hits) * s.config.block_size
    _, result = sm.allocate_slots(s, "next", left, hits)
    return isinstance(result, tuple) if fits else isinstance(result, Refused)
