"""A device is measured in the chapter's order, and what neighbours do meanwhile is told."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.errors import ImpossibleMemory, InvalidUtilization, NoMemoryFigures
from gpu.memory import (
    CudaMeter,
    MemorySnapshot,
    available_on_cpu,
    determine_available_memory,
    determine_available_memory_on_cpu,
    determine_available_memory_since,
    profile_memory,
    requested_bytes_of,
    rss_bytes_of,
)

MIB = 2**20
GIB = 2**30


class FakeCuda:
    """A device with torch's allocator, with neighbours, and with a record of what was asked."""

    def __init__(self, total: int = 1000, weights: int = 100, neighbours: int = 50) -> None:
        self.total, self.current, self.cached, self.outside = total, weights, 0, neighbours
        self.peak = 999
        self.asked: list[str] = []

    def run(self, activations: int, outside: int = 0) -> None:
        """Run a step that needs so much, while as much outside torch is taken or given back."""
        self.asked.append("profile_run")
        self.peak = max(self.peak, self.current + activations)
        self.cached += activations
        self.outside += outside

    def synchronize(self, device: Any = None) -> None:  # noqa: ANN401  # as torch has it
        """Note the question."""
        self.asked.append(f"synchronize {device}")

    def empty_cache(self) -> None:
        """Give the cache back."""
        self.asked.append("empty_cache")
        self.cached = 0

    def reset_peak_memory_stats(self, device: Any = None) -> None:  # noqa: ANN401  # as torch has it
        """Begin a new peak."""
        self.asked.append(f"reset_peak {device}")
        self.peak = self.current

    def memory_stats(self, device: Any = None) -> Mapping[str, Any]:  # noqa: ANN401  # as torch has it
        """Return the figures; as torch's, without any before the first allocation."""
        self.asked.append(f"memory_stats {device}")
        if not self.peak:
            return {}
        return {
            "allocated_bytes.all.current": self.current,
            "allocated_bytes.all.peak": self.peak,
        }

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:  # noqa: ANN401  # as torch has it
        """Return what is free and what there is."""
        self.asked.append(f"mem_get_info {device}")
        return self.total - self.current - self.cached - self.outside, self.total


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan"), float("inf"), "0.9", None])
def test_a_utilization_outside_0_to_1_is_refused(share: Any) -> None:  # noqa: ANN401  # any value
    """Zero would leave nothing, and more than 1 is not there; nothing is run before."""
    refusal = pytest.raises(InvalidUtilization, match="give more than 0 and at most 1")
    with refusal:
        requested_bytes_of(GIB, share)
    cuda = FakeCuda()
    meter, started = CudaMeter(cuda=cuda), MemorySnapshot(1, 1, 0, 0)
    with refusal:
        determine_available_memory(lambda: cuda.run(1), share, meter)
    with refusal:
        determine_available_memory_since(started, lambda: cuda.run(1), share, meter)
    assert not cuda.asked


def test_the_device_is_asked_in_the_chapters_order() -> None:
    """An old peak is forgotten, and what torch only caches is given back before free is read."""
    cuda = FakeCuda()
    device = torch.device("cuda", 3)
    available = determine_available_memory(lambda: cuda.run(200), 0.9, CudaMeter(device, cuda))
    assert available == 900 - 300 - 50
    assert cuda.asked == [
        "synchronize cuda:3",
        "empty_cache",
        "reset_peak cuda:3",
        "memory_stats cuda:3",
        "mem_get_info cuda:3",
        "profile_run",
        "synchronize cuda:3",
        "empty_cache",
        "memory_stats cuda:3",
        "mem_get_info cuda:3",
    ]


def test_the_later_formula_is_measured_from_the_start() -> None:
    """Neighbours of the start cost nothing; weights, activations and libraries do."""
    cuda = FakeCuda(weights=0)
    meter = CudaMeter(cuda=cuda)
    started = meter.snapshot()
    cuda.current = 100
    available = determine_available_memory_since(started, lambda: cuda.run(200, 30), 0.9, meter)
    assert available == 900 - 100 - 200 - 30


def test_an_allocator_that_was_never_used_has_no_figures() -> None:
    """Torch gives an empty table then, which means 0."""
    cuda = FakeCuda(weights=0)
    cuda.peak = 0
    assert CudaMeter(cuda=cuda).snapshot() == MemorySnapshot(950, 1000, 0, 0)


@pytest.mark.parametrize(
    ("outside", "level", "says"),
    [
        (-50, logging.WARNING, "50 bytes outside torch were given back .*: a neighbour left"),
        (70, logging.INFO, "70 bytes outside torch were taken .* or by a neighbour that arrived"),
        (0, logging.INFO, "nothing outside torch changed"),
    ],
)
def test_what_neighbours_do_meanwhile_is_reported(
    outside: int, level: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A neighbour that leaves is warned of: measured earlier, less would have been left."""
    cuda = FakeCuda()
    with caplog.at_level(logging.INFO):
        profile = profile_memory(lambda: cuda.run(200, outside), CudaMeter(cuda=cuda))
    assert profile.outside_change_bytes == outside
    (record,) = caplog.records
    assert record.levelno == level
    assert record.message == profile.report()
    assert re.search(says, record.message)


def test_an_error_of_the_model_is_passed_on() -> None:
    """A profile run that does not fit is the caller's to see."""

    def fails() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        determine_available_memory(fails, 0.9, CudaMeter(cuda=FakeCuda()))


def test_main_memory_is_what_was_requested_less_what_is_used() -> None:
    """Never below 0."""
    assert available_on_cpu(10, 4) == 6
    assert available_on_cpu(4, 10) == 0


@pytest.mark.parametrize("requested", [0, -1, 2**60])
def test_no_requested_memory_is_refused(requested: int) -> None:
    """The profile is not run for nothing."""
    ran: list[int] = []
    with pytest.raises(ImpossibleMemory, match=f"requested_bytes={requested}"):
        determine_available_memory_on_cpu(lambda: ran.append(1), requested)
    assert not ran


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")
def test_a_peak_of_this_process_is_measured() -> None:
    """256 MiB that are used and given back within the run are not left for the cache."""
    size = 256 * MIB

    def run() -> None:
        torch.ones(size, dtype=torch.uint8)

    idle = determine_available_memory_on_cpu(lambda: None, 64 * GIB)
    busy = determine_available_memory_on_cpu(run, 64 * GIB)
    after = determine_available_memory_on_cpu(lambda: None, 64 * GIB)
    assert size - 16 * MIB <= idle - busy <= size + 64 * MIB
    assert after > busy


@pytest.mark.parametrize("text", [None, "VmRSS:\t 5 kB\n", "VmHWM: 5 kB\nVmRSS: 5\n"])
def test_a_system_without_figures_is_named(tmp_path: Path, text: str | None) -> None:
    """The file, the figure that it lacks, and the way round."""
    if text is not None:
        (tmp_path / "status").write_text(text, encoding="utf-8")
    with pytest.raises(NoMemoryFigures, match="set num_gpu_blocks_override"):
        rss_bytes_of(tmp_path)


def test_a_peak_that_cannot_be_reset_is_of_the_whole_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Less is available then, never more; the log says so."""
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t 5 kB\n", encoding="utf-8")
    (tmp_path / "clear_refs").mkdir()
    with caplog.at_level(logging.INFO):
        available = determine_available_memory_on_cpu(lambda: None, 20 * 1024, tmp_path)
    assert available == 11 * 1024
    assert "the peak is of the whole life" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_is_measured() -> None:
    """A step that needs 64 MiB leaves 64 MiB less."""

    def run() -> None:
        torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")

    idle = determine_available_memory(lambda: None, 0.5, CudaMeter())
    assert idle - determine_available_memory(run, 0.5, CudaMeter()) >= 64 * MIB
