"""`kvspec shrink` and `kvspec replay` make the calls of a log again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.exhaustive.production import quiet
from conformance.faults.mutants import MUTANTS, planted
from conformance.lockstep import Divergence, Lockstep
from conformance.logs.log_runs import LogReport, replay_log
from conformance.logs.oplog import read_log, record_program, write_program
from conformance.logs.playback import Validation
from conformance.program import Operation, Program, failure, recording
from conformance.shrinking.shrink import Shrinker
from spec.state import Config

Command = Callable[..., Any]
FAULT = MUTANTS["hit-stays-queued"]


@pytest.fixture(scope="module")
def programs() -> tuple[Program, Divergence]:
    """Return a walk that meets the fault, and how it fails."""
    config = Config(9, 2)
    with planted(FAULT), quiet():
        for seed in range(9):
            subject, operations = recording(Reference(config))
            try:
                Walk(Lockstep(subject), seed).run(1_000)
            except Divergence as divergence:
                return Program(config, tuple(operations)), divergence
    raise AssertionError("no walk meets the fault")


@pytest.fixture
def failing(programs: tuple[Program, Divergence], tmp_path: Path) -> Iterator[Path]:
    """Return the log of the failure, while the fault is there."""
    path = tmp_path / "failing.ndjson"
    with planted(FAULT):
        found = record_program(path, programs[0], Reference, "reference", 4)
        assert str(found) == str(programs[1])
        yield path


@pytest.fixture
def clean(programs: tuple[Program, Divergence], tmp_path: Path) -> Path:
    """Return the log of a walk without a fault."""
    path = tmp_path / "clean.ndjson"
    with quiet():
        assert record_program(path, programs[0], Reference, "reference") is None
    return path


@pytest.mark.slow
def test_a_failing_log_is_named_shrunk_and_printed_as_a_test(
    kvspec: Command, failing: Path, programs: tuple[Program, Divergence]
) -> None:
    """The same line three ways; what is printed can be pasted, and what is written fails too."""
    line = str(programs[1])
    for command in ("validate", "replay"):
        result = kvspec(command, failing)
        assert (result.exit_code, line in result.stdout) == (1, True)
    out, test = failing.with_name("small.ndjson"), failing.with_name("test_small.py")
    printed = kvspec("shrink", failing)
    result = kvspec("shrink", failing, "--out", out, "--test", test)
    assert (printed.exit_code, result.exit_code) == (1, 1)
    text = test.read_text()
    assert printed.stdout.startswith(text)
    assert "def test_" not in result.stdout
    small = read_log(out)
    found = failure(small.program(), Reference)
    assert found is not None
    assert found.property == programs[1].property
    assert str(found) in result.stdout
    assert len(list(small)) <= 10
    assert small.header.made_by == "kvspec shrink"
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102  # the text is our own
    with pytest.raises(Divergence) as again:
        names[f"test_{found.property}"]()
    assert str(again.value) == str(found)
    assert kvspec("validate", out).exit_code == 1


def test_nothing_is_shrunk_where_nothing_fails(kvspec: Command, clean: Path) -> None:
    """A log of another manager's fault does not fail on a sound one."""
    result = kvspec("shrink", clean)
    assert result.exit_code == 0
    assert "the calls do not fail on this subject; kvspec validate compares" in result.stdout


def test_a_log_replays_on_another_manager(kvspec: Command, clean: Path, failing: Path) -> None:
    """What the log answers does not count; the report says how it went."""
    out = clean.with_name("report.json")
    result = kvspec("replay", clean, "--subject", "reference-builtin", "--json", out)
    report = json.loads(out.read_text())
    assert result.exit_code == (report["verdict"] == "violation")
    assert LogReport.model_validate(report).log == "clean.ndjson"
    assert report["calls"] >= report["calls_checked"] > 0
    assert failing.exists()


def test_a_replay_ends_with_a_sweep(damaged: Callable[..., type[Reference]], clean: Path) -> None:
    """What an incremental check does not touch is looked at in the end."""

    def spoil(subject: Any, _: object, result: object) -> object:  # noqa: ANN401  # any manager
        subject.pool.blocks[7].ref_cnt += 1
        return result

    path = clean.with_name("one.ndjson")
    write_program(path, Program(Config(9, 2), (Operation("get_new_blocks", {"n": 1}),)), "m:C")
    report = replay_log(read_log(path), damaged("get_new_blocks", 1, spoil), "incremental")
    assert report.verdict == "violation"
    assert " call=1 sweep block=7 " in str(report.violation)


WRONG = {
    "--blocks 9": "--blocks",
    "--block-size 2": "--block-size",
    "--batch": "--sequential",
    "--limit 3": "--limit",
    "--window 4": "--window",
    "--no-caching": "--no-caching",
}


@pytest.mark.parametrize("options", WRONG)
def test_what_a_log_says_itself_is_not_to_be_given(
    kvspec: Command, clean: Path, options: str
) -> None:
    """The option is named."""
    result = kvspec("replay", clean, *options.split())
    shown = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert f"Invalid value for {WRONG[options]}: " in shown
    assert "is an operation log, which says that itself; leave the option out" in shown


def test_bad_options_are_refused(kvspec: Command, clean: Path, tmp_path: Path) -> None:
    """No check, no such manager, files that cannot be written; nothing is lost."""
    before = clean.read_bytes()
    for command, options, problem in (
        ("replay", ("--check", "off"), "a log is replayed in lockstep only"),
        ("replay", ("--subject", "ours"), "'ours' is no subject"),
        ("replay", ("--json", clean), "is the input; name another file"),
        ("shrink", ("--subject", "no_such:Manager"), "there is no module 'no_such'"),
        ("shrink", ("--out", clean), "is the input; name another file"),
        ("shrink", ("--test", tmp_path), "is a folder; name a file"),
        ("shrink", ("--seconds", 0), "0: there is something to try"),
    ):
        result = kvspec(command, clean, *options)
        assert (result.exit_code, problem in " ".join(result.stderr.split())) == (2, True)
    assert clean.read_bytes() == before


def test_a_trace_is_replayed_on_any_manager(kvspec: Command, trace: Callable[..., Path]) -> None:
    """The name decides there too."""
    assert "'ours' is no subject" in kvspec("replay", trace({}), "--subject", "ours").stderr
    result = kvspec("replay", trace({}), "--subject", "reference-builtin", "--blocks", 9)
    assert result.exit_code == 0


def interrupt(*_: object, **__: object) -> None:
    """Press Ctrl-C."""
    raise KeyboardInterrupt


def test_ctrl_c_ends_a_run_over_a_log_with_its_figures(
    kvspec: Command, failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 130; the shrinker prints the smallest program until then."""
    monkeypatch.setattr(Validation, "_make", interrupt)
    result = kvspec("validate", failing)
    assert (result.exit_code, "verdict: interrupted" in result.stdout) == (130, True)
    monkeypatch.setattr(Shrinker, "_settle", interrupt)
    result = kvspec("shrink", failing)
    assert result.exit_code == 130
    assert "def test_" in result.stdout
    assert "verdict: interrupted" in result.stdout
    monkeypatch.setattr(Reference, "add_request", interrupt)
    result = kvspec("replay", failing)
    assert (result.exit_code, "verdict: interrupted" in result.stdout) == (130, True)
