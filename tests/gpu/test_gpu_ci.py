"""One command, a line a stage, a verdict; what is missing or too much is said and never hidden."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu import bench, goldens, ops, stages
from gpu.ci import BAD_INPUT, CLEAN, INTERRUPTED, VIOLATION, main, workloads_for
from gpu.faults import AblationRow, FaultRow, fault_table
from gpu.matrix import cover, shared_prefix_work
from gpu.shield import LAYERS
from gpu.stages import STAGES, Outcome, Plan, Stage

ROOT = Path(__file__).parents[2]
PLAN = Plan("cpu", {"small": (4, shared_prefix_work(6, 3))})


def in_place(monkeypatch: pytest.MonkeyPatch, **others: Stage) -> None:
    """Put other stages in place of the real ones."""
    monkeypatch.setattr("gpu.ci.STAGES", {name: (stage, 1) for name, stage in others.items()})


def clean(_plan: Plan, _seconds: float) -> Outcome:
    """A stage that finds nothing."""
    return Outcome("clean", "all is well", {"number": 3})


def read(path: Path) -> Mapping[str, Any]:
    """Return the figures that were written."""
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def test_two_stages_say_a_line_each_and_write_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Versions, device and forms are in the file, in the order of the stages."""
    out = tmp_path / "out.json"
    arguments = ["--stage", "operations", "--stage", "environment", "--json", str(out)]
    assert main(arguments) == CLEAN
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("environment  clean")
    assert second.startswith("operations   clean")
    assert last.startswith("verdict: clean (2 stages, ")
    data = read(out)
    assert (data["device"], data["verdict"]) == ("cpu", "clean")
    environment = data["stages"]["environment"]
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["torch_threads"] == 1
    assert environment["read_bytes_per_second"] > 10**8
    operations = data["stages"]["operations"]
    assert all(row["num_different"] == 0 for row in operations["rows"])
    if not torch.cuda.is_available():
        assert operations["not_available"]["cuda"] == ops.unavailable("cuda")
        assert "not here: cuda" in second
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "0"], "give more than 0 seconds"),
        (["--budget", "nan"], "give more than 0 seconds"),
        (["--json", "/no/such/folder/out.json"], "is no folder; make it first"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the value and what to do; nothing runs."""
    assert main(arguments) == BAD_INPUT
    told = capsys.readouterr()
    assert says in told.err
    assert arguments[1] in told.err
    assert told.out == ""


def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CUDA is not replaced by something else in silence."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--device", "cuda"]) == BAD_INPUT
    assert "use --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--stage", "luck"], ["--device", "tpu"]])
def test_an_unknown_name_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The names that there are are shown."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == BAD_INPUT
    assert "choose from" in capsys.readouterr().err


def test_what_does_not_fit_into_the_budget_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stage that stopped early and one that never began both say so; the verdict follows."""

    def early(_plan: Plan, seconds: float) -> Outcome:
        return Outcome("incomplete", f"half of it in {seconds:.2f} s", {})

    ticks = iter(range(0, 1000, 4))
    monkeypatch.setattr("gpu.ci.time.monotonic", lambda: float(next(ticks)))
    in_place(monkeypatch, early=early, late=clean)
    assert main(["--budget", "10", "--json", str(tmp_path / "x.json")]) == VIOLATION
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("the rest did not fit into the budget")
    assert "not run: the budget was used up" in lines[1]
    assert lines[2].startswith("verdict: incomplete")
    assert read(tmp_path / "x.json")["verdict"] == "incomplete"


def test_a_violation_is_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It outweighs whatever else there is, and later stages still run."""
    bad = Outcome("violation", "a block changed", {})
    in_place(monkeypatch, one=lambda _plan, _seconds: bad, two=clean)
    assert main([]) == VIOLATION
    lines = capsys.readouterr().out.splitlines()
    assert "a block changed" in lines[0]
    assert "all is well" in lines[1]
    assert lines[2].startswith("verdict: violation")


def test_a_run_that_is_broken_off_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends with 130, a verdict that says so, and the figures so far."""

    def interrupted(_plan: Plan, _seconds: float) -> Outcome:
        raise KeyboardInterrupt

    in_place(monkeypatch, one=clean, two=interrupted)
    assert main(["--json", str(tmp_path / "x.json")]) == INTERRUPTED
    assert capsys.readouterr().out.splitlines()[-1].startswith("verdict: interrupted (1 stages")
    data = read(tmp_path / "x.json")
    assert data["verdict"] == "interrupted"
    assert data["stages"]["one"]["number"] == 3


def test_a_wrong_form_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one fingerprint is enough, in an operation and in what is written down."""
    assert goldens.golden_rows().num_different == 0
    monkeypatch.setattr("gpu.eager.ms64", wrong_numbers)
    assert stages.operations(PLAN, 5).verdict == "violation"
    monkeypatch.undo()
    monkeypatch.setattr(goldens, "GOLDENS", ((b"1", 0, 0, 1),))
    assert stages.operations(PLAN, 5).verdict == "violation"


def wrong_numbers(_rows: torch.Tensor, slots: torch.Tensor, *_: int) -> torch.Tensor:
    """Give fingerprints that are none."""
    return torch.zeros_like(slots)


@pytest.mark.slow
def test_the_exact_stage_runs_workloads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings are equal, the workload is clean, and what is missing stands in the figures."""
    first = cover(1)
    monkeypatch.setattr(stages, "cover", lambda _strength: first)
    outcome = stages.exact(Plan("cpu", PLAN.workloads, ["Mooncake: not set"]), 60)
    assert outcome.verdict == "clean"
    assert outcome.figures["workloads"]["small"]["fired"] == {}
    assert outcome.figures["workloads_not_available"] == ["Mooncake: not set"]
    assert stages.exact(PLAN, 0).verdict == "incomplete"


def one_fault(seeds: Iterable[int], *, device: str) -> Iterator[FaultRow]:
    """Try one fault in place of all."""
    return fault_table(seeds, device=device, faults=["F08"])


@pytest.mark.slow
def test_the_fault_stage_needs_every_fault_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little of everything it is clean; with a shield that is blind it is not."""
    monkeypatch.setattr(stages, "NUM_CLEAN", 2)
    monkeypatch.setattr(stages, "NUM_SEEDS", 1)
    monkeypatch.setattr(
        stages, "ablation", lambda layer, *_, **__: AblationRow(layer, 1, {"x": 1}, {})
    )
    outcome = stages.faults(PLAN, 100)
    assert outcome.verdict == "clean", outcome.line
    assert len(outcome.figures["faults"]) == 24
    assert {row["without"] for row in outcome.figures["ablation"]} == set(LAYERS)
    assert stages.faults(PLAN, 0).verdict == "incomplete"
    monkeypatch.setattr("gpu.contents.Contents.look", lambda _self, _slots: 0)
    monkeypatch.setattr(stages, "fault_table", one_fault)
    blind = stages.faults(PLAN, 100)
    assert blind.verdict == "violation"
    assert "NOT SEEN as expected" in blind.line


@pytest.mark.slow
def test_floats_and_memory_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are clean here, and a stage without time is incomplete."""
    first = cover(1)[:2]
    monkeypatch.setattr(stages, "cover", lambda _strength: first)
    assert stages.floats(PLAN, 60).verdict == "clean"
    assert stages.floats(PLAN, 0).verdict == "incomplete"
    outcome = stages.memory(PLAN, 10)
    assert outcome.verdict == "clean"
    assert outcome.figures["allocated"] > 2**20


@pytest.mark.slow
def test_costs_are_ratios_of_one_run() -> None:
    """A checked scatter and a guarded run cost more than nothing and less than the moon."""
    rows = [bench.scatter_cost("cpu"), *bench.guard_cost("cpu")]
    assert all(row.value is not None and 0.5 < row.value < 100 for row in rows)


def test_without_a_compiler_the_bench_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not measured, and no number stands in its place."""
    monkeypatch.setattr("shutil.which", lambda _name: None)
    row = bench.compiled_fingerprint()
    assert (row.value, row.note) == (None, "no C++ compiler is on the PATH")


def test_workloads_say_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the traces, or with a folder that lacks them, the sample alone is served."""
    monkeypatch.delenv("KVSPEC_TRACES", raising=False)
    found, missing = workloads_for()
    assert (list(found), missing) == (["generated"], ["Mooncake: KVSPEC_TRACES is not set"])
    monkeypatch.setenv("KVSPEC_TRACES", str(tmp_path))
    found, missing = workloads_for()
    assert list(found) == ["generated"]
    assert str(tmp_path) in missing[0]


def fake_python(folder: Path, has: tuple[str, str]) -> Path:
    """Return an interpreter that has these modules only, as far as the script can see."""
    path = folder / "python"
    path.write_text(
        f'#!/bin/sh\ncase "$2" in "import torch") {has[0]};; *) {has[1]};; esac\n',
        encoding="utf-8",
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("has", "says"),
    [(("false", "false"), "has no torch"), (("true", "false"), "set KVSPEC_WHEELS")],
)
def test_the_script_says_what_is_missing(has: tuple[str, str], says: str, tmp_path: Path) -> None:
    """No torch, or no pydantic and no wheels of it: exit status 2 and what to do."""
    environment = {**os.environ, "PYTHON": str(fake_python(tmp_path, has))}
    environment.pop("KVSPEC_WHEELS", None)
    done = subprocess.run(  # noqa: S603  # our own script
        [str(ROOT / ".ci" / "gpu")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == BAD_INPUT
    assert says in done.stderr


def test_the_workflow_says_that_it_was_not_run() -> None:
    """Its first line, so that nobody takes it for evidence."""
    head = (ROOT / ".github" / "workflows" / "gpu.yml").read_text(encoding="utf-8")
    assert head.startswith("# NOT RUN HERE")
    assert ".ci/gpu" in head


def test_the_stages_are_those_of_the_design() -> None:
    """In this order, and all with a share of the time."""
    assert list(STAGES) == [
        "environment",
        "operations",
        "exact",
        "faults",
        "floats",
        "memory",
        "benchmarks",
        "traps",
    ]
    assert all(share > 0 for _, share in STAGES.values())
