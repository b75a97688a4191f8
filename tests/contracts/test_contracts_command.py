"""`kvspec contracts` prints every verdict and ends as it should."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conformance.cli import app
from conformance.commands import contracts as command
from conformance.contracts import Contract, Runner, Verdict
from conformance.contracts import Result as Found

Command = Callable[..., Result]


@pytest.fixture
def kvspec(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a call of the command in a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["contracts", *arguments])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdict], None]:
    """Return a way to make every run answer with one verdict, without running anything."""

    def answer(verdict: Verdict) -> None:
        def run(_: Runner, contracts: Sequence[Contract], jobs: int) -> Iterator[Found]:
            assert jobs
            for contract in contracts:
                yield Found(contract, verdict, "AssertionError: canned", 0.5)

        monkeypatch.setattr(command, "installed", lambda: True)
        monkeypatch.setattr(Runner, "run", run)

    return answer


def test_expected_verdicts_end_well(
    kvspec: Command, answers: Callable[[Verdict], None], tmp_path: Path
) -> None:
    """The table shows contract, place and verdict, and the file has the same."""
    answers(Verdict.CONFIRMED)
    file = tmp_path / "out.json"
    done = kvspec("--only", "a_hit_leaves_a_token", "--json", str(file))
    assert done.exit_code == 0
    assert "manager.KVCacheManager.get_computed_blocks" in done.output
    assert "verdict: 1 contracts as expected: 1 confirmed" in done.output
    data = json.loads(file.read_text())
    assert data["ok"]
    assert data["versions"].keys() == {"crosshair-tool", "z3-solver"}
    assert data["contracts"]["manager_contracts.a_hit_leaves_a_token"]["verdict"] == "confirmed"


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.NOT_REFUTED, Verdict.FAILED])
def test_another_verdict_ends_with_1(
    kvspec: Command, answers: Callable[[Verdict], None], verdict: Verdict
) -> None:
    """Whatever is not the expected verdict is named with what was said."""
    answers(verdict)
    done = kvspec("--only", "a_hit_leaves_a_token")
    assert done.exit_code == 1
    assert "a_hit_leaves_a_token: AssertionError: canned" in done.output
    assert "verdict: 1 of 1 contracts are not as expected" in done.output


def test_an_unknown_name_and_a_missing_tool_are_bad_input(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error shows what was given, or says how to install what is missing."""
    unknown = kvspec("--only", "no_such_contract")
    assert unknown.exit_code == 2
    assert "'no_such_contract' is in no name of a contract" in unknown.output
    monkeypatch.setattr(command, "installed", lambda: False)
    missing = kvspec()
    assert missing.exit_code == 2
    assert "pip install -e '.[contracts]'" in missing.output


def test_an_interruption_shows_what_ended(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch, answers: Callable[[Verdict], None]
) -> None:
    """Ctrl-C ends with 130 and the verdicts that are there."""
    answers(Verdict.CONFIRMED)
    rest = Runner.run

    def run(runner: Runner, contracts: Sequence[Contract], jobs: int) -> Iterator[Found]:
        yield from rest(runner, contracts[:1], jobs)
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", run)
    done = kvspec("--only", "window_contracts")
    assert done.exit_code == 130
    assert "no_skipped_block_is_read" in done.output
    assert "interrupted" in done.output
