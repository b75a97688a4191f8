"""The pytest plugin, as its user sees it: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance.conforming import suite
from conformance.divergence import Divergence
from conformance.fuzzing.fuzz import PROBE
from conformance.program import Program
from conformance.subject import Capabilities

ROOT = Path(__file__).parents[2]
SOUND = "examples.toy:Toy"
PLANTED = {
    "ForwardFree": "the_tail_is_evicted_before_the_head",
    "ForgetsIndex": "the_index_and_the_blocks_agree",
    "SharesPartial": "a_block_handed_out_is_clean",
}
"""The faults, and the property that each of them breaks first."""


class Run(NamedTuple):
    """What a run of pytest said, where, and with which status."""

    status: int
    said: str
    folder: Path

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield the node id and the text of each failure."""
        parts = re.split(r"^_+ (\S+ \w+) _+$|^=+ \S.*=$", self.said, flags=re.MULTILINE)
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name:
                yield f"kvspec::{name.replace(' ', '::')}", text.strip()

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each check that was run."""
        found = re.findall(r"^kvspec::(\S+): (\w+), [\d,]+ examples", self.said, re.MULTILINE)
        return dict(found)


PROGRAM = """
import json, sys, pytest
for args in json.loads(sys.argv[1]):
    print(f"status {int(pytest.main(args))}", flush=True)
    print("next", file=sys.stderr, flush=True)
"""


def run(folder: Path, *runs: Sequence[str]) -> list[Run]:
    """Run pytest in a folder, several times in one process."""
    done = subprocess.run(  # noqa: S603  # the test's own command
        [sys.executable, "-c", PROGRAM, json.dumps(runs)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    said = re.split(r"^status (\d)$", done.stdout, flags=re.MULTILINE)
    errors = done.stderr.split("next\n")
    told = zip(said[1::2], said[::2], errors, strict=False)
    return [Run(int(status), out + err, folder) for status, out, err in told]


@pytest.fixture(scope="module")
def all_four(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the suite on the toy and on its faults."""
    names = [SOUND, *(f"examples.toy_faults:{fault}" for fault in PLANTED)]
    folder = tmp_path_factory.mktemp("user")
    (ran,) = run(folder, ["-rs", "-v", *(f"--kvspec-subject={name}" for name in names)])
    return ran


@pytest.mark.slow
def test_the_toy_is_clean_and_each_fault_is_found_and_named(all_four: Run) -> None:
    """A fault is found by every check that makes the calls in which it shows, and by no other."""
    failed: dict[str, set[str]] = {fault: set() for fault in PLANTED}
    for nodeid, text in all_four.failures():
        _, subject, check = nodeid.split("::")
        fault = subject.partition(":")[2]
        assert text.startswith(f"kvspec violation: property={PLANTED[fault]} call=")
        tried = re.search(r"^found by \w+ after (\d+) examples ", text, re.MULTILINE)
        assert tried is not None
        assert int(tried[1]) <= 10
        failed[fault].add(check)
    assert failed == {
        "ForwardFree": {"manager_machine", "driver"},
        "ForgetsIndex": {"pool_machine", "manager_machine", "driver"},
        "SharesPartial": {"manager_machine", "driver"},
    }
    checks = ("pool_machine", "manager_machine", "driver")
    outcomes = all_four.outcomes()
    assert [outcomes[f"{SOUND}::{check}"] for check in checks] == ["passed"] * 3
    assert len(outcomes) == 4 * 3
    assert all_four.status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_the_test_to_paste_fails_until_the_fault_is_mended(all_four: Run) -> None:
    """It raises the same violation on the faulty subject, and passes on the sound one."""
    pasted = 0
    for nodeid, text in all_four.failures():
        source = text.partition("the same as a test to paste:\n")[2]
        subject = nodeid.split("::")[1]
        for name, fails in ((subject, True), (SOUND, False)):
            scope: dict[str, object] = {}
            exec(source.replace(subject, name), scope)  # noqa: S102  # it is there to be run
            (test,) = (made for key, made in scope.items() if key.startswith("test_"))
            assert callable(test)
            if not fails:
                test()
                continue
            with pytest.raises(Divergence) as caught:
                test()
            assert str(caught.value) == text.splitlines()[0]
        pasted += 1
    assert pasted == 7


@pytest.mark.slow
def test_what_the_toy_cannot_do_is_skipped_with_the_capability(all_four: Run) -> None:
    """Each thing that is not asked is an item of its own, and says why."""
    assert f"{SOUND}: its capability window is False: no sliding window" in all_four.said
    assert f"{SOUND}: its capability lookahead is False: no drafts" in all_four.said
    assert "capability rules is not_enough_free_blocks, pending_block_is_shared," in all_four.said
    assert "5 passed, 12 skipped" in all_four.said
    assert re.search(rf"^kvspec::{SOUND}::window SKIPPED", all_four.said, re.MULTILINE)


@pytest.mark.slow
def test_what_failed_is_tried_first_and_can_be_asked_for(all_four: Run) -> None:
    """A node id runs one check alone; past failures are a check where there are any."""
    subject = "examples.toy_faults:ForwardFree"
    past = f"kvspec::{subject}::past_failures"
    options = [f"--kvspec-subject={subject}"]
    again, unknown = run(
        all_four.folder, [*options, past], [*options, f"kvspec::{subject}::nothing"]
    )
    ((nodeid, text),) = again.failures()
    assert nodeid == past
    assert "found by past_failures after 1 examples and 3 calls; 3 calls, shrunk to 3" in text
    assert unknown.status == pytest.ExitCode.USAGE_ERROR
    assert f"not found: kvspec::{subject}::nothing; the checks are {past}, " in unknown.said


BAD: Mapping[tuple[str, ...], str] = {
    ("--kvspec-subject=nothing",): "'nothing' is no subject; give one of reference, ",
    ("--kvspec-subject=examples.toy:Nothing",): "the module has no 'Nothing'",
    ("--kvspec-subject=planted_subjects:Never",): "cannot be made with Config(",
    ("--kvspec-subject=broken:Manager",): "'broken:Manager' cannot be imported:\n",
    ("--kvspec-subject=reference", "--kvspec-seconds=nan"): "--kvspec-seconds is nan: ",
}


@pytest.mark.slow
def test_bad_input_is_a_usage_error(tmp_path: Path) -> None:
    """Nothing is run; the text says what is wrong."""
    (tmp_path / "broken.py").write_text("class Manager:\n    size = 1 / 0\n")
    for done, says in zip(run(tmp_path, *BAD), BAD.values(), strict=True):
        assert done.status == pytest.ExitCode.USAGE_ERROR, done.said
        assert says in done.said
        assert "INTERNALERROR" not in done.said


@pytest.mark.slow
def test_without_a_subject_nothing_is_loaded(tmp_path: Path) -> None:
    """Who does not ask for the suite gets neither its checks nor its modules."""
    (tmp_path / "test_mine.py").write_text(
        "import sys\n\n\ndef test_mine(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('kvspec')\n"
        "    assert not {'conformance', 'spec'} & {name.split('.')[0] for name in sys.modules}\n"
    )
    (done,) = run(tmp_path, ["-W", "error", "--strict-config", "--strict-markers"])
    assert done.status == 0, done.said
    assert "1 passed" in done.said


def test_a_failure_that_does_not_come_again_is_told(tmp_path: Path) -> None:
    """The line is kept, and nothing is shrunk or written."""
    target = suite.target(SOUND, 0, tmp_path / "kept")
    done = suite.Done(7, 1_234, 0.5, (Program(PROBE, ()), "kvspec violation: property=x"))
    text = suite.explanation(target, "driver", done)
    assert text.startswith("kvspec violation: property=x\nfound by driver after 7 examples and 1,")
    assert "depends on something besides its calls" in text
    assert not (tmp_path / "kept").exists()


def test_every_capability_that_is_missing_is_told() -> None:
    """What a subject lacks is in the list of what was not asked, whatever it is."""
    assert list(suite.inapplicable(Capabilities())) == []
    for field in fields(Capabilities):
        if isinstance(field.default, bool):
            lacking: dict[str, Any] = {field.name: False}
            ((_, why),) = suite.inapplicable(Capabilities(**lacking))
            assert why.startswith(f"{field.name} is False: ")


def test_more_seconds_are_more_rounds_with_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round follows another until the time is over or something fails."""
    numbers: list[int] = []

    def check(_: suite.Target, number: int) -> suite.Round:
        numbers.append(number)
        failed = (Program(PROBE, ()), "line") if number == 3 else None
        return suite.Round(2, 5, failed)

    monkeypatch.setattr(suite, "CHECKS", {"driver": check})
    target = suite.target(SOUND, 0, Path("unused"))
    assert suite.run(target, "driver")[:2] == (2, 5)
    done = suite.run(target, "driver", 60)
    assert (done.examples, done.calls, numbers) == (8, 20, [0, 0, 1, 2, 3])
    assert done.failure is not None
