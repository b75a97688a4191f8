"""What the kernels become on a device, found out without one.

Triton compiles for a device that is not there, and NVIDIA's assembler, which comes with Triton,
says how many registers each thread takes and what did not fit into them. The widths of loads and
stores stand in the assembly. None of it is a time. `python -m gpu.offline` prints it as JSON.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gpu import ops
from gpu.launch import TABLE_WIDTH, TritonForms

COMPUTE_CAPABILITY: Final = 90
"""That of an H100 or H200."""

ROW_BYTES: Final = (2048, 512, 96)
"""A layer's row of one token: of usual sizes, and of one that no wide access divides."""

_NUM_ROWS: Final = 2048
_NUM_BLOCKS: Final = 32

_USED: Final = re.compile(r"Used (\d+) registers")
_SPILLED: Final = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_MOVED: Final = re.compile(r"\b(ld|st)\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.b(\d+)\b")


@dataclass(frozen=True, slots=True)
class CompileFacts:
    """One kernel for one form of rows: registers of a thread, spilled bytes, accesses by bits."""

    registers: int
    spill_bytes: int
    load_bits: dict[int, int]
    store_bits: dict[int, int]


class _Recorder(dict[str, Any]):
    """Stands in for the kernels: remembers how each was launched and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: dict[str, tuple[tuple[Any, ...], int]] = {}

    def __missing__(self, name: str) -> Mapping[tuple[int, ...], Callable[..., None]]:
        """A kernel of this name, for whatever grid."""

        def launch(*args: object, num_warps: int, **_: object) -> None:
            self.launches[name] = (args, num_warps)

        return defaultdict(lambda: launch)


def compile_facts(row_bytes: int, block_size: int = 16) -> dict[str, CompileFacts]:
    """The facts of every kernel, by name, as launched for rows of this size in a large pool.

    Needs Triton and no device.
    """
    from gpu import kernels  # noqa: PLC0415  # Triton is needed from here on only

    return {
        name: facts_of(*kernels.assembly(name, args, num_warps, COMPUTE_CAPABILITY))
        for name, (args, num_warps) in _launches(row_bytes, block_size).items()
    }


def _launches(row_bytes: int, block_size: int) -> dict[str, tuple[tuple[Any, ...], int]]:
    """How `TritonForms` launches each kernel: its arguments and its warps."""
    recorder = _Recorder()
    forms = TritonForms(recorder)
    rows = torch.zeros(_NUM_ROWS, 1, row_bytes, dtype=torch.uint8)
    planes = torch.zeros(2, _NUM_BLOCKS + 1, block_size, 1, row_bytes, dtype=torch.uint8)
    slots = torch.zeros(_NUM_ROWS, dtype=torch.int64)
    tags = slots.int()
    lease, log = tags[:_NUM_BLOCKS], ops.Log.empty(ops.LEASE_COLUMNS, "cpu")
    table = torch.zeros(2, TABLE_WIDTH, dtype=torch.int32)
    forms.route_slots(slots, tags, lease, log.counts, log.ring, block_size)
    forms.scatter_kv(rows, rows, planes[0], planes[1], slots, tags, lease, log.counts, log.ring)
    forms.ms64_slots(planes[0], slots, 2**40, 0, 0)
    forms.poison(planes[0], slots[:2], 0x7F)
    forms.gather_kv(planes[0], table, slots[:2], slots[:2])
    at = (table, table, table.long(), slots[:2], lease, slots[:_NUM_BLOCKS])
    forms.check_identity(*at, log.counts, log.ring)
    return recorder.launches


def facts_of(assembly: str, assembler: Path) -> CompileFacts:
    """The facts in a kernel's assembly (PTX), asked of the assembler."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(assembly, encoding="utf-8")
        command = [
            str(assembler),
            "-v",
            f"-arch=sm_{COMPUTE_CAPABILITY}a",
            str(source),
            "-o",
            "/dev/null",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603  # the program comes with Triton
    return facts_in(assembly, said)


def facts_in(assembly: str, said: str) -> CompileFacts:
    """The facts in a kernel's assembly and in what the assembler said of it."""
    used, spilled = _USED.search(said), _SPILLED.search(said)
    assert used is not None, f"the assembler did not say what the kernel uses: {said!r}"
    assert spilled is not None, f"the assembler did not say what the kernel spills: {said!r}"
    bits: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter()}
    for kind, lanes, width in _MOVED.findall(assembly):
        bits[kind][int(lanes or 1) * int(width)] += 1
    return CompileFacts(
        registers=int(used[1]),
        spill_bytes=int(spilled[1]) + int(spilled[2]),
        load_bits=dict(bits["ld"]),
        store_bits=dict(bits["st"]),
    )


def as_data(facts: Mapping[str, CompileFacts]) -> dict[str, dict[str, object]]:
    """The facts as JSON has them."""
    return {name: asdict(one) for name, one in facts.items()}


def main() -> int:
    """Print the facts of every kernel for rows of usual sizes, by the bytes of a row."""
    facts = {str(size): as_data(compile_facts(size)) for size in ROW_BYTES}
    sys.stdout.write(json.dumps({"compute_capability": COMPUTE_CAPABILITY, "rows": facts}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
