"""The stages of `gpu.ci`: each looks at one thing within its time and says what it found.

A stage that could not do all of its work in time is `incomplete`; what a device or a tool is
missing for is `not available`, with the reason in its figures.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

import torch

from gpu import bench, ops
from gpu.faults import (
    FAULTS,
    NUM_SEEDS,
    AblationRow,
    FaultRow,
    ablation,
    clean_trials,
    fault_table,
    make_workload_run,
    run_once,
)
from gpu.float_model import FloatModel
from gpu.goldens import compare_forms, golden_rows
from gpu.layout import allocate
from gpu.matrix import cover, exact_matrix, shared_prefix_work
from gpu.memory import (
    CudaMeter,
    available_by_growth,
    available_by_peak,
    determine_available_memory_on_cpu,
    profile_memory,
    rss_bytes_of,
)
from gpu.reference import references
from gpu.scheduling import Work
from gpu.shield import LAYERS
from gpu.tolerances import measure
from gpu.traps import audit
from gpu.traps_cuda import audit_cuda

Verdict = Literal["clean", "violation", "incomplete"]

NUM_CLEAN: Final = 300
NUM_ABLATED: Final = 2
NUM_REQUESTS: Final = 30
NUM_TRAPPED: Final = 20
UTILIZATION: Final = 0.5


@dataclass(frozen=True)
class Plan:
    """What all stages share: the device; by name, a block size and the requests served with it."""

    device: str
    workloads: Mapping[str, tuple[int, Sequence[Work]]]
    missing_workloads: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """What a stage found: the verdict, one line, and every figure, ready for JSON."""

    verdict: Verdict
    line: str
    figures: Mapping[str, Any]


Stage = Callable[[Plan, float], Outcome]
"""`stage(plan, seconds)`."""


def _verdict(*, good: bool, whole: bool = True) -> Verdict:
    if not good:
        return "violation"
    return "clean" if whole else "incomplete"


def environment(plan: Plan, _seconds: float) -> Outcome:
    """What runs here, on what, and how fast that reads memory."""
    packages = {}
    for name in ("torch", "triton", "numpy", "pydantic"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    forms = {name: ops.unavailable(name) or "available" for name in ops.BACKENDS}
    device: dict[str, Any] = {"kind": plan.device, "machine": platform.machine()}
    if plan.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        device |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    ceiling = bench.read_ceiling(plan.device)
    figures = {
        "python": platform.python_version(),
        "packages": packages,
        "device": device,
        "torch_threads": torch.get_num_threads(),
        "operations": forms,
        "read_bytes_per_second": round(ceiling),
    }
    here = device.get("name", f"{plan.device} ({platform.machine()})")
    line = f"torch {packages['torch']} on {here}, reads {ceiling / 1e9:.1f} GB/s"
    return Outcome("clean", line, figures)


def operations(plan: Plan, _seconds: float) -> Outcome:
    """Every operation in every form that there is, bit for bit."""
    rows = [golden_rows(), *compare_forms("torch", plan.device)]
    forms, absent = ["torch"], {}
    for backend in ("interp", "cuda"):
        reason = ops.unavailable(backend)
        if backend == "interp" and plan.device == "cuda":
            reason = "the interpreter is not for devices"
        if reason is not None:
            absent[backend] = reason
            continue
        forms.append(backend)
        rows += compare_forms(backend, "cpu" if backend == "interp" else plan.device)
    wrong = [row.name for row in rows if row.num_different]
    total = sum(row.num_compared for row in rows)
    line = f"{total:,} numbers in {len(rows)} comparisons, forms {', '.join(forms)}"
    line += f"; not here: {', '.join(absent)}" if absent else ""
    line += f"; WRONG: {wrong}" * bool(wrong)
    figures = {"rows": [asdict(row) for row in rows], "not_available": absent}
    return Outcome(_verdict(good=not wrong), line, figures)


def exact(plan: Plan, seconds: float) -> Outcome:
    """Tokens and bytes in every triple of choices; then workloads under a shield."""
    begun = time.monotonic()
    work = shared_prefix_work(NUM_REQUESTS, 1)
    rows = exact_matrix(work, cover(3), device=plan.device, seconds=0.7 * seconds)
    good = all(row.verdict in {"equal", "not run"} for row in rows)
    whole = all(row.verdict != "not run" for row in rows)
    trials: dict[str, Any] = {}
    for name, (size, requests) in plan.workloads.items():
        if time.monotonic() - begun > seconds:
            whole = False
            break
        trial = run_once(make_workload_run(requests, size, plan.device))
        good = good and trial.is_clean and not trial.tally.refused
        trials[name] = {"requests": len(requests), **asdict(trial)}
    hits = sum(trial["tally"]["num_hit_tokens"] for trial in trials.values())
    done = sum(row.verdict != "not run" for row in rows)
    line = (
        f"{done} of {len(rows)} settings with {NUM_REQUESTS} requests equal, "
        f"{len(trials)} workloads clean, {hits:,} tokens hit"
    )
    figures = {
        "settings": [asdict(row) for row in rows],
        "workloads": trials,
        "workloads_not_available": list(plan.missing_workloads),
    }
    return Outcome(_verdict(good=good, whole=whole), line if good else "DIFFERS: " + line, figures)


def faults(plan: Plan, seconds: float) -> Outcome:
    """Clean runs without an alarm, every fault seen, and what escapes without a layer."""
    until = time.monotonic() + seconds
    alarms: list[dict[str, Any]] = []
    num_clean = checked = 0
    for trial in clean_trials(range(NUM_CLEAN), device=plan.device):
        num_clean, checked = num_clean + 1, checked + trial.checked
        alarms += [] if trial.is_clean else [asdict(trial)]
        if time.monotonic() > until:
            break
    table: list[FaultRow] = []
    for row in fault_table(range(NUM_SEEDS), device=plan.device):
        if time.monotonic() > until:
            break
        table.append(row)
    ablated: list[AblationRow] = []
    for layer in LAYERS:
        if time.monotonic() > until:
            break
        ablated.append(ablation(layer, range(NUM_ABLATED), device=plan.device))
    bad = [row.fault for row in table if not row.is_good]
    idle = [row.without for row in ablated if not row.escaped]
    whole = (num_clean, len(table), len(ablated)) == (NUM_CLEAN, len(FAULTS), len(LAYERS))
    line = (
        f"{len(table)} of {len(FAULTS)} faults with {NUM_SEEDS} seeds seen, "
        f"{len(alarms)} alarms in {num_clean} clean runs, {checked:,} checks"
    )
    line += f"; NOT SEEN as expected: {bad}" if bad else ""
    line += f"; layers that nobody needs: {idle}" if idle else ""
    figures = {
        "clean_runs": num_clean,
        "checks_in_clean_runs": checked,
        "alarms": alarms,
        "faults": [asdict(row) for row in table],
        "ablation": [asdict(row) for row in ablated],
    }
    return Outcome(_verdict(good=not (alarms or bad or idle), whole=whole), line, figures)


def floats(plan: Plan, seconds: float) -> Outcome:
    """Float decoders within the tolerances that are stated."""
    begun = time.monotonic()
    work, rows, whole = shared_prefix_work(NUM_REQUESTS, 1), [], True
    for setting in cover(2):
        for dtype in ("float32", "bfloat16"):
            if time.monotonic() - begun > seconds:
                whole = False
                break
            (row,) = measure(dtype, work, [setting], device=plan.device)
            rows.append({"dtype": dtype, **asdict(row)})
    good = all(row["verdict"] == "within" for row in rows)
    worst = max((row["kv_error"] for row in rows), default=0.0)
    changed = sum(row["num_changed"] for row in rows)
    line = (
        f"{len(rows)} rows within tolerance, largest error {worst:.2e}, "
        f"{changed} of {len(rows) * NUM_REQUESTS} streams changed"
    )
    return Outcome(_verdict(good=good, whole=whole), line, {"rows": rows})


def memory(plan: Plan, _seconds: float) -> Outcome:
    """What the cache may take, by the formulas, and that so much can then be had."""
    model = FloatModel("float32", device=plan.device)
    work = shared_prefix_work(4, 2)

    def profile_run() -> None:
        references(model, work)

    figures: dict[str, int] = {}
    if plan.device == "cuda":
        meter = CudaMeter()
        started = meter.snapshot()
        after = profile_memory(profile_run, meter).after
        figures["by_peak"] = available_by_peak(after, UTILIZATION)
        figures["by_growth"] = available_by_growth(started, after, UTILIZATION)
        available = min(figures.values())
    else:
        requested = rss_bytes_of()[0] + 2**28
        available = determine_available_memory_on_cpu(profile_run, requested)
        figures["requested"], figures["available"] = requested, available
    page = model.kv_cache_config(2, 16).layer_specs["layer.0"].page_size_bytes
    # A part of it is enough to see that the plan becomes tensors.
    num_blocks = min(available, 2**28) // page // model.num_layers
    good = num_blocks >= 2
    if good:
        held = allocate(model.kv_cache_config(num_blocks, 16), torch.device(plan.device))
        figures["allocated"] = sum(tensor.numel() for tensor in held.values())
    line = f"{available / 2**20:,.0f} MiB available, {num_blocks:,} blocks allocated"
    return Outcome(_verdict(good=good), line, figures)


def benchmarks(plan: Plan, _seconds: float) -> Outcome:
    """Ratios of what was measured in this run."""
    rows = [bench.scatter_cost(plan.device), *bench.guard_cost(plan.device)]
    if plan.device == "cuda":
        rows += [bench.fingerprint_on_cuda(), bench.decode_step_cost(), bench.hit_cost()]
    rows += [] if plan.device == "cuda" else [bench.compiled_fingerprint()]
    good = all(row.is_bound_kept for row in rows)
    shown = [
        f"{row.name} {'not measured' if row.value is None else f'{row.value:.3g}'}"
        + (f" (wanted {row.wanted})" if row.wanted != "-" else "")
        for row in rows
    ]
    return Outcome(_verdict(good=good), "; ".join(shown), {"rows": [asdict(row) for row in rows]})


def traps(_plan: Plan, seconds: float) -> Outcome:
    """The audits in processes of their own; a death by SIGSEGV is what some of them must end in."""
    begun, rows = time.monotonic(), list(audit(NUM_TRAPPED, seconds=0.6 * seconds))
    rows += audit_cuda(seconds=seconds - (time.monotonic() - begun))
    deaths = sum("SIGSEGV" in row.outcome and row.expected == "dies" for row in rows)
    bad = [row.name for row in rows if row.verdict == "NOT as expected"]
    absent = {row.name: row.outcome for row in rows if row.verdict == "not available"}
    whole = all(row.verdict != "not run" for row in rows)
    line = f"{NUM_TRAPPED} clean runs with read-only blocks, {deaths} deaths by SIGSEGV as expected"
    line += f"; not available: {len(absent)} on CUDA" if absent else ""
    line += f"; NOT as expected: {bad}" if bad else ""
    figures = {"rows": [asdict(row) for row in rows], "not_available": absent}
    return Outcome(_verdict(good=not bad, whole=whole), line, figures)


STAGES: Final[Mapping[str, tuple[Stage, float]]] = {
    "environment": (environment, 2),
    "operations": (operations, 3),
    "exact": (exact, 20),
    "faults": (faults, 150),
    "floats": (floats, 8),
    "memory": (memory, 2),
    "benchmarks": (benchmarks, 10),
    "traps": (traps, 10),
}
"""By name and in order: what a stage does, and its share of the time that is left."""
