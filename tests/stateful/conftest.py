"""How long the machines run, and what a failure of one shows.

`KVSPEC_PROFILE`, or `--hypothesis-profile` when this folder is named on the command line, is one of
`dev`, `ci` (the default; the same run every time) and `soak`. `KVSPEC_OUT` names the folder for the
logs of failures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from conformance.exhaustive.coverage import Reached
from conformance.fuzzing.findings import DATABASE
from conformance.fuzzing.noted import noted
from conformance.machines.machine import (
    STEPS,
    Machine,
    MachineRun,
    ManagerMachine,
    PoolMachine,
    run_machine,
)
from conformance.subjects import find_subject

for name, examples in (("dev", 50), ("ci", 240), ("soak", 20_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=name == "ci",
        database=None,
        deadline=None,
        stateful_step_count=STEPS,
        suppress_health_check=list(HealthCheck),
    )

RUNS: tuple[tuple[type[Machine], str], ...] = (
    (PoolMachine, "reference"),
    (ManagerMachine, "reference"),
    (ManagerMachine, "reference-builtin"),
)
"""What the profile runs: the machines, and our manager with each kind of keys."""


class Session(NamedTuple):
    """The runs of a profile, and what they saw together."""

    runs: list[MachineRun]
    reached: Reached


Check = Callable[..., MachineRun]


@pytest.fixture(scope="session")
def profile(pytestconfig: pytest.Config) -> settings:
    """Return the settings that are asked for; those of other tests stay as they are."""
    name = pytestconfig.getoption("--hypothesis-profile")
    return settings.get_profile(name or os.environ.get("KVSPEC_PROFILE", "ci"))


@pytest.fixture(scope="session")
def checked(profile: settings) -> Check:
    """Return a way to run a machine in the profile; a failure is raised with all that shows it."""

    def check(kind: type[Machine], subject: str, **more: Any) -> MachineRun:  # noqa: ANN401  # as `run_machine`
        make = more.pop("make", None) or find_subject(subject)
        effort = {
            "max_examples": profile.max_examples,
            "stateful_step_count": profile.stateful_step_count,
            "seed": 0 if profile.derandomize else None,
        }
        run = run_machine(kind, make, **effort | more)
        if run.failure is not None:
            raise noted(run.failure, make, subject, Path(os.environ.get("KVSPEC_OUT", DATABASE)))
        return run

    return check


@pytest.fixture(scope="session")
def session(checked: Check) -> Session:
    """Return the runs of the profile."""
    reached = Reached()
    runs = [checked(kind, subject, on_step=reached.note) for kind, subject in RUNS]
    return Session(runs, reached)


@pytest.fixture
def python() -> Callable[..., str]:
    """Return a way to run a program in another process, with another hash seed."""

    def run(program: str, hash_seed: str) -> str:
        done = subprocess.run(  # noqa: S603  # our own interpreter on a constant
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        return done.stdout + done.stderr

    return run
