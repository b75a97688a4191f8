"""The command in a process of its own: what it writes where, and how it takes Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Python = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.slow


@pytest.fixture
def trace(tmp_path: Path) -> Callable[[int], Path]:
    """Return a way to write a trace of some length."""

    def write(num_requests: int) -> Path:
        path = tmp_path / "long.jsonl"
        with path.open("w") as file:
            for at in range(num_requests):
                request = {
                    "timestamp": at,
                    "input_length": 5000,
                    "output_length": 3,
                    "hash_ids": [*range(9), 9 + at],
                }
                file.write(json.dumps(request) + "\n")
        return path

    return write


def test_figures_go_to_stdout_and_complaints_to_stderr(
    python: Python, trace: Callable[[int], Path]
) -> None:
    """A clean run says nothing on stderr, a refused one nothing on stdout, and no traceback."""
    path = trace(20)
    clean = python("-m", "conformance.cli", "replay", str(path))
    assert (clean.returncode, clean.stderr.strip()) == (0, "")
    assert "verdict: clean" in clean.stdout
    refused = python("-m", "conformance.cli", "replay", str(path.parent))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"kvspec: {path.parent}: is not a regular file")
    wrong = python("-m", "conformance.cli", "replay", str(path), "--blocks", "1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr + refused.stderr


def test_help_fits_a_narrow_terminal(python: Python) -> None:
    """Eighty columns are enough for the help of every command."""
    for command in ((), ("replay",), ("check",), ("explore",), ("prove",)):
        done = python("-m", "conformance.cli", *command, "--help", COLUMNS="80")
        assert done.returncode == 0
        assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_the_output_is_plain_where_colour_is_not_wanted(
    python: Python, trace: Callable[[int], Path]
) -> None:
    """A pipe gets no escape sequences, and a terminal that cannot draw gets no crash."""
    path = str(trace(20))
    piped = python("-m", "conformance.cli", "replay", path)
    assert "\x1b" not in piped.stdout + piped.stderr
    ascii_only = python("-m", "conformance.cli", "replay", path, PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0


def test_the_figures_do_not_depend_on_the_hash_seed(
    python: Python, trace: Callable[[int], Path], tmp_path: Path
) -> None:
    """Two processes write the same report but for the time that they took."""
    reports = []
    for hash_seed in ("0", "1"):
        out = tmp_path / f"{hash_seed}.json"
        args = ("replay", str(trace(200)), "--batch", "--blocks", "60", "--json", str(out))
        assert python("-m", "conformance.cli", *args, hash_seed=hash_seed).returncode == 0
        report: dict[str, Any] = json.loads(out.read_text())
        for timed in ("seconds", "calls_per_second", "blocks_per_second"):
            del report[timed]
        reports.append(report)
    assert reports[0] == reports[1]


def test_a_reader_who_leaves_is_no_crash(trace: Callable[[int], Path]) -> None:
    """Output into a pipe that nobody reads ends the command without a traceback."""
    command = [sys.executable, "-m", "conformance.cli", "replay", str(trace(20))]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(  # noqa: S603  # the project's own command
        command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert "Traceback" not in done.stderr


def interrupted(*args: str) -> tuple[int, str, str]:
    """Run the command, press Ctrl-C once it replays, and return its status and its output."""
    with subprocess.Popen(  # noqa: S603  # the project's own command
        [sys.executable, "-c", PROGRAM, *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while "replaying" not in process.stderr.readline():
            assert process.poll() is None, "the command ended before it replayed"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


PROGRAM = """
import signal, sys
from conformance import cli
from conformance.driving import replay

# A shell may start its children with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sound = replay._drain
def drain(ends, on_progress):
    told = []
    def tell(requests):
        if requests and not told:
            told.append(requests)
            sys.stderr.write("\\nreplaying\\n")
            sys.stderr.flush()
        on_progress(requests)
    sound(ends, tell)
replay._drain = drain
cli.main()
"""


@pytest.mark.parametrize("options", [(), ("--batch",), ("--check", "off"), ("--check", "full")])
def test_ctrl_c_prints_the_summary_so_far(
    trace: Callable[[int], Path], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The figures until then are printed and written, and the exit status is 130."""
    out = tmp_path / "out.json"
    path = trace(60_000)
    code, stdout, stderr = interrupted(
        "replay", str(path), "--blocks", "200", "--json", str(out), *options
    )
    assert code == 130
    assert "verdict: interrupted" in stdout
    assert "Traceback" not in stderr
    report = json.loads(out.read_text())
    assert report["verdict"] == "interrupted"
    assert 0 < report["requests"] < 60_000
    assert f"{report['requests']:,}: " in stdout
    assert f"{report['calls']:,}, " in stdout
