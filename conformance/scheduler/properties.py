"""Asks the properties of the specification of what a scheduler did to its pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from conformance.divergence import Call, Divergence
from conformance.scheduler.ledger import Work
from conformance.subject import Snapshot
from conformance.view import Difference, chain_differences, holders_of
from spec.invariants import REGISTRY, Step, broken
from spec.state import State

OF_A_STEP: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": ("positions_never_move",),
    "update_from_output": ("positions_never_move", "a_settled_block_never_changes"),
    "add_request": ("positions_never_move", "a_settled_block_never_changes"),
    "abort": ("positions_never_move", "a_settled_block_never_changes"),
    "preempt_running": ("positions_never_move", "a_settled_block_never_changes"),
    "reset_prefix_cache": ("reset_only_when_idle",),
}
"""Which properties of a call are asked of what a scheduler does in one go. The others speak of a
single call of a manager, of which it makes many."""

NOT_ASKED: Final[Mapping[str, str]] = {
    "a_block_handed_out_is_clean": "a pool call; what is left over is seen in the state after it",
    "a_refused_call_changes_nothing": "the scheduler makes room and tries again in one go",
    "a_repeated_prompt_hits": "the state at the look-up, inside a step, is not kept",
    "admission_is_exact": "0.33.0 admits with a watermark and a reserve that the rule lacks",
    "hits_and_new_blocks_are_disjoint": "a pool call; see ref_cnt_counts_the_holders",
    "the_oldest_release_is_evicted_first": "the free rule of 0.33.0 is another one",
    "the_tail_is_evicted_before_the_head": "a scheduler's step releases several requests at once",
    "what_cannot_fit_is_refused_at_once": "the pool holds the longest request by construction",
}
"""Properties of the specification that are not asked here, and why."""


class Moment(NamedTuple):
    """What one event, or half of a scheduler's step, did."""

    action: str
    args: Mapping[str, Any]
    before: State
    after: State
    seen: Snapshot
    work: tuple[Work, ...] = ()
    """What is on its way, of a moment that schedules."""
    result: object = None


def asked() -> list[str]:
    """Return the names of all properties that are asked."""
    states = [name for name, p in REGISTRY.items() if p.kind == "state"]
    calls = {name for names in OF_A_STEP.values() for name in names}
    admitted = {"a_hit_leaves_a_token_to_compute", "equal_keys_mean_equal_prefixes"}
    return sorted({*states, *calls, *admitted})


def faults(moment: Moment) -> Iterator[tuple[str, Difference]]:
    """Yield each broken property of a moment: its name, and what is where it should not be."""
    for difference in chain_differences(moment.seen):
        yield "the_free_queue_is_a_chain", difference
    s = moment.after
    usage = 1 - s.pool.num_free() / s.config.usable
    if moment.seen.usage not in (None, usage):
        yield "an_idle_pool_is_whole", Difference("usage", None, usage, moment.seen.usage)
    yield from _of_the_step(moment)
    for name, instance in broken(s):
        yield name, Difference(f"after {moment.action}", *instance)
    yield from _of_what_is_admitted(moment)


def _of_the_step(moment: Moment) -> Iterator[tuple[str, Difference]]:
    step = Step(_same_admissions(moment), moment.action, moment.args, moment.result, moment.after)
    for name in OF_A_STEP[moment.action]:
        for instance in REGISTRY[name].check(step):
            yield name, Difference(f"in {moment.action}", *instance)
    for work in moment.work:
        table = moment.seen.tables.get(work.rid, ())
        if table != work.table:
            what = f"the table that the worker has of {work.rid}"
            yield "positions_never_move", Difference(what, None, table, work.table)


def _same_admissions(moment: Moment) -> State:
    """Return the state before without the tables of requests that were preempted since."""
    before, after = moment.before, moment.after.requests
    gone = [
        rid
        for rid, r in before.requests.items()
        if rid in after and after[rid].num_preemptions != r.num_preemptions
    ]
    requests = before.requests
    for rid in gone:
        requests = requests.without(rid)
    return before._replace(requests=requests) if gone else before


def _of_what_is_admitted(moment: Moment) -> Iterator[tuple[str, Difference]]:
    """Ask what is true of a look-up of the hits of each request that was admitted."""
    s, size = moment.after, moment.after.config.block_size
    for work in moment.work:
        if work.tokens is not None and work.start:
            hits = work.table[: -(-work.start // size)]
            step = Step(s, "get_computed_blocks", {"rid": work.rid}, hits, s)
            for name in ("a_hit_leaves_a_token_to_compute", "equal_keys_mean_equal_prefixes"):
                for instance in REGISTRY[name].check(step):
                    yield name, Difference(f"hits of {work.rid}", *instance)


def violation(
    number: int, moment: Moment, found: Iterable[tuple[str, Difference]]
) -> Divergence | None:
    """Return the first of the faults found as a divergence of the `number`th call."""
    for name, difference in found:
        call = Call(number, moment.action, moment.args)
        who = holders_of(moment.after, difference.block)
        return Divergence(name, call, difference, who, found_by="scheduler")
    return None
