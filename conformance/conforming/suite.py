"""The conformance suite of one subject: checks that can be run one by one, and what a failure says.

A check works in rounds. The first is the same every time; further ones, which are for those who
have time, differ from it by their seeds. A failure is shrunk and kept in the folder where
`kvspec fuzz` keeps its own, so that either tries first what the other found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from conformance.exhaustive.production import quiet
from conformance.fuzzing.campaign import derived
from conformance.fuzzing.findings import Damaged, Failing, Failures
from conformance.fuzzing.fuzz import PROBE, Job, made, run_job
from conformance.machines.machine import MACHINES, run_machine
from conformance.pictures.explain import explained
from conformance.pictures.explain_text import as_text
from conformance.program import Factory, Program
from conformance.shrinking.shrink import NoFailureError, Shrinker
from conformance.subject import Capabilities
from conformance.subjects import find_subject

EXAMPLES: Final = 50
"""Programs that a state machine tries in a round."""
CALLS: Final = 10_000
"""Calls that the driver makes in a round."""
SHRINK_SECONDS: Final = 10.0

NOT_ASKED: Final[Mapping[str, str]] = {
    "window": "no sliding window was tried",
    "lookahead": "no drafts and no look-ahead were tried",
    "unpublish": "no keys were taken back by a direct caller",
    "salts": "no request came with a salt",
    "generations": "no adapter came with new weights",
}
"""What the checks leave out where a capability is False."""


class Target(NamedTuple):
    """A subject, what it can do, and where its failures are kept."""

    name: str
    make: Factory
    capabilities: Capabilities
    seed: int
    kept: Path


class Round(NamedTuple):
    """What a round did, and the first thing that failed: its program and the violation's line."""

    examples: int
    calls: int
    failure: tuple[Program, str] | None


class Done(NamedTuple):
    """What a check did in all its rounds."""

    examples: int
    calls: int
    seconds: float
    failure: tuple[Program, str] | None


class DamagedFailureError(Exception):
    """A kept failure that cannot be read; the text says why."""


def target(name: str, seed: int, kept: Path) -> Target:
    """Return the subject of a name.

    Raises `UnknownSubjectError` or `fuzz.SubjectCannotBeMadeError`, and whatever the import of the
    subject's module raises.
    """
    make: Factory = partial(made, find_subject(name), name)
    return Target(name, make, make(PROBE).capabilities, seed, kept)


def _machine(name: str, target: Target, number: int) -> Round:
    seed = derived(target.seed, "suite", name, number)
    kind = MACHINES[name]
    run = run_machine(kind, target.make, max_examples=EXAMPLES, seed=seed, shrink=False)
    failure = run.failure and (run.failure.program, str(run.failure.divergence))
    return Round(run.examples, run.calls, failure)


def _driver(target: Target, number: int) -> Round:
    done = run_job(Job(derived(target.seed, "suite", "driver", number), CALLS, target.name))
    failure = next(((found.program, found.line) for found in done.findings), None)
    return Round(done.episodes, done.calls, failure)


def _past_failures(target: Target, _: int) -> Round:
    """Perform what failed before; what fails no longer is forgotten."""
    failures = Failures(target.kept)
    examples = calls = 0
    for kept in failures.tried_first([target.name]):
        if isinstance(kept, Damaged):
            raise DamagedFailureError(kept.problem)
        examples, calls = examples + 1, calls + len(kept.program.operations)
        try:
            shrinker = Shrinker(kept.program, target.make)
        except NoFailureError:
            failures.forget(kept.path)
            continue
        return Round(examples, calls, (shrinker.program, str(shrinker.divergence)))
    return Round(examples, calls, None)


CHECKS: Final[Mapping[str, Callable[[Target, int], Round]]] = {
    "past_failures": _past_failures,
    "pool_machine": partial(_machine, "pool"),
    "manager_machine": partial(_machine, "manager"),
    "driver": _driver,
}
"""The checks in the order in which they are run."""


def checks_of(target: Target) -> Iterator[str]:
    """Yield the names of the checks; past failures are one where there are any."""
    for name in CHECKS:
        if name != "past_failures" or any(Failures(target.kept).tried_first([target.name])):
            yield name


def inapplicable(can: Capabilities) -> Iterator[tuple[str, str]]:
    """Yield what is not asked of a subject, a check or a capability, and why."""
    if not can.pool_calls:
        yield "pool_machine", "pool_calls is False: nobody called the pool directly"
    for name, left_out in NOT_ASKED.items():
        if not getattr(can, name):
            yield name, f"{name} is False: {left_out}"
    if can.rules is not None:
        yield "rules", f"rules is {', '.join(sorted(can.rules)) or 'empty'}: no other was broken"


def run(target: Target, check: str, seconds: float = 0) -> Done:
    """Run a check until something fails, or its seconds are over; at least one round is done."""
    begun = time.perf_counter()
    examples = calls = number = 0
    failure = None
    with quiet():
        while failure is None and (number == 0 or time.perf_counter() - begun < seconds):
            done = CHECKS[check](target, number)
            examples, calls, failure = examples + done.examples, calls + done.calls, done.failure
            number += 1
            if check == "past_failures":
                break
    return Done(examples, calls, time.perf_counter() - begun, failure)


def explanation(target: Target, check: str, done: Done) -> str:
    """Return the text of a failure: its line, where it was found, the step table, and a test.

    The program is shrunk for it and kept.
    """
    assert done.failure is not None
    program, line = done.failure
    where = f"found by {check} after {done.examples:,} examples and {done.calls:,} calls"
    with quiet():
        try:
            shrinker = Shrinker(program, target.make, max_seconds=SHRINK_SECONDS)
        except NoFailureError:
            return (
                f"{line}\n{where}; performed once more, the same calls do not fail: the subject "
                "depends on something besides its calls"
            )
        shrinker.run()
        failing = Failing(shrinker.program, shrinker.divergence, target.name, shrinker.check)
        table = as_text(explained(failing.program, target.make))
        try:
            kept = f"kept in {Failures(target.kept).keep(failing)}, to be tried first next time"
        except OSError as error:
            kept = f"not kept: {error}"
    shrunk = f"{len(program.operations):,} calls, shrunk to {len(failing.program.operations):,}"
    parts = (
        str(failing.divergence),
        f"{where}; {shrunk}; {kept}",
        "",
        table,
        "the same as a test to paste:",
        "",
        failing.as_test(),
    )
    return "\n".join(parts)
