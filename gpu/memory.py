"""How many bytes a device has left for the cache: measured, because it cannot be computed.

A snapshot holds the figures of one moment, and the formulas are pure functions of snapshots, so
they are tested without a device. Two are in use. *By peak* (chapter 5.6.2) charges this worker with
all that is on the device outside torch, its neighbours included. *By growth*, the later one,
charges it with what went since it started, so that neighbours who were there before cost nothing.
Neither gives less than 0, nor more than what is free beside the activations at their peak.

The listing of chapter 5.6.2, and where each of its steps is:

| step of the listing | here |
|---|---|
| `empty_cache()` | `CudaMeter.settle`, first call in `profile_memory` |
| `reset_peak_memory_stats()` | `CudaMeter.reset_peak` |
| total of `mem_get_info()` | `MemorySnapshot.total_bytes`; the listing reads it before, we after |
| `profile_run()` | `profile_memory` |
| `allocated_bytes.all.peak` | `MemorySnapshot.torch_peak_bytes`; emptying a cache leaves it as is |
| `empty_cache()` | `CudaMeter.settle`, second call in `profile_memory` |
| `allocated_bytes.all.current` | `MemorySnapshot.torch_current_bytes` |
| total less free, of two calls of `mem_get_info()` | `CudaMeter.snapshot`, of one call |
| less what torch allocated: `non_torch_allocations` | `MemorySnapshot.non_torch_bytes` |
| added to the peak where above 0 | `available_by_peak` |
| total times utilization, less the peak | `requested_bytes_of`, `available_by_peak` |
| `int(...)`, which may be negative there | `_within_free`, which may not |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import torch

from gpu.errors import ImpossibleMemory, InvalidUtilization, NoMemoryFigures

_LOG: Final = logging.getLogger(__name__)
MAX_BYTES: Final = 2**53
"""Above it a float, and so a utilization, no longer tells single bytes apart."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The memory of a device at one moment, in bytes.

    `free_bytes` and `total_bytes` are the device's, whoever uses it. `torch_current_bytes` and
    `torch_peak_bytes` are what this process has allocated through torch: now, and at most since the
    peak was reset. Raises `ImpossibleMemory` for what cannot be.
    """

    free_bytes: int
    total_bytes: int
    torch_current_bytes: int
    torch_peak_bytes: int

    def __post_init__(self) -> None:
        _must_be("total_bytes", self.total_bytes, 1, MAX_BYTES)
        _must_be("free_bytes", self.free_bytes, 0, self.total_bytes)
        _must_be("torch_peak_bytes", self.torch_peak_bytes, 0, MAX_BYTES)
        _must_be("torch_current_bytes", self.torch_current_bytes, 0, self.torch_peak_bytes)

    @property
    def non_torch_bytes(self) -> int:
        """What is taken and not torch's allocation: contexts, libraries, neighbours.

        Negative only where the figures are of two moments, such as when a neighbour left between.
        """
        return self.total_bytes - self.free_bytes - self.torch_current_bytes

    @property
    def activation_bytes(self) -> int:
        """What a step needs beside what stays."""
        return self.torch_peak_bytes - self.torch_current_bytes


class MemoryProfile(NamedTuple):
    """The device before and after the profile run."""

    before: MemorySnapshot
    after: MemorySnapshot

    @property
    def outside_change_bytes(self) -> int:
        """How much more there is outside torch than before the run; negative where it is less."""
        return self.after.non_torch_bytes - self.before.non_torch_bytes

    def report(self) -> str:
        """What happened outside torch while measuring, and what was made of it."""
        change = self.outside_change_bytes
        if change < 0:
            return (
                f"{-change} bytes outside torch were given back while measuring: a neighbour left "
                "the device; what it left behind is counted as free"
            )
        if change > 0:
            return (
                f"{change} bytes outside torch were taken while measuring, by this worker's "
                "libraries or by a neighbour that arrived; they are not counted on"
            )
        return "nothing outside torch changed while measuring"


def requested_bytes_of(total_bytes: int, gpu_memory_utilization: float) -> int:
    """The bytes of a device that a worker may use; raises `InvalidUtilization`."""
    _must_be_a_share(gpu_memory_utilization)
    return int(total_bytes * gpu_memory_utilization)


def available_by_peak(after: MemorySnapshot, gpu_memory_utilization: float) -> int:
    """The bytes for the cache: what may be used, less the peak, less what is not torch's.

    `after` is taken after the profile run. Chapter 5.6.2. Raises `InvalidUtilization`.
    """
    requested = requested_bytes_of(after.total_bytes, gpu_memory_utilization)
    used = after.torch_peak_bytes + max(0, after.non_torch_bytes)
    return _within_free(requested - used, after)


def available_by_growth(
    started: MemorySnapshot, after: MemorySnapshot, gpu_memory_utilization: float
) -> int:
    """The bytes for the cache: what may be used, less what this worker took since it started.

    `started` is taken before the weights are loaded, `after` after the profile run. What was taken
    is `free_before - free_after + peak - current`. Where a neighbour left in between, the
    difference of what is free is too small, or negative; torch's own growth is its lower bound.
    Raises `InvalidUtilization`.
    """
    requested = requested_bytes_of(after.total_bytes, gpu_memory_utilization)
    grown = after.torch_current_bytes - started.torch_current_bytes
    taken = max(started.free_bytes - after.free_bytes, grown)
    return _within_free(requested - taken - after.activation_bytes, after)


def available_on_cpu(requested_bytes: int, rss_bytes: int) -> int:
    """The bytes for the cache in main memory: what may be used, less what the process uses."""
    _must_be("requested_bytes", requested_bytes, 1, MAX_BYTES)
    _must_be("rss_bytes", rss_bytes, 0, MAX_BYTES)
    return max(0, requested_bytes - rss_bytes)


class CudaModule(Protocol):
    """The part of `torch.cuda` that is read; `device` is one with an index, or None for current."""

    def synchronize(self, device: Any = None) -> None:  # noqa: ANN401  # as torch has it
        """Wait for what was started."""

    def empty_cache(self) -> None:
        """Give cached memory back to the device."""

    def reset_peak_memory_stats(self, device: Any = None) -> None:  # noqa: ANN401  # as torch has it
        """Let the peak be what is allocated now."""

    def memory_stats(self, device: Any = None) -> Mapping[str, Any]:  # noqa: ANN401  # as torch has it
        """The figures of torch's allocator, by name."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:  # noqa: ANN401  # as torch has it
        """The free and all bytes of the device."""


class CudaMeter:
    """Reads one CUDA device. `cuda` is `torch.cuda`, or what stands in for it in a test."""

    def __init__(self, device: torch.device | None = None, cuda: CudaModule = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda

    def settle(self) -> None:
        """Wait for the device and give back what torch keeps without using it."""
        self._cuda.synchronize(self._device)
        self._cuda.empty_cache()

    def reset_peak(self) -> None:
        """Let the peak begin at what is allocated now."""
        self._cuda.reset_peak_memory_stats(self._device)

    def snapshot(self) -> MemorySnapshot:
        """The figures of now."""
        stats = self._cuda.memory_stats(self._device)
        free_bytes, total_bytes = self._cuda.mem_get_info(self._device)
        # An allocator that was never asked for anything has no figures at all.
        return MemorySnapshot(
            free_bytes=free_bytes,
            total_bytes=total_bytes,
            torch_current_bytes=stats.get("allocated_bytes.all.current", 0),
            torch_peak_bytes=stats.get("allocated_bytes.all.peak", 0),
        )


def profile_memory(profile_run: Callable[[], object], meter: CudaMeter) -> MemoryProfile:
    """The device before and after a run of the model on its largest step (chapter 5.6.2).

    What changed outside torch meanwhile is logged: as a warning where a neighbour left, because
    then the figure depends on when it was measured.
    """
    meter.settle()
    meter.reset_peak()
    before = meter.snapshot()
    profile_run()
    meter.settle()
    profile = MemoryProfile(before, meter.snapshot())
    level = logging.WARNING if profile.outside_change_bytes < 0 else logging.INFO
    _LOG.log(level, "%s", profile.report())
    return profile


def determine_available_memory(
    profile_run: Callable[[], object], gpu_memory_utilization: float, meter: CudaMeter
) -> int:
    """The bytes of a CUDA device that the cache may take, by the formula of chapter 5.6.2.

    `profile_run` runs the model once as large as a step gets. 0 where nothing is left; planning
    refuses that. Raises `InvalidUtilization` before anything runs.
    """
    _must_be_a_share(gpu_memory_utilization)
    return available_by_peak(profile_memory(profile_run, meter).after, gpu_memory_utilization)


def determine_available_memory_since(
    started: MemorySnapshot,
    profile_run: Callable[[], object],
    gpu_memory_utilization: float,
    meter: CudaMeter,
) -> int:
    """The same by the later formula; `started` is `meter.snapshot()` before the weights load."""
    _must_be_a_share(gpu_memory_utilization)
    after = profile_memory(profile_run, meter).after
    return available_by_growth(started, after, gpu_memory_utilization)


PROC: Final = Path("/proc/self")


def rss_bytes_of(proc: Path = PROC) -> tuple[int, int]:
    """The main memory that this process uses: now, and at most so far or since a reset.

    Raises `NoMemoryFigures` where the system has no such files.
    """
    file = proc / "status"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    fields = dict(line.split(":", maxsplit=1) for line in lines if ":" in line)
    for wanted in ("VmRSS", "VmHWM"):
        if not fields.get(wanted, "").strip().endswith(" kB"):
            raise NoMemoryFigures(path=str(file), wanted=wanted)
    current, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return current, max(current, peak)


def determine_available_memory_on_cpu(
    profile_run: Callable[[], object], requested_bytes: int, proc: Path = PROC
) -> int:
    """The bytes of main memory that the cache may take: those requested less this process' peak.

    The figures are of this process alone, so neighbours do not change them. Raises
    `ImpossibleMemory` and `NoMemoryFigures` before anything runs.
    """
    _must_be("requested_bytes", requested_bytes, 1, MAX_BYTES)
    rss_bytes_of(proc)
    try:
        (proc / "clear_refs").write_text("5", encoding="utf-8")
    except OSError as error:
        _LOG.info("the peak is of the whole life of the process, so less is available: %s", error)
    profile_run()
    return available_on_cpu(requested_bytes, rss_bytes_of(proc)[1])


def _within_free(wanted_bytes: int, after: MemorySnapshot) -> int:
    return max(0, min(wanted_bytes, after.free_bytes - after.activation_bytes))


def _must_be_a_share(gpu_memory_utilization: object) -> None:
    if not isinstance(gpu_memory_utilization, int | float) or not 0 < gpu_memory_utilization <= 1:
        raise InvalidUtilization(gpu_memory_utilization=gpu_memory_utilization)


def _must_be(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise ImpossibleMemory(name=name, value=value, least=least, most=most)
