"""Fixtures that run real worker processes on this machine's loopback."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).with_name("worker_process.py")
MOST_S = 60.0
CONNECT_S = 30.0
CONTEXT = multiprocessing.get_context("forkserver")

Task = dict[str, Any]


class Running:
    """Worker processes at work. A task of None is a worker that is never started."""

    def __init__(
        self, tasks: Sequence[Task | None], folder: Path, timeout_s: float, start: Barrier
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.processes: dict[int, BaseProcess] = {}
        self.port = reserved_port()
        # Kept, because a barrier that the parent drops is gone for whoever has not opened it yet.
        self.barriers = [start, CONTEXT.Barrier(num_of(tasks), timeout=MOST_S)]
        common = {
            "world_size": len(tasks),
            "port": self.port.getsockname()[1],
            "timeout_s": timeout_s,
            "connect_s": CONNECT_S if None not in tasks else timeout_s,
            "seed": 7,
            "barriers": self.barriers,
        }
        for rank, task in enumerate(tasks):
            if task is None:
                continue
            names = {"task": common | task | {"rank": rank}, "out": str(self._out(rank))}
            process = CONTEXT.Process(
                target=runpy.run_path, args=(str(PROGRAM), names, "__main__"), daemon=True
            )
            process.start()
            self.processes[rank] = process

    def _out(self, rank: int) -> Path:
        return self.folder / f"{rank}.json"

    def outcomes(self, silent: int | None = None) -> dict[int, Task]:
        """Wait for all but the silent one to end; return what each of them wrote down."""
        until = time.monotonic() + MOST_S
        for rank, process in self.processes.items():
            if rank != silent:
                process.join(max(0.1, until - time.monotonic()))
        states = {r: p.exitcode for r, p in self.processes.items() if r != silent}
        assert states == dict.fromkeys(states, 0)
        return {r: json.loads(self._out(r).read_text(encoding="utf-8")) for r in states}

    def end(self) -> None:
        """End what is left, stopped processes too."""
        for process in self.processes.values():
            process.kill()
            process.join()
            process.close()
        self.port.close()


def num_of(tasks: Sequence[Task | None]) -> int:
    """Return how many processes are started for the tasks."""
    return len(tasks) - tasks.count(None)


def reserved_port() -> socket.socket:
    """Return a socket whose port nobody else is given while it is open, and a worker may use.

    It is bound and does not listen; the store, which also asks to share the address, may then.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Keep torch from taking the whole machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def start_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Return a function from groups of tasks, by name, to running workers, by the same names.

    No worker begins before all are there, so that none is late because another one is starting.
    Whatever is left in the end is ended.
    """
    folder = tmp_path_factory.mktemp("workers")
    # A server imports torch once, and every worker is forked from it.
    CONTEXT.set_forkserver_preload(["pytest", "torch.distributed", "gpu.workers", "kvcache"])
    started: list[Running] = []

    def start(
        groups: Mapping[str, Sequence[Task | None]], timeout_s: float = 20.0
    ) -> dict[str, Running]:
        everybody = CONTEXT.Barrier(sum(map(num_of, groups.values())), timeout=MOST_S)
        running = {}
        for name, tasks in groups.items():
            running[name] = Running(tasks, folder / str(len(started)), timeout_s, everybody)
            started.append(running[name])
        return running

    yield start
    for running in started:
        running.end()


@pytest.fixture(scope="module")
def run_workers(start_groups: Callable[..., Any]) -> Callable[..., dict[int, Task]]:
    """Return a function that runs one group and returns how each worker came out."""

    def run(tasks: Sequence[Task | None], timeout_s: float = 20.0) -> dict[int, Task]:
        running: Running = start_groups({"one": tasks}, timeout_s)["one"]
        return running.outcomes()

    return run
