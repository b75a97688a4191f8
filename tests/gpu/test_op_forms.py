"""An operation is one of torch's, takes the form that can run, and waits for no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from gpu import eager, ops
from gpu.errors import BackendUnavailable, RowsDoNotFit

NUM_BLOCKS, BLOCK_SIZE = 5, 4
SEED = -0x1234_5678_9ABC_DEF0


def arguments() -> dict[str, tuple[Any, ...]]:
    """Return arguments for each operation, by its name."""
    log = ops.Log.empty(ops.LEASE_COLUMNS, "cpu")
    seen = ops.Log.empty(ops.IDENTITY_COLUMNS, "cpu")
    planes = torch.zeros(2, NUM_BLOCKS + 1, BLOCK_SIZE, 2, 8, dtype=torch.bfloat16)
    rows, slots = torch.ones(2, 6, 2, 8, dtype=torch.bfloat16), torch.arange(-1, 5)
    lease = torch.ones(NUM_BLOCKS, dtype=torch.int32)
    table, span = torch.zeros(2, 3, dtype=torch.int32), torch.tensor([3, 9])
    account = (torch.ones(6, dtype=torch.int32), lease, log.counts, log.ring)
    places = (*rows, *planes, slots)
    now = (lease, lease.long(), seen.counts, seen.ring)
    return {
        "route_slots": (slots, *account, BLOCK_SIZE),
        "scatter_kv": (*places, *account),
        "write_rows": places,
        "ms64": (rows[0], slots, SEED, 0, 1, BLOCK_SIZE),
        "ms64_slots": (planes[0], slots, SEED, 0, 1),
        "poison": (planes[0], torch.tensor([1, 2]), 0x7FE7),
        "gather_kv": (planes[0], table, span - 3, span),
        "check_identity": (table, table, table.long(), span // 3, *now),
    }


@pytest.mark.parametrize("name", ["interp", "cuda"])
def test_a_form_that_cannot_run_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, name: ops.Backend
) -> None:
    """Without Triton the operations stay with torch."""
    monkeypatch.setattr(ops, "find_spec", lambda _: None)
    ops.unavailable.cache_clear()
    try:
        with (
            pytest.raises(BackendUnavailable, match=f"'{name}'.*Triton is not installed"),
            ops.using(name),
        ):
            pytest.fail("this form ran")
        assert ops.backend_of(torch.device("cuda")) == "torch"
    finally:
        ops.unavailable.cache_clear()


def test_a_form_is_chosen_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA tensors go to the kernels, others to torch; `using` ends also by an error."""
    monkeypatch.setattr(ops, "unavailable", lambda _: None)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [ops.backend_of(cpu), ops.backend_of(cuda)] == ["torch", "cuda"]
    with ops.using("interp"):
        assert [ops.backend_of(cpu), ops.backend_of(cuda)] == ["interp", "interp"]
    with pytest.raises(KeyboardInterrupt), ops.using("interp"):
        raise KeyboardInterrupt
    assert ops.backend_of(cpu) == "torch"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("keys", lambda fitting: fitting.float()),
        ("values", lambda fitting: fitting[:3]),
        ("slots", lambda fitting: fitting.int()),
        ("tags", lambda fitting: fitting.long()),
        ("value_plane", lambda fitting: fitting[:-1]),
        ("keys", lambda fitting: fitting.to("meta")),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """The error names what it is, what it has and what it should have."""
    names = ("keys", "values", "key_plane", "value_plane", "slots", "tags")
    fitting = dict(zip(names, arguments()["scatter_kv"], strict=False))
    ops.refuse_misfit(**fitting)
    with pytest.raises(RowsDoNotFit, match=f"^{name} is torch.*give torch"):
        ops.refuse_misfit(**{**fitting, name: change(fitting[name])})


@pytest.mark.slow
@pytest.mark.parametrize("name", arguments())
def test_an_operation_is_one_of_torch(name: str) -> None:
    """Its schema says what it changes, and its fake form gives the shapes of the real one."""
    operation = getattr(torch.ops.kvspec, name).default
    tests = ("test_schema", "test_faketensor")
    found = torch.library.opcheck(operation, arguments()[name], test_utils=tests)
    assert found == dict.fromkeys(tests, "SUCCESS")


@pytest.mark.parametrize("name", arguments())
def test_no_operation_waits_for_a_value(name: str) -> None:
    """The forms in torch run on tensors without data, so a graph of a device can capture them."""
    real = arguments()[name]
    mode = FakeTensorMode()
    without_data = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in real]
    with mode:
        getattr(eager, name)(*without_data)


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: x[x > 0]])
def test_a_wait_for_a_value_is_seen(wait: Callable[[torch.Tensor], object]) -> None:
    """What the forms in torch must not do fails on a tensor without data."""
    mode = FakeTensorMode()
    without_data = mode.from_tensor(torch.ones(3))
    with mode, pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        wait(without_data)
