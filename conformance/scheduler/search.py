"""Searches for a script that breaks a property.

Scripts are drawn one after another from a seed; the number of a script and the seed say what it
does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from conformance.divergence import Divergence
from conformance.scheduler import stand_in
from conformance.scheduler.harness import Make, Run
from conformance.scheduler.script import Script
from conformance.scheduler.shortening import cost, shrink
from conformance.scheduler.workload import LENGTHS, Client, draw_setting

SHORT_ENOUGH: Final = 6
"""Scheduler steps of a script that a person can follow."""
SHRINKING_SECONDS: Final = 12.0


class Aim(NamedTuple):
    """What is searched."""

    policy: str
    scheduler: str
    seed: int = 0
    num_blocks: int | None = None
    """Blocks of every pool, null included; None draws it for each script."""


class Found(NamedTuple):
    """A violation: the script as it was drawn, and the run of what is left of it."""

    number: int
    drawn: Script
    seconds: float
    """When it was found, after the beginning of the search."""
    run: Run

    @property
    def divergence(self) -> Divergence:
        """What broke."""
        assert self.run.divergence is not None
        return self.run.divergence


class Tally:
    """How far a search is: what was done, and the shortest that was found."""

    def __init__(self, aim: Aim) -> None:
        self.aim = aim
        self.num_scripts = 0
        self.num_steps = 0
        self.num_preempted = 0
        self.num_violations = 0
        self.seconds = 0.0
        """Time spent on drawing and checking, without that for shortening."""
        self.found: Found | None = None
        self.interrupted = False

    @property
    def steps_per_second(self) -> float:
        """Scheduler steps in a second, checks included."""
        return self.num_steps / self.seconds if self.seconds else 0.0

    def saw(self, performed: Run, seconds: float) -> None:
        """Count a script that ran."""
        self.num_scripts += 1
        self.num_steps += performed.harness.num_steps
        self.num_preempted += performed.harness.num_preempted
        self.seconds += seconds


def search(
    aim: Aim,
    seconds: float,
    make: Make = stand_in.make_scheduler,
    on_script: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run random scripts until the time is over, or a violation is down to a few steps.

    A violation whose script cannot be made short enough is kept, and the search goes on to another
    that shows the same property broken. Ctrl-C ends it and keeps what there is.
    """
    tally, started = Tally(aim), time.monotonic()
    try:
        while (passed := time.monotonic() - started) < seconds:
            begun = time.perf_counter()
            performed = drawn(aim, tally.num_scripts, make)
            tally.saw(performed, time.perf_counter() - begun)
            on_script(tally)
            broken = performed.divergence
            if broken is None or broken.property != _sought(tally, broken):
                continue
            tally.num_violations += 1
            left = min(SHRINKING_SECONDS, max(1.0, seconds - passed))
            short = shrink(performed.script, broken.property, left, make)
            if tally.found is None or cost(short.script) < cost(tally.found.run.script):
                number = tally.num_scripts - 1
                tally.found = Found(number, performed.script, passed, short)
            if tally.found.run.script.num_steps <= SHORT_ENOUGH:
                break
    except KeyboardInterrupt:
        tally.interrupted = True
    return tally


def _sought(tally: Tally, broken: Divergence) -> str:
    return broken.property if tally.found is None else tally.found.divergence.property


def drawn(aim: Aim, number: int, make: Make = stand_in.make_scheduler) -> Run:
    """Draw the `number`th script of a search while it runs."""
    rng = Random(f"{aim.seed}/{aim.policy}/{aim.scheduler}/{number}")  # noqa: S311  # no secret
    performed = Run(draw_setting(rng, aim.policy, aim.scheduler, aim.num_blocks), make)
    client = Client(rng, performed.harness.setting)
    for _ in range(rng.choice(LENGTHS)):
        if performed.happen(client.next(performed.harness.tokens())) is not None:
            break
    return performed
