"""`EncoderCacheManager.check` passes a manager in order and says what is wrong with another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvcache import EncoderCacheManager, MultiModalItem, Request
from kvcache.encoder_cache import EncoderCacheEntry

Damage = Callable[[EncoderCacheManager], Any]

DAMAGED: dict[str, tuple[Damage, str]] = {
    "a record that holds nothing": (
        lambda m: m.held["r"].input_ids.clear(),
        "'r' is kept and holds nothing",
    ),
    "a record under another name": (
        lambda m: m.held.update(x=m.held.pop("r")),
        "is kept as 'x'",
    ),
    "a held content without entry": (lambda m: m.cached.pop("cat"), "which has no entry"),
    "a held content of another size": (
        lambda m: setattr(m.cached["cat"], "num_tokens", 3),
        "holds MultiModalItem",
    ),
    "a wrong count": (
        lambda m: setattr(m.cached["cat"], "ref_cnt", 2),
        "'cat' is EncoderCacheEntry(num_tokens=2, ref_cnt=2) and held by 1 inputs",
    ),
    "an idle entry that is not in the order": (lambda m: m.freeable.clear(), "idle: False"),
    "a held entry in the order": (
        lambda m: m.freeable.update(cat=m.cached["cat"]),
        "idle: True",
    ),
    "an entry in the order that is not cached": (
        lambda m: m.freeable.update(emu=EncoderCacheEntry(1)),
        "['emu'] are idle and have no entry",
    ),
    "a wrong count of free slots": (
        lambda m: setattr(m, "num_free_slots", 2),
        "(2, 2) slots are (1, 2)",
    ),
    "a budget that is overdrawn": (
        lambda m: vars(m).update(cache_size=2, num_free_slots=-1, num_freeable_slots=0),
        "-1, 0 of 2",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_check_says_what_is_wrong(name: str) -> None:
    """A manager in order passes; each damage is met with the values in the message."""
    manager = EncoderCacheManager(4)
    cat = MultiModalItem(identifier="cat", offset=0, length=2)
    dog = MultiModalItem(identifier="dog", offset=0, length=1)
    idle = Request("idle", [1], mm_items=[dog])
    manager.allocate(idle, 0)
    manager.free(idle)
    manager.allocate(Request("r", [1], mm_items=[cat]), 0)
    manager.check()
    damage, says = DAMAGED[name]
    damage(manager)
    with pytest.raises(AssertionError) as found:
        manager.check()
    assert says in str(found.value)
