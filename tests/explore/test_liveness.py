"""From every state the world can come to rest and serve again; a wrong spec that cannot is told."""

from __future__ import annotations

import pytest

from spec import statemachine as sm
from spec.explore import Limits, Search
from spec.liveness import stuck
from spec.scope import Scope
from spec.state import Config, State
from spec.statemachine import Outcome, Refused

FULL = Scope(Config(3, 1), ("A", "B"), ((0,), (0, 0)), (0,), 2)
WINDOW = Scope(Config(4, 1, sliding_window=2), ("A", "B"), ((0, 0),), (0,), 3)

right_finish, right_allocate, right_run = sm.finish, sm.allocate_slots, sm.run_step
Answer = tuple[State, tuple[int, ...] | Refused | None]


def explored(scope: Scope) -> Search:
    """Return a search that has run; a wrong specification may be endless, so it is limited."""
    search = Search(scope, limits=Limits(states=2_000, seconds=20))
    search.run()
    return search


@pytest.mark.slow
@pytest.mark.parametrize("scope", [FULL, WINDOW], ids=["full", "window"])
def test_the_right_world_comes_to_rest_from_everywhere(scope: Scope) -> None:
    """Run or unrun, everybody can end, the pool is whole, and every prompt is served."""
    search = explored(scope)
    assert (search.found, search.stopped) == (None, None)
    assert stuck(search) is None


def finish_and_leak(s: State, rid: str) -> State:
    """Forget a request with a longer table, and one reference with it."""
    r = s.requests[rid]
    if r.table is not None and len(r.table) > 1:
        s = s._replace(requests=s.requests.set(rid, r._replace(table=r.table[1:])))
    return right_finish(s, rid)


def refuse_the_last_block(
    s: State, rid: str, num_tokens: int, hits: tuple[int, ...] = (), num_lookahead: int = 0
) -> Answer:
    """Keep one block back that nobody asked to keep."""
    plan = sm.plan_of(s, rid, num_tokens, tuple(hits), num_lookahead)
    if plan.new and plan.new + plan.idle == s.pool.num_free():
        return s, None
    return right_allocate(s, rid, num_tokens, hits, num_lookahead)


def never_finish(s: State, rid: str) -> State:
    """Refuse to let a request with blocks go."""
    if s.requests[rid].table is not None:
        raise Refused("nobody_ends", request=rid)
    return right_finish(s, rid)


WRONG = {
    "a reference is lost": ("finish", finish_and_leak, "after a run: blocks are missing"),
    "a block is kept back": (
        "allocate_slots",
        refuse_the_last_block,
        "after a run: (0, 0) is not admitted",
    ),
    "nobody may end": ("finish", never_finish, "after a run: a request may not end"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_specification_is_stuck(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The state and the reason are told."""
    action, wrong, why = WRONG[name]
    wrong.__name__ = action
    monkeypatch.setattr(sm, action, wrong)
    found = stuck(explored(FULL))
    assert found is not None
    assert found.why == why
    assert found.state.config == FULL.config


def test_what_is_only_wrong_unrun_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that may end only after its step has run is stuck when it is given up."""

    def finish(s: State, rid: str) -> State:
        if s.requests[rid].in_flight:
            raise Refused("its_step_has_not_run", request=rid)
        return right_finish(s, rid)

    monkeypatch.setattr(sm, "finish", finish)
    found = stuck(explored(FULL))
    assert found is not None
    assert found.why == "given up unrun: a request may not end"
    assert any(r.in_flight for r in found.state.requests.values())


def test_a_run_is_asked_to_sample_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to rest is the plainest one: every step runs once, and no token is added."""
    search = explored(FULL)
    sampled: list[Outcome] = []

    def run_step(s: State, outcomes: dict[str, Outcome]) -> State:
        sampled.extend(outcomes.values())
        return right_run(s, outcomes)

    monkeypatch.setattr(sm, "run_step", run_step)
    assert stuck(search) is None
    assert set(sampled) == {Outcome()}
