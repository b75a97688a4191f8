"""Jobs on several processes give what one process gives, whoever dies or hangs on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.fuzzing.crew import MAX_TRIES, Alone, Crew, Lost
from conformance.fuzzing.fuzz import NOTHING, Job, JobResult, SubjectCannotBeMadeError

pytestmark = pytest.mark.slow

JOBS = [Job(seed, 1_500, ("reference", "reference-builtin")[seed % 2]) for seed in range(6)]


def alive(pids: list[int]) -> list[int]:
    """Return those of some processes that are there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def done(crew: Crew | Alone, jobs: list[Job]) -> dict[int, JobResult | Lost]:
    """Return the answers by number."""
    return dict(event for event in crew.results(iter(jobs)) if event is not None)


def test_processes_give_what_one_process_gives() -> None:
    """The answers are equal one by one, and nobody is left when they are in."""
    with Crew(2) as crew, Alone() as alone:
        pids = [pid for pid in crew.pids if pid is not None]
        assert done(crew, JOBS) == done(alone, JOBS)
        assert crew.restarts == 0
        assert alive(pids) == pids
    assert len(pids) == 2
    assert alive(pids) == []


def test_a_killed_worker_is_replaced_and_its_job_given_again() -> None:
    """The answers are those of an undisturbed run."""
    with Crew(2) as crew:

        def jobs() -> Iterator[Job]:
            for number, job in enumerate(JOBS):
                if number == 3:
                    os.kill(crew.pids[0] or 0, signal.SIGKILL)
                yield job

        answers = dict(event for event in crew.results(jobs()) if event is not None)
        assert crew.restarts >= 1
    with Alone() as alone:
        assert answers == done(alone, JOBS)


def test_a_subject_that_takes_its_process_with_it_is_reported(planted: Path) -> None:
    """After a second try the job is lost, and the others have their answers."""
    assert planted.exists()
    jobs = [JOBS[0], Job(1, 5_000, "planted_subjects:Fatal"), *JOBS[2:]]
    with Crew(2) as crew:
        answers = done(crew, jobs)
        assert crew.restarts == MAX_TRIES
    assert answers[1] == Lost(jobs[1], "ended its process (exit status 3), 2 times")
    assert sorted(answers) == list(range(6))
    assert sum(isinstance(answer, JobResult) for answer in answers.values()) == 5


def test_a_subject_that_hangs_is_reported(planted: Path) -> None:
    """Patience ends, the process is ended, and the run goes on."""
    assert planted.exists()
    stuck = Job(1, 5_000, "planted_subjects:Stuck")
    with Crew(1, patience=4) as crew:
        answers = done(crew, [stuck, JOBS[0]])
    assert answers[0] == Lost(stuck, "gave no answer for 4 seconds, 2 times")
    assert isinstance(answers[1], JobResult)


def test_a_subject_that_cannot_be_made_stops_the_run(planted: Path) -> None:
    """The error of the process is the error here, and the processes are gone."""
    assert planted.exists()
    with Crew(2) as crew:
        pids = [pid for pid in crew.pids if pid is not None]
        with pytest.raises(SubjectCannotBeMadeError, match="two tokens only"):
            done(crew, [Job(1, 5_000, "planted_subjects:Unmakeable")])
    assert alive(pids) == []


def test_nothing_to_do_is_done_at_once() -> None:
    """No job, no answer."""
    with Crew(2) as crew:
        assert done(crew, []) == {}
    assert NOTHING.merge(NOTHING) == NOTHING
