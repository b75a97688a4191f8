"""Long random runs in lockstep, cut into jobs: what a job does depends on nothing but the job.

A job makes episodes until its calls are used up. An episode draws a configuration, makes a pair,
and walks; some walks use the manager, some the pool directly. Almost all check incrementally; one
in a few checks everything after every call, on a small pool, and notes which of the situations
that must be seen occurred. Every episode ends with a sweep.

Results can be merged in any order, so jobs may run on any number of processes or machines: what
must be carried there is the job, and back the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

from conformance.driving.pool_walk import PoolWalk
from conformance.driving.walk import Walk
from conformance.exhaustive.production import quiet
from conformance.fuzzing.shapes import EDGES, Distinct, Edge, Shapes, WatchedPair
from conformance.lockstep import Divergence, Lockstep
from conformance.program import Factory, Program, recording
from conformance.subject import Capabilities, Subject
from conformance.subjects import find_subject
from spec.invariants import Step
from spec.reachable import REACHABLE, seen_in
from spec.state import Config
from spec.statemachine import Refused

CALLS_PER_JOB: Final = 10_000
PROBE: Final = Config(9, 2)
"""What a subject is made with to ask what it can do."""

MAX_KEPT: Final = 8
"""How many failing programs a merged result keeps; all are counted."""

MAX_STRETCHES: Final = 50

FULL_EVERY: Final = 4
"""One episode in so many is checked whole after every call."""


class Job(NamedTuple):
    """A share of a long run: plain data, which a JSON list can carry.

    `calls` is the budget; the last episode ends with it. `stop` ends the job at its first failure.
    """

    seed: int
    calls: int
    subject: str
    stop: bool = True


class Episode(NamedTuple):
    """One walk from an empty pool. `pool` chooses direct calls, `full` the dearer check."""

    config: Config
    seed: int
    calls: int
    pool: bool
    full: bool


class Finding(NamedTuple):
    """A program that fails, where it came from, and the line that names the failure.

    `repeated` is False when the same calls did not fail the second time: the subject depends on
    something besides its calls.
    """

    seed: int
    episode: int
    subject: str
    property: str
    line: str
    program: Program
    repeated: bool


class JobResult(NamedTuple):
    """What jobs did and saw. `merge` is associative and commutative, `NOTHING` is neutral."""

    jobs: int
    episodes: int
    calls: int
    refusals: Counter[str]
    """How often each rule refused a call."""
    reachable: Counter[str]
    """How often each situation of `spec.reachable` was seen, in the episodes checked whole."""
    edges: frozenset[Edge]
    """The transitions that single blocks made."""
    states: Distinct
    transitions: Distinct
    failures: Counter[str]
    """How many episodes failed, by property."""
    findings: tuple[Finding, ...]
    """The first few of them, in the order of seed and episode."""

    def merge(self, other: JobResult) -> JobResult:
        """Return what both did together."""
        return JobResult(
            self.jobs + other.jobs,
            self.episodes + other.episodes,
            self.calls + other.calls,
            self.refusals + other.refusals,
            self.reachable + other.reachable,
            self.edges | other.edges,
            self.states | other.states,
            self.transitions | other.transitions,
            self.failures + other.failures,
            tuple(sorted(self.findings + other.findings, key=lambda f: f[:5])[:MAX_KEPT]),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the counts as plain data; of the sketches, the numbers that they estimate."""
        return {
            "jobs": self.jobs,
            "examples": self.episodes,
            "calls": self.calls,
            "states": len(self.states),
            "transitions": len(self.transitions),
            "block_transitions": sorted(map(list, self.edges)),
            "block_transitions_unseen": sorted(map(list, set(EDGES.values()) - self.edges)),
            "reachable": dict(sorted(self.reachable.items())),
            "reachable_unseen": sorted(REACHABLE.keys() - self.reachable.keys()),
            "refusals": dict(sorted(self.refusals.items())),
            "failures": dict(sorted(self.failures.items())),
        }


NOTHING: Final = JobResult(
    jobs=0,
    episodes=0,
    calls=0,
    refusals=Counter(),
    reachable=Counter(),
    edges=frozenset(),
    states=Distinct(),
    transitions=Distinct(),
    failures=Counter(),
    findings=(),
)
"""What no job did."""


class SubjectCannotBeMadeError(Exception):
    """A subject that raises when it is made; the text says with which configuration, and what."""


def made(make: Factory, name: str, config: Config) -> Subject:
    """Return a fresh subject."""
    try:
        return make(config)
    except Exception as error:
        raise SubjectCannotBeMadeError(
            f"{name!r} cannot be made with {config}: {type(error).__name__}: {error}"
        ) from error


def episodes(job: Job, capabilities: Capabilities) -> Iterator[Episode]:
    """Yield the episodes of a job, without end."""
    rng = Random(job.seed)  # noqa: S311 (a job must be repeatable, not secret)
    while True:
        pool = capabilities.pool_calls and rng.random() < 0.3
        full = rng.randrange(FULL_EVERY) == 0
        config = _config(rng, capabilities, small=full)
        calls = rng.randint(100, 300) if full else rng.randint(300, 2_000)
        yield Episode(config, rng.getrandbits(64), calls, pool, full)


def _config(rng: Random, capabilities: Capabilities, *, small: bool) -> Config:
    size = rng.randint(1, 4)
    kind = 0.0 if small else rng.random()
    usable = rng.randint(1, 8) if kind < 0.85 else rng.randint(9, 40 if kind < 0.97 else 300)
    windowed = capabilities.window and rng.random() < 0.4
    window = rng.randint(2, 3 * size + 2) if windowed else None
    short = rng.random() < 0.15
    return Config(
        num_gpu_blocks=usable + 1,
        block_size=size,
        max_model_len=rng.randint(1, 6 * size) if short else 1 << 30,
        enable_caching=rng.random() < 0.9,
        sliding_window=window,
    )


def run_job(job: Job) -> JobResult:
    """Return what a job did: the same in every process, whatever the hash seed."""
    make = find_subject(job.subject)
    capabilities = made(make, job.subject, PROBE).capabilities
    shapes = Shapes()
    refusals: Counter[str] = Counter()
    reachable: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    findings: list[Finding] = []
    calls = number = 0
    drawn = episodes(job, capabilities)
    with quiet():
        while calls < job.calls and not (findings and job.stop):
            episode = next(drawn)
            episode = episode._replace(calls=min(episode.calls, job.calls - calls))
            pair = _pair(made(make, job.subject, episode.config), episode, shapes, reachable)
            walk, divergence = walked(pair, episode)
            calls += pair.calls
            for what, times in walk.counts.items():
                if what.startswith("refused: "):
                    refusals[what.removeprefix("refused: ")] += times
            if divergence is not None:
                failures[divergence.property] += 1
                if len(findings) < MAX_KEPT:
                    findings.append(_found(job, number, make, episode, divergence))
            number += 1
    return JobResult(
        jobs=1,
        episodes=number,
        calls=calls,
        refusals=refusals,
        reachable=reachable,
        edges=shapes.edges(),
        states=shapes.states,
        transitions=shapes.transitions,
        failures=failures,
        findings=tuple(findings),
    )


def _pair(subject: Subject, episode: Episode, shapes: Shapes, reachable: Counter[str]) -> Lockstep:
    if not episode.full:
        return WatchedPair(subject, shapes)

    def look(step: Step) -> None:
        # A refused call may name blocks that there are not, and shows only how it was refused.
        if step.action != "allocate_slots" or not isinstance(step.result, Refused):
            reachable.update(seen_in(step))

    pair = Lockstep(subject, "full")
    pair.on_step = look
    return pair


def walked(pair: Lockstep, episode: Episode) -> tuple[Walk | PoolWalk, Divergence | None]:
    """Walk until the calls are used up, and sweep; return the walk and what ended it early."""
    walk = (PoolWalk if episode.pool else Walk)(pair, episode.seed)
    try:
        # A move may make no call, or one that the subject is never asked; so there is a limit.
        for _ in range(MAX_STRETCHES):
            if (left := episode.calls - pair.calls) <= 0:
                break
            walk.run(max(16, left // 2))
        pair.sweep()
    except Divergence as divergence:
        return walk, divergence
    return walk, None


def _found(
    job: Job, number: int, make: Factory, episode: Episode, divergence: Divergence
) -> Finding:
    """Make an episode again, its calls recorded."""
    subject, operations = recording(made(make, job.subject, episode.config))
    _, again = walked(Lockstep(subject, "full" if episode.full else "incremental"), episode)
    return Finding(
        job.seed,
        number,
        job.subject,
        divergence.property,
        str(divergence),
        Program(episode.config, tuple(operations)),
        again is not None and str(again) == str(divergence),
    )
