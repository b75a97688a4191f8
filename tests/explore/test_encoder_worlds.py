"""The encoder cache's worlds are clean and see what must be seen; wrong variants are refuted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from spec import encoder_cache as right
from spec.encoder_cache import ENTRY_TRANSITIONS, HELD, IDLE, SHARED, EncoderCache, Holder, Media
from spec.encoder_explore import ENCODER_REACHABLE, EncoderResult, explore_encoder
from spec.encoder_worlds import ENCODER_WORLDS

ROOT = Path(__file__).parents[2]
SMALL = tuple(name for name, world in ENCODER_WORLDS.items() if world.counts.states < 2_000)

PROGRAM = """
from hashlib import sha256
from spec.encoder_explore import explore_encoder
from spec.encoder_worlds import ENCODER_WORLDS

result = explore_encoder(ENCODER_WORLDS["encoder-strangers"].scope)
shown = [(s.idle, s.freed, sorted(s.holders), sorted(s.new)) for s in result.states]
print(result.counts, sha256(repr(shown).encode()).hexdigest())
"""

original = vars(right).copy()
"""The right functions, whatever stands in their place."""


@cache
def whole(name: str) -> EncoderResult:
    """Return the result of a named world, searched once for all tests."""
    return explore_encoder(ENCODER_WORLDS[name].scope)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_small_world_is_clean_and_has_its_frozen_counts(name: str) -> None:
    """Nothing is broken and the counts are exact."""
    result = whole(name)
    assert result.found is None
    assert result.counts == ENCODER_WORLDS[name].counts


def test_the_smallest_world_can_be_counted_by_hand() -> None:
    """One content is absent; or held or idle, and encoded by the workers already or not yet."""
    result = whole("encoder-one")
    facts = {(len(s.holders), s.idle, bool(s.stored), bool(s.new)) for s in result.states}
    assert facts == {
        (0, (), False, False),
        (1, (), False, True),
        (0, ("a",), False, True),
        (1, (), True, False),
        (0, ("a",), True, False),
    }
    assert len(result.states) == 5


@pytest.mark.slow
def test_everything_that_must_be_seen_is_seen() -> None:
    """Over the small worlds no sight, no rule and no transition is left out, and no other seen."""
    results = [whole(name) for name in SMALL]
    seen = frozenset[str]().union(*(result.seen for result in results))
    assert sorted(ENCODER_REACHABLE) == sorted(seen)
    written = re.findall(r'Refused\(\s*"(\w+)"', Path(right.__file__).read_text(encoding="utf-8"))
    assert set(written) == set().union(*(result.rules for result in results))
    edges = set().union(*(result.edges for result in results))
    # `free` takes away several holders in one call, and nothing else makes two steps at once.
    allowed = set().union(*ENTRY_TRANSITIONS.values())
    assert edges == allowed | {(SHARED, IDLE)}


def test_what_has_an_entry_need_not_be_encoded_yet() -> None:
    """The shortest path: a request allocates and ends in one step; the entry is idle and new."""
    states = [s for s in whole("encoder-one").states if set(s.idle) & s.new]
    s, media = right.empty(1), Media("A", (("a", 1),))
    assert states == [right.free(right.allocate(s, media, 0), media)]
    assert right.has_cache(states[0], media, 0)
    assert right.entry_state(states[0], "a") is IDLE
    assert right.entry_state(right.allocate(states[0], media, 0), "a") is HELD


@pytest.mark.slow
def test_a_search_is_the_same_in_another_process() -> None:
    """Another hash seed gives the same counts and the same states in the same order."""
    outputs = set()
    for seed in ("0", "99"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(  # noqa: S603  # the test's own program
            [sys.executable, "-c", PROGRAM],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert outputs.pop().startswith(f"{ENCODER_WORLDS['encoder-strangers'].counts} ")


# The specification with one thing wrong.


def evict_with(
    order: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple, *, needed: int | None = None
) -> Callable[[EncoderCache, int], EncoderCache]:
    """Return an eviction that takes in another order, or for a need of its own."""

    def evict(s: EncoderCache, wanted: int) -> EncoderCache:
        enough = wanted if needed is None else needed
        turned = s._replace(idle=order(s.idle))
        if enough > s.num_free + sum(s.entries[content].size for content in s.idle):
            enough = s.num_freeable
        after: EncoderCache = original["evict_effect"](turned, enough)
        return after._replace(idle=order(after.idle))

    return evict


def evict_in_silence(s: EncoderCache, needed: int) -> EncoderCache:
    """Evict and report nothing."""
    after: EncoderCache = original["evict_effect"](s, needed)
    return after._replace(freed=s.freed)


def report_twice(s: EncoderCache, needed: int) -> EncoderCache:
    """Line up what is evicted though it is reported already."""
    after: EncoderCache = original["evict_effect"](s._replace(freed=()), needed)
    return after._replace(freed=s.freed + after.freed)


def release_to_the_front(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Let what becomes idle be evicted next."""
    after: EncoderCache = original["release_effect"](s, holder)
    come = after.idle[len(s.idle) :]
    return after._replace(idle=come + s.idle)


def release_all_places(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Let one place give up for all places of its request."""
    media = holder[0]
    for place in sorted(h for h in s.holders if h[0] == media):
        if media.inputs[place[1]][0] == media.inputs[holder[1]][0]:
            s = original["release_effect"](s, place)
    return s


def charge_again(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Charge every holder."""
    content, size = holder[0].inputs[holder[1]]
    again = size if s.entries[content].ref_cnt else 0
    after: EncoderCache = original["hold_effect"](s, holder)
    return after._replace(num_free=after.num_free - again)


def hold_and_leave_idle(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Leave what the workers have in the order of eviction when it is held again."""
    after: EncoderCache = original["hold_effect"](s, holder)
    return after if holder[0].inputs[holder[1]][0] in s.new else after._replace(idle=s.idle)


def encode_and_then_drop(s: EncoderCache) -> tuple[EncoderCache, tuple[str, ...]]:
    """Let the workers encode what is new before they drop what is reported."""
    stored = (s.stored | s.new).difference(s.freed)
    return s._replace(freed=(), stored=stored, new=frozenset()), s.freed


def report_and_keep(s: EncoderCache) -> tuple[EncoderCache, tuple[str, ...]]:
    """Report what was reported."""
    after, freed = original["get_freed"](s)
    return after._replace(freed=freed), freed


def only_the_free(s: EncoderCache, request: Media, input_id: int) -> bool:
    """Count as room what is free, and nothing that is idle."""
    wide: bool = original["can_allocate"](s._replace(num_freeable=s.num_free), request, input_id)
    return wide


def anything_goes(*_: object) -> None:
    """Refuse nothing."""


def only_the_number(_: EncoderCache, request: Media, input_id: int) -> None:
    """Refuse a number that no input has, and no item."""
    right.must_be_an_input(request, input_id)


WRONG: dict[str, tuple[str, object, str, str, int]] = {
    "the latest idle media go first": (
        "evict_effect",
        evict_with(lambda idle: idle[::-1]),
        "encoder-turns",
        "the_longest_idle_media_are_evicted_first",
        5,
    ),
    "all idle media go": (
        "evict_effect",
        evict_with(needed=99),
        "encoder-turns",
        "no_more_media_are_evicted_than_needed",
        3,
    ),
    "an eviction is not reported": (
        "evict_effect",
        evict_in_silence,
        "encoder-turns",
        "what_is_evicted_is_reported_once",
        4,
    ),
    "a second eviction is reported again": (
        "evict_effect",
        report_twice,
        "encoder-turns",
        "what_is_evicted_is_reported_once",
        8,
    ),
    "a report is given again": (
        "get_freed",
        report_and_keep,
        "encoder-turns",
        "what_is_evicted_is_reported_once",
        5,
    ),
    "workers encode before they drop": (
        "get_freed",
        encode_and_then_drop,
        "encoder-turns",
        "a_worker_that_follows_the_reports_keeps_the_entries",
        7,
    ),
    "what becomes idle goes next": (
        "release_effect",
        release_to_the_front,
        "encoder-turns",
        "media_become_idle_behind_the_others",
        4,
    ),
    "a place gives up for its whole request": (
        "release_effect",
        release_all_places,
        "encoder-twice",
        "an_input_holds_from_allocation_to_release",
        3,
    ),
    "what is shared is charged": (
        "hold_effect",
        charge_again,
        "encoder-twice",
        "one_content_is_charged_once",
        2,
    ),
    "what is held may be evicted": (
        "hold_effect",
        hold_and_leave_idle,
        "encoder-one",
        "an_entry_is_idle_exactly_when_no_input_holds_it",
        4,
    ),
    "idle media are no room": (
        "can_allocate",
        only_the_free,
        "encoder-turns",
        "encoder_admission_is_exact",
        4,
    ),
    "a name stands for whoever bears it": (
        "must_own_its_name",
        anything_goes,
        "encoder-strangers",
        "one_request_holds_under_a_name",
        2,
    ),
    "an identifier stands for whatever bears it": (
        "must_be_an_item",
        only_the_number,
        "encoder-strangers",
        "media_above_the_encoder_budget_are_refused_at_once",
        1,
    ),
}
"""What is replaced, by what, the world, what breaks, and the length of a shortest path."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_specification_is_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends with the property and a shortest path."""
    function, wrong, world, breaks, length = WRONG[name]
    monkeypatch.setattr(right, function, wrong)
    found = explore_encoder(ENCODER_WORLDS[world].scope).found
    assert found is not None
    assert (found.property, len(found.path)) == (breaks, length), found
