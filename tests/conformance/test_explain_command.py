"""`kvspec explain` shows a log, writes the page, refuses bad input, and exits accordingly."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import output
from conformance.commands import explain as explain_command
from conformance.logs.oplog import write_program
from conformance.pictures.explain import Explained, explained
from conformance.program import FOUND, Factory, Operation, Program
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

Command = Callable[..., Any]
Python = Callable[..., subprocess.CompletedProcess[str]]

FAULTY = """
from conformance.adapters.reference import Reference


class Lame(Reference):
    def __init__(self, config):
        raise ValueError("not today")


class Leaking(Reference):
    def finish(self, rid):
        super().finish(rid)
        self.pool.blocks[1].ref_cnt += 1
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log of one request that arrives, runs and ends."""
    path = tmp_path / "log.ndjson"
    allocation = {"rid": "r1", "num_tokens": 3, "hits": FOUND, "num_lookahead": 0}
    operations = (
        Operation("add_request", {"rid": "r1", "request": RequestSpec((0, 1, 0))}),
        Operation("get_computed_blocks", {"rid": "r1"}),
        Operation("allocate_slots", allocation),
        Operation("run_step", {"outcomes": {"r1": Outcome(0, (1,))}}),
        Operation("finish", {"rid": "r1"}),
    )
    write_program(path, Program(Config(4, 2), operations), "reference")
    return path


@pytest.fixture
def leaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a subject that keeps a reference at the end of a request."""
    (tmp_path / "faulty_for_explain.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    return "faulty_for_explain:Leaking"


def plain(text: str) -> str:
    """Return a message without the box around it and without its line breaks."""
    return re.sub(r"[\s│]+", "", text)


def test_a_clean_log_is_a_picture_of_what_happened(kvspec: Command, log: Path) -> None:
    """The table, the verdict, nothing on stderr, exit status 0."""
    result = kvspec("explain", log)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("reference: 3 blocks of 2 tokens and null, full attention")
    assert re.search(
        r"^3 allocate_slots\(r1, num_tokens=3\) = \[1, 2\] +1a\*'", result.stdout, re.MULTILINE
    )
    assert result.stdout.splitlines()[-1] == "verdict: clean, 5 calls"


def test_a_violation_exits_with_1(
    kvspec: Command, log: Path, leaking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is one line on a narrow terminal too, and stands after the table."""
    monkeypatch.setattr(output.out, "_width", 80)
    result = kvspec("explain", log, "--subject", leaking)
    assert result.exit_code == 1
    line = r"^kvspec violation: property=\w+ call=5 finish block=1 .* found_by=lockstep$"
    assert re.search(line, result.stdout, re.MULTILINE)
    assert "0a!1a'" in result.stdout
    assert result.stdout.splitlines()[-1] == "verdict: violation"


def test_what_the_manager_logs_is_kept_quiet(
    kvspec: Command, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset that fails is an answer in the table and no warning beside it."""
    header, *calls = log.read_text().splitlines()
    calls[4] = '{"n": 5, "call": "reset_prefix_cache", "args": {}}'
    log.write_text("\n".join([header, *calls]) + "\n")
    result = kvspec("explain", log)
    assert result.exit_code == 0
    assert re.search(r"^5 reset_prefix_cache\(\) = False", result.stdout, re.MULTILINE)
    assert caplog.records == []


def test_the_page_is_written(kvspec: Command, log: Path, leaking: str, tmp_path: Path) -> None:
    """What the terminal shows stands on the page, whatever the verdict."""
    out = tmp_path / "out.html"
    result = kvspec("explain", log, "--html", out, "--subject", leaking)
    assert result.exit_code == 1
    (line,) = re.findall(r"^kvspec violation: .*$", result.stdout, re.MULTILINE)
    assert line in out.read_text(encoding="utf-8")
    assert kvspec("explain", log, "--html", out).exit_code == 0
    assert "Nothing broke." in out.read_text(encoding="utf-8")


def test_the_last_calls_may_be_chosen(kvspec: Command, log: Path) -> None:
    """`--last` says how many rows there are."""
    shown = kvspec("explain", log, "--last", 2).stdout
    assert re.findall(r"^(\d) \w", shown, re.MULTILINE) == ["4", "5"]
    assert "calls 1 to 3 are not shown" in shown


BAD = {
    "no log": ("{there}/absent.ndjson", "absent.ndjson"),
    "a folder": ("{there}", "{there}"),
    "no JSON": ("{there}/text.txt", "text.txt:1"),
    "no subject": ("{log} --subject nobody", "'nobody' is no subject"),
    "no module": ("{log} --subject nowhere:Pool", "there is no module 'nowhere'"),
    "no start": ("{log} --subject faulty_for_explain:Lame", "does not start with Config"),
    "no row": ("{log} --last 0", "give a number from 1 to"),
    "the log itself": ("{log} --html {log}", "is the input; name another file"),
    "a folder as page": ("{log} --html {there}", "is a folder; name a file"),
    "no folder": ("{log} --html {there}/absent/out.html", "does not exist; make it first"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.usefixtures("leaking")
def test_bad_input_is_refused(kvspec: Command, log: Path, tmp_path: Path, name: str) -> None:
    """The message names the value, nothing is performed or changed, exit status 2."""
    (tmp_path / "text.txt").write_text("hello\n")
    before = log.read_bytes()
    options, says = (text.format(there=tmp_path, log=log) for text in BAD[name])
    result = kvspec("explain", *options.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert plain(says) in plain(result.stderr)
    assert "Traceback" not in result.stderr
    assert log.read_bytes() == before


def test_a_torn_log_is_used_as_far_as_it_goes(kvspec: Command, log: Path) -> None:
    """The line is named, the calls before it are shown."""
    log.write_text(log.read_text()[:-40])
    result = kvspec("explain", log)
    assert result.exit_code == 0
    assert f"{log}:6: the last line is torn" in result.stderr
    assert result.stdout.splitlines()[-1] == "verdict: clean, 4 calls"


def test_ctrl_c_shows_what_there_is(
    kvspec: Command, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 130, with the calls until then, or word that there are none."""

    def interrupted(program: Program, make: Factory, **_: object) -> Explained:
        def press(number: int) -> None:
            if number == 2:
                raise KeyboardInterrupt

        return explained(program, make, on_call=press)

    monkeypatch.setattr(explain_command, "explained", interrupted)
    result = kvspec("explain", log)
    assert result.exit_code == 130
    assert result.stdout.splitlines()[-1] == "verdict: interrupted after 2 calls"

    def at_once(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain_command, "opened", at_once)
    early = kvspec("explain", log)
    assert (early.exit_code, early.stdout) == (130, "")
    assert "interrupted" in early.stderr


@pytest.mark.slow
def test_the_output_is_the_same_everywhere(python: Python, log: Path, tmp_path: Path) -> None:
    """Another hash seed, an ASCII terminal of 80 columns: the same table, no escape, no crash."""
    shown = []
    for seed in ("0", "1"):
        page = tmp_path / f"{seed}.html"
        args = ("-m", "conformance.cli", "explain", str(log), "--html", str(page))
        done = python(*args, hash_seed=seed, COLUMNS="80", PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr.strip()) == (0, "")
        assert done.stdout.isascii()
        assert "\x1b" not in done.stdout
        shown.append((done.stdout, page.read_text(encoding="utf-8")))
    assert shown[0] == shown[1]
    assert max(len(line) for line in shown[0][0].splitlines()) <= 80


@pytest.mark.slow
def test_the_help_fits_a_narrow_terminal(python: Python) -> None:
    """Eighty columns are enough."""
    done = python("-m", "conformance.cli", "explain", "--help", COLUMNS="80")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
