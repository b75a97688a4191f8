"""`assert_quiescent` fails while a block is held, and says which, by whom, and since when."""

from __future__ import annotations

import pytest

from conformance.adapters.reference import Reference
from conformance.monitoring.monitor import attach
from conformance.monitoring.quiescent import NotQuiescentError, assert_quiescent
from conformance.subject import RequestSpec
from kvcache import BlockPool
from spec.state import Config
from spec.statemachine import Outcome


def served() -> Reference:
    """Return a manager that has one running request, which holds blocks 1 and 2."""
    subject = Reference(Config(9, 2))
    subject.add_request("r1", RequestSpec((1, 2, 3)))
    subject.allocate_slots("r1", 3, (), 0)
    subject.run_step({"r1": Outcome()})
    return subject


def test_an_idle_manager_passes() -> None:
    """Cached blocks that nobody holds are free."""
    subject = served()
    subject.finish("r1")
    assert_quiescent(subject.manager)
    assert_quiescent(subject.pool)


def test_a_running_request_is_named() -> None:
    """Without a monitor the tables and the counts are told."""
    with pytest.raises(NotQuiescentError) as caught:
        assert_quiescent(served().manager)
    line, first, *_ = str(caught.value).splitlines()
    assert line == (
        "kvspec violation: property=an_idle_pool_is_whole 2 of 8 usable blocks are not free; "
        "the queue links 6 and counts 6"
    )
    assert first == (
        "  block=1 expected_holders=r1 ref_cnt=1 in_queue=False "
        "recorded_holders=? (attach a monitor to know)"
    )


def test_a_leak_is_told_with_the_call_that_took_it() -> None:
    """With a monitor the recorded holder is told, whom no table shows, and the last call."""
    subject = served()
    with attach(subject.manager) as monitor:
        subject.finish("r1")
        assert_quiescent(subject.manager)
        with monitor.owner("lost"):
            subject.pool.get_new_blocks(1)
        with pytest.raises(NotQuiescentError) as caught:
            assert_quiescent(subject.manager)
    assert str(caught.value).endswith(
        "  block=3 expected_holders=- ref_cnt=1 in_queue=False "
        "recorded_holders=lost since=call 2 get_new_blocks"
    )


def test_a_block_that_is_queued_and_counted_is_told() -> None:
    """Free means all of it: count 0, in the queue, in no table."""
    pool = BlockPool(4)
    pool.blocks[2].ref_cnt = 1
    with pytest.raises(NotQuiescentError, match=r"block=2 .* ref_cnt=1 in_queue=True"):
        assert_quiescent(pool)


def test_a_wrong_counter_is_told() -> None:
    """A pool that miscounts its free blocks is not whole."""
    pool = BlockPool(4)
    pool.free_block_queue.num_free_blocks += 1
    with pytest.raises(NotQuiescentError, match=r"0 of 3 .*links 3 and counts 4"):
        assert_quiescent(pool)


def test_many_blocks_are_listed_in_short() -> None:
    """Eight blocks are told in full, the others by their ids."""
    pool = BlockPool(14)
    pool.get_new_blocks(12)
    with pytest.raises(NotQuiescentError, match=r"and 4 more: \[9, 10, 11, 12\]$"):
        assert_quiescent(pool)
