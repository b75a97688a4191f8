"""The encoder cache: which media are encoded, which inputs hold them, and which are evicted.

A content is ABSENT, HELD by one input, SHARED by several, or IDLE: kept though nobody holds it.
An input of a request is one place where it shows an item, and each place holds for itself. The
actions are pure: GUARD, which refuses by the name of a rule, then EFFECT. What is true of them says
`encoder_properties.py`; `encoder_explore.py` searches small worlds.

`stored` and `new` are ghosts: what a worker keeps since the last report, and what it is to encode
in the step to come. They make it sayable that the reports lead a worker to exactly the entries; no
action decides by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from spec.pool import Refused
from spec.state import Frozen


class EntryState(Enum):
    """Where a content is in its life. It is derived, never stored."""

    ABSENT = "ABSENT"
    HELD = "HELD"
    SHARED = "SHARED"
    IDLE = "IDLE"


ABSENT, HELD, SHARED, IDLE = EntryState
ENTRY_TRANSITIONS: Mapping[str, frozenset[tuple[EntryState, EntryState]]] = {
    "hold": frozenset({(ABSENT, HELD), (IDLE, HELD), (HELD, SHARED), (SHARED, SHARED)}),
    "release": frozenset({(SHARED, SHARED), (SHARED, HELD), (HELD, IDLE)}),
    "evict": frozenset({(IDLE, ABSENT)}),
}
"""Every transition that a content can make in one effect."""


class Media(NamedTuple):
    """A request as this cache sees it: for each input, in order, the content and its size.

    The size is in encoder tokens. `which` tells apart the requests that ever bear one name.
    """

    rid: str
    inputs: tuple[tuple[str, int], ...]
    which: int = 0


Holder: TypeAlias = tuple[Media, int]
"""A request and the number of one of its inputs."""


class Entry(NamedTuple):
    """A cached content."""

    size: int
    ref_cnt: int = 0


class EncoderCache(NamedTuple):
    """One state. `idle` is in order of becoming idle, `freed` in order of eviction."""

    size: int
    entries: Frozen[str, Entry]
    holders: frozenset[Holder]
    idle: tuple[str, ...]
    num_free: int
    num_freeable: int
    freed: tuple[str, ...] = ()
    stored: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()


class EncoderStep(NamedTuple):
    """One call: `result` is what it returned, or the `Refused` that it raised."""

    before: EncoderCache
    action: str
    args: Mapping[str, Any]
    result: object
    after: EncoderCache


def empty(size: int) -> EncoderCache:
    """Return the state before the first call."""
    return EncoderCache(size, Frozen(), frozenset(), (), size, size)


def entry_state(s: EncoderCache, content: str) -> EntryState:
    """Return the state that a content is in."""
    entry = s.entries.get(content)
    if entry is None:
        return ABSENT
    return (IDLE, HELD, SHARED)[min(2, max(0, entry.ref_cnt))]


# The effects.


def evict_effect(s: EncoderCache, needed: int) -> EncoderCache:
    """Take out what has been idle longest, until `needed` tokens are free."""
    while s.num_free < needed:
        content, *idle = s.idle
        s = s._replace(
            entries=s.entries.without(content),
            idle=tuple(idle),
            num_free=s.num_free + s.entries[content].size,
            freed=s.freed if content in s.freed else (*s.freed, content),
            new=s.new - {content},
        )
    return s


def make_effect(s: EncoderCache, content: str, size: int) -> EncoderCache:
    """Make an entry that nobody holds yet, idle behind the others; there is room."""
    return s._replace(
        entries=s.entries.set(content, Entry(size)),
        idle=(*s.idle, content),
        num_free=s.num_free - size,
        new=s.new | {content},
    )


def hold_effect(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Add a holder; an entry that was idle is so no longer."""
    content, size = holder[0].inputs[holder[1]]
    entry = s.entries[content]
    idle = tuple(other for other in s.idle if other != content)
    return s._replace(
        entries=s.entries.set(content, Entry(entry.size, entry.ref_cnt + 1)),
        holders=s.holders | {holder},
        idle=idle,
        num_freeable=s.num_freeable - (size if entry.ref_cnt == 0 else 0),
    )


def release_effect(s: EncoderCache, holder: Holder) -> EncoderCache:
    """Take a holder away; an entry whose last one goes is idle, behind the others."""
    content, size = holder[0].inputs[holder[1]]
    entry = s.entries[content]
    last = entry.ref_cnt == 1
    return s._replace(
        entries=s.entries.set(content, Entry(entry.size, entry.ref_cnt - 1)),
        holders=s.holders - {holder},
        idle=(*s.idle, content) if last else s.idle,
        num_freeable=s.num_freeable + (size if last else 0),
    )


# The actions.


def has_cache(s: EncoderCache, request: Media, input_id: int) -> bool:
    """Say whether the content of an input has an entry."""
    # GUARD
    must_be_an_item(s, request, input_id)
    # EFFECT
    return request.inputs[input_id][0] in s.entries


def can_allocate(s: EncoderCache, request: Media, input_id: int) -> bool:
    """Say whether an input can hold its content now."""
    # GUARD
    must_be_an_item(s, request, input_id)
    # EFFECT
    content, size = request.inputs[input_id]
    return content in s.entries or size <= s.num_freeable


def allocate(s: EncoderCache, request: Media, input_id: int) -> EncoderCache:
    """Let an input hold its content, in an entry that is there or in one that is made."""
    # GUARD
    must_be_an_item(s, request, input_id)
    content, size = request.inputs[input_id]
    if (request, input_id) in s.holders:
        raise Refused("encoder_input_is_held", input=input_id, content=content)
    if content not in s.entries and size > s.num_freeable:
        raise Refused("not_enough_encoder_cache", size=size, freeable=s.num_freeable)
    # EFFECT
    if content not in s.entries:
        s = make_effect(evict_effect(s, size), content, size)
    return hold_effect(s, (request, input_id))


def get_cached_input_ids(s: EncoderCache, request: Media) -> frozenset[int]:
    """Return the inputs of a request that hold their content."""
    # GUARD
    must_own_its_name(s, request)
    # EFFECT
    return frozenset(i for other, i in s.holders if other == request)


def free_encoder_input(s: EncoderCache, request: Media, input_id: int) -> EncoderCache:
    """Let one input give up its content."""
    # GUARD
    must_be_an_input(request, input_id)
    must_own_its_name(s, request)
    if (request, input_id) not in s.holders:
        raise Refused("encoder_input_is_not_held", input=input_id)
    # EFFECT
    return release_effect(s, (request, input_id))


def free(s: EncoderCache, request: Media) -> EncoderCache:
    """Let all inputs of a request give up their content, in their order."""
    # GUARD
    must_own_its_name(s, request)
    # EFFECT
    for i in sorted(get_cached_input_ids(s, request)):
        s = release_effect(s, (request, i))
    return s


def get_freed(s: EncoderCache) -> tuple[EncoderCache, tuple[str, ...]]:
    """Report what was evicted; the workers drop it, and then encode what is new."""
    # EFFECT
    stored = s.stored.difference(s.freed) | s.new
    return s._replace(freed=(), stored=stored, new=frozenset()), s.freed


def must_be_an_input(request: Media, input_id: int) -> None:
    """Raise `Refused` for a number that no input of the request has."""
    if not 0 <= input_id < len(request.inputs):
        raise Refused("no_such_encoder_input", input=input_id, inputs=len(request.inputs))


def must_own_its_name(s: EncoderCache, request: Media) -> None:
    """Raise `Refused` where another request of the same name holds something."""
    if any(other.rid == request.rid and other != request for other, _ in s.holders):
        raise Refused("request_id_holds_encoder_inputs", request=request.rid)


def must_be_an_item(s: EncoderCache, request: Media, input_id: int) -> None:
    """Raise `Refused` for an input whose item this cache can never hold, or not under its name."""
    must_be_an_input(request, input_id)
    content, size = request.inputs[input_id]
    if size > s.size:
        raise Refused("encoder_input_is_too_large", size=size, budget=s.size)
    must_own_its_name(s, request)
    if content in s.entries and s.entries[content].size != size:
        raise Refused("encoder_input_differs_from_its_entry", content=content, size=size)


ENCODER_ACTIONS: Mapping[str, Callable[..., tuple[EncoderCache, Any]]] = {
    "has_cache": lambda s, **args: (s, has_cache(s, **args)),
    "can_allocate": lambda s, **args: (s, can_allocate(s, **args)),
    "allocate": lambda s, **args: (allocate(s, **args), None),
    "get_cached_input_ids": lambda s, **args: (s, get_cached_input_ids(s, **args)),
    "free_encoder_input": lambda s, **args: (free_encoder_input(s, **args), None),
    "free": lambda s, **args: (free(s, **args), None),
    "get_freed": lambda s: get_freed(s),  # noqa: PLW0108  # looked up at the call, as the others are
}


def perform(s: EncoderCache, action: str, args: Mapping[str, Any]) -> EncoderStep:
    """Make one call; a refusal is its result, and then the state stays."""
    try:
        after, result = ENCODER_ACTIONS[action](s, **args)
    except Refused as refused:
        return EncoderStep(s, action, args, refused, s)
    return EncoderStep(s, action, args, result, after)
