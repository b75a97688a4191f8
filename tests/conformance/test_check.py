"""The main job replays, explores and proves, and says where a fault shows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import check as checks
from conformance.adapters.reference import Reference
from conformance.check import (
    EXPLORED,
    FUZZED,
    Row,
    explore_rows,
    num_rows,
    replay_plans,
    replay_rows,
)
from kvcache import BlockPool
from spec import statemachine
from spec.worlds import WORLDS

NUM_REPLAYS = 8


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Return the rows of one run of the replays."""
    return list(replay_rows())


def test_the_plans_are_all_ways_to_replay() -> None:
    """Both drivers, both kinds of attention, caching on and off; always with full checks."""
    plans = list(replay_plans())
    ways = {(plan.batch, plan.window is None, plan.caching) for plan in plans}
    assert len(plans) == len(ways) == NUM_REPLAYS
    assert num_rows() == NUM_REPLAYS + len(EXPLORED) + len(FUZZED) + 3
    assert {plan.check for plan in plans} == {"full"}
    assert {plan.caching_hash_algo for plan in plans} == {"sha256", "builtin"}
    assert {plan.num_drafts for plan in plans if plan.batch} == {2}


@pytest.mark.slow
def test_every_row_is_clean(rows: list[Row]) -> None:
    """Our manager does what the specification says, in every way."""
    assert len(rows) == NUM_REPLAYS
    assert all(row.verdict == "clean" and not row.problem and row.seconds > 0 for row in rows)


@pytest.mark.slow
def test_every_row_says_what_it_is_and_what_it_covered(rows: list[Row]) -> None:
    """Names are told apart, and what a row covered is worth a row."""
    names = [row.name for row in rows]
    assert len(set(names)) == NUM_REPLAYS
    assert names[0] == "replay sequential, full"
    assert names[-1] == "replay batch, window 7, no caching"
    for row in rows:
        calls, hit, evicted, preempted = row.covered.split(", ")
        assert int(calls.removesuffix(" calls").replace(",", "")) >= 2_000
        cached = "no caching" not in row.name
        assert (hit != "0% hit") == (evicted != "0 evicted") == cached
        assert (preempted != "0 preempted") == ("batch" in row.name)


@pytest.mark.slow
def test_a_run_can_be_repeated(rows: list[Row]) -> None:
    """The second run covers the same."""
    assert next(replay_rows()).covered == rows[0].covered


@pytest.mark.slow
def test_a_seeded_fault_fails_its_rows_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is not taken back at eviction shows wherever there is caching."""
    sound = BlockPool.get_new_blocks

    def get_new_blocks(self: BlockPool, num_blocks: int) -> object:
        keys = [block.block_hash for block in self.free_block_queue.get_all_free_blocks()]
        taken = sound(self, num_blocks)
        for block, key in zip(taken, keys, strict=False):
            block.block_hash = key
        return taken

    monkeypatch.setattr(BlockPool, "get_new_blocks", get_new_blocks)
    monkeypatch.setattr(checks, "NUM_REQUESTS", 80)
    found = list(replay_rows())
    assert len(found) == NUM_REPLAYS
    for row in found:
        clean = row.verdict == "clean"
        assert clean == ("no caching" in row.name)
        assert clean == (row.problem == "")
        assert clean or row.problem.startswith("kvspec violation: property=")


def test_a_faulty_adapter_fails_every_row(
    monkeypatch: pytest.MonkeyPatch, damaged: Callable[..., type[Reference]]
) -> None:
    """A crash of the manager is a row that failed, not the end of the run."""

    def crash(*_: Any) -> None:  # noqa: ANN401
        raise ZeroDivisionError

    monkeypatch.setattr("conformance.driving.replay.Reference", damaged("run_step", 3, crash))
    monkeypatch.setattr(checks, "NUM_REQUESTS", 80)
    found = list(checks.replay_rows())
    assert [row.verdict for row in found] == ["violation"] * NUM_REPLAYS
    assert all("kvspec violation: " in row.problem for row in found)


@pytest.mark.slow
def test_a_world_whose_counts_changed_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches are clean with the frozen counts, and not with others."""
    monkeypatch.setattr(checks, "EXPLORED", ("pool-2", "pool-3"))
    assert [row.verdict for row in explore_rows()] == ["clean", "clean"]
    other = WORLDS["pool-2"]._replace(counts=WORLDS["pool-3"].counts)
    monkeypatch.setitem(WORLDS, "pool-2", other)
    found = list(explore_rows())
    assert [row.verdict for row in found] == ["violation", "clean"]
    assert found[0].problem == "counts (47, 222, 6), frozen (264, 1631, 9)"


def test_proofs_are_not_run_without_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said, and is no violation."""
    monkeypatch.setattr(checks, "prover", lambda: None)
    row = checks.prove_row()
    assert row.verdict == "not run"
    assert "pip install -e '.[proof]'" in row.covered


@pytest.mark.slow
def test_small_worlds_are_searched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each world says that it is clean, and that its counts are the frozen ones."""
    monkeypatch.setattr(checks, "EXPLORED", ("pool-2", "full-1"))
    found = list(explore_rows())
    assert [row.name for row in found] == ["explore pool-2", "explore full-1"]
    assert [row.verdict for row in found] == ["clean", "clean"]
    assert found[0].covered == "all 47 states, 222 transitions"
    assert found[1].covered == "all 1,787 states, 11,031 transitions"
    assert all(row.seconds > 0 and not row.problem for row in found)


def test_the_worlds_of_the_main_job_are_quick_and_of_every_kind() -> None:
    """The pool alone, requests, no caching and the other free rule; none is large."""
    worlds = [WORLDS[name] for name in EXPLORED]
    assert max(world.counts.states for world in worlds) < 50_000
    assert {bool(world.scope.names) for world in worlds} == {True, False}
    assert {world.scope.config.enable_caching for world in worlds} == {True, False}
    rules = {world.scope.config.free_rule for world in worlds}
    assert rules == {"append", "unhashed_first"}


def test_a_wrong_specification_is_a_violation_with_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The problem names the property and the moves that lead to it."""
    monkeypatch.setattr(statemachine, "free", lambda s, _: s)
    monkeypatch.setattr(checks, "EXPLORED", ("full-1",))
    (row,) = explore_rows()
    assert row.verdict == "violation"
    assert row.problem.startswith("kvspec violation: property=ref_cnt_counts_the_holders ")
    assert "found_by=explore: arrive(rid=A" in row.problem
    assert row.problem.endswith("; finish(rid=A)")


@pytest.mark.parametrize(
    ("statuses", "verdict", "covered"),
    [
        (("both", "both"), "clean", "2 of 2 obligations, two solvers"),
        (("both", "unknown"), "violation", "1 of 2 obligations, two solvers"),
        (("refuted", "disagreement"), "violation", "0 of 2 obligations, two solvers"),
    ],
)
def test_only_what_both_solvers_prove_is_clean(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...], verdict: str, covered: str
) -> None:
    """Each obligation that is open is a line of the problem."""
    prove = SimpleNamespace(
        proof=SimpleNamespace(questions=lambda: iter(statuses)),
        judged=lambda asked, _jobs, _tick: [SimpleNamespace(status=status) for status in asked],
    )
    monkeypatch.setattr(checks, "prover", lambda: prove)
    row = checks.prove_row()
    assert (row.verdict, row.covered) == (verdict, covered)
    lines = [line.split(": ")[0] for line in row.problem.splitlines()]
    assert lines == [status for status in statuses if status != "both"]


@pytest.mark.slow
def test_there_are_as_many_rows_as_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays, worlds, proofs, fuzzing, contracts, seeded faults: in this order."""
    monkeypatch.setattr(checks, "NUM_REQUESTS", 20)
    monkeypatch.setattr(checks, "EXPLORED", ("pool-1", "pool-2"))
    monkeypatch.setattr(checks, "NUM_EXAMPLES", 1)
    monkeypatch.setattr(checks, "NUM_CALLS", 100)
    monkeypatch.setattr(checks, "MUTANTS", {})
    monkeypatch.setattr(checks, "prover", lambda: None)
    monkeypatch.setattr(checks, "installed", lambda: False)
    kinds = [row.name.split()[0] for row in checks.rows()]
    last = ["prove", *(["fuzz"] * len(FUZZED)), "contracts", "mutants"]
    assert kinds == ["replay"] * NUM_REPLAYS + ["explore"] * 2 + last
    assert len(kinds) == num_rows()
