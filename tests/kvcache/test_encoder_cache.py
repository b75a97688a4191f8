"""The encoder cache shares by content, counts by input, and evicts what is idle longest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import pytest

from kvcache import (
    EncoderCacheManager,
    EncoderInputDiffers,
    EncoderInputHeld,
    EncoderInputNotHeld,
    EncoderInputTooLarge,
    InvalidEncoderCacheSize,
    KVCacheError,
    MultiModalItem,
    NoSuchEncoderInput,
    NotEnoughEncoderCache,
    Request,
    RequestIdHoldsInputs,
)


def shows(name: str, **items: int) -> Request:
    """Return a request that shows items, each with its length, one behind the other."""
    return shows_all(name, *items.items())


def shows_all(name: str, *items: tuple[str, int]) -> Request:
    """Return the same of pairs, so that one item may stand twice."""
    media, offset = [], 0
    for identifier, length in items:
        media.append(MultiModalItem(identifier=identifier, offset=offset, length=length))
        offset += length
    return Request(name, [1] * max(1, offset), mm_items=media)


def slots(manager: EncoderCacheManager) -> tuple[int, int]:
    """Return what is free and what can be made free."""
    return manager.num_free_slots, manager.num_freeable_slots


def shown(manager: EncoderCacheManager) -> object:
    """Return plain data that shows all of a manager's state."""
    return (
        slots(manager),
        {name: (entry.num_tokens, entry.ref_cnt) for name, entry in manager.cached.items()},
        list(manager.freeable),
        {name: (held.request, set(held.input_ids)) for name, held in manager.held.items()},
        list(manager.freed),
    )


def test_a_new_cache_is_empty() -> None:
    """All of the budget is free, and nothing is cached or freed."""
    manager = EncoderCacheManager(5)
    request = shows("r", cat=3)
    assert (manager.cache_size, *slots(manager)) == (5, 5, 5)
    assert not manager.has_cache(request, 0)
    assert manager.get_cached_input_ids(request) == set()
    assert manager.get_freed() == []
    manager.check()


def test_equal_media_are_charged_once() -> None:
    """Two requests that show one content share its entry, and the last one to go leaves it idle."""
    manager = EncoderCacheManager(5)
    one, two = shows("one", cat=3), shows_all("two", ("dog", 2), ("cat", 3))
    manager.allocate(one, 0)
    assert slots(manager) == (2, 2)
    assert manager.has_cache(two, 1)
    assert manager.can_allocate(two, 1)
    manager.allocate(two, 1)
    assert slots(manager) == (2, 2)
    manager.free(one)
    assert slots(manager) == (2, 2)
    manager.free(two)
    assert slots(manager) == (2, 5)
    assert manager.has_cache(one, 0)
    assert manager.get_freed() == []
    manager.check()


def test_each_place_of_an_item_holds_for_itself() -> None:
    """A request that shows an item twice keeps it when the first place is past."""
    manager = EncoderCacheManager(3)
    request = shows_all("r", ("cat", 3), ("cat", 3))
    manager.allocate(request, 0)
    manager.allocate(request, 1)
    assert manager.get_cached_input_ids(request) == {0, 1}
    manager.free_encoder_input(request, 0)
    assert manager.get_cached_input_ids(request) == {1}
    assert not manager.can_allocate(shows("other", dog=1), 0)
    manager.free_encoder_input(request, 1)
    assert slots(manager) == (0, 3)
    manager.check()


def test_what_is_idle_longest_is_evicted_first_and_no_more_than_needed() -> None:
    """Entries go one by one until there is room, and each is reported once, in order."""
    manager = EncoderCacheManager(4)
    for name in ("cat", "dog", "owl", "fox"):
        request = shows(name, **{name: 1})
        manager.allocate(request, 0)
        manager.free(request)
    assert slots(manager) == (0, 4)
    manager.allocate(shows("one", ape=1), 0)
    assert (list(manager.freeable), slots(manager)) == (["dog", "owl", "fox"], (0, 3))
    manager.allocate(shows("two", emu=2), 0)
    assert (list(manager.freeable), slots(manager)) == (["fox"], (0, 1))
    assert manager.get_freed() == ["cat", "dog", "owl"]
    assert manager.get_freed() == []
    manager.check()


def test_what_is_held_again_is_idle_no_longer() -> None:
    """The next victim is rescued by a holder, and stands behind the others when it goes."""
    manager = EncoderCacheManager(2)
    cat, dog = shows("cat", cat=1), shows("dog", dog=1)
    for request in (cat, dog):
        manager.allocate(request, 0)
        manager.free(request)
    manager.allocate(cat, 0)
    assert (list(manager.freeable), slots(manager)) == (["dog"], (0, 1))
    manager.free(cat)
    manager.allocate(shows("owl", owl=1), 0)
    assert manager.get_freed() == ["dog"]
    manager.check()


def test_an_identifier_is_reported_once_though_it_was_evicted_twice() -> None:
    """It comes back and goes again before the report."""
    manager = EncoderCacheManager(1)
    cat, dog = shows("cat", cat=1), shows("dog", dog=1)
    for request in (cat, dog, cat, dog):
        manager.allocate(request, 0)
        manager.free(request)
    assert manager.get_freed() == ["cat", "dog"]


def test_a_request_gives_up_its_inputs_in_order() -> None:
    """The first input is the first to be evicted, whatever the order of allocation."""
    manager = EncoderCacheManager(3)
    request = shows("r", cat=1, dog=1, owl=1)
    for input_id in (2, 0, 1):
        manager.allocate(request, input_id)
    manager.free(request)
    assert list(manager.freeable) == ["cat", "dog", "owl"]
    manager.free(request)
    assert (list(manager.freeable), manager.held) == (["cat", "dog", "owl"], {})


def test_the_answer_of_inputs_is_a_copy() -> None:
    """Who changes it changes nothing of the manager's."""
    manager, request = EncoderCacheManager(3), shows("r", cat=3)
    manager.allocate(request, 0)
    manager.get_cached_input_ids(request).clear()
    assert manager.get_cached_input_ids(request) == {0}


def test_a_budget_of_nothing_is_fine() -> None:
    """A model without media has one; a text request asks for nothing."""
    manager = EncoderCacheManager(0)
    manager.free(Request("text", [1, 2]))
    with pytest.raises(EncoderInputTooLarge):
        manager.has_cache(shows("r", cat=1), 0)
    with pytest.raises(InvalidEncoderCacheSize, match="cache_size=-1 encoder tokens; give 0"):
        EncoderCacheManager(-1)


REQUEST = shows_all("r", ("cat", 2), ("dog", 3), ("whale", 9))
STRANGER = shows_all("r", ("cat", 2), ("dog", 3), ("whale", 9))
OTHER = shows_all("other", ("cat", 1))

REFUSED: tuple[tuple[type[KVCacheError], str, tuple[object, ...], dict[str, object]], ...] = (
    (NoSuchEncoderInput, "has_cache", (REQUEST, 3), {"num_inputs": 3}),
    (NoSuchEncoderInput, "allocate", (REQUEST, -1), {"input_id": -1}),
    (NoSuchEncoderInput, "free_encoder_input", (REQUEST, 3), {"request_id": "r"}),
    (EncoderInputTooLarge, "has_cache", (REQUEST, 2), {"num_tokens": 9, "cache_size": 4}),
    (EncoderInputTooLarge, "can_allocate", (REQUEST, 2), {"input_id": 2}),
    (EncoderInputTooLarge, "allocate", (REQUEST, 2), {"request_id": "r"}),
    (EncoderInputDiffers, "has_cache", (OTHER, 0), {"cached_tokens": 2, "num_tokens": 1}),
    (EncoderInputDiffers, "allocate", (OTHER, 0), {"identifier": "cat"}),
    (EncoderInputHeld, "allocate", (REQUEST, 0), {"identifier": "cat", "input_id": 0}),
    (EncoderInputNotHeld, "free_encoder_input", (REQUEST, 1), {"input_id": 1}),
    (NotEnoughEncoderCache, "allocate", (REQUEST, 1), {"num_freeable_slots": 2}),
    (RequestIdHoldsInputs, "has_cache", (STRANGER, 0), {"input_ids": (0,)}),
    (RequestIdHoldsInputs, "allocate", (STRANGER, 0), {"request_id": "r"}),
    (RequestIdHoldsInputs, "get_cached_input_ids", (STRANGER,), {}),
    (RequestIdHoldsInputs, "free_encoder_input", (STRANGER, 0), {}),
    (RequestIdHoldsInputs, "free", (STRANGER,), {}),
)


@pytest.mark.parametrize(("kind", "action", "args", "values"), REFUSED)
def test_a_refused_call_changes_nothing(
    kind: type[KVCacheError], action: str, args: tuple[object, ...], values: Mapping[str, object]
) -> None:
    """It says which rule it breaks, with the values, and the manager is as it was."""
    manager = EncoderCacheManager(4)
    manager.allocate(REQUEST, 0)
    before = shown(manager)
    with pytest.raises(kind) as refusal:
        getattr(manager, action)(*args)
    assert values == {name: getattr(refusal.value, name) for name in values}
    assert shown(manager) == before
    manager.check()


def test_a_refusal_says_what_to_do() -> None:
    """The message shows request, input and values, and a way on."""
    manager = EncoderCacheManager(4)
    manager.allocate(REQUEST, 0)
    with pytest.raises(NotEnoughEncoderCache) as refusal:
        manager.allocate(REQUEST, 1)
    assert str(refusal.value) == (
        "request 'r', input 1: 3 encoder tokens are needed and 2 are free or idle; ask "
        "can_allocate, and free a request first"
    )


def test_an_id_is_free_again_when_its_request_holds_nothing() -> None:
    """Another request may bear it then, and shares what the first one left idle."""
    manager = EncoderCacheManager(4)
    manager.allocate(REQUEST, 0)
    manager.free(REQUEST)
    assert manager.has_cache(STRANGER, 0)
    manager.allocate(STRANGER, 0)
    assert manager.get_cached_input_ids(STRANGER) == {0}
    manager.check()


def test_a_call_costs_as_much_in_a_large_cache() -> None:
    """The lines that a call runs do not depend on how many entries or holders there are."""

    def lines(entries: int) -> int:
        manager = EncoderCacheManager(entries)
        for number in range(entries):
            request = shows(f"{number}", **{f"m{number}": 1})
            manager.allocate(request, 0)
            if number % 2:
                manager.free(request)
        ran = 0

        def count(_: FrameType, event: str, __: object) -> Any:  # noqa: ANN401  # itself
            nonlocal ran
            ran += event == "line"
            return count

        request = shows_all("r", ("m1", 1), ("new", 1), ("m0", 1))
        before = sys.gettrace()
        sys.settrace(count)
        try:
            for input_id in range(3):
                manager.has_cache(request, input_id)
                manager.can_allocate(request, input_id)
                manager.allocate(request, input_id)
            manager.free_encoder_input(request, 1)
            manager.free(request)
            manager.get_freed()
        finally:
            sys.settrace(before)
        return ran

    assert lines(8) == lines(800)
