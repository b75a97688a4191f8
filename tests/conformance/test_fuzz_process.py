"""`kvspec fuzz` in a process of its own: Ctrl-C, killed workers, what goes where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

PROGRAM = """
import signal, sys
from conformance.fuzzing import campaign
from conformance import cli
from conformance.fuzzing.campaign import Profile

# A shell may start its children with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
campaign.PROFILES["dev"] = Profile(5, {examples}, None)
sound = campaign.Summary.__setattr__
told = []
def tell(self, name, value):
    sound(self, name, value)
    if name == {name!r} and getattr(value, "calls", value) and not told:
        told.append(value)
        sys.stderr.write("\\nat work\\n")
        sys.stderr.flush()
campaign.Summary.__setattr__ = tell
if __name__ == "__main__":
    cli.main()
"""
"""The command, which tells when it has come to a stage."""


@contextmanager
def at_work(folder: Path, name: str, examples: int, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process group of its own until a figure of its summary has changed."""
    path = folder / "program.py"
    path.write_text(PROGRAM.format(name=name, examples=examples))
    with subprocess.Popen(  # noqa: S603  # the project's own command
        [sys.executable, str(path), "fuzz", "--seed", "1", "--json", "o.json", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        while "at work" not in process.stderr.readline():
            assert process.poll() is None, "the command ended before it worked"
        yield process
        process.kill()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def runs(pid: int) -> bool:
    """Return whether a process does something; one that only waits to be counted does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("name", "examples", "jobs"),
    [("machine_calls", 10_000, "1"), ("jobs", 0, "1"), ("jobs", 0, "2")],
)
def test_ctrl_c_ends_with_the_summary(tmp_path: Path, name: str, examples: int, jobs: str) -> None:
    """Status 130, the figures until then, no traceback, and no process is left."""
    with at_work(tmp_path, name, examples, "--jobs", jobs) as process:
        workers = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "verdict: interrupted; what was done is clean" in stdout
    assert "Traceback" not in stderr
    assert "KeyboardInterrupt" not in stderr
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["verdict"] == "interrupted"
    assert report["calls"] > 0
    assert f"{report['calls']:,} calls" in stdout
    assert len(workers) >= int(jobs) - (jobs == "1")
    deadline = time.monotonic() + 20
    while any(map(runs, workers)):
        assert time.monotonic() < deadline, "a process is left"


def test_a_killed_worker_does_not_end_the_run(tmp_path: Path) -> None:
    """The run goes on with another one, until Ctrl-C."""
    with at_work(tmp_path, "jobs", 0, "--jobs", "2") as process:
        before = set(children(process.pid))
        for pid in before:
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        while not set(children(process.pid)) - before:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "verdict: interrupted" in stdout


def test_help_fits_a_narrow_terminal(python: Callable[..., Any]) -> None:
    """Eighty columns are enough."""
    done = python("-m", "conformance.cli", "fuzz", "--help", COLUMNS="80")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_seed_finds_the_same_under_another_hash_seed(
    python: Callable[..., Any], planted: Path, tmp_path: Path
) -> None:
    """Two processes print the same failure, and write the same test."""
    tests = []
    for hash_seed in ("0", "1"):
        folder = tmp_path / hash_seed
        done = python(
            "-m",
            "conformance.cli",
            "fuzz",
            *("--subject", "planted_subjects:Leaky", "--seed", "5"),
            *("--out", str(folder), "--database", str(tmp_path / f"kept {hash_seed}")),
            hash_seed=hash_seed,
            PYTHONPATH=f"{planted.parent}:{ROOT}",
        )
        assert done.returncode == 1, done.stderr
        assert done.stderr == ""
        (path,) = folder.glob("test_*.py")
        tests.append((path.name, path.read_text(), done.stdout.splitlines()[1]))
    assert tests[0] == tests[1]
