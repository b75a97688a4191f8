"""Real processes agree on one number of blocks, or end with one error, whoever is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu.workers import GRACE_S

Start = Callable[..., Any]
Run = Callable[..., dict[int, dict[str, Any]]]
Outcomes = dict[int, dict[str, Any]]

TIMEOUT_S = 5.0
SLACK_S = 4.0
"""What a loaded machine may add."""

BLOCKS = (40, 23, 61, 30)

LOST: dict[str, tuple[int, str, str, str]] = {
    "killed before it proposes": (2, "dies", "before it proposes", "before gathering"),
    "hangs before it proposes": (1, "sleeps", "before it proposes", "before gathering"),
    "killed in the gather": (3, "dies", "in the gather", "after gathering"),
    "stopped in the gather": (2, "stops", "in the gather", "after gathering"),
    "worker 0 killed": (0, "dies", "before it proposes", "before gathering"),
    "worker 0 stopped": (0, "stops", "before it proposes", "before gathering"),
}
"""Who falls silent, how, when, and where the others notice. Worker 0 takes the store with it."""


@pytest.fixture(scope="module")
def lost(start_groups: Start) -> dict[str, Outcomes]:
    """Return how the survivors came out; all cases run at once, because they wait most of it."""
    groups = {}
    for name, (victim, how, when, _) in LOST.items():
        tasks: list[dict[str, Any]] = [{"blocks": blocks} for blocks in BLOCKS]
        tasks[victim] |= {"how": how, "when": when}
        groups[name] = tasks
    running = start_groups(groups, TIMEOUT_S)
    return {name: one.outcomes(silent=LOST[name][0]) for name, one in running.items()}


@pytest.mark.slow
def test_four_workers_agree_and_every_id_is_valid_on_each(run_workers: Run) -> None:
    """The smallest wins, tensors keep their own size, 200 allocations are written everywhere."""
    outcomes = run_workers([{"blocks": blocks} for blocks in BLOCKS])
    assert [outcome.get("num_blocks") for outcome in outcomes.values()] == [23] * 4, outcomes
    assert [[blocks] for blocks in BLOCKS] == [o["num_local"] for o in outcomes.values()]
    ids = outcomes[0]["ids"]
    assert len(ids) > 200
    assert set(range(1, 23)) == set(ids)
    for rank, outcome in outcomes.items():
        assert ids == outcome["ids"]
        assert [[rank, -1], [rank, 23], [rank, 30]] == outcome["refused"]


@pytest.mark.slow
def test_a_worker_with_another_head_size_stops_all_with_one_error(run_workers: Run) -> None:
    """Worker and layer are named, on every worker in the same words."""
    tasks: list[dict[str, Any]] = [{"blocks": blocks} for blocks in BLOCKS]
    tasks[2]["head_size"] = 8
    outcomes = run_workers(tasks)
    errors = [outcome["error"] for outcome in outcomes.values()]
    assert [errors[0]] * 4 == errors
    assert errors[0]["rule"] == "workers_have_different_specs"
    assert errors[0]["says"].startswith("worker 2, layer 'layers.0': it keeps Full")


@pytest.mark.slow
def test_a_worker_without_memory_stops_all_at_once(run_workers: Run) -> None:
    """It says why; nobody waits for the time-out."""
    tasks: list[dict[str, Any]] = [{"blocks": blocks} for blocks in BLOCKS]
    tasks[1]["blocks"] = 0
    outcomes = run_workers(tasks, 60.0)
    errors = [outcome["error"] for outcome in outcomes.values()]
    assert [errors[0]] * 4 == errors
    assert errors[0]["says"].startswith("worker 1 proposes no configuration: 0 bytes are available")
    assert max(outcome["seconds"] for outcome in outcomes.values()) < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", LOST)
def test_a_worker_that_is_lost_is_named_to_the_others(lost: dict[str, Outcomes], name: str) -> None:
    """Each survivor ends within the time stated, and so does its process."""
    victim, _, _, stage = LOST[name]
    outcomes = lost[name]
    assert sorted({0, 1, 2, 3} - {victim}) == sorted(outcomes)
    for outcome in outcomes.values():
        assert outcome["error"]["ranks"] == [victim], outcome
        assert f"workers ({victim},) of 4 did not answer" in outcome["error"]["says"]
        assert f"({stage})" in outcome["error"]["says"]
        stages = 2 if stage == "after gathering" else 1
        grace = GRACE_S if name == "worker 0 stopped" else 0
        assert outcome["seconds"] < stages * TIMEOUT_S + grace + SLACK_S


@pytest.mark.slow
@pytest.mark.parametrize("absent", [0, 1])
def test_a_worker_that_never_comes_is_named(run_workers: Run, absent: int) -> None:
    """Whoever it is, the other does not wait for ever."""
    tasks: list[dict[str, Any] | None] = [{"blocks": 9}, {"blocks": 9}]
    tasks[absent] = None
    (outcome,) = run_workers(tasks, 2.0).values()
    assert outcome["error"]["ranks"] == [absent]
    assert outcome["seconds"] < 2.0 + GRACE_S + SLACK_S


@pytest.mark.slow
def test_worker_0_keeps_the_store_until_the_others_have_read_it(run_workers: Run) -> None:
    """It could end at once, and the others would take it for dead."""
    tasks = [{"blocks": 9}, {"blocks": 9, "slow_s": 1.0}, {"blocks": 9}]
    outcomes = run_workers(tasks)
    assert [outcome.get("num_blocks") for outcome in outcomes.values()] == [9] * 3, outcomes


@pytest.mark.slow
def test_a_worker_alone_agrees_with_itself(run_workers: Run) -> None:
    """One worker is a group too."""
    (outcome,) = run_workers([{"blocks": 9}]).values()
    assert outcome["num_blocks"] == 9
