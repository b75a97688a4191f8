"""The order of a long run: what failed before, then the machines, then jobs until the time is over.

Kept failures come first because what broke once breaks again. The machines of Hypothesis come next:
slow, and good at the strange corners of one call. The plain walks have what is left of the time,
because they make a hundred times as many calls.

Which jobs there are follows from the seed; how many are done depends on the time. The first failure
ends the run, and of several jobs that fail it is the first in the order of jobs, whoever was
faster; what is merged is then the jobs up to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from conformance.exhaustive.production import quiet
from conformance.fuzzing.crew import Alone, Answer, Crew, Lost
from conformance.fuzzing.findings import Damaged, Failures
from conformance.fuzzing.fuzz import CALLS_PER_JOB, NOTHING, PROBE, Job, JobResult, made
from conformance.machines.machine import MACHINES, run_machine
from conformance.program import Factory, Program, failure
from conformance.subjects import find_subject

CHUNK: Final = 25
"""Examples of a machine between two looks at the clock."""

MACHINES_SHARE: Final = 0.3
"""The share of the time after which the machines stop, done or not."""

Verdict = Literal["clean", "violation", "interrupted"]


class Profile(NamedTuple):
    """How long a run is when nobody says it, and how many examples each machine has."""

    minutes: float
    examples: int
    seed: int | None
    """The seed when nobody gives one; None draws it."""


PROFILES: Final = {
    "dev": Profile(minutes=0.5, examples=100, seed=None),
    "ci": Profile(minutes=2, examples=400, seed=0),
    "soak": Profile(minutes=60, examples=20_000, seed=None),
}


class Plan(NamedTuple):
    """What to do. `subjects` are names for `subjects.find_subject`."""

    subjects: Sequence[str]
    seed: int
    seconds: float
    examples: int = PROFILES["dev"].examples
    processes: int = 1
    calls_per_job: int = CALLS_PER_JOB


class Caught(NamedTuple):
    """A failure as it was found, before it is shrunk. `where` says how to find it again."""

    subject: str
    program: Program
    line: str
    where: str
    kept: bool = False


@dataclass(slots=True)
class Summary:
    """What was done so far; right at every moment, so that a run that is stopped has its figures.

    `jobs` is what the jobs did together. `examples` and `calls` count all three stages.
    """

    stage: str = "kept failures"
    tried: int = 0
    machine_examples: int = 0
    machine_calls: int = 0
    jobs: JobResult = NOTHING
    caught: Caught | None = None
    lost: Lost | None = None
    verdict: Verdict = "clean"
    notices: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    @property
    def examples(self) -> int:
        """Programs and walks."""
        return self.tried + self.machine_examples + self.jobs.episodes

    @property
    def calls(self) -> int:
        """Calls in lockstep, those of kept failures apart."""
        return self.machine_calls + self.jobs.calls

    @property
    def failed(self) -> bool:
        """True when something is wrong with a subject."""
        return self.caught is not None or self.lost is not None


def derived(seed: int, *parts: object) -> int:
    """Return the seed of a part of a run: the same everywhere, and another one for other parts."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(sha256(text.encode()).digest()[:8])


def run_campaign(
    plan: Plan, failures: Failures, on_progress: Callable[[Summary], None] = lambda _: None
) -> Summary:
    """Do it all, up to the first failure. Ctrl-C ends it with what was done until then."""
    summary = Summary()
    deadline = summary.started + plan.seconds
    try:
        with quiet():
            for stage in (_try_kept, _run_machines, _do_jobs):
                if not summary.failed:
                    stage(plan, failures, deadline, summary, on_progress)
    except KeyboardInterrupt:
        summary.verdict = "interrupted"
    summary.seconds = time.perf_counter() - summary.started
    if summary.failed:
        summary.verdict = "violation"
    return summary


Tell = Callable[[Summary], None]


def _factory(name: str) -> Factory:
    """Return what makes a subject, or says that it cannot be made."""
    return partial(made, find_subject(name), name)


def _try_kept(plan: Plan, failures: Failures, _: float, summary: Summary, tell: Tell) -> None:
    """Perform what failed before; forget what fails no longer."""
    for kept in failures.tried_first(plan.subjects):
        tell(summary)
        if isinstance(kept, Damaged):
            summary.notices.append(f"left out: {kept.problem}")
            continue
        summary.tried += 1
        make = _factory(kept.subject)
        divergence = failure(kept.program, make) or failure(kept.program, make, "incremental")
        if divergence is not None:
            where = f"in {kept.path}, kept from an earlier run"
            summary.caught = Caught(kept.subject, kept.program, str(divergence), where, kept=True)
            return
        try:
            failures.forget(kept.path)
        except OSError as error:
            problem = f"cannot be removed: {error.strerror}"
            summary.notices.append(f"{kept.path}: fails no longer, and {problem}")
        else:
            summary.notices.append(f"{kept.path}: fails no longer; removed")


def _run_machines(plan: Plan, _: Failures, deadline: float, summary: Summary, tell: Tell) -> None:
    """Run each machine on each subject, a chunk at a time in turn."""
    summary.stage = "machines"
    latest = deadline - (1 - MACHINES_SHARE) * plan.seconds
    turns = [
        (name, subject)
        for name in MACHINES
        for subject in plan.subjects
        if name != "pool" or _factory(subject)(PROBE).capabilities.pool_calls
    ]
    for done in range(0, plan.examples, CHUNK):
        for name, subject in turns:
            tell(summary)
            if time.perf_counter() > latest:
                return
            run = run_machine(
                MACHINES[name],
                _factory(subject),
                max_examples=min(CHUNK, plan.examples - done),
                seed=derived(plan.seed, name, subject, done),
                shrink=False,
            )
            summary.machine_examples += run.examples
            summary.machine_calls += run.calls
            if run.failure is not None:
                program, divergence = run.failure
                where = f"by the machine of the {name}, example {done + run.examples}"
                summary.caught = Caught(subject, program, str(divergence), where)
                return


def jobs_of(plan: Plan) -> Iterator[Job]:
    """Yield the jobs of a run in order, without end; the subjects take turns."""
    number = 0
    while True:
        subject = plan.subjects[number % len(plan.subjects)]
        yield Job(derived(plan.seed, "job", number), plan.calls_per_job, subject)
        number += 1


class _Merger:
    """Adds the answers of jobs to a summary in the order of the jobs, up to the first that fails.

    `failing` says that one has failed, be it merged or not: no more jobs are wanted.
    """

    def __init__(self, summary: Summary) -> None:
        self.failing = False
        self._summary = summary
        self._merged = 0
        self._waiting: dict[int, Answer] = {}

    def take(self, number: int, answer: Answer) -> None:
        """Take an answer, and merge what is next by now."""
        self._waiting[number] = answer
        self.failing = self.failing or isinstance(answer, Lost) or bool(answer.findings)
        while self._merged in self._waiting and not self._summary.failed:
            self._add(self._waiting.pop(self._merged))
            self._merged += 1

    def rest(self) -> None:
        """Merge what was done, although some jobs before it were not."""
        for number in sorted(self._waiting):
            self._add(self._waiting.pop(number))

    def _add(self, answer: Answer) -> None:
        summary = self._summary
        if isinstance(answer, Lost):
            summary.lost = summary.lost or answer
            return
        summary.jobs = summary.jobs.merge(answer)
        if answer.findings and summary.caught is None:
            found = answer.findings[0]
            where = f"by a walk: job seed {found.seed}, episode {found.episode}"
            if not found.repeated:
                where += "; the same calls did not fail the second time"
            summary.caught = Caught(found.subject, found.program, found.line, where)


def _do_jobs(plan: Plan, _: Failures, deadline: float, summary: Summary, tell: Tell) -> None:
    """Do jobs until the time is over, at least one a subject."""
    summary.stage = "jobs"
    merger = _Merger(summary)

    def stream() -> Iterator[Job]:
        for number, job in enumerate(jobs_of(plan)):
            over = time.perf_counter() > deadline and number >= len(plan.subjects)
            if over or merger.failing:
                return
            yield job

    with Alone() if plan.processes == 1 else Crew(plan.processes) as crew:
        try:
            for event in crew.results(stream()):
                if event is not None:
                    merger.take(*event)
                if summary.failed:
                    return
                tell(summary)
        except KeyboardInterrupt:
            merger.rest()
            raise
