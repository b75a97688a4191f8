"""The scheduler of vLLM 0.33.0, held against the specification by scripts that nobody wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.pictures.explain_page import explain_page
from conformance.pictures.explain_text import as_text
from conformance.scheduler import stand_in
from conformance.scheduler.harness import Harness, Run, run
from conformance.scheduler.report import as_json, explained_run, known, script_lines, told
from conformance.scheduler.script import Abort, Add, Reset, Script, Setting, Step
from conformance.scheduler.search import SHORT_ENOUGH, Aim, drawn, search

UNWRITTEN = "nothing_unwritten_is_found"
CLEAN_SCRIPTS = 60
BUDGET_SECONDS = 120


@pytest.fixture(autouse=True, scope="module")
def _release() -> None:
    try:
        stand_in.load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    if stand_in.release() != stand_in.RELEASE:
        pytest.skip(f"vLLM {stand_in.RELEASE} is needed, {stand_in.release()} is installed")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("sync", 0), ("async", 3)])
def test_the_search_finds_what_nobody_wrote_and_makes_it_short(kind: str, seed: int) -> None:
    """Under `priority`, what a request published stays findable though it was preempted at once.

    Every seed finds it; these are quick ones.
    """
    tally = search(Aim("priority", kind, seed), BUDGET_SECONDS)
    assert tally.found is not None
    short = tally.found.run
    assert tally.found.divergence.property == UNWRITTEN
    assert short.script.num_steps <= SHORT_ENOUGH
    again = run(short.script)
    assert str(again.divergence) == str(short.divergence)
    upstream = known(tally)
    assert upstream is not None
    assert upstream.where == ("vllm-project/vllm#43569", "vllm-project/vllm#57580")
    assert as_json(tally)["violation"]["steps"] == short.script.num_steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_fcfs_is_clean(kind: str) -> None:
    """Sixty scripts with preemptions, resets, aborts and hits break nothing."""
    preempted = 0
    for number in range(CLEAN_SCRIPTS):
        performed = drawn(Aim("fcfs", kind), number)
        assert performed.divergence is None, performed.divergence
        preempted += performed.harness.num_preempted
    assert preempted


SHORT = Script(
    Setting(
        policy="priority",
        num_gpu_blocks=10,
        max_model_len=12,
        long_prefill_token_threshold=4,
    ),
    (
        Add("late", (0,)),
        Add("victim", (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        Step(),
        Add("urgent", (0, 0, 0, 0, 0, 0, 0), priority=-1),
        Step(),
        Step(),
    ),
)
"""What the search comes down to with seed 0, with names that say who is who."""


def test_the_table_explains_it() -> None:
    """Blocks, counts, keys, queue, who ran, who was preempted, the rule, and who published it."""
    performed = run(SHORT)
    seen = explained_run(performed, "vLLM")
    text = as_text(seen, width=140)
    assert "property=nothing_unwritten_is_found call=8 schedule" in text
    assert "found_by=scheduler" in text
    for said in ("runs=victim[4:8],urgent", "preempted=victim", "free queue", "the rule: A sealed"):
        assert said in text.replace("\n", "")
    assert any(
        "victim published block 7, tokens 8 to 9, in call 8" in line for line in told(performed)
    )
    assert "nothing_unwritten_is_found" in explain_page(seen)
    assert eval("\n".join(script_lines(SHORT))) == SHORT  # noqa: S307  # our own lines


def test_what_was_not_written_is_read_by_the_next() -> None:
    """The fault is real: a later request is admitted with the block as a hit, and reads it."""
    harness = Harness(SHORT.setting)
    for event in (*SHORT.events, Abort("late"), Abort("urgent"), Abort("victim")):
        for _ in harness.perform(event):
            continue
    reads = set()
    for event in (Add("next", (0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)), Step()):
        for moment in harness.perform(event):
            reads |= {name for name, _ in harness.judge.faults(moment)}
    assert "a_request_reads_its_own_prefix" in reads


def test_under_fcfs_the_same_events_are_clean() -> None:
    """The policy is what does it."""
    setting = SHORT.setting._replace(policy="fcfs")
    assert run(SHORT._replace(setting=setting)).divergence is None


def test_events_without_meaning_do_nothing() -> None:
    """What a shortened script may still hold is left out: unknown, double, or too long requests."""
    performed = Run(Setting())
    for event in (Abort("x"), Add("a", (1,)), Add("a", (2,)), Add("b", (1,) * 99), Add("c", ())):
        assert performed.happen(event) is None
    assert [moment.action for moment in performed.moments] == ["add_request"]


def test_a_reset_is_judged_by_the_pool_that_it_meets() -> None:
    """With requests running it is refused, unless they are preempted first."""
    performed = Run(Setting(scheduler="async"))
    results = []
    for event in (Add("a", (1, 2, 3), 4), Step(), Reset(), Reset(running=True), Step(), Step()):
        assert performed.happen(event) is None
        last = performed.moments[-1]
        results += [last.result] if last.action == "reset_prefix_cache" else []
    assert results == [False, True]


def test_a_crash_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that dies on an event is named after what it raised."""
    performed = Run(Setting())
    numbers = count()

    def dies() -> None:
        raise AssertionError(next(numbers))

    monkeypatch.setattr(performed.harness.scheduler, "schedule", dies)
    divergence = performed.happen(Step())
    assert divergence is not None
    assert divergence.property == "raised_AssertionError"


@pytest.mark.slow
def test_a_search_is_the_same_in_another_process(tmp_path: Path) -> None:
    """The same seed draws and runs the same scripts, whatever PYTHONHASHSEED is."""
    path = tmp_path / "moments"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['write'](sys.argv[2])"
    arguments = [sys.executable, "-c", code, __file__, str(path)]
    subprocess.run(arguments, check=True, env=environment)  # noqa: S603  # our own code
    other = path.read_text()
    write(path)
    assert path.read_text() == other
    assert "preempted" in other


def write(path: Path) -> None:
    """Write what a few scripts of a search come to."""
    lines = []
    for number in range(4):
        performed = drawn(Aim("priority", "async", 3), number)
        lines.append(repr(performed.script))
        lines += [f"{m.args} {m.after.pool.queue}" for m in performed.moments]
    Path(path).write_text("\n".join(lines))
