"""Several processes see what one sees, also when workers are killed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal

import pytest

from conformance.exhaustive import frontier
from conformance.exhaustive.frontier import Processes, RayWorkers, Workers, explore_in_parallel
from conformance.exhaustive.shard import owner
from spec import statemachine as right
from spec.encoding import digest
from spec.explore import Limits, Result, Search
from spec.pool import release_effect
from spec.scope import Scope
from spec.state import Config, State
from spec.world import World
from spec.worlds import WORLDS

pytestmark = pytest.mark.slow

SMALL = Scope(Config(3, 1), ("A", "B"), ((0,), (0, 0)), (0,), 2)
FULL = WORLDS["full-1"].scope


def same(one: Result, other: Result) -> bool:
    """Return whether two results count and see the same."""
    ends = (one.stopped, one.found) == (other.stopped, other.found) == (None, None)
    return ends and one[:3] == other[:3] and (one.edges, one.seen) == (other.edges, other.seen)


@pytest.mark.parametrize("name", ["pool-3", "full-1"])
def test_two_processes_see_what_one_sees(name: str) -> None:
    """Counts, depth, edges and sights are those of one process, and the frozen ones."""
    result = explore_in_parallel(WORLDS[name].scope, 2)
    assert same(result, Search(WORLDS[name].scope).run())
    assert result[:3] == WORLDS[name].counts


def test_without_symmetry_too() -> None:
    """Shards hold every state when nothing is renamed."""
    result = explore_in_parallel(WORLDS["pool-3"].scope, 2, symmetry=False)
    assert same(result, Search(WORLDS["pool-3"].scope, symmetry=False).run())


def test_more_shards_than_states_on_the_first_levels() -> None:
    """A shard without work is no reason to stop."""
    assert same(explore_in_parallel(SMALL, 3), Search(SMALL).run())


@pytest.mark.parametrize(("level", "victim"), [(0, 0), (2, 1), (6, 0)])
def test_a_killed_worker_is_resumed(level: int, victim: int) -> None:
    """SIGKILL costs one restart and no state, no transition, no edge, no sight."""
    teams: list[Workers] = []

    def kill(depth: int, _: int, team: Workers) -> None:
        if depth == level:
            assert isinstance(team, Processes)
            teams.append(team)
            os.kill(team.processes[victim].pid, signal.SIGKILL)
            team.processes[victim].join()

    result = explore_in_parallel(SMALL, 2, on_level=kill)
    assert [team.restarts for team in teams] == [1]
    assert same(result, Search(SMALL).run())


def forward(s: State, rid: str) -> State:
    """Release the head first."""
    r = s.requests[rid]
    if r.table is None:
        return s
    pool = release_effect(s.pool, r.table, s.config.free_rule)
    r = r._replace(table=None, num_hits=0, num_cached=0, start=0, end=0)
    return s._replace(pool=pool, requests=s.requests.set(rid, r))


def find_nothing(_: State, rid: str) -> tuple[int, ...]:  # noqa: ARG001  # a look-up has it
    """Answer every look-up with a miss."""
    return ()


@pytest.mark.parametrize(
    ("action", "wrong"), [("free", forward), ("get_computed_blocks", find_nothing)]
)
def test_a_violation_has_a_shortest_path_too(
    monkeypatch: pytest.MonkeyPatch, action: str, wrong: object
) -> None:
    """What two processes find is as far away as what one finds. They are forked, to be as wrong."""
    monkeypatch.setattr(right, action, wrong)
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(frontier, "get_context", lambda _: fork)
    alone = Search(SMALL).run().found
    found = explore_in_parallel(SMALL, 2).found
    assert alone is not None
    assert found is not None
    assert len(alone.path) == len(found.path)
    world = World(SMALL, symmetry=False)
    here = world.initial()
    for move, state in found.path[:-1]:
        (here,) = {t for t, m in world.successors(here) if (m, world.state(t)) == (move, state)}
    assert found.path[-1][0] in [move for _, move in world.successors(here)]


LIMITED = {
    "time": (Limits(seconds=0), "time limit of 0 s"),
    "states": (Limits(states=20), "limit of 20 states"),
    "memory": (Limits(memory=2**20), "memory limit of 1 MiB"),
}


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_is_told_and_is_no_violation(name: str) -> None:
    """The reason names the limit, and the result is a part."""
    limits, reason = LIMITED[name]
    result = explore_in_parallel(FULL, 2, limits=limits)
    assert (result.stopped, result.found) == (reason, None)
    assert 0 < result.states < WORLDS["full-1"].counts.states


def test_ctrl_c_ends_all_workers() -> None:
    """The result says so and how many states there were, and no process is left."""
    teams: list[Processes] = []

    def interrupt(depth: int, _: int, team: Workers) -> None:
        if depth == 2:
            assert isinstance(team, Processes)
            teams.append(team)
            raise KeyboardInterrupt

    result = explore_in_parallel(SMALL, 2, on_level=interrupt)
    assert (result.stopped, result.found, result.depth) == ("interrupted", None, 2)
    assert result.states > 1
    assert [process.is_alive() for process in teams[0].processes] == [False, False]


def test_every_state_has_one_owner_and_all_shards_work() -> None:
    """Owners are numbers of shards, and no shard is without states."""
    search = Search(SMALL)
    search.run()
    data = [search.world.encode(search.world.node(s)) for s in search.reached()]
    owners = [owner(digest(d), 3) for d in data]
    assert set(owners) == {0, 1, 2}
    assert min(owners.count(shard) for shard in range(3)) > len(data) / 6


def test_ray_sees_what_one_process_sees() -> None:
    """Two actors give the counts, edges and sights of one process."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the package `ray` is not installed: pip install -e '.[ray]'")
    assert same(explore_in_parallel(SMALL, 2, workers=RayWorkers), Search(SMALL).run())
