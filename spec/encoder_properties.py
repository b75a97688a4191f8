"""What is true of the encoder cache: of every call, and of every state between two calls.

The registry has the form of the blocks' own and stands apart from it. A property of a call speaks
of the calls in `of`, or of all. The content in which one is broken stands in the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from spec.encoder_cache import EncoderCache, EncoderStep, Holder
from spec.pool import Refused
from spec.registry import Broken, Property

Check: TypeAlias = Callable[[Any], Iterator[Broken]]

ENCODER_REGISTRY: dict[str, Property] = {}

CHANGING = ("allocate", "free_encoder_input", "free")
QUESTIONS = ("has_cache", "can_allocate", "get_cached_input_ids")
ASKING = ("has_cache", "can_allocate", "allocate")


def _always(kind: str, why: str, of: tuple[str, ...] = ()) -> Callable[[Check], Check]:
    """Enter a predicate under its own name; its docstring is the statement."""

    def register(check: Check) -> Check:
        text = " ".join((check.__doc__ or "").split())
        name = check.__name__
        ENCODER_REGISTRY[name] = Property(name, "E", kind, of, text, why, check)
        return check

    return register


def broken_in_encoder(subject: EncoderCache | EncoderStep) -> Iterator[tuple[str, Broken]]:
    """Yield every property that a state or a call breaks, in the order of the registry."""
    kind, call = ("step", subject.action) if isinstance(subject, EncoderStep) else ("state", "")
    for p in ENCODER_REGISTRY.values():
        if p.kind == kind and (not p.of or call in p.of):
            for instance in p.check(subject):
                yield p.name, instance


def _content(holder: Holder) -> str:
    return holder[0].inputs[holder[1]][0]


def _asked(step: EncoderStep) -> tuple[str, int]:
    """Return content and size of the input that a call names."""
    content, size = step.args["request"].inputs[step.args["input_id"]]
    return content, size


def _gone(step: EncoderStep) -> list[str]:
    """Return what lost its entry, in the order in which it was idle, and what was not, last."""
    gone = [content for content in step.before.entries if content not in step.after.entries]
    order = {content: at for at, content in enumerate(step.before.idle)}
    return sorted(gone, key=lambda content: (order.get(content, len(order)), content))


@_always("step", "A request that waits loses its place, or a question costs somebody memory.")
def an_encoder_call_that_is_refused_or_asks_changes_nothing(s: EncoderStep) -> Iterator[Broken]:
    """A call that is refused, and a question, leaves the encoder cache as it was."""
    if isinstance(s.result, Refused) or s.action in QUESTIONS:
        for name, old, new in zip(EncoderCache._fields, s.before, s.after, strict=True):
            if old != new:
                yield Broken(None, (name, old), (name, new))


@_always("step", "A request waits for ever for media that no eviction can make room for.", ASKING)
def media_above_the_encoder_budget_are_refused_at_once(s: EncoderStep) -> Iterator[Broken]:
    """The first call that shows an item above the whole budget is refused for this reason."""
    if not 0 <= s.args["input_id"] < len(s.args["request"].inputs):
        return
    rule = s.result.rule if isinstance(s.result, Refused) else None
    too_large = _asked(s)[1] > s.before.size
    if too_large != (rule == "encoder_input_is_too_large"):
        yield Broken(None, too_large, rule)


@_always("step", "A request starts on another picture than its own, of another size.", ASKING)
def an_identifier_has_one_size(s: EncoderStep) -> Iterator[Broken]:
    """An input whose identifier is cached with another size is not served."""
    if not isinstance(s.result, Refused):
        content, size = _asked(s)
        entry = s.before.entries.get(content)
        if entry is not None and entry.size != size:
            yield Broken(None, (content, entry.size), (content, size))


@_always("step", "Media are encoded again though they are there, or not though they are not.")
def the_encoder_cache_tells_what_it_has(s: EncoderStep) -> Iterator[Broken]:
    """`has_cache` says whether there is an entry; `get_cached_input_ids` names what is held."""
    if isinstance(s.result, Refused):
        return
    if s.action == "has_cache" and s.result != (expected := _asked(s)[0] in s.before.entries):
        yield Broken(None, expected, s.result)
    if s.action == "get_cached_input_ids":
        held = {i for request, i in s.before.holders if request == s.args["request"]}
        if s.result != held:
            yield Broken(None, sorted(held), s.result)


@_always(
    "step",
    "A request that fits waits, or one that does not fit is let in and evicts what is held.",
    ("can_allocate", "allocate"),
)
def encoder_admission_is_exact(s: EncoderStep) -> Iterator[Broken]:
    """There is room where the content has an entry, or what no input holds is as large as it.

    `can_allocate` says so, and `allocate` succeeds exactly then.
    """
    refused = isinstance(s.result, Refused)
    if isinstance(s.result, Refused) and s.result.rule != "not_enough_encoder_cache":
        return
    content, size = _asked(s)
    held = {_content(holder) for holder in s.before.holders}
    taken = sum(entry.size for other, entry in s.before.entries.items() if other in held)
    room = content in s.before.entries or size <= s.before.size - taken
    said = not refused if s.action == "allocate" else s.result
    if said != room:
        yield Broken(None, (content, room), (content, said))


@_always("step", "One place gives up what another still needs, or memory is never given back.")
def an_input_holds_from_allocation_to_release(s: EncoderStep) -> Iterator[Broken]:
    """Allocation adds the one input, a release takes it away, and `free` those of its request."""
    expected = s.before.holders
    if s.action in CHANGING and not isinstance(s.result, Refused):
        request = s.args["request"]
        if s.action == "free":
            expected = frozenset(holder for holder in expected if holder[0] != request)
        else:
            one = {(request, s.args["input_id"])}
            expected = expected | one if s.action == "allocate" else expected - one
    if s.after.holders != expected:
        yield Broken(None, sorted(expected), sorted(s.after.holders))


@_always("step", "One picture in many requests fills the budget once for each.", ("allocate",))
def one_content_is_charged_once(s: EncoderStep) -> Iterator[Broken]:
    """An allocation whose content has an entry shares it: nothing is charged, nothing evicted."""
    if isinstance(s.result, Refused):
        return
    content, _ = _asked(s)
    if content in s.before.entries:
        sizes = {other: entry.size for other, entry in s.before.entries.items()}
        now = {other: entry.size for other, entry in s.after.entries.items()}
        if (sizes, s.before.num_free) != (now, s.after.num_free):
            yield Broken(None, (sizes, s.before.num_free), (now, s.after.num_free))


@_always("step", "A model reads outputs that were dropped while its request was running.")
def only_idle_media_are_evicted(s: EncoderStep) -> Iterator[Broken]:
    """An entry goes only when it is idle, and only in an allocation."""
    for content in _gone(s):
        if content not in s.before.idle or s.action != "allocate":
            yield Broken(None, f"{content} is there", f"{content} is gone after {s.action}")


@_always("step", "Media that were used just now are encoded again, and old ones stay.")
def the_longest_idle_media_are_evicted_first(s: EncoderStep) -> Iterator[Broken]:
    """What is evicted has been idle longer than what stays idle."""
    gone = _gone(s)
    first = list(s.before.idle[: len(gone)])
    if gone != first:
        yield Broken(None, first, gone)


@_always("step", "Media are encoded again that could have stayed.", ("allocate",))
def no_more_media_are_evicted_than_needed(s: EncoderStep) -> Iterator[Broken]:
    """Without the last entry that was evicted the new one would not have had room."""
    gone = _gone(s)
    if gone and not isinstance(s.result, Refused):
        content, size = _asked(s)
        kept = s.before.num_free + sum(s.before.entries[other].size for other in gone[:-1])
        if content in s.before.entries or kept >= size:
            yield Broken(None, (kept, size), gone)


@_always("step", "What is evicted next does not follow from what happened.")
def media_become_idle_behind_the_others(s: EncoderStep) -> Iterator[Broken]:
    """The others keep their order; what a call left idle follows, in the order of its inputs."""
    stay = [c for c in s.before.idle if c in s.after.idle]
    come: list[str] = []
    if s.action in CHANGING:
        given_up = sorted(s.before.holders - s.after.holders, reverse=True)
        last_first = dict.fromkeys(map(_content, given_up))
        come = [c for c in reversed(last_first) if c in s.after.idle and c not in stay]
    if list(s.after.idle) != [*stay, *come]:
        yield Broken(None, [*stay, *come], list(s.after.idle))


@_always("step", "A worker never drops what was evicted, or drops what has been encoded again.")
def what_is_evicted_is_reported_once(s: EncoderStep) -> Iterator[Broken]:
    """Evictions line up, each identifier once, until `get_freed` names and forgets them."""
    expected: tuple[str, ...] = ()
    if s.action == "get_freed":
        if s.result != s.before.freed:
            yield Broken(None, s.before.freed, s.result)
    else:
        expected = tuple(dict.fromkeys((*s.before.freed, *_gone(s))))
    if s.after.freed != expected:
        yield Broken(None, expected, s.after.freed)


@_always("state", "Encoder outputs are written over one another, or memory runs out.")
def the_encoder_budget_is_never_overdrawn(s: EncoderCache) -> Iterator[Broken]:
    """What is free is not negative, and no more than what can be made free, or than all."""
    if not 0 <= s.num_free <= s.num_freeable <= s.size:
        yield Broken(None, f"0 <= free <= freeable <= {s.size}", (s.num_free, s.num_freeable))


@_always("state", "A request holds outputs that nobody keeps.")
def what_an_input_holds_is_cached(s: EncoderCache) -> Iterator[Broken]:
    """The content of an input that holds has an entry, of the input's size."""
    for request, i in sorted(s.holders):
        content, size = request.inputs[i]
        entry = s.entries.get(content)
        if entry is None or entry.size != size:
            yield Broken(None, (request.rid, i, content, size), entry)


@_always("state", "Two requests free each other's media.")
def one_request_holds_under_a_name(s: EncoderCache) -> Iterator[Broken]:
    """All inputs that hold under one name are of one request."""
    names = Counter(request.rid for request in {request for request, _ in s.holders})
    for name, requests in sorted(names.items()):
        if requests > 1:
            yield Broken(None, (name, 1), (name, requests))


@_always("state", "Media are evicted that somebody needs, or never evicted.")
def an_entry_counts_the_inputs_that_hold_it(s: EncoderCache) -> Iterator[Broken]:
    """The count of an entry is the number of inputs that hold its content."""
    held = Counter(_content(holder) for holder in s.holders)
    for content, entry in sorted(s.entries.items()):
        if entry.ref_cnt != held[content]:
            yield Broken(None, (content, held[content]), (content, entry.ref_cnt))


@_always("state", "Media are evicted that somebody needs, or never evicted.")
def an_entry_is_idle_exactly_when_no_input_holds_it(s: EncoderCache) -> Iterator[Broken]:
    """What stands in the order of eviction, once, is every entry whose count is 0."""
    unheld = sorted(content for content, entry in s.entries.items() if entry.ref_cnt == 0)
    if sorted(s.idle) != unheld:
        yield Broken(None, unheld, sorted(s.idle))


@_always("state", "The budget shrinks with every picture, or media are let in without room.")
def entries_and_free_slots_make_the_encoder_budget(s: EncoderCache) -> Iterator[Broken]:
    """What is free is the budget less the size of every entry."""
    free = s.size - sum(entry.size for entry in s.entries.values())
    if s.num_free != free:
        yield Broken(None, free, s.num_free)


@_always("state", "Requests wait beside idle media, or are let in without room.")
def idle_media_can_be_made_free(s: EncoderCache) -> Iterator[Broken]:
    """What can be made free is what is free, and the size of every idle entry."""
    idle = sum(s.entries[content].size for content in s.idle if content in s.entries)
    if s.num_freeable != s.num_free + idle:
        yield Broken(None, s.num_free + idle, s.num_freeable)


@_always("state", "A server that has served all its requests has lost room for media.")
def an_encoder_cache_that_nobody_holds_is_whole(s: EncoderCache) -> Iterator[Broken]:
    """When no input holds anything, the whole budget can be made free."""
    if not s.holders and s.num_freeable != s.size:
        yield Broken(None, s.size, s.num_freeable)


@_always("state", "A model reads outputs that its worker dropped, or a worker's memory fills up.")
def a_worker_that_follows_the_reports_keeps_the_entries(s: EncoderCache) -> Iterator[Broken]:
    """What a worker keeps, less what it will be told to drop, and what is new, are the entries."""
    follows = s.stored.difference(s.freed) | s.new
    if follows != set(s.entries):
        yield Broken(None, sorted(s.entries), sorted(follows))
