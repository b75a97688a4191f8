"""What the documents say of tensors is of the faults, the places and the properties of today."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from conformance.documents import tensor_document
from conformance.documents.results import read
from conformance.documents.tensor_document import TENSOR, on_tensors, tensor_section
from gpu.faults import FAULTS
from gpu.shield import LAYERS
from gpu.violations import PROPERTIES
from spec.invariants import REGISTRY


def test_every_name_is_one() -> None:
    """Properties of the registry, places in `gpu/`, and all faults of the red team."""
    assert set(TENSOR) <= set(REGISTRY)
    for row in TENSOR.values():
        for place in row["by"]:
            module, _, name = place.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), place
    assert {fault for row in TENSOR.values() for fault in row["faults"]} == set(FAULTS)


def test_what_a_shield_says_is_broken_is_in_the_document() -> None:
    """Each name in a line of the shield is a property, apart from its account of itself."""
    said = {name for defence, name in PROPERTIES.items() if defence != "guard"}
    assert said <= set(TENSOR)
    assert tensor_document.LAYERS == LAYERS


def test_a_property_without_a_check_says_so() -> None:
    """Silence is not a check."""
    assert on_tensors("the_free_queue_is_a_chain") == "not checked"
    assert "F12" in on_tensors("a_settled_block_never_changes")


def test_what_is_recorded_is_whole() -> None:
    """All faults, sixteen seeds of each, 300 clean runs without an alarm, on a named device."""
    data = read("gpu")
    assert data["verdict"] == "clean"
    faults = data["stages"]["faults"]
    assert [row["fault"] for row in faults["faults"]] == list(FAULTS)
    assert {row["num_trials"] for row in faults["faults"]} == {16}
    assert all(row["num_seen_as_expected"] == 16 for row in faults["faults"])
    assert not any(row["num_wrong_and_undetected"] for row in faults["faults"])
    assert (faults["clean_runs"], faults["alarms"]) == (300, [])
    assert all(row["escaped"] for row in faults["ablation"])
    assert data["stages"]["environment"]["device"]["kind"] == data["device"]


def test_the_section_has_a_row_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, faults, layers and traps; nothing where nothing was recorded."""
    text = "\n".join(tensor_section())
    assert all(f"| {name}: {fault.says} |" in text for name, fault in FAULTS.items())
    assert all(f"| {layer} | F" in text for layer in LAYERS)
    assert "died of SIGSEGV" in text
    monkeypatch.setattr(tensor_document, "read", nothing)
    assert list(tensor_section()) == []


def nothing(_name: str) -> dict[str, Any]:
    """Return no result."""
    return {}
