"""A monitor says what a live pool does wrong, at the call, and is silent and gone otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.pool_walk import PoolWalk
from conformance.driving.walk import Walk
from conformance.faults.mutants import MUTANTS, planted
from conformance.lockstep import Divergence, Lockstep
from conformance.monitoring.monitor import Monitor, MonitorError, attach, monitor_of
from conformance.monitoring.profiles import UnknownPoolError
from conformance.monitoring.violation import Violation
from conformance.subject import RequestSpec
from kvcache import BlockPool, KVCacheError
from spec.state import Config
from spec.statemachine import Outcome

CONFIGS = {
    "full attention": Config(9, 2),
    "one token a block": Config(20, 1),
    "window": Config(20, 1, sliding_window=4),
    "caching off": Config(9, 2, enable_caching=False),
}
KEY = b"k" * 32
WALKS: tuple[Callable[[Lockstep, int], Any], ...] = (Walk, PoolWalk)

SEEN = {
    "copy-lost-with-first": "the_index_and_the_blocks_agree",
    "double-release": "a_refused_call_changes_nothing",
    "double-release-queued": "the_free_queue_is_a_chain",
    "entries-swapped": "the_index_and_the_blocks_agree",
    "evicted-stays-listed": "a_block_handed_out_is_clean",
    "free-block-sealed": "a_writer_owns_its_block",
    "head-not-linked-back": "the_free_queue_is_a_chain",
    "hit-loses-key": "the_index_and_the_blocks_agree",
    "hit-stays-queued": "a_block_is_free_exactly_when_nobody_holds_it",
    "hits-untouched": "ref_cnt_counts_the_holders",
    "idle-hits-free": "a_refused_call_changes_nothing",
    "null-released": "the_null_block_is_inert",
    "null-touched": "a_refused_call_changes_nothing",
    "one-release-too-many": "ref_cnt_counts_the_holders",
    "removal-uncounted": "the_free_queue_is_a_chain",
    "removed-keeps-link": "a_block_is_free_exactly_when_nobody_holds_it",
    "reset-keeps-keys": "reset_only_when_idle",
    "reset-while-held": "reset_only_when_idle",
    "second-free-releases": "ref_cnt_counts_the_holders",
    "shared-block-freed": "a_block_is_free_exactly_when_nobody_holds_it",
    "skipped-stays-in-table": "ref_cnt_counts_the_holders",
    "tail-not-linked-back": "the_free_queue_is_a_chain",
    "taken-back-keeps-key": "the_index_and_the_blocks_agree",
    "taken-back-stays-listed": "the_index_and_the_blocks_agree",
    "taken-keeps-key": "a_block_handed_out_is_clean",
    "touched-and-refused": "a_refused_call_changes_nothing",
    "unsealed-shared": "only_sealed_blocks_are_shared",
}
"""The seeded faults that spoil the pool, and the property that is said first in some walk."""


def first_said(name: str) -> Iterator[str]:
    """Yield what is said first in some walks in which a fault is planted."""
    for config, seed, walk in product(CONFIGS.values(), range(8), WALKS):
        said: list[Violation] = []
        with planted(MUTANTS[name]):
            subject = Reference(config)
            with attach(subject.manager, said.append, sweep_every=3) as monitor:
                try:
                    walk(Lockstep(subject), seed).run(200)
                except Divergence:
                    # The walk ends at the call that broke something; a server would go on.
                    monitor.sweep()
        if said:
            yield said[0].property


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEN)
def test_a_fault_that_spoils_the_pool_is_seen(name: str) -> None:
    """Each seeded fault of the pool is said under a property that it breaks."""
    assert SEEN[name] in first_said(name)


@pytest.mark.slow
def test_a_fault_that_spoils_no_pool_is_not_seen() -> None:
    """Which block is evicted first is no matter of a ledger: lockstep sees that."""
    assert not list(first_said("newest-evicted-first"))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("walk", WALKS)
def test_a_sound_manager_is_silent(config: Config, walk: Callable[..., Any]) -> None:
    """Random calls, misuse that the pool refuses among them, break nothing."""
    subject = Reference(config)
    with attach(subject.manager, sweep_every=5) as monitor:
        walk(Lockstep(subject), 1).run(400)
        monitor.sweep()
    assert monitor.num_calls > 50
    assert not monitor.num_violations


def pool_of(num_blocks: int = 6) -> BlockPool:
    """Return a pool of ours."""
    return BlockPool(num_blocks)


def spoil(pool: BlockPool) -> None:
    """Count a held block once more, behind the pool's back."""
    pool.get_new_blocks(1)[0].ref_cnt += 1


def test_the_line_and_the_details_say_what_is_wrong() -> None:
    """One line to grep for, and below it the words of the property."""
    pool = pool_of()
    with attach(pool) as monitor, monitor.owner("r1"):
        (block,) = pool.get_new_blocks(1)
        block.ref_cnt = 2
        with pytest.raises(Violation) as caught:
            pool.free_blocks([block])
    assert str(caught.value) == (
        "kvspec violation: property=ref_cnt_counts_the_holders call=2 free_blocks block=1 "
        "expected=0 actual=1 holders=- found_by=monitor"
    )
    assert "block 1 is held 0 times and counted 1 times" in caught.value.details
    assert "If it breaks" in caught.value.__notes__[0]


def test_warn_goes_on_and_says_a_fault_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the mode `warn` the pool does what it does, and the ledger follows it."""
    pool = pool_of()
    with attach(pool, "warn", sweep_every=1) as monitor, caplog.at_level(logging.WARNING):
        spoil(pool)
        assert [block.block_id for block in pool.get_new_blocks(2)] == [2, 3]
        monitor.sweep()
    assert caplog.text.count("kvspec violation: property=ref_cnt_counts_the_holders") == 1
    assert monitor.num_violations == 1


def test_a_function_gets_each_violation() -> None:
    """A callback is told, and what it raises is raised at the call."""
    said: list[Violation] = []
    pool = pool_of()
    with attach(pool, said.append) as monitor:
        spoil(pool)
        monitor.sweep()
    assert [(v.property, v.found.block, v.holders) for v in said] == [
        ("ref_cnt_counts_the_holders", 1, {"caller": 1})
    ]


def test_misuse_that_the_pool_refuses_is_left_to_it() -> None:
    """Our pool's own errors come through, and the ledger is as before."""
    pool = pool_of()
    with attach(pool) as monitor:
        blocks = pool.get_new_blocks(2)
        for misuse in (
            lambda: pool.get_new_blocks(-1),
            lambda: pool.free_blocks([*blocks, blocks[0]]),
            lambda: pool.touch(blocks),
            lambda: pool.free_blocks([BlockPool(3).blocks[1]]),
        ):
            with pytest.raises(KVCacheError):
                misuse()
        pool.free_blocks(blocks)
        monitor.sweep()
        assert monitor.holders(1) == {}


def test_a_reference_is_its_owners_to_give_up() -> None:
    """Who frees a shared block twice takes the other's reference, which a count cannot see."""
    pool = pool_of()
    said: list[Violation] = []
    with attach(pool, said.append) as monitor:
        with monitor.owner("r1"):
            blocks = pool.get_new_blocks(1)
            pool.cache_full_blocks(blocks, [KEY], 0, 1)
        with monitor.owner("r2"):
            pool.touch(blocks)
        assert monitor.holders(1) == {"r1": 1, "r2": 1}
        with monitor.owner("r1"):
            pool.free_blocks(blocks)
            pool.free_blocks(blocks)
    (violation,) = said
    assert (violation.property, violation.holders) == ("ref_cnt_counts_the_holders", {"r2": 1})


def test_a_pool_in_use_is_taken_as_it_is() -> None:
    """What tables show belongs to their requests, what they do not show to the caller."""
    subject = Reference(Config(9, 2))
    subject.add_request("r1", RequestSpec((1, 2, 3)))
    subject.allocate_slots("r1", 3, (), 0)
    subject.pool.get_new_blocks(1)
    with attach(subject.manager) as monitor:
        assert [monitor.holders(b) for b in (1, 2, 3, 4)] == [{"r1": 1}] * 2 + [{"caller": 1}, {}]
        subject.run_step({"r1": Outcome()})
        subject.finish("r1")
        monitor.sweep()


def test_a_broken_pool_is_said_at_once() -> None:
    """A pool that is broken already is not watched in the mode `raise`."""
    pool = pool_of()
    spoil(pool)
    pool.blocks[3].ref_cnt = 1
    with pytest.raises(Violation, match="queued") as caught:
        attach(pool)
    assert caught.value.verb == "attach"
    assert monitor_of(pool) is None


def test_detaching_leaves_no_trace() -> None:
    """The attributes of pool and manager are what they were, one that was set by hand included."""
    subject = Reference(Config(9, 2))
    calls: list[int] = []
    inner = subject.pool.get_new_blocks

    def counted(num_blocks: int) -> Any:  # noqa: ANN401  # whatever the pool returns
        calls.append(num_blocks)
        return inner(num_blocks)

    subject.pool.get_new_blocks = counted  # type: ignore[method-assign]
    before = dict(vars(subject.pool)), dict(vars(subject.manager))
    with pytest.raises(KVCacheError), attach(subject.manager):
        subject.pool.free_blocks(subject.pool.get_new_blocks(1) * 2)
    assert (dict(vars(subject.pool)), dict(vars(subject.manager))) == before
    assert calls == [1]


def test_a_pool_is_watched_once() -> None:
    """A second monitor is refused, through pool or manager; after a detach it is not."""
    subject = Reference(Config(9, 2))
    with attach(subject.manager):
        for watched in (subject.manager, subject.pool):
            with pytest.raises(MonitorError, match="watched already"):
                attach(watched)
    attach(subject.pool).detach()


def test_a_method_replaced_since_stops_the_detach() -> None:
    """What somebody else put above the monitor is not thrown away."""
    pool = pool_of()
    monitor: Monitor = attach(pool)
    ours, other = pool.touch, partial(pool.touch)
    pool.touch = other  # type: ignore[method-assign]
    with pytest.raises(MonitorError, match=r"BlockPool\.touch was replaced"):
        monitor.detach()
    assert pool.touch is other
    pool.touch = ours  # type: ignore[method-assign]
    monitor.detach()
    monitor.detach()
    assert monitor_of(pool) is None


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"on_violation": "loud"}, ValueError, "'loud' is no mode"),
        ({"sweep_every": 0}, ValueError, "sweep_every=0"),
        ({"pool_or_manager": object()}, UnknownPoolError, "cannot be watched"),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The message shows the value."""
    with pytest.raises(error, match=says):
        attach(**{"pool_or_manager": pool_of(), **given})
