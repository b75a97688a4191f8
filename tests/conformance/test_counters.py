"""Full checks hold a subject's statistics and its stray links against the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.lockstep import Divergence, Lockstep
from conformance.subject import RequestSpec, Snapshot
from spec.state import Config
from spec.statemachine import Outcome

Seen = Callable[[Callable[[Snapshot], Snapshot]], Lockstep]


@pytest.fixture
def seen() -> Seen:
    """Return a way to make a pair whose subject shows what a function makes of its snapshot."""

    def make(change: Callable[[Snapshot], Snapshot]) -> Lockstep:
        class Shown(Reference):
            def snapshot(self) -> Snapshot:
                return change(super().snapshot())

        return Lockstep(Shown(Config(5, 2)))

    return make


def served(pair: Lockstep) -> None:
    """Serve one request twice, preempted in between, and another that evicts."""
    pair.add_request("a", RequestSpec((1, 2, 3, 4, 5)))
    pair.allocate_slots("a", 5, pair.get_computed_blocks("a"), 0)
    pair.run_step({"a": Outcome(0, (6,))})
    pair.preempt("a")
    hits = pair.get_computed_blocks("a")
    pair.allocate_slots("a", 6 - 2 * len(hits), hits, 0)
    pair.run_step({"a": Outcome(0, ())})
    pair.finish("a")
    pair.add_request("b", RequestSpec((7, 8, 9, 7, 8, 9, 7)))
    pair.allocate_slots("b", 7, pair.get_computed_blocks("b"), 0)


def changed(counters: Mapping[str, int]) -> Callable[[Snapshot], Snapshot]:
    """Return a change of what a subject counts, by so much each, where anything was counted."""

    def change(snapshot: Snapshot) -> Snapshot:
        new: dict[str, Any] = {
            name: number + counters.get(name, 0) * (number > 0)
            for name, number in snapshot.counters.items()
        }
        return type(snapshot)(
            snapshot.ref_cnts,
            snapshot.keys,
            snapshot.queue,
            snapshot.queue_back,
            snapshot.num_free,
            snapshot.index,
            snapshot.tables,
            counters=new,
        )

    return change


def test_the_statistics_are_those_of_the_calls(seen: Seen) -> None:
    """What was asked, found, resumed and evicted is counted call by call."""
    pair = seen(changed({}))
    served(pair)
    assert pair.counters == {
        "requests": 2,
        "queries": 2 + 3,
        "preempted_requests": 1,
        "preempted_queries": 2,
        "preempted_hits": 2,
        "evictions": 3,
    }


@pytest.mark.parametrize(
    "name",
    [
        "requests",
        "queries",
        "preempted_requests",
        "preempted_queries",
        "preempted_hits",
        "evictions",
    ],
)
def test_a_wrong_count_is_a_finding(seen: Seen, name: str) -> None:
    """Whatever is counted wrongly is named with both numbers."""
    with pytest.raises(Divergence) as caught:
        served(seen(changed({name: 1})))
    found = caught.value
    assert (found.property, found.found.what) == ("refinement", f"count of {name}")
    assert found.found.actual == found.found.expected + 1  # type: ignore[operator]  # both numbers


def test_a_report_that_was_handed_over_still_counts() -> None:
    """Who asks the manager for its statistics takes nothing from the comparison."""
    subject = Reference(Config(5, 2))
    pair = Lockstep(subject)
    served(pair)
    assert subject.manager.make_prefix_cache_stats().requests == 2
    pair.run_step({"b": Outcome(0, ())})
    assert subject.snapshot().counters["requests"] == 2


def test_a_stray_link_breaks_the_chain(seen: Seen) -> None:
    """A block that is in use and still linked is seen in the snapshot alone."""
    pair = seen(lambda snapshot: snapshot)
    served(pair)
    pool = pair.subject.pool  # type: ignore[attr-defined]  # our own subject's
    held = pool.blocks[pair.table("b")[0]]
    held.next_free_block = pool.free_block_queue.head or pool.blocks[0]
    with pytest.raises(Divergence) as caught:
        pair.sweep()
    assert (caught.value.property, caught.value.found.block) == (
        "the_free_queue_is_a_chain",
        held.block_id,
    )
