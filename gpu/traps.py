"""Traps: settled blocks that cannot be written, so that whoever tries is stopped at the spot.

On a CPU the pool lies in memory pages of its own, one block of one plane in whole pages, and a
settled block's pages are read-only. A writer dies by SIGSEGV, whatever it is: an operation of
torch, a copy, an array of another library. That cannot be caught, so an audit runs in processes of
their own, and says of each whether it had to end or to die:

    python -m gpu.traps clean 20       serves 20 clean runs
    python -m gpu.traps fault F12 0    serves a run with a fault, and dies
    python -m gpu.traps writer copy_   writes a protected block in one way, and dies

`--open` leaves the pages writable: the same command must then end. An audit costs a few system
calls a step and is no way to serve. `traps_cuda.py` has what there is on a device.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import torch

from gpu import ops
from gpu.exact_model import ExactModel
from gpu.faults import FAULTS, MAX_RUNS, STRIDE, make_run, run_once
from gpu.pool import KVPool
from gpu.runner import Batch, Guard
from gpu.shield import Shield

PROT_READ: Final = 1
PROT_WRITE: Final = 2

DEADLY: Final = ("F03", "F05", "F09", "F10", "F11", "F12", "F17", "F18", "F21", "F22")
"""Faults that write a settled block, the null block or a red zone, when no lease keeps them off."""


class Protector(Protocol):
    """What can make blocks read-only, and writable again."""

    def permit(self, block_ids: Iterable[int], *, may_write: bool) -> None:
        """Blocks of all planes; -1 and `num_blocks + 1` are the red zones."""


class PageTraps:
    """The pages of a pool with `backing="mmap"`."""

    def __init__(self, pool: KVPool) -> None:
        assert pool.backing == "mmap", "a block that shares its pages cannot be protected"
        self._pool = pool
        self._libc = ctypes.CDLL(None, use_errno=True)

    def permit(self, block_ids: Iterable[int], *, may_write: bool) -> None:
        """Raises `OSError` where the system refuses."""
        wanted = PROT_READ | PROT_WRITE if may_write else PROT_READ
        pool = self._pool
        for block_id in block_ids:
            for layer in range(len(pool.specs)):
                for plane in range(pool.num_planes(layer)):
                    address, num_bytes = pool.span(layer, plane, block_id)
                    assert not address % mmap.PAGESIZE, f"block {block_id} begins inside a page"
                    place = (ctypes.c_void_p(address), ctypes.c_size_t(num_bytes))
                    if self._libc.mprotect(*place, wanted):
                        error = ctypes.get_errno()
                        raise OSError(error, os.strerror(error), f"block {block_id}")


class Trapped:
    """A guard that keeps what is settled read-only, between the runner and a shield."""

    def __init__(self, shield: Shield, protector: Protector) -> None:
        self._shield = shield
        self._protector = protector
        self._closed: set[int] = set()
        self.take, self.evict, self.seal = shield.take, shield.evict, shield.seal
        self.touch, self.release = shield.touch, shield.release
        self.unpublish, self.reset = shield.unpublish, shield.reset
        self.before_call, self.before_read = shield.before_call, shield.before_read
        self.after_write = shield.after_write
        num_blocks = shield.pool.num_blocks
        protector.permit((-1, 0, num_blocks + 1), may_write=False)

    def before_step(self, batch: Batch) -> torch.Tensor:
        """Open what was taken, then see what the shield says."""
        self._follow()
        return self._shield.before_step(batch)

    def settle(self, batch: Batch) -> None:
        """Close what the step has filled."""
        self._shield.settle(batch)
        self._follow()

    def _follow(self) -> None:
        settled = self._shield.ledger.settled_blocks()
        self._protector.permit(sorted(self._closed - settled), may_write=True)
        self._protector.permit(sorted(settled - self._closed), may_write=False)
        self._closed = settled


def trap(shield: Shield) -> Trapped:
    """A shield whose settled blocks cannot be written."""
    return Trapped(shield, PageTraps(shield.pool))


def _numpy(pool: KVPool) -> None:
    pool.plane(0, 0)[1].view(torch.uint8).numpy().fill(0)


def _index_put(pool: KVPool) -> None:
    plane = pool.plane(0, 0)
    plane[torch.tensor([1])] = torch.zeros_like(plane[:1])


def _index_copy(pool: KVPool) -> None:
    plane = pool.plane(0, 0).view(torch.uint8)
    plane.index_copy_(0, torch.tensor([1]), torch.zeros_like(plane[:1]))


def _write_rows(pool: KVPool) -> None:
    rows = torch.zeros_like(pool.plane(0, 0)[0, :1])
    slots = torch.tensor([pool.block_size(0)])
    ops.write_rows(rows, rows, pool.plane(0, 0), pool.plane(0, 1), slots)


def _copy(pool: KVPool) -> None:
    block = pool.plane(0, 0)[1]
    block.copy_(torch.zeros_like(block))


def _fill(pool: KVPool) -> None:
    pool.plane(0, 0)[1].view(torch.uint8).fill_(0)


WRITERS: Final[Mapping[str, Callable[[KVPool], None]]] = {
    "copy_": _copy,
    "fill_": _fill,
    "index_put_": _index_put,
    "index_copy_": _index_copy,
    "numpy": _numpy,
    "write_rows": _write_rows,
}
"""Ways to write block 1."""


@dataclass(frozen=True)
class TrapRow:
    """What one process of an audit did; `verdict` compares it with what it had to do."""

    name: str
    expected: Literal["ends", "dies"]
    outcome: str
    verdict: Literal["as expected", "NOT as expected", "not available", "not run"]
    seconds: float


def audit(num_clean: int, *, seconds: float = float("inf")) -> Iterator[TrapRow]:
    """The clean suite, the deadly faults and the writers on a CPU, each in a process of its own.

    What did not begin within `seconds` is `not run`.
    """
    begun = time.monotonic()
    plans: list[tuple[Literal["ends", "dies"], list[str]]] = [("ends", ["clean", str(num_clean)])]
    plans += [("dies", ["fault", name, "0"]) for name in DEADLY]
    plans += [("dies", ["writer", name]) for name in WRITERS]
    plans += [
        ("ends", ["--open", "fault", DEADLY[0], "0"]),
        ("ends", ["--open", "writer", "copy_"]),
    ]
    for expected, arguments in plans:
        if time.monotonic() - begun > seconds:
            yield TrapRow(" ".join(arguments), expected, "", "not run", 0.0)
        else:
            yield run_apart(expected, arguments)


def run_apart(expected: Literal["ends", "dies"], arguments: Sequence[str]) -> TrapRow:
    """One command of this module in a process of its own."""
    begun = time.monotonic()
    # A server imports torch once, and every process is forked from it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__ if __name__ != "__main__" else "gpu.traps"])
    process = context.Process(target=_command, args=(list(arguments),))
    process.start()
    process.join()
    died = process.exitcode == -signal.SIGSEGV
    outcome = "died of SIGSEGV" if died else f"exit status {process.exitcode}"
    good = died if expected == "dies" else process.exitcode == 0
    process.close()
    verdict: Literal["as expected", "NOT as expected"] = (
        "as expected" if good else "NOT as expected"
    )
    return TrapRow(" ".join(arguments), expected, outcome, verdict, time.monotonic() - begun)


def _command(arguments: list[str]) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        status = main(arguments)
    sys.exit(status)


def _clean(num_runs: int, guard_of: Callable[[Shield], Guard]) -> str | None:
    for seed in range(num_runs):
        trial = run_once(make_run(seed, "cpu"), seed=seed, backing="mmap", guard_of=guard_of)
        if trial.fired or trial.is_wrong:
            return f"seed {seed}: {trial}"
    return None


def _fault(name: str, seed: int, guard_of: Callable[[Shield], Guard]) -> str | None:
    """Serve runs until the fault finds its place; without leases, which would keep it off."""
    for number in range(MAX_RUNS):
        trial = run_once(
            make_run(seed + number * STRIDE, "cpu", FAULTS[name]),
            layers=(),
            fault=FAULTS[name],
            seed=seed,
            backing="mmap",
            guard_of=guard_of,
        )
        if trial.step is not None:
            return None
    return f"{name} found no place in {MAX_RUNS} runs"


def _write(name: str, *, is_open: bool) -> None:
    pool = KVPool(ExactModel("int8").kv_cache_config(4, 4), backing="mmap")
    if not is_open:
        PageTraps(pool).permit([1], may_write=False)
    WRITERS[name](pool)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part of an audit; exit status 1 where a clean run is not clean."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--open", action="store_true", help="leave the pages writable")
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("clean").add_argument("num_runs", type=int)
    fault = parts.add_parser("fault")
    fault.add_argument("name", choices=FAULTS)
    fault.add_argument("seed", type=int)
    parts.add_parser("writer").add_argument("name", choices=WRITERS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # A death that is meant needs no memory of it on the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    guard_of: Callable[[Shield], Guard] = (lambda shield: shield) if given.open else trap
    problem: str | None = None
    if given.part == "clean":
        problem = _clean(given.num_runs, guard_of)
    elif given.part == "fault":
        problem = _fault(given.name, given.seed, guard_of)
    else:
        _write(given.name, is_open=given.open)
    sys.stdout.write(f"{problem or 'ended'}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
