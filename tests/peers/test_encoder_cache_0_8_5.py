"""Every difference of the encoder cache that docs/refinement.md lists is shown on vLLM 0.8.5."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError, sources

PAGE = Path(__file__).parents[2] / "docs" / "refinement.md"

Make = Callable[[int], Any]


class Shown:
    """A request as the release's encoder cache sees it: an id, and the size of each input."""

    def __init__(self, request_id: str, *sizes: int) -> None:
        self.request_id = request_id
        self.sizes = sizes

    def get_num_encoder_tokens(self, input_id: int) -> int:
        """Return the size of an input."""
        return self.sizes[input_id]


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return what makes an encoder cache of the release; what it imports is stood in for."""
    try:
        file = sources() / "vllm" / "v1" / "core" / "encoder_cache_manager.py"
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    if not file.is_file():
        pytest.skip(f"{file} is not among the sources; run `make peers`")
    names: dict[str, dict[str, object]] = {
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.multimodal": {"MultiModalRegistry": object},
        "vllm.v1.request": {"Request": Shown},
    }
    for name, facts in names.items():
        module = ModuleType(name)
        vars(module).update(facts)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    found: dict[str, Any] = {"__name__": "encoder_cache_manager"}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), found)  # noqa: S102  # the release's own file
    make: Make = found["EncoderCacheManager"]
    return make


def test_entries_are_of_inputs(encoder: Make) -> None:
    """Two places are charged twice and held apart; `has_cache` knows its own input only."""
    m, one, two = encoder(5), Shown("one", 2, 2), Shown("two", 2)
    m.allocate(one, 0)
    assert not m.has_cache(one, 1)
    assert not m.has_cache(two, 0)
    m.allocate(one, 1)
    assert m.num_free_slots == 1
    assert not m.can_allocate(two, 0)


def test_nothing_is_kept_idle(encoder: Make) -> None:
    """A release frees the entry, and the report names request and input."""
    m, one = encoder(5), Shown("one", 2, 2)
    m.allocate(one, 0)
    m.allocate(one, 1)
    m.free_encoder_input(one, 0)
    assert not m.has_cache(one, 0)
    m.free(one)
    assert m.num_free_slots == 5
    assert m.get_freed_ids() == [("one", 0), ("one", 1)]
    assert m.get_freed_ids() == []


def test_what_cannot_fit_waits(encoder: Make) -> None:
    """An item above the whole budget is answered as one that may fit later."""
    assert encoder(5).can_allocate(Shown("one", 6), 0) is False


def test_an_allocation_without_room(encoder: Make) -> None:
    """The budget goes below zero."""
    m = encoder(5)
    m.allocate(Shown("one", 6), 0)
    assert m.num_free_slots == -1


def test_a_second_allocation(encoder: Make) -> None:
    """What was charged twice is given back once."""
    m, one = encoder(5), Shown("one", 2)
    m.allocate(one, 0)
    m.allocate(one, 0)
    m.free(one)
    assert m.num_free_slots == 3


def test_a_release_of_what_is_not_held(encoder: Make) -> None:
    """The budget grows above its size while another input is held; otherwise nothing is said."""
    m, one = encoder(5), Shown("one", 2, 1)
    m.free_encoder_input(one, 0)
    assert m.num_free_slots == 5
    m.allocate(one, 1)
    m.free_encoder_input(one, 0)
    m.free(one)
    assert m.num_free_slots == 7


def test_a_number_that_no_input_has(encoder: Make) -> None:
    """A question is answered, a count from the end is taken, and another one is an `IndexError`."""
    m, one = encoder(5), Shown("one", 2, 1)
    assert m.has_cache(one, 9) is False
    m.allocate(one, -1)
    assert m.get_cached_input_ids(one) == {-1}
    with pytest.raises(IndexError):
        m.can_allocate(one, 9)


def test_one_id_for_two_requests(encoder: Make) -> None:
    """The second one finds what the first one holds, and frees it."""
    m, one, other = encoder(5), Shown("one", 2), Shown("one", 3)
    m.allocate(one, 0)
    assert m.has_cache(other, 0)
    m.free(other)
    assert not m.has_cache(one, 0)
    assert m.num_free_slots == 6


SHOWN: dict[str, Callable[[Make], None]] = {
    "what names an entry": test_entries_are_of_inputs,
    "who holds an entry": test_entries_are_of_inputs,
    "the last holder goes": test_nothing_is_kept_idle,
    "`has_cache`": test_entries_are_of_inputs,
    "`can_allocate`": test_entries_are_of_inputs,
    "`get_freed_ids`": test_nothing_is_kept_idle,
    "an item above the whole budget": test_what_cannot_fit_waits,
    "an allocation without room": test_an_allocation_without_room,
    "a second allocation of an input": test_a_second_allocation,
    "a release of what is not held": test_a_release_of_what_is_not_held,
    "a number that no input has": test_a_number_that_no_input_has,
    "one identifier, two sizes": test_entries_are_of_inputs,
    "one id, two requests": test_one_id_for_two_requests,
}
"""The first cell of a row of the page, and the test that shows it on the release."""


def test_every_row_of_the_encoder_cache_is_shown() -> None:
    """No row without a test, and no test whose row has gone."""
    section = PAGE.read_text(encoding="utf-8").split("## The encoder cache")[1]
    rows = {found[1].strip() for found in re.finditer(r"^\|([^|]+)\|", section, re.MULTILINE)}
    assert rows - {"subject", "---"} == SHOWN.keys()
