"""A settled block cannot be written: whoever tries dies of SIGSEGV, which is expected here."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from gpu import mapping, traps_cuda
from gpu.exact_model import ExactModel
from gpu.pool import KVPool
from gpu.traps import DEADLY, WRITERS, PageTraps, run_apart
from gpu.traps_cuda import SOURCE, audit_cuda, missing_for_sanitizer

NO_DEVICE = not torch.cuda.is_available()


@pytest.mark.slow
def test_clean_runs_end_under_traps() -> None:
    """Nobody writes a settled block, the null block or a red zone."""
    row = run_apart("ends", ["clean", "6"])
    assert row.verdict == "as expected", row


@pytest.mark.slow
@pytest.mark.parametrize("name", DEADLY)
def test_a_deadly_fault_dies(name: str) -> None:
    """SIGSEGV, and nothing else; told as such."""
    row = run_apart("dies", ["fault", name, "0"])
    assert (row.outcome, row.verdict) == ("died of SIGSEGV", "as expected")


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_dies(name: str) -> None:
    """Operations of torch, plain copies and arrays of numpy alike."""
    row = run_apart("dies", ["writer", name])
    assert (row.outcome, row.verdict) == ("died of SIGSEGV", "as expected")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["fault", "F12", "0"], ["writer", "copy_"]])
def test_without_traps_the_same_ends(arguments: list[str]) -> None:
    """The deaths above are the traps' work; where one is missing, the audit says so."""
    row = run_apart("ends", ["--open", *arguments])
    assert row.verdict == "as expected", row
    missing = run_apart("dies", ["--open", *arguments])
    assert missing.verdict == "NOT as expected"
    assert missing.outcome == "exit status 0"


def test_a_block_may_be_opened_again() -> None:
    """Only the named block is closed, and it can be read meanwhile."""
    pool = KVPool(ExactModel("int8").kv_cache_config(4, 4), backing="mmap")
    protector = PageTraps(pool)
    plane = pool.plane(0, 0)
    plane[1] = 3
    protector.permit([1], may_write=False)
    plane[2] = 5
    assert int(plane[1].sum()) == 3 * plane[1].numel()
    protector.permit([1], may_write=True)
    plane[1] = 4
    assert int(plane[1].sum()) == 4 * plane[1].numel()


def test_pages_that_are_shared_are_refused() -> None:
    """A pool of ordinary memory has other things in its pages."""
    pool = KVPool(ExactModel("int8").kv_cache_config(4, 4))
    with pytest.raises(AssertionError, match="shares its pages"):
        PageTraps(pool)


@pytest.mark.skipif(not NO_DEVICE, reason="a CUDA device is there: gpu.ci runs the audit")
def test_what_is_not_available_says_why() -> None:
    """Without a device each part of the audit on CUDA gives the reason, and none passes."""
    rows = list(audit_cuda())
    assert [row.verdict for row in rows] == ["not available"] * 3
    assert {row.outcome for row in rows} == {"torch finds no CUDA device"}


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sanitizer, a compiler and the headers are needed, in this order."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert missing_for_sanitizer() == "compute-sanitizer is not on the PATH"
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(traps_cuda, "_headers", lambda: None)
    assert "set CUDA_HOME" in (missing_for_sanitizer() or "")


def test_the_structures_are_those_of_the_driver() -> None:
    """Sizes as a compiler gives them for `cuda.h` on a 64-bit machine."""
    assert ctypes.sizeof(mapping._AllocationProp) == 32
    assert ctypes.sizeof(mapping._AccessDesc) == 12


@pytest.mark.slow
def test_the_permissions_compile_and_are_heard_by_nobody_here(tmp_path: Path) -> None:
    """The source fits the headers of a toolkit; without a tool it says that nobody listens."""
    if shutil.which("cc") is None or (headers := traps_cuda._headers()) is None:
        pytest.skip("no C compiler or no nvtx3/nvToolsExtMem.h; install a CUDA toolkit's headers")
    library = tmp_path / "permissions.so"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{headers}"]
    subprocess.run([*command, str(SOURCE), "-o", str(library), "-ldl"], check=True)  # noqa: S603  # a compiler and our source
    assert ctypes.CDLL(str(library)).kvspec_open() == 0
