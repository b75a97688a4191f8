"""Names a difference between a subject and the specification after the property that it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from conformance.subject import Snapshot
from conformance.view import (
    Difference,
    as_state,
    chain_differences,
    differences,
    holders_of,
    key_differences,
)
from spec.invariants import REGISTRY, Step, broken
from spec.state import State
from spec.statemachine import Refused


class Call(NamedTuple):
    """One call as a driver made it."""

    number: int
    action: str
    args: Mapping[str, Any]


class Divergence(Exception):  # noqa: N818  # the field's word
    """The subject does what the specification does not. The text is one line that greps well."""

    def __init__(
        self,
        violated: str,
        call: Call,
        found: Difference,
        who: str,
        results: tuple[object, object] = (None, None),
        found_by: str = "lockstep",
    ) -> None:
        self.property = violated
        self.call = call
        self.found = found
        self.results = results
        """What the specification and the subject answered."""
        super().__init__(
            f"kvspec violation: property={violated} call={call.number} {call.action} "
            f"block={'-' if found.block is None else found.block} expected={flat(found.expected)} "
            f"actual={flat(found.actual)} holders={flat(who)} found_by={found_by}"
        )

    @property
    def details(self) -> str:
        """The call with its arguments, what differs, and what the property says."""
        known = REGISTRY.get(self.property)
        says = f"\n  {known.statement}\n  If it breaks: {known.why}" if known else ""
        args = ", ".join(f"{name}={flat(value)}" for name, value in self.call.args.items())
        return f"  call {self.call.number}: {self.call.action}({args})\n  {self.found.what}{says}"


def diagnose(
    call: Call,
    before: State,
    after: State,
    results: tuple[object, object],
    seen: Snapshot,
    levels: str,
) -> Divergence:
    """Return the divergence of a call, named after the first property that it breaks.

    `results` are what the specification and the subject answered. The properties are evaluated on
    the subject's own state with the specification's ghosts. `refinement` is left where behaviour
    differs and no property says that it must not.
    """
    expected, actual = answer(results[0]), answer(results[1])
    if len(seen.ref_cnts) != len(after.pool.blocks) or len(seen.keys) != len(after.pool.blocks):
        found = next(differences(after, seen))
        return Divergence("free_and_held_and_null_make_the_pool", call, found, "-", results)
    refused = isinstance(results[1], Refused)
    # What a subject refused, or had no room for, it has not done, whatever the specification did.
    undone = refused or (call.action == "allocate_slots" and actual is None and expected != actual)
    base = before if undone and not isinstance(results[0], Refused) else after
    found_all = [] if expected == actual else [Difference("result", None, expected, actual)]
    found_all += differences(base, seen)
    what = "; ".join(f"{d.what}: expected {d.expected}, is {d.actual}" for d in found_all[:4])
    if refused:
        what += f"; the subject says: {results[1]}"
    view = as_state(base, before, seen)
    step = Step(before, call.action, call.args, results[1], view)

    def candidates() -> Iterator[tuple[str, Difference]]:
        for d in chain_differences(seen):
            yield "the_free_queue_is_a_chain", d
        for d in key_differences(base, seen):
            yield KEY_PROPERTIES[d.what], d
        if isinstance(results[0], Refused) and not refused:
            yield GUARDED.get(results[0].rule, "refinement"), found_all[0]
        for name, instance in chain(broken(step, levels), broken(view, levels)):
            yield name, Difference(what, *instance)
        for d in found_all:
            left = "an_idle_pool_is_whole" if d.what == "usage" else None
            yield left or _left(call, base, seen, levels), d._replace(what=what)
        yield "refinement", Difference("what the call touched, as it is looked at", None, "-", "-")

    name, difference = next(candidates())
    return Divergence(name, call, difference, holders_of(base, difference.block), results)


def _left(call: Call, s: State, seen: Snapshot, levels: str) -> str:
    """Return the name of a difference that no predicate flags.

    The predicate for the order of release speaks of sealed blocks; when a request ends and the
    right blocks are free in another order, the order is wrong with the others too.
    """
    turned = seen.queue != s.pool.queue and sorted(seen.queue) == sorted(s.pool.queue)
    ended = call.action in ("free", "preempt", "finish") and "M" in levels
    return "the_tail_is_evicted_before_the_head" if turned and ended else "refinement"


GUARDED = {
    "block_is_already_sealed": "a_key_tells_the_content",
    "block_is_not_of_this_pool": "the_free_queue_is_a_chain",
    "computed_tokens_without_blocks": "nothing_unwritten_is_found",
    "hit_is_stale": "equal_keys_mean_equal_prefixes",
    "last_step_has_not_run": "a_writer_owns_its_block",
    "no_confirmed_token_to_compute": "a_hit_leaves_a_token_to_compute",
    "not_enough_free_blocks": "a_block_is_free_exactly_when_nobody_holds_it",
    "null_hit_is_readable": "a_request_reads_its_own_prefix",
    "pending_block_is_shared": "nothing_unwritten_is_found",
    "released_more_often_than_held": "ref_cnt_counts_the_holders",
    "request_is_too_large": "what_cannot_fit_is_refused_at_once",
    "sealed_block_has_not_one_holder": "a_writer_owns_its_block",
    "touched_block_is_not_sealed": "only_sealed_blocks_are_shared",
    "unpublished_block_is_not_one_holders": "a_settled_block_never_changes",
}
"""What a rule protects: the name of a divergence where a subject lets pass what it forbids."""

KEY_PROPERTIES = {
    "one key for two contents": "equal_keys_mean_equal_prefixes",
    "two keys for one content": "a_repeated_prompt_hits",
}


def answer(result: object) -> object:
    """Return what of a result must be equal: of a refusal, its rule."""
    if isinstance(result, Refused):
        return f"refused:{result.rule}"
    return tuple(result) if isinstance(result, list) else result


def flat(value: object) -> str:
    """Return a value as one word of a line that greps well; of a refusal that is the rule."""
    value = value.rule if isinstance(value, Refused) else value
    return "".join(str(value).split()) or "-"
