"""What the tensor level adds to the documents: a line a property, and the red team's tables."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conformance.documents.results import ROOT, read, write
from conformance.output import out

TENSOR: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("tensor.toml").read_text(encoding="utf-8")
)
"""By property: how it is checked on tensors, where, and with which seeded faults."""

LAYERS = ("lease", "fingerprint", "poison", "identity")

BULK = {"operations": ("rows",), "exact": ("settings", "workloads"), "floats": ("rows",)}
"""Figures that are many and say no more than the line of their stage."""


def on_tensors(name: str) -> str:
    """Return what the tensor level checks of a property, in a sentence."""
    known = TENSOR.get(name)
    if known is None:
        return "not checked"
    places = ", ".join(f"`{place}`" for place in known["by"])
    return f"{known['check']} ({places}; seeded faults {', '.join(known['faults'])})"


def record_gpu() -> bool:
    """Run every stage of `gpu.ci` on the CPU and write its figures down; return whether clean."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "gpu.json"
        command = [sys.executable, "-m", "gpu.ci", "--device", "cpu", "--json", str(file)]
        subprocess.run(command, cwd=ROOT, check=False)  # noqa: S603  # our own module
        data = json.loads(file.read_text(encoding="utf-8"))
    for stage, names in BULK.items():
        for name in names:
            data["stages"].get(stage, {}).pop(name, None)
    write("gpu", data)
    out.print(f"gpu: {data['verdict']}")
    return bool(data["verdict"] == "clean")


def record_kernels() -> bool:
    """Compile every kernel for a device that is not here; return whether none spills."""
    command = [sys.executable, "-m", "gpu.offline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603  # the same
    data = json.loads(done.stdout)
    write("kernels", {**data, "triton": version("triton")})
    spilled = [name for row in data["rows"].values() for name in row if row[name]["spill_bytes"]]
    out.print(f"kernels: {len(data['rows'])} sizes of rows, spilled: {spilled}")
    return not spilled


def tensor_section() -> Iterator[str]:
    """Yield what was recorded of the tensor level: stages, faults by layer, what escapes."""
    data = read("gpu")
    if not data:
        return
    stages = data["stages"]
    yield "## Tensors\n"
    yield (
        f"Recorded by `make results ARGS=gpu`, which runs `python -m gpu.ci --device "
        f"{data['device']}` (torch {stages['environment']['packages']['torch']}, "
        f"{data['machine']}). What is not available on that machine says so, and was not run.\n"
    )
    yield "| stage | verdict | seconds | what |\n|---|---|---|---|"
    for name, stage in stages.items():
        yield f"| {name} | {stage['verdict']} | {stage['seconds']:.0f} | {stage['line']} |"
    yield from _benchmarks(stages["benchmarks"])
    yield from _faults(stages["faults"])
    yield from _traps(stages["traps"])
    yield from _kernels(read("kernels"))


def _kernels(data: Mapping[str, Any]) -> Iterator[str]:
    if not data:
        return
    yield "\n### What the kernels become\n"
    yield (
        f"Recorded by `make results ARGS=kernels`: Triton {data['triton']} compiles them for "
        f"sm_{data['compute_capability']} without a device, and none was run on one. Registers are "
        "those of a thread; accesses are counted in the assembly, by bits.\n"
    )
    yield "| row, bytes | kernel | registers | spilled bytes | loads | stores |"
    yield "|---|---|---|---|---|---|"
    for size, kernels in sorted(data["rows"].items(), key=lambda row: -int(row[0])):
        for name, facts in kernels.items():
            loads, stores = (_bits(facts[kind]) for kind in ("load_bits", "store_bits"))
            cells = f"{facts['registers']} | {facts['spill_bytes']} | {loads} | {stores}"
            yield f"| {size} | `{name}` | {cells} |"


def _bits(counted: Mapping[str, int]) -> str:
    widest_first = sorted(counted.items(), key=lambda pair: -int(pair[0]))
    return ", ".join(f"{number} of {bits}" for bits, number in widest_first) or "none"


def _benchmarks(stage: Mapping[str, Any]) -> Iterator[str]:
    yield "\n### Costs, as ratios within one run\n"
    yield "| ratio | value | wanted | measured | against |\n|---|---|---|---|---|"
    for row in stage["rows"]:
        value = row["note"] if row["value"] is None else f"{row['value']:.2f}"
        yield (
            f"| {row['name']} | {value} | {row['wanted']} | {row['measured']} | {row['against']} |"
        )


def _faults(stage: Mapping[str, Any]) -> Iterator[str]:
    yield "\n### The red team\n"
    yield (
        f"{stage['clean_runs']} clean runs raised {len(stage['alarms'])} alarms in "
        f"{stage['checks_in_clean_runs']:,} checks. A number in a cell is the trials, of "
        f"{stage['faults'][0]['num_trials']}, of which it is true; *tokens* and *KV* are wrong by "
        "the exact decoder; *refused* ended in a refusal of the manager. Tokens alone do not see "
        "the faults whose *tokens* are fewer than their trials.\n"
    )
    columns = [*LAYERS, "tokens", "KV", "refused", "wrong and undetected"]
    yield f"| fault | must be seen by | {' | '.join(columns)} |\n|---|---{'|---' * len(columns)}|"
    for row in stage["faults"]:
        layers = [str(row["fired"].get(layer, "")) for layer in LAYERS]
        wrong = [row["num_tokens_wrong"], row["num_kv_wrong"], row["num_refused"]]
        cells = [*layers, *map(str, wrong), str(row["num_wrong_and_undetected"])]
        about = f"{row['fault']}: {row['says']} | {', '.join(row['expected'])}"
        yield f"| {about} | {' | '.join(cells)} |"
    yield "\n### What escapes without a layer\n"
    yield "| without | faults that nobody sees | of them wrong |\n|---|---|---|"
    for row in stage["ablation"]:
        escaped = ", ".join(f"{n} ({k} of {row['num_trials']})" for n, k in row["escaped"].items())
        wrong_ones = ", ".join(row["escaped_and_wrong"]) or "none"
        yield f"| {row['without']} | {escaped} | {wrong_ones} |"


def _traps(stage: Mapping[str, Any]) -> Iterator[str]:
    yield "\n### Traps\n"
    yield "| process | must | did | verdict |\n|---|---|---|---|"
    for row in stage["rows"]:
        yield f"| {row['name']} | {row['expected']} | {row['outcome']} | {row['verdict']} |"
