"""Holds the encoder cache manager against its specification, call by call and step by step.

`view` reads a manager as a state, every field of it, and `load` is its inverse, for tests only.
`EncoderLockstep` makes each call on both sides. `refine_encoder` makes every call from every state
of a list on both sides: when the list is all that can be reached, no history is too long for it.
A difference is a `Divergence`, named after the first property that the manager's own state, or the
call, breaks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from conformance.divergence import Call, Divergence, answer
from conformance.view import Difference
from kvcache import EncoderCacheManager, KVCacheError, MultiModalItem, Request
from kvcache.encoder_cache import EncoderCacheEntry, HeldInputs
from spec.encoder_cache import EncoderCache, EncoderStep, Entry, Media, empty, perform
from spec.encoder_explore import EncoderCall
from spec.encoder_properties import broken_in_encoder
from spec.pool import Refused
from spec.state import Frozen


class MediaRequests:
    """The request objects that stand for the specification's, one each, and the way back."""

    def __init__(self) -> None:
        self._objects: dict[Media, Request] = {}
        self._media: dict[Request, Media] = {}

    def object_of(self, media: Media) -> Request:
        """Return the request object; it shows its items one behind the other."""
        found = self._objects.get(media)
        if found is None:
            items, offset = [], 0
            for identifier, size in media.inputs:
                items.append(MultiModalItem(identifier=identifier, offset=offset, length=size))
                offset += size
            found = Request(media.rid, [0], mm_items=items)
            self._objects[media], self._media[found] = found, media
        return found

    def media_of(self, request: Request) -> Media:
        """Return whom a request object stands for."""
        return self._media[request]


def view(
    manager: EncoderCacheManager, requests: MediaRequests, ghosts: EncoderCache
) -> EncoderCache:
    """Return the state that a manager is in; what it does not keep is taken from `ghosts`."""
    holders = frozenset(
        (requests.media_of(held.request), i)
        for held in manager.held.values()
        for i in held.input_ids
    )
    return EncoderCache(
        manager.cache_size,
        Frozen({name: Entry(e.num_tokens, e.ref_cnt) for name, e in manager.cached.items()}),
        holders,
        tuple(manager.freeable),
        manager.num_free_slots,
        manager.num_freeable_slots,
        tuple(manager.freed),
        ghosts.stored,
        ghosts.new,
    )


def load(s: EncoderCache, requests: MediaRequests) -> EncoderCacheManager:
    """Return a manager in a state that its own calls may not have made."""
    manager = EncoderCacheManager(s.size)
    for content, (size, ref_cnt) in s.entries.items():
        entry = manager.cached[content] = EncoderCacheEntry(size)
        entry.ref_cnt = ref_cnt
    manager.freeable = OrderedDict((content, manager.cached[content]) for content in s.idle)
    for media, i in s.holders:
        request = requests.object_of(media)
        held = manager.held.setdefault(media.rid, HeldInputs(request))
        held.input_ids.add(i)
    manager.num_free_slots, manager.num_freeable_slots = s.num_free, s.num_freeable
    manager.freed = dict.fromkeys(s.freed)
    return manager


class EncoderLockstep:
    """A manager and the specification as one; every property is evaluated at every call."""

    def __init__(self, manager: EncoderCacheManager) -> None:
        self.manager = manager
        self.requests = MediaRequests()
        self.state = empty(manager.cache_size)
        self.calls = 0
        self.on_step: Callable[[EncoderStep], None] | None = None
        """Is told of every call, with the states around it."""

    def __call__(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the action's
        """Return what both sides answer, a refusal too; the first difference is raised."""
        self.calls += 1
        call = Call(self.calls, action, args)
        step = perform(self.state, action, args)
        actual = make(self.manager, self.requests, action, args)
        found = compare(self.manager, self.requests, step, actual, call)
        if found is not None:
            raise found
        bad = next(chain(broken_in_encoder(step), broken_in_encoder(step.after)), None)
        if bad is not None:
            raise _divergence(bad[0], call, bad[1].expected, bad[1].actual, "a property")
        self.state = step.after
        if self.on_step is not None:
            self.on_step(step)
        return step.result


def make(
    manager: EncoderCacheManager, requests: MediaRequests, action: str, args: Mapping[str, Any]
) -> object:
    """Return what a manager answers to a call; a refusal, and a crash, are answers."""
    args = {**args}
    if "request" in args:
        args["request"] = requests.object_of(args["request"])
    try:
        result = getattr(manager, action)(**args)
    except KVCacheError as error:
        return Refused(error.rule, text=str(error))
    except Exception as crash:  # noqa: BLE001  # a manager that crashes is a finding
        return Refused(f"raised_{type(crash).__name__}", text=str(crash))
    if isinstance(result, set):
        return frozenset(result)
    return tuple(result) if isinstance(result, list) else result


def compare(
    manager: EncoderCacheManager,
    requests: MediaRequests,
    step: EncoderStep,
    actual: object,
    call: Call,
) -> Divergence | None:
    """Return how a manager's answer and state differ from what a step says, if they do."""
    refused = isinstance(actual, Refused)
    # What a manager refused it has not done, whatever the specification went on to do.
    base = step.before if refused and not isinstance(step.result, Refused) else step.after
    try:
        seen = view(manager, requests, base)
    except (AttributeError, KeyError) as crash:
        return _divergence("refinement", call, "a_view", repr(crash), "what can be seen of it")
    answers = answer(step.result), answer(actual)
    if answers[0] == answers[1] and seen == step.after:
        try:
            manager.check()
        except AssertionError as error:
            return _divergence("refinement", call, "a_manager_in_order", str(error), "check()")
        return None
    candidates = _named(step, actual, seen, base)
    name, expected, found = next(candidates, ("refinement", *answers))
    values = f"answered {answers[1]} and not {answers[0]}; {seen} is not {step.after}"
    return _divergence(name, call, expected, found, values)


def _named(
    step: EncoderStep, actual: object, seen: EncoderCache, base: EncoderCache
) -> Iterator[tuple[str, object, object]]:
    own = EncoderStep(step.before, step.action, step.args, actual, seen)
    for name, instance in chain(broken_in_encoder(own), broken_in_encoder(seen)):
        yield name, instance.expected, instance.actual
    rule = step.result.rule if isinstance(step.result, Refused) else None
    if rule is not None and answer(actual) != answer(step.result):
        yield ENCODER_GUARDED.get(rule, "refinement"), answer(step.result), answer(actual)
    if seen != base:
        yield "refinement", base, seen


ENCODER_GUARDED = {
    "encoder_input_is_held": "an_input_holds_from_allocation_to_release",
    "encoder_input_is_not_held": "an_input_holds_from_allocation_to_release",
    "request_id_holds_encoder_inputs": "one_request_holds_under_a_name",
}
"""What a rule protects: the name where a manager lets pass what it forbids and breaks nothing."""


def _divergence(name: str, call: Call, expected: object, found: object, what: str) -> Divergence:
    request = call.args.get("request")
    who = "-" if request is None else request.rid
    return Divergence(name, call, Difference(what, None, expected, found), who)


@dataclass(slots=True)
class EncoderRefined:
    """How many steps were compared, how many of them refused, and the first that differs."""

    states: int = 0
    checks: int = 0
    refused: int = 0
    found: Divergence | None = None


def refine_encoder(states: Iterable[EncoderCache], calls: Sequence[EncoderCall]) -> EncoderRefined:
    """Make every call from every state on both sides, up to the first that differs."""
    done, requests = EncoderRefined(), MediaRequests()
    for s in states:
        done.states += 1
        manager = load(s, requests)
        loaded = view(manager, requests, s)
        assert loaded == s, f"{loaded} was loaded for {s}"
        for action, args in calls:
            done.checks += 1
            step = perform(s, action, args)
            done.refused += isinstance(step.result, Refused)
            actual = make(manager, requests, action, args)
            found = compare(manager, requests, step, actual, Call(done.checks, action, args))
            if found is not None:
                done.found = found
                return done
            if step.after != s:
                manager = load(s, requests)
    return done
