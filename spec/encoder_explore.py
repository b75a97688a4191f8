"""Every reachable state of small encoder caches, breadth first.

A scope is a budget and some requests. From every state every call is made, with every number that
an input may have and two that none has, so refusals are looked at as often as effects. Nothing is
left out and nothing renamed: the states are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from spec.encoder_cache import (
    IDLE,
    EncoderCache,
    EncoderStep,
    EntryState,
    Media,
    empty,
    entry_state,
    perform,
)
from spec.encoder_properties import broken_in_encoder
from spec.pool import Refused
from spec.registry import Broken

OF_A_REQUEST = ("free", "get_cached_input_ids")
OF_AN_INPUT = ("has_cache", "can_allocate", "allocate", "free_encoder_input")

EncoderCall: TypeAlias = tuple[str, Mapping[str, Any]]
ENCODER_REACHABLE: dict[str, Callable[[EncoderStep], bool]] = {}
"""What must be seen: without these a search was green for nothing."""


class EncoderScope(NamedTuple):
    """A budget, and who may use it."""

    size: int
    requests: tuple[Media, ...]


class EncoderCounts(NamedTuple):
    """What a search counts. `transitions` are the calls that were not refused."""

    states: int
    transitions: int
    refused: int
    depth: int


class EncoderFound(NamedTuple):
    """A broken property, and a shortest list of calls that leads to it."""

    property: str
    broken: Broken
    path: tuple[EncoderCall, ...]


class EncoderResult(NamedTuple):
    """What a search saw; it ends at the first violation."""

    counts: EncoderCounts
    states: tuple[EncoderCache, ...]
    edges: frozenset[tuple[EntryState, EntryState]]
    seen: frozenset[str]
    rules: frozenset[str]
    """By which calls were refused."""
    found: EncoderFound | None


def calls_of(scope: EncoderScope) -> list[EncoderCall]:
    """Return every call that can be made in a scope."""
    calls: list[EncoderCall] = [("get_freed", {})]
    for request in scope.requests:
        calls += [(action, {"request": request}) for action in OF_A_REQUEST]
        numbers = range(-1, len(request.inputs) + 1)
        of_inputs = product(OF_AN_INPUT, numbers)
        calls += [(action, {"request": request, "input_id": i}) for action, i in of_inputs]
    return calls


def explore_encoder(scope: EncoderScope) -> EncoderResult:
    """Search every state of a scope."""
    calls, root = calls_of(scope), empty(scope.size)
    came: dict[EncoderCache, tuple[EncoderCache, EncoderCall] | None] = {root: None}
    contents = sorted({content for request in scope.requests for content, _ in request.inputs})
    edges: set[tuple[EntryState, EntryState]] = set()
    seen: set[str] = set()
    rules: set[str] = set()
    transitions = refused = depth = 0
    frontier = [root]

    def result(found: EncoderFound | None) -> EncoderResult:
        counts = EncoderCounts(len(came), transitions, refused, depth)
        sights = (frozenset(edges), frozenset(seen), frozenset(rules))
        return EncoderResult(counts, tuple(came), *sights, found)

    while frontier:
        following: list[EncoderCache] = []
        for s in frontier:
            for call in calls:
                step = perform(s, *call)
                fresh = step.after not in came
                bad = next(_broken(step, fresh=fresh), None)
                if bad is not None:
                    return result(EncoderFound(*bad, _path(came, s, call)))
                seen.update(name for name, sees in ENCODER_REACHABLE.items() if sees(step))
                if isinstance(step.result, Refused):
                    refused += 1
                    rules.add(step.result.rule)
                    continue
                transitions += 1
                for content in contents if step.after is not s else ():
                    if s.entries.get(content) != step.after.entries.get(content):
                        edges.add((entry_state(s, content), entry_state(step.after, content)))
                if fresh:
                    came[step.after] = (s, call)
                    following.append(step.after)
        frontier = following
        depth += bool(following)
    return result(None)


def _broken(step: EncoderStep, *, fresh: bool) -> Iterator[tuple[str, Broken]]:
    yield from broken_in_encoder(step)
    if fresh:
        yield from broken_in_encoder(step.after)


def _path(
    came: Mapping[EncoderCache, tuple[EncoderCache, EncoderCall] | None],
    s: EncoderCache,
    last: EncoderCall,
) -> tuple[EncoderCall, ...]:
    path = [last]
    while (parent := came[s]) is not None:
        s, call = parent
        path.append(call)
    return tuple(reversed(path))


def _sometimes(sees: Callable[[EncoderStep], bool]) -> Callable[[EncoderStep], bool]:
    ENCODER_REACHABLE[sees.__name__] = sees
    return sees


def _evicted(step: EncoderStep) -> list[str]:
    return [content for content in step.before.idle if content not in step.after.entries]


def _allocated(step: EncoderStep) -> str | None:
    """Return what was allocated in a step, if anything."""
    if step.action != "allocate" or isinstance(step.result, Refused):
        return None
    content: str = step.args["request"].inputs[step.args["input_id"]][0]
    return content


@_sometimes
def two_requests_share_an_entry(step: EncoderStep) -> bool:
    """Inputs of two requests hold one content."""
    content = _allocated(step)
    holders = [request for request, i in step.after.holders if request.inputs[i][0] == content]
    return len(set(holders)) == 2


@_sometimes
def a_request_holds_an_item_twice_and_gives_up_one(step: EncoderStep) -> bool:
    """One of two places of a request is past, and the entry stays held."""
    if step.action != "free_encoder_input" or isinstance(step.result, Refused):
        return False
    request, i = step.args["request"], step.args["input_id"]
    content = request.inputs[i][0]
    return any(r == request and r.inputs[k][0] == content for r, k in step.after.holders)


@_sometimes
def the_next_victim_is_held_again(step: EncoderStep) -> bool:
    """What would have been evicted next is allocated, and another is idle behind it."""
    return len(step.before.idle) > 1 and _allocated(step) == step.before.idle[0]


@_sometimes
def two_are_evicted_for_one(step: EncoderStep) -> bool:
    """An allocation needs the room of two idle entries."""
    return len(_evicted(step)) == 2


@_sometimes
def an_idle_entry_outlives_an_eviction(step: EncoderStep) -> bool:
    """There was more to evict than was needed."""
    return 0 < len(_evicted(step)) < len(step.before.idle)


@_sometimes
def an_evicted_entry_returns_before_the_report(step: EncoderStep) -> bool:
    """Its old output is still to be dropped when it is allocated again."""
    return _allocated(step) in step.before.freed


@_sometimes
def an_entry_is_evicted_again_before_the_report(step: EncoderStep) -> bool:
    """It is evicted twice and will be reported once."""
    return bool(set(_evicted(step)) & set(step.before.freed))


@_sometimes
def an_entry_is_evicted_before_it_was_encoded(step: EncoderStep) -> bool:
    """It was allocated, given up and evicted within one step."""
    return bool(set(_evicted(step)) & step.before.new)


@_sometimes
def one_is_refused_though_another_is_idle(step: EncoderStep) -> bool:
    """What is idle is not enough."""
    refused = isinstance(step.result, Refused) and step.result.rule == "not_enough_encoder_cache"
    return refused and bool(step.before.idle)


@_sometimes
def several_are_reported(step: EncoderStep) -> bool:
    """One report names two identifiers."""
    return step.action == "get_freed" and len(step.before.freed) > 1


@_sometimes
def a_request_leaves_two_idle_at_once(step: EncoderStep) -> bool:
    """A request ends that was the last to hold two contents."""
    return step.action == "free" and len(step.after.idle) == len(step.before.idle) + 2


@_sometimes
def a_request_ends_and_another_still_holds(step: EncoderStep) -> bool:
    """One of the contents that a request gives up has another holder."""
    if step.action != "free" or isinstance(step.result, Refused):
        return False
    contents = {r.inputs[i][0] for r, i in step.before.holders - step.after.holders}
    return any(entry_state(step.after, content) is not IDLE for content in contents)
