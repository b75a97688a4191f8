"""The command says what it did, what was wrong with what it was given, and exits accordingly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import check as checks
from conformance.adapters.reference import Reference
from conformance.driving.replay import Report
from conformance.faults.mutants import MUTANTS

GOOD = {"timestamp": 0, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 9]}
LINE = r"kvspec violation: property=\w+ call=\d+ \w+ block=\S+ expected=\S+ actual=\S+ holders=\S+ "

Command = Callable[..., Any]


def figures(output: str) -> dict[str, str]:
    """Return the rows of the table of figures."""
    return dict(re.findall(r"^([a-z]+(?: [a-z]+)?) {2,}(\S.*?) *$", output, re.MULTILINE))


def test_help_names_every_option_and_exit_status(kvspec: Command) -> None:
    """Each command has a help text that says what it does, what it takes and how it ends."""
    top = kvspec("--help")
    assert top.exit_code == 0
    assert "executable specification" in top.output
    assert all(name in top.output for name in ("replay", "check", "explore", "prove"))
    replay = kvspec("replay", "--help")
    assert replay.exit_code == 0
    options = (
        "--blocks --block-size --sequential --batch --check --limit --window --no-caching --json"
    )
    assert all(option in replay.output for option in options.split())
    assert "null included" in replay.output
    assert "Exit status: 0 clean, 1 violation, 2 bad input, 130 interrupted" in replay.output
    check = kvspec("check", "--help")
    assert (check.exit_code, "Exit status: 0 when every row is clean" in check.output) == (0, True)
    for name in ("explore", "prove"):
        more = kvspec(name, "--help")
        assert (more.exit_code, "Exit status: 0 when" in more.output) == (0, True)


def test_without_a_command_the_help_is_shown(kvspec: Command) -> None:
    """Nothing asked is nothing done, and a reader sees what there is to ask."""
    result = kvspec()
    assert result.exit_code == 2
    assert "Usage: " in result.output


def test_a_clean_replay_prints_its_figures(kvspec: Command, trace: Callable[..., Path]) -> None:
    """All figures, the verdict, and exit status 0."""
    path = trace(
        {}, {"hash_ids": [7, 8, 10]}, {"input_length": 10_240, "hash_ids": list(range(20))}
    )
    result = kvspec("replay", path, "--blocks", 9)
    assert result.exit_code == 0
    shown = figures(result.stdout)
    assert shown["workload"] == "trace.jsonl, sequential"
    assert shown["pool"] == "9 blocks with null, of 1 token for 512 of the trace, full attention"
    assert shown["requests"] == "3: 2 served, 1 refused"
    assert (shown["input tokens"], shown["hit tokens"]) == ("12,300", "1,024")
    assert (shown["hit rate"], shown["evictions"]) == ("8.33%", "0")
    assert shown["refusals"] == "0 for now, 1 for ever"
    assert shown["peak usage"] == "37.50%"
    assert shown["calls checked"].endswith(" (incremental)")
    assert "refused: r3: request 'r3': 20 blocks are needed of 8" in result.stdout
    assert re.search(r"^verdict: clean \(\d+\.\d s\)$", result.stdout, re.MULTILINE)
    assert result.stderr.strip() == ""


def test_every_option_reaches_the_replay(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path
) -> None:
    """The report that is written shows what was asked for."""
    out = tmp_path / "report.json"
    options = "--blocks 900 --block-size 16 --batch --check full --limit 2 --window 64 --no-caching"
    result = kvspec("replay", trace({}, {}, {}), *options.split(), "--json", out)
    assert result.exit_code == 0
    report = Report.model_validate_json(out.read_text())
    assert (report.num_gpu_blocks, report.block_size, report.mode) == (900, 16, "batch")
    assert (report.check, report.requests, report.window) == ("full", 2, 64)
    assert (report.caching, report.hit_tokens, report.output_tokens) == (False, 0, 6)
    pool = "900 blocks with null, of 16 tokens, window 64, caching off"
    assert figures(result.stdout)["pool"] == pool


@pytest.mark.parametrize("options", ["", "--batch", "--check off --window 5", "--blocks 5"])
def test_the_written_report_has_the_printed_figures(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path, options: str
) -> None:
    """What a script reads is what a reader saw."""
    out = tmp_path / "report.json"
    path = trace(*[{"hash_ids": [7, 8, 10 + at]} for at in range(30)])
    result = kvspec("replay", path, *options.split(), "--json", out)
    shown, report = figures(result.stdout), json.loads(out.read_text())
    served = (
        f"{report['requests']:,}: {report['served']:,} served, {report['num_refused']:,} refused"
    )
    assert served == shown["requests"]
    for name in ("input_tokens", "hit_tokens", "evictions", "preemptions"):
        assert f"{report[name]:,}" == shown[name.replace("_", " ")]
    assert f"{report['hit_rate']:.2%}" == shown["hit rate"]
    assert f"{report['peak_usage']:.2%}" == shown["peak usage"]
    assert f"{report['calls']:,}, {report['calls_per_second']:,.0f} a second" == shown["calls"]
    assert f"{report['blocks']:,}, {report['blocks_per_second']:,.0f} a second" == shown["blocks"]
    assert f"{report['calls_checked']:,} ({report['check']})" == shown["calls checked"]
    assert f"verdict: {report['verdict']} ({report['seconds']:.1f} s)" in result.stdout
    assert result.exit_code == 0


WRONG = {
    "unknown check": ("--check some", "'some' is none of full, incremental, off"),
    "blocks": ("--blocks 1", "--blocks"),
    "blocks below": ("--blocks -5", "--blocks"),
    "too many blocks": ("--blocks 20000001", "--blocks"),
    "blocks no number": ("--blocks many", "--blocks"),
    "block size": ("--block-size 0", "--block-size"),
    "window": ("--window 1", "--window"),
    "limit": ("--limit 0", "--limit"),
    "unknown option": ("--blcks 7", "--blcks"),
    "json folder": ("--json {there}/none/out.json", "does not exist; make it first"),
    "json below a file": ("--json {trace}/out.json", "does not exist; make it first"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """The option is named, nothing is replayed, and the exit status is 2."""
    options, says = WRONG[name]
    path = trace({})
    out = tmp_path / "out.json"
    words = options.format(there=tmp_path, trace=path).split()
    result = kvspec("replay", path, "--json", out, *words)
    assert result.exit_code == 2
    # The box around the message breaks it where the terminal ends.
    assert says.replace(" ", "") in re.sub(r"[\s│]+", "", result.stderr)
    assert result.stdout == ""
    assert not out.exists()


def test_a_trace_must_be_named(kvspec: Command) -> None:
    """The missing argument is named."""
    result = kvspec("replay")
    assert (result.exit_code, "trace" in result.stderr) == (2, True)


BAD_TRACES: dict[str, tuple[str, str]] = {
    "bad JSON in line 3": ("{good}{good}{{bad}}\n{good}", ":3: not JSON: "),
    "bad value in line 2": ("{good}" + '{{"timestamp": 0}}\n', ":2: input_length is missing: "),
    "empty": ("", ": holds no request; give a complete trace"),
    "blank": ("\n\n", ": holds no request; give a complete trace"),
    "binary": ("\0\1\2\n", ":1: not JSON: "),
    "a list": ("[1, 2]\n", ":1: the line must be a JSON object: [1, 2]"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_a_bad_trace_is_refused_with_its_place(kvspec: Command, tmp_path: Path, name: str) -> None:
    """One line says where and what, the exit status is 2, and nothing is written."""
    text, says = BAD_TRACES[name]
    path, out = tmp_path / "bad.jsonl", tmp_path / "out.json"
    path.write_text(text.format(good=json.dumps(GOOD) + "\n"))
    result = kvspec("replay", path, "--json", out)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kvspec: {path}{says}")
    assert result.stdout == ""
    assert not out.exists()


def test_what_is_no_file_is_refused(kvspec: Command, tmp_path: Path) -> None:
    """A folder and a missing file are refused by name."""
    for path in (tmp_path, tmp_path / "absent.jsonl"):
        result = kvspec("replay", path)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"kvspec: {path}: ")
        assert len(result.stderr.splitlines()) == 1


def test_a_torn_last_line_is_not_used_and_told(
    kvspec: Command, trace: Callable[..., Path], tmp_path: Path
) -> None:
    """What a crash left at the end does not stop a replay of the rest."""
    out = tmp_path / "out.json"
    result = kvspec("replay", trace({}, {}, end='{"timestamp": 27, "inp'), "--json", out)
    assert result.exit_code == 0
    assert "trace.jsonl:3: the last line is torn and not used" in result.stderr
    assert "2 complete requests are used" in result.stderr
    report = json.loads(out.read_text())
    assert report["requests"] == 2
    assert "the last line is torn" in report["notices"][0]


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_violation_exits_with_1(
    kvspec: Command,
    trace: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damaged: Callable[..., type[Reference]],
    check: str,
) -> None:
    """The line, its details and the figures so far are printed, and written."""
    faulty = damaged("get_computed_blocks", 2, lambda *_: ())
    monkeypatch.setattr("conformance.driving.replay.Reference", faulty)
    out = tmp_path / "out.json"
    options = ("--blocks", 40, "--check", check, "--json", out)
    result = kvspec("replay", trace({}, {}, {}), *options)
    assert result.exit_code == 1
    assert re.search(f"^{LINE}found_by=lockstep$", result.stdout, re.MULTILINE)
    assert "property=a_repeated_prompt_hits call=7 get_computed_blocks" in result.stdout
    assert "  call 7: get_computed_blocks(rid=r2)" in result.stdout
    assert re.search(r"^verdict: violation", result.stdout, re.MULTILINE)
    report = json.loads(out.read_text())
    assert (report["verdict"], report["requests"]) == ("violation", 1)
    assert report["violation"] in result.stdout
    assert kvspec("replay", trace({}, {}, {}), "--check", "off").exit_code == 0


@pytest.fixture
def quick_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the main job small: few requests, one world, no solvers, little of the rest."""
    monkeypatch.setattr(checks, "NUM_REQUESTS", 100)
    monkeypatch.setattr(checks, "EXPLORED", ("pool-2",))
    monkeypatch.setattr(checks, "prover", lambda: None)
    monkeypatch.setattr(checks, "FUZZED", ("reference",))
    monkeypatch.setattr(checks, "NUM_EXAMPLES", 2)
    monkeypatch.setattr(checks, "NUM_CALLS", 500)
    monkeypatch.setattr(checks, "installed", lambda: False)
    monkeypatch.setattr(checks, "MUTANTS", {"forward-release": MUTANTS["forward-release"]})


@pytest.mark.slow
@pytest.mark.usefixtures("quick_check")
def test_check_prints_one_table(kvspec: Command) -> None:
    """A row for each way to replay, each world and the proofs, the verdict, exit status 0."""
    result = kvspec("check")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len([line for line in lines if " calls, " in line and "clean" in line]) == 9
    assert [line for line in lines if "all 47 states, 222 transitions" in line and "clean" in line]
    assert [line for line in lines if "solvers are not installed" in line and "not run" in line]
    assert all(f" {word} " in result.stdout for word in ("row", "covered", "seconds", "verdict"))
    assert [line for line in lines if "1 of 1 seeded faults found" in line and "clean" in line]
    assert lines[-1] == "verdict: 11 rows clean, 2 not run"
    assert result.stderr.strip() == ""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_check")
def test_check_counts_the_rows_that_are_clean(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With solvers every row is run."""
    proved = [SimpleNamespace(status="both")]
    prove = SimpleNamespace(
        proof=SimpleNamespace(questions=lambda: proved), judged=lambda *_: proved
    )
    monkeypatch.setattr(checks, "prover", lambda: prove)
    result = kvspec("check")
    assert result.exit_code == 0
    assert "1 of 1 obligations, two solvers" in result.stdout
    assert result.stdout.splitlines()[-1] == "verdict: 12 rows clean, 1 not run"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_check")
def test_check_tells_each_row_that_failed(
    kvspec: Command, monkeypatch: pytest.MonkeyPatch, damaged: Callable[..., type[Reference]]
) -> None:
    """The line of each violation stands below the table, and the exit status is 1."""
    monkeypatch.setattr("conformance.driving.replay.Reference", damaged("finish", 9, lambda *_: 7))
    result = kvspec("check")
    assert result.exit_code == 1
    assert (
        len(re.findall(f"^replay .*: {LINE}found_by=lockstep$", result.stdout, re.MULTILINE)) == 8
    )
    assert result.stdout.splitlines()[-1] == "verdict: 8 of 13 rows show a violation"
