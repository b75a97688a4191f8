"""What there is of traps on a CUDA device: a tool that checks every access, and a mapping.

* Under NVIDIA's compute-sanitizer a settled block is read-only by NVTX's memory permissions
  (`nvtx_permissions.c`), and memcheck reports a kernel that writes it. A clean run must be free of
  reports, and a run with a fault must have one.
* A mapping by the virtual memory interface of the driver may be asked to be read-only. Whether a
  device refuses that, ignores it or keeps it is found out by a probe, and relied on by nobody.

Both run in processes of their own, and say `not available` with the reason where something that
they need is missing.

    python -m gpu.traps_cuda probe      prints `refused`, `not enforced` or `enforced`
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import torch

from gpu.errors import DriverCallFailed
from gpu.faults import FAULTS, MAX_RUNS, STRIDE, make_run, run_once
from gpu.mapping import probe
from gpu.pool import NUM_EXTRA_BLOCKS, KVPool
from gpu.shield import Shield
from gpu.traps import Trapped, TrapRow

SOURCE: Final = Path(__file__).with_name("nvtx_permissions.c")
LIBRARY_VARIABLE: Final = "KVSPEC_NVTX_LIBRARY"
REPORTED: Final = 7
"""The exit status that the sanitizer is asked for when it has a report."""
UNHEARD: Final = 8
"""Our exit status where no tool listens to NVTX."""
NOT_WRITABLE: Final = "is not writable"
"""What memcheck says of a write without permission."""
MOST_S: Final = 120.0


class NvtxTraps:
    """The permissions of a pool's blocks, told to whatever tool listens."""

    def __init__(self, pool: KVPool, library: ctypes.CDLL) -> None:
        self._pool = pool
        self._permit = library.kvspec_permit
        self._permit.argtypes = (ctypes.c_void_p, ctypes.c_int)
        register = library.kvspec_register
        register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        for layer in range(len(pool.specs)):
            # One allocation holds all planes of a layer, one after the other.
            address, num_bytes = pool.span(layer, 0, -1)
            num_rows = pool.num_planes(layer) * (pool.num_blocks + NUM_EXTRA_BLOCKS)
            register(address, num_rows, num_bytes)

    def permit(self, block_ids: Iterable[int], *, may_write: bool) -> None:
        """Blocks of all planes; -1 and `num_blocks + 1` are the red zones."""
        # What was started under the old permissions must be over.
        torch.cuda.synchronize()
        pool = self._pool
        for block_id in block_ids:
            for layer in range(len(pool.specs)):
                for plane in range(pool.num_planes(layer)):
                    self._permit(pool.span(layer, plane, block_id)[0], int(may_write))


def missing_for_sanitizer() -> str | None:
    """Why the audit under the sanitizer cannot run here, or None."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    for program in ("compute-sanitizer", "cc"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH"
    if _headers() is None:
        return "nvtx3/nvToolsExtMem.h is in no CUDA toolkit that was found; set CUDA_HOME"
    return None


def audit_cuda(*, seconds: float = float("inf")) -> Iterator[TrapRow]:
    """The clean run and the fault under the sanitizer, and the probe."""
    begun = time.monotonic()
    reason = missing_for_sanitizer()
    for name, expected in (("clean", "ends"), ("fault", "dies")):
        row_name = f"compute-sanitizer {name}"
        kind: Literal["ends", "dies"] = "ends" if expected == "ends" else "dies"
        if reason is not None:
            yield TrapRow(row_name, kind, reason, "not available", 0.0)
        elif time.monotonic() - begun > seconds:
            yield TrapRow(row_name, kind, "", "not run", 0.0)
        else:
            yield _sanitized(row_name, kind, name)
    yield probe_row()


def _sanitized(row_name: str, expected: Literal["ends", "dies"], part: str) -> TrapRow:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "permissions.so"
        built = _run(
            ["cc", "-shared", "-fPIC", f"-I{_headers()}", str(SOURCE), "-o", str(library), "-ldl"]
        )
        if built is None or built.returncode:
            why = "it took too long" if built is None else built.stderr.strip()[-200:]
            return TrapRow(row_name, expected, f"cc: {why}", "not available", 0.0)
        done = _run(
            [
                "compute-sanitizer",
                "--tool=memcheck",
                "--nvtx=yes",
                f"--error-exitcode={REPORTED}",
                sys.executable,
                "-m",
                "gpu.traps_cuda",
                part,
            ],
            # Each tensor has an allocation of its own, which can then be a heap.
            {LIBRARY_VARIABLE: str(library), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
    spent = time.monotonic() - begun
    if done is None:
        return TrapRow(row_name, expected, f"not over after {MOST_S:.0f} s", "not run", spent)
    said = done.stdout + done.stderr
    is_reported = done.returncode == REPORTED and NOT_WRITABLE in said
    if done.returncode == UNHEARD:
        return TrapRow(row_name, expected, "no tool listens to NVTX", "not available", spent)
    if not is_reported and done.returncode:
        tail = " ".join(said.strip().splitlines()[-2:])[-300:]
        return TrapRow(
            row_name, expected, f"exit status {done.returncode}: {tail}", "not available", spent
        )
    good = is_reported if expected == "dies" else not is_reported
    outcome = "a write without permission was reported" if is_reported else "no report"
    return TrapRow(row_name, expected, outcome, "as expected" if good else "NOT as expected", spent)


def probe_row() -> TrapRow:
    """What the device does with a read-only mapping: refused, not enforced, enforced."""
    name = "read-only mapping (a probe)"
    if not torch.cuda.is_available():
        return TrapRow(name, "ends", "torch finds no CUDA device", "not available", 0.0)
    begun = time.monotonic()
    done = _run([sys.executable, "-m", "gpu.traps_cuda", "probe"])
    spent = time.monotonic() - begun
    said = "" if done is None else (done.stdout.strip() or done.stderr.strip()[-200:])
    if done is None or done.returncode:
        return TrapRow(name, "ends", f"the probe failed: {said}", "not available", spent)
    return TrapRow(name, "ends", said, "as expected", spent)


def _run(
    command: Sequence[str], more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a program in the checkout; None where it is not over in time."""
    try:
        return subprocess.run(  # noqa: S603  # programs that are named here
            command,
            cwd=SOURCE.parents[1],
            env={**os.environ, **(more or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
        )
    except subprocess.TimeoutExpired:
        return None


def _headers() -> Path | None:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda", *map(str, _toolkits())]
    folders = [Path(home) / "include" for home in homes if home]
    there = [one for one in folders if (one / "nvtx3" / "nvToolsExtMem.h").exists()]
    return there[0] if there else None


def _toolkits() -> list[Path]:
    return sorted(Path("/usr/local").glob("cuda-*"), reverse=True)


def _serve(part: str) -> int:
    """One run on the device under permissions; a fault strikes once, in a settled block."""
    library = ctypes.CDLL(os.environ[LIBRARY_VARIABLE])
    if not library.kvspec_open():
        return UNHEARD
    fault = FAULTS["F12"] if part == "fault" else None
    for number in range(MAX_RUNS):
        trial = run_once(
            make_run(number * STRIDE, "cuda", fault),
            layers=(),
            fault=fault,
            guard_of=lambda shield: _trap(shield, library),
        )
        if fault is None or trial.step is not None:
            return 0
    return 1


def _trap(shield: Shield, library: ctypes.CDLL) -> Trapped:
    return Trapped(shield, NvtxTraps(shield.pool, library))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part: a run under permissions, or the probe, whose outcome is printed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("part", choices=("clean", "fault", "probe"))
    part = parser.parse_args(arguments).part
    if part != "probe":
        return _serve(part)
    try:
        sys.stdout.write(f"{probe()}\n")
    except (OSError, DriverCallFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
