"""A campaign tries what failed before, then machines, then jobs, and stops at the first failure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Self

import pytest

from conformance.fuzzing import campaign
from conformance.fuzzing.campaign import PROFILES, Plan, Summary, derived, jobs_of, run_campaign
from conformance.fuzzing.campaign_report import as_json, figures, summary_lines
from conformance.fuzzing.findings import Failing, Failures
from conformance.fuzzing.fuzz import NOTHING, Job, JobResult, run_job
from conformance.program import Operation, Program, failure
from conformance.subject import RequestSpec
from conformance.subjects import find_subject
from spec.state import Config

PREEMPTED = Program(
    Config(3, 1),
    (
        Operation("add_request", {"rid": "A", "request": RequestSpec((0,))}),
        Operation("allocate_slots", {"rid": "A", "num_tokens": 1, "hits": (), "num_lookahead": 0}),
        Operation("preempt", {"rid": "A"}),
    ),
)


def plan(*subjects: str, examples: int = 0, processes: int = 1, seconds: float = 1e-6) -> Plan:
    """Return a plan of one job a subject."""
    return Plan(subjects, 7, seconds, examples, processes, calls_per_job=600)


@pytest.fixture
def failures(tmp_path: Path) -> Failures:
    """Return an empty folder of failures, which is not there yet."""
    return Failures(tmp_path / "kept")


def kept(failures: Failures, subject: str) -> Path:
    """Keep a program that fails on a leaky subject, under another subject's name."""
    divergence = failure(PREEMPTED, find_subject("planted_subjects:Leaky"))
    assert divergence is not None
    return failures.keep(Failing(PREEMPTED, divergence, subject))


def test_a_clean_run_does_one_job_a_subject_at_least(failures: Failures) -> None:
    """However short the time, each subject is looked at; nothing is kept."""
    shown: list[str] = []
    summary = run_campaign(
        plan("reference", "reference-builtin"), failures, lambda s: shown.append(s.stage)
    )
    assert summary.verdict == "clean"
    assert summary.jobs.jobs == 2
    assert 1_200 <= summary.calls == summary.jobs.calls
    assert "jobs" in shown
    assert not failures.folder.exists()


@pytest.mark.slow
def test_the_machines_run_on_every_subject(
    failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines on two subjects make their examples, if there is time."""
    both = plan("reference", "reference-builtin", examples=10)
    assert run_campaign(both, failures).machine_examples == 0
    monkeypatch.setattr(campaign, "MACHINES_SHARE", 1e9)
    summary = run_campaign(both, failures)
    assert summary.verdict == "clean"
    assert summary.machine_examples >= 4 * 10
    assert summary.machine_calls > 400
    assert summary.examples == summary.machine_examples + summary.jobs.episodes


def test_a_kept_failure_is_tried_first(failures: Failures, planted: Path) -> None:
    """It still fails, so nothing else is done, and it stays."""
    assert planted.exists()
    path = kept(failures, "planted_subjects:Leaky")
    summary = run_campaign(plan("planted_subjects:Leaky", examples=10), failures)
    assert summary.verdict == "violation"
    assert summary.caught is not None
    assert summary.caught.kept
    assert str(path) in summary.caught.where
    assert summary.caught.program == PREEMPTED
    assert (summary.tried, summary.machine_examples, summary.jobs) == (1, 0, NOTHING)
    assert path.exists()


def test_a_failure_that_passes_now_is_removed(failures: Failures, planted: Path) -> None:
    """The run says so and goes on."""
    assert planted.exists()
    path = kept(failures, "planted_subjects:Sound")
    summary = run_campaign(plan("planted_subjects:Sound"), failures)
    assert summary.verdict == "clean"
    assert summary.notices == [f"{path}: fails no longer; removed"]
    assert not path.exists()
    assert summary.jobs.jobs == 1


def test_failures_of_other_subjects_are_left_alone(failures: Failures, planted: Path) -> None:
    """What is not asked for is neither tried nor removed."""
    assert planted.exists()
    path = kept(failures, "planted_subjects:Leaky")
    summary = run_campaign(plan("reference"), failures)
    assert (summary.tried, summary.notices) == (0, [])
    assert path.exists()


def test_a_damaged_file_is_left_out(failures: Failures, planted: Path) -> None:
    """It is reported, and the failure after it is tried all the same."""
    assert planted.exists()
    path = kept(failures, "planted_subjects:Leaky")
    damaged = path.with_name("0_damaged.ndjson")
    damaged.write_bytes(path.read_bytes()[:40] + b"\xff\n")
    (path.parent / "0_empty.ndjson").touch()
    summary = run_campaign(plan("planted_subjects:Leaky"), failures)
    assert summary.caught is not None
    assert len(summary.notices) == 2
    assert any("0_damaged.ndjson" in notice for notice in summary.notices)
    assert damaged.exists()


@pytest.mark.slow
def test_a_machine_finds_a_fault(failures: Failures, planted: Path) -> None:
    """The first stage that sees it ends the run."""
    assert planted.exists()
    summary = run_campaign(plan("planted_subjects:Leaky", examples=50, seconds=30), failures)
    assert summary.caught is not None
    assert summary.caught.subject == "planted_subjects:Leaky"
    assert summary.caught.where.startswith("by the machine of the manager, example ")
    assert failure(summary.caught.program, find_subject("planted_subjects:Leaky")) is not None
    assert summary.jobs == NOTHING


@pytest.mark.slow
def test_the_failure_is_the_same_on_any_number_of_processes(
    failures: Failures, planted: Path
) -> None:
    """The first failing job counts, and what is merged are the jobs up to it."""
    assert planted.exists()
    late = Plan(("reference", "planted_subjects:Late"), 3, 30, 0, 1, calls_per_job=2_000)
    alone = run_campaign(late, failures)
    many = run_campaign(late._replace(processes=3), failures)
    assert alone.caught == many.caught
    assert alone.caught is not None
    assert alone.jobs == many.jobs
    jobs = list(islice(jobs_of(late), alone.jobs.jobs))
    expected = NOTHING
    for job in jobs:
        expected = expected.merge(run_job(job))
    assert expected == alone.jobs


@pytest.mark.slow
def test_a_lost_job_is_a_violation(failures: Failures, planted: Path) -> None:
    """A subject that ends its process is reported by the job, not waited for."""
    assert planted.exists()
    fatal = plan("planted_subjects:Fatal", processes=2, seconds=20)._replace(calls_per_job=5_000)
    summary = run_campaign(fatal, failures)
    assert summary.verdict == "violation"
    assert summary.lost is not None
    assert "ended its process" in summary.lost.why


def test_ctrl_c_keeps_what_was_done(failures: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs until then are in the summary, those that overtook a slow one too."""

    class Interrupted:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """There is nobody to send away."""

        def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, JobResult] | None]:
            made = [next(jobs) for _ in range(3)]
            for number in (0, 2):
                yield number, run_job(made[number])
            raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "Alone", Interrupted)
    summary = run_campaign(plan("reference", seconds=30), failures)
    assert summary.verdict == "interrupted"
    assert summary.jobs.jobs == 2


def test_seeds_of_parts_differ() -> None:
    """No two parts of a run share a seed, and another run has others."""
    jobs = list(islice(jobs_of(plan("a", "b")), 100))
    assert [job.subject for job in jobs[:4]] == ["a", "b", "a", "b"]
    assert len({job.seed for job in jobs}) == 100
    assert derived(1, "job", 0) != derived(2, "job", 0) != derived(1, "job", 1)
    assert all(0 < profile.minutes <= 60 for profile in PROFILES.values())
    assert PROFILES["ci"].seed is not None


def test_the_report_says_what_was_seen() -> None:
    """The figures are in the text and in the data; what was not seen is named."""
    job = Job(1, 900, "reference")
    summary = Summary(machine_examples=2, machine_calls=10, jobs=run_job(job), seconds=2.0)
    text = "\n".join(summary_lines(summary))
    assert f"{summary.jobs.calls + 10:,} calls" in text
    assert f"{summary.calls / 2.0:,.0f} calls a second" in figures(summary, 2.0)[0]
    assert "not seen: " in text
    report = as_json(plan("reference"), "dev", summary)
    assert report["examples"] == summary.jobs.episodes + 2
    assert report["walks"]["calls"] == summary.jobs.calls
