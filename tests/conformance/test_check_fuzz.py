"""Fuzzing, contracts and planted faults have rows in the main job, which say what is wrong."""

from __future__ import annotations

import pytest

from conformance import check as checks
from conformance.contracts import Verdict, read_contracts
from conformance.faults.mutants import MUTANTS, planted


@pytest.mark.slow
def test_fuzzing_is_clean_and_says_what_it_covered() -> None:
    """Each kind of keys has its row, with other calls than the other one's."""
    rows = list(checks.fuzz_rows())
    assert [row.name for row in rows] == [f"fuzz {name}" for name in checks.FUZZED]
    assert [row.verdict for row in rows] == ["clean", "clean"]
    assert len({row.covered for row in rows}) == len(rows)
    for row in rows:
        calls, *_ = row.covered.split(" calls, ")
        assert int(calls.replace(",", "")) >= checks.NUM_CALLS


@pytest.mark.slow
def test_a_fault_is_a_violation_in_every_row_of_fuzzing() -> None:
    """Machines and walks each tell their line."""
    with planted(MUTANTS["forward-release"]):
        rows = list(checks.fuzz_rows())
    assert [row.verdict for row in rows] == ["violation"] * len(checks.FUZZED)
    for row in rows:
        lines = row.problem.splitlines()
        assert len(lines) >= 2
        assert all(line.startswith("kvspec violation: property=") for line in lines)


@pytest.mark.slow
def test_contracts_are_confirmed_and_refuted_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds are in the row; one that is not as expected is a violation."""
    known = {contract.name: contract for contract in read_contracts()}
    expected = {known[name].expected for name in checks.CONTRACTS}
    assert expected == {Verdict.CONFIRMED, Verdict.REFUTED}
    monkeypatch.setattr(checks, "CONTRACTS", ("no_skipped_block_is_read",))
    row = checks.contracts_row()
    assert (row.verdict, row.covered) == ("clean", "1 confirmed, as expected")
    name = "wrong_a_window_lets_go_one_token_early"
    wrong = [known[name]._replace(name=name, expected=Verdict.CONFIRMED)]
    monkeypatch.setattr(checks, "CONTRACTS", (name,))
    monkeypatch.setattr(checks, "read_contracts", lambda: wrong)
    row = checks.contracts_row()
    assert row.verdict == "violation"
    assert row.problem.startswith(f"{name}: expected confirmed, is refuted: AssertionError")


def test_contracts_are_not_run_without_crosshair(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said, and is no violation."""
    monkeypatch.setattr(checks, "installed", lambda: False)
    row = checks.contracts_row()
    assert row.verdict == "not run"
    assert "pip install -e '.[contracts]'" in row.covered


@pytest.mark.slow
def test_a_fault_that_is_not_found_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one walk, a fault that needs many survives and is named."""
    monkeypatch.setattr(checks, "MUTANTS", {"forward-release": MUTANTS["forward-release"]})
    row = checks.mutants_row()
    assert (row.verdict, row.covered) == ("clean", "1 of 1 seeded faults found")
    monkeypatch.setattr(checks, "MUTANTS", {"media-not-in-key": MUTANTS["media-not-in-key"]})
    monkeypatch.setattr(checks, "MAX_EXAMPLES", 1)
    row = checks.mutants_row()
    assert row.verdict == "violation"
    assert row.problem == "not found: media-not-in-key"
