"""`kvspec fuzz`: what it prints and writes, how it ends, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.fuzzing import campaign
from conformance.fuzzing.campaign import Profile

Kvspec = Callable[..., Any]
LEAKY = "planted_subjects:Leaky"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run each test in a folder of its own."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the machines nothing to do and jobs a few calls each."""
    monkeypatch.setitem(campaign.PROFILES, "dev", Profile(0.0001, 0, None))
    monkeypatch.setattr(campaign.Plan, "__new__", _few_calls(campaign.Plan.__new__))


def _few_calls(sound: Any) -> Any:  # noqa: ANN401  # a constructor
    def new(kind: Any, *args: Any) -> Any:  # noqa: ANN401  # the same
        return sound(kind, *args, calls_per_job=800)

    return new


@pytest.mark.usefixtures("brief")
def test_a_clean_run_says_what_it_did(kvspec: Kvspec, here: Path) -> None:
    """Figures, what was seen, a verdict; status 0, and no folder is made."""
    done = kvspec("fuzz", "--seed", 5, "--json", "out.json")
    assert done.exit_code == 0, done.output
    assert "kvspec fuzz: reference, reference-builtin; profile dev" in done.output
    assert ", seed 5, 1 process\n" in done.output
    assert " calls a second, " in done.output
    assert "transitions of a block and " in done.output
    assert "verdict: clean" in done.output
    report = json.loads((here / "out.json").read_text())
    assert report["verdict"] == "clean"
    assert report["seed"] == 5
    assert report["failure"] is None
    assert report["walks"]["jobs"] == 2
    assert f"{report['calls']:,} calls" in done.output
    assert [path.name for path in here.iterdir()] == ["out.json"]


@pytest.mark.usefixtures("brief")
def test_a_seed_is_drawn_and_printed(kvspec: Kvspec) -> None:
    """Two runs without a seed have two; in the profile ci it is always the same."""

    def seed(*args: str) -> str:
        line = kvspec("fuzz", *args).output.splitlines()[0]
        return str(line.partition("seed ")[2])

    assert seed() != seed()
    assert seed("--profile", "ci", "--minutes", "0.0001") == "0, 1 process"


@pytest.mark.slow
def test_a_fault_is_found_shrunk_and_written(
    kvspec: Kvspec, here: Path, planted: Path, python: Callable[..., Any]
) -> None:
    """Status 1, the stable line, a short test that fails with the fault and passes without it."""
    done = kvspec("fuzz", "--subject", LEAKY, "--seed", 1, "--out", "found", "--json", "o.json")
    assert done.exit_code == 1, done.output
    report = json.loads((here / "o.json").read_text())
    failure = report["failure"]
    assert report["verdict"] == "violation"
    assert report["seconds"] < 20
    assert failure["line"].startswith("kvspec violation: property=")
    assert failure["line"] in done.output
    assert failure["calls"] <= 4
    assert "verdict: violation; the same again: --seed 1" in done.output
    names = [Path(path) for path in failure["files"]]
    assert [path.suffix for path in names] == [".py", ".ndjson", ".txt", ".html", ".ndjson"]
    assert all(path.stat().st_size for path in names)
    test = names[0]
    assert test.read_text().strip() in done.output
    for text, status in ((planted.read_text(), 1), (_mended(planted.read_text()), 0)):
        planted.write_text(text)
        run = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(test), PYTHONPATH=_path())
        assert run.returncode == status, run.stdout + run.stderr
    assert failure["property"] in test.name


def _path() -> str:
    return ":".join(path for path in sys.path if path)


def _mended(text: str) -> str:
    return text.replace("if table and table[0]:", "if False:")


@pytest.mark.slow
def test_what_failed_is_tried_first_and_forgotten_when_it_passes(
    kvspec: Kvspec, here: Path, planted: Path
) -> None:
    """The second run fails at once on the kept program; the third, mended, removes it."""
    assert kvspec("fuzz", "--subject", LEAKY, "--seed", 1).exit_code == 1
    (kept,) = (here / ".kvspec" / "failures").iterdir()
    again = kvspec("fuzz", "--subject", LEAKY, "--seed", 2, "--json", "o.json")
    assert again.exit_code == 1
    assert f"found in {kept.relative_to(here)}, kept from an earlier run" in again.output
    report = json.loads((here / "o.json").read_text())
    assert (report["examples"], report["kept_failures_tried"]) == (1, 1)
    planted.write_text(_mended(planted.read_text()))
    sys.modules.pop("planted_subjects")
    mended = kvspec("fuzz", "--subject", LEAKY, "--seed", 3, "--minutes", 0.001)
    assert mended.exit_code == 0, mended.output
    assert f"{kept.relative_to(here)}: fails no longer; removed" in mended.output
    assert not kept.exists()


@pytest.mark.slow
def test_processes_find_it_too(
    kvspec: Kvspec, here: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two processes the subject is made in each, and the failure is shrunk here."""
    assert planted.exists()
    monkeypatch.setitem(campaign.PROFILES, "dev", Profile(0.5, 0, None))
    done = kvspec("fuzz", "--subject", LEAKY, "--seed", 4, "--jobs", 2, "--json", "o.json")
    assert done.exit_code == 1, done.output
    failure = json.loads((here / "o.json").read_text())["failure"]
    assert failure["calls"] <= 4
    assert "found by a walk: job seed " in done.output


@pytest.mark.slow
@pytest.mark.parametrize("examples", [0, 100])
def test_a_failure_that_does_not_come_again_is_reported(
    kvspec: Kvspec, planted: Path, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Nothing is written about a subject that depends on more than its calls."""
    assert planted.exists()
    monkeypatch.setitem(campaign.PROFILES, "dev", Profile(0.5, examples, None))
    done = kvspec("fuzz", "--subject", "planted_subjects:Fickle", "--seed", 1)
    assert done.exit_code == 1, (done.output, done.exception)
    assert "kvspec violation: property=" in done.output
    assert "the subject depends on something besides its calls" in done.output
    assert not Path(".kvspec").exists()


@pytest.mark.slow
def test_a_lost_job_is_reported(
    kvspec: Kvspec, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subject that ends its process is a violation, told by job."""
    assert planted.exists()
    monkeypatch.setitem(campaign.PROFILES, "dev", Profile(0.5, 0, None))
    done = kvspec("fuzz", "--subject", "planted_subjects:Fatal", "--jobs", 2, "--seed", 1)
    assert done.exit_code == 1, done.output
    assert "'planted_subjects:Fatal' ended its process (exit status 3), 2 times" in done.output


@pytest.mark.usefixtures("brief")
def test_files_that_cannot_be_written_do_not_hide_the_failure(
    kvspec: Kvspec, here: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure and its test are printed all the same."""
    assert planted.exists()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("conformance.commands.fuzz.write_finding", full)
    done = kvspec("fuzz", "--subject", LEAKY, "--seed", 1)
    assert done.exit_code == 1
    assert "No space left on device" in done.output
    assert "def test_" in done.output
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--minutes", "0"), "'0': a run takes some time; give more than 0"),
        (("--minutes", "-1"), "'-1': a run takes some time"),
        (("--minutes", "nan"), "'nan': a run takes some time"),
        (("--minutes", "inf"), "'inf': a run takes some time"),
        (("--minutes", "soon"), "'soon': a run takes some time; give more than 0"),
        (("--jobs", "0"), "0: somebody must do the work; give a number from 1 to 256"),
        (("--jobs", "257"), "257: somebody"),
        (("--seed", "-1"), "-1: a seed is a whole number"),
        (("--seed", "x"), "valid integer"),
        (("--profile", "quick"), "'quick' is no profile; give one of dev, ci, soak"),
        (("--subject", "refrence"), "'refrence' is no subject; give one of reference"),
        (("--subject", "nowhere:Class"), "there is no module 'nowhere'"),
        (("--subject", "planted_subjects:Nobody"), "has no 'Nobody'"),
        (("--subject", "planted_subjects:Never"), "cannot be made with Config"),
        (("--subject", "broken_subject:Class"), "cannot be imported: ZeroDivisionError"),
        (("--out", "file"), "is a file; name a folder"),
        (("--out", "file/below"), "is a file; name a folder"),
        (("--database", "file"), "is a file; name a folder"),
        (("--out", "same", "--database", "same"), "is the database too"),
        (("--json", "nowhere/o.json"), "does not exist; make it first"),
        (("--json", "."), "is a folder; name a file"),
        (("more",), "more"),
    ],
)
def test_bad_input_is_refused(
    kvspec: Kvspec, here: Path, planted: Path, args: tuple[str, ...], says: str
) -> None:
    """Status 2, the value and what to give; nothing is written."""
    planted.with_name("broken_subject.py").write_text("1 / 0\n")
    (here / "file").write_text("mine")
    done = kvspec("fuzz", *args)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output
    assert [path.name for path in here.iterdir()] == ["file"]
    assert (here / "file").read_text() == "mine"


@pytest.mark.slow
def test_a_folder_that_may_not_be_written_is_refused(
    kvspec: Kvspec, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the work, not after it."""
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != here)
    done = kvspec("fuzz", "--out", "found")
    assert done.exit_code == 2
    assert "may not be written; name another folder" in " ".join(
        done.output.replace("│", " ").split()
    )


@pytest.mark.slow
def test_a_subject_that_cannot_always_be_made_is_bad_input(kvspec: Kvspec, planted: Path) -> None:
    """The configuration that it does not take is named."""
    assert planted.exists()
    done = kvspec("fuzz", "--subject", "planted_subjects:Unmakeable", "--seed", 1)
    assert done.exit_code == 2
    assert "cannot be made with Config(num_gpu_blocks=" in done.output
    assert "two tokens only" in done.output


def test_the_help_tells_every_option(kvspec: Kvspec) -> None:
    """All of them, and the exit statuses."""
    done = kvspec("fuzz", "--help")
    assert done.exit_code == 0
    options = "--minutes --seed --jobs --subject --profile --out --database --json"
    assert all(option in done.output for option in options.split())
    assert "130 interrupted" in done.output
    assert subprocess.list2cmdline(["--out"]) in done.output
