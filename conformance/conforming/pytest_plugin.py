"""Runs the conformance suite in pytest: `pytest --kvspec-subject module:Class`.

`kvcache/_entry.py` declares the options and loads this module where a subject is named, so that
other runs of pytest pay nothing for it. The checks are items like all others: `-k`, `-x`, `--lf`
and reports work on them, and `pytest kvspec:: ...` runs nothing else.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest

from conformance.conforming.suite import (
    DamagedFailureError,
    Target,
    checks_of,
    explanation,
    inapplicable,
    run,
)
from conformance.conforming.suite import target as target_of
from conformance.fuzzing.findings import DATABASE
from conformance.fuzzing.fuzz import SubjectCannotBeMadeError
from conformance.subjects import UnknownSubjectError

ROOT: Final = "kvspec"
"""What the node ids of the checks begin with, and the name of the property of their reports."""


class _Asked(NamedTuple):
    """What the command line asks for. `wanted` are the beginnings of node ids, none for all."""

    targets: list[Target]
    seconds: float
    wanted: list[str]


ASKED: Final = pytest.StashKey[_Asked]()


class _Failed(Exception):  # noqa: N818  # a finding, not an error of the plugin
    """A check that failed; the text explains it, and its first line is the violation's."""


class _Crash(NamedTuple):
    """What pytest's summary shows of a failure, in a line."""

    message: str


class _Shown(NamedTuple):
    """A failure as pytest shows it: the text as it is, and its first line in the summary."""

    text: str

    @property
    def reprcrash(self) -> _Crash:
        """The line for the summary."""
        return _Crash(self.text.split("\n", 1)[0])

    def toterminal(self, writer: Any) -> None:  # noqa: ANN401  # pytest's class for it is private
        """Write the text, its first line marked."""
        line, _, rest = self.text.partition("\n")
        writer.line(line, red=True, bold=True)
        writer.line(rest)

    def __str__(self) -> str:
        return self.text


def pytest_configure(config: pytest.Config) -> None:
    """Find the subjects, and take the node ids of checks from the arguments."""
    seconds = config.getoption("--kvspec-seconds")
    if not 0 <= seconds < math.inf:
        raise pytest.UsageError(f"--kvspec-seconds is {seconds}: give a number from 0 on")
    wanted = [arg for arg in config.args if arg.startswith(f"{ROOT}::")]
    config.args = [arg for arg in config.args if arg not in wanted]
    names = dict.fromkeys(config.getoption("--kvspec-subject"))
    seed, kept = config.getoption("--kvspec-seed"), config.rootpath / DATABASE
    config.stash[ASKED] = _Asked([_target(name, seed, kept) for name in names], seconds, wanted)


def _target(name: str, seed: int, kept: Path) -> Target:
    try:
        return target_of(name, seed, kept)
    except (UnknownSubjectError, SubjectCannotBeMadeError) as error:
        raise pytest.UsageError(f"--kvspec-subject: {error}") from error
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        raise pytest.UsageError(
            f"--kvspec-subject: {name!r} cannot be imported:\n{text}"
        ) from error


@pytest.hookimpl(tryfirst=True)  # What selects items selects among these too.
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks of each subject."""
    wanted = config.stash[ASKED].wanted
    suite = _Suite.from_parent(session, name=ROOT, nodeid=ROOT)
    checks = list(session.genitems(suite))
    chosen = [item for item in checks if not wanted or _is_among(item.nodeid, wanted)]
    for begin in wanted:
        if not any(_is_among(item.nodeid, [begin]) for item in checks):
            there = ", ".join(item.nodeid for item in checks)
            raise pytest.UsageError(f"not found: {begin}; the checks are {there}")
    items.extend(chosen)


def _is_among(nodeid: str, wanted: Sequence[str]) -> bool:
    return any(f"{nodeid}::".startswith(f"{begin.removesuffix('::')}::") for begin in wanted)


class _Suite(pytest.Collector):
    """All subjects."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield the subjects."""
        for target in self.config.stash[ASKED].targets:
            checks: _Checks = _Checks.from_parent(self, name=target.name)
            checks.target = target
            yield checks


class _Checks(pytest.Collector):
    """The checks of one subject."""

    target: Target

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the checks, then what is not asked of the subject; that is skipped, and says so."""
        reasons = dict(inapplicable(self.target.capabilities))
        for name in dict.fromkeys((*checks_of(self.target), *reasons)):
            check: _Check = _Check.from_parent(self, name=name)
            check.target = self.target
            if name in reasons:
                check.left_out = f"{self.target.name}: its capability {reasons[name]}"
            yield check


class _Check(pytest.Item):
    """One check of one subject."""

    target: Target
    left_out: str | None = None
    """Why it does not apply to the subject."""

    def runtest(self) -> None:
        """Run the check. Raises `_Failed`."""
        if self.left_out is not None:
            pytest.skip(self.left_out)
        done = run(self.target, self.name, self.config.stash[ASKED].seconds)
        said = f"{done.examples:,} examples, {done.calls:,} calls, {done.seconds:.1f} s"
        self.user_properties.append((ROOT, said))
        if done.failure is not None:
            raise _Failed(explanation(self.target, self.name, done))

    def repr_failure(
        self,
        excinfo: pytest.ExceptionInfo[BaseException],
        *_: Any,  # noqa: ANN401  # pytest's styles of a traceback, of which there is none
    ) -> Any:  # noqa: ANN401  # pytest's class for it is private
        """Return how the failure is shown."""
        if isinstance(excinfo.value, _Failed | SubjectCannotBeMadeError | DamagedFailureError):
            return _Shown(str(excinfo.value))
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the check is, which is nowhere, and what it is called.

        Where a name ends as the node id does, pytest takes its dots for those of a class.
        """
        return self.path, None, f"{self.target.name} {self.name}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was tried."""
    reports = [
        cast("pytest.TestReport", report)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, ())
    ]
    lines = [
        f"{report.nodeid}: {report.outcome}, {said}"
        for report in reports
        for name, said in report.user_properties
        if name == ROOT
    ]
    if lines:
        terminalreporter.section("kvspec")
        for line in lines:
            terminalreporter.line(line)
