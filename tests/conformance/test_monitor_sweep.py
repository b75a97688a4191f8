"""What a sweep sees of a pool that was spoilt behind its methods, and the end of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.monitoring.monitor import attach
from conformance.monitoring.sweep import TURNS
from conformance.monitoring.violation import Violation
from conformance.subject import RequestSpec
from kvcache import BlockPool
from spec.state import Config
from spec.statemachine import Outcome

KEYS = (b"a" * 32, b"b" * 32)


def count_null(pool: BlockPool) -> None:
    """Count the null block."""
    pool.null_block.ref_cnt = 1


def key_null(pool: BlockPool) -> None:
    """Give the null block a key."""
    pool.null_block.block_hash = KEYS[0]


def count_held(pool: BlockPool) -> None:
    """Count a held block once more."""
    pool.blocks[1].ref_cnt = 2


def count_free(pool: BlockPool) -> None:
    """Take a free block's count away from the ledger's."""
    pool.blocks[5].ref_cnt = -1


def list_stale(pool: BlockPool) -> None:
    """List a block under a key that it does not carry."""
    pool.index._first[b"c" * 32] = pool.blocks[1]


def list_twice(pool: BlockPool) -> None:
    """List a block under the key of another one."""
    pool.index._first[KEYS[0]] = pool.blocks[2]


def unlist(pool: BlockPool) -> None:
    """Drop a key from the index."""
    del pool.index._first[KEYS[1]]


def cut_forward(pool: BlockPool) -> None:
    """Skip a block of the queue."""
    pool.blocks[4].next_free_block = pool.blocks[6]


def cut_open(pool: BlockPool) -> None:
    """End the queue in the middle."""
    pool.blocks[4].next_free_block = None


def miscount(pool: BlockPool) -> None:
    """Count one free block too many."""
    pool.free_block_queue.num_free_blocks += 1


SPOILT: dict[Callable[[BlockPool], None], str] = {
    count_null: "the_null_block_is_inert",
    key_null: "the_null_block_is_inert",
    count_held: "ref_cnt_counts_the_holders",
    count_free: "ref_cnt_counts_the_holders",
    list_stale: "the_index_and_the_blocks_agree",
    list_twice: "the_index_and_the_blocks_agree",
    unlist: "the_index_and_the_blocks_agree",
    cut_forward: "the_free_queue_is_a_chain",
    cut_open: "the_free_queue_is_a_chain",
    miscount: "the_free_queue_is_a_chain",
}


@pytest.mark.parametrize("spoil", SPOILT, ids=[spoil.__name__ for spoil in SPOILT])
@pytest.mark.parametrize("whole", [True, False])
def test_a_sweep_sees_it(spoil: Callable[[BlockPool], None], *, whole: bool) -> None:
    """A whole sweep sees it at once, and the regular ones when they have all had their turn."""
    pool, said = BlockPool(8), list[Violation]()
    with attach(pool, said.append) as monitor:
        pool.cache_full_blocks(pool.get_new_blocks(3), KEYS, 0, 2)
        assert not said
        spoil(pool)
        if whole:
            monitor.sweep()
        else:
            for _ in range(TURNS):
                monitor.watched.regular_sweep()
    assert said[0].property == SPOILT[spoil]
    assert {violation.verb for violation in said} == {"sweep"}


def running() -> Reference:
    """Return a manager with a running request that holds blocks 1 and 2."""
    subject = Reference(Config(9, 2))
    subject.add_request("r1", RequestSpec((1, 2, 3)))
    subject.allocate_slots("r1", 3, (), 0)
    subject.run_step({"r1": Outcome()})
    return subject


@pytest.mark.parametrize("other", [None, 5])
def test_a_sweep_compares_tables_with_the_ledger(other: int | None) -> None:
    """A table that lost a block, or shows another one in its place, is seen."""
    subject, said = running(), list[Violation]()
    with attach(subject.manager, said.append) as monitor:
        table = subject.manager._admissions["r1"].table
        table[1:] = [] if other is None else [subject.pool.blocks[other]]
        monitor.sweep()
    expected = (other, "-") if other else (None, 2)
    assert [(v.found.block, v.found.actual) for v in said] == [expected]
    assert {v.property for v in said} == {"ref_cnt_counts_the_holders"}


def test_a_leak_is_said_when_its_owner_ends() -> None:
    """What a request still holds after its end is said once, with the call that took it."""
    subject, said = running(), list[Violation]()
    with attach(subject.manager, said.append) as monitor:
        subject.add_request("r2", RequestSpec((4, 5, 6)))
        subject.allocate_slots("r2", 3, (), 0)
        subject.run_step({"r2": Outcome()})
        subject.manager._admissions["r2"].table.pop()
        subject.finish("r2")
        monitor.sweep()
        assert monitor.holders(4) == {"r2(ended)": 1}
    (violation,) = said
    assert str(violation) == (
        "kvspec violation: property=ref_cnt_counts_the_holders call=4 free block=4 expected=0 "
        "actual=1 holders=r2 found_by=monitor"
    )
    assert "since call 2 get_new_blocks" in violation.details


class Uncounted(BlockPool):
    """A pool that counts a taken block twice."""

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """Return blocks of which each is counted twice."""
        taken = super().get_new_blocks(num_blocks)
        for block in taken:
            block.ref_cnt = 2
        return taken


def test_a_class_that_derives_from_a_pool_is_watched() -> None:
    """What it hands out is checked as that of the pool is."""
    pool = Uncounted(4)
    with attach(pool), pytest.raises(Violation, match="a_block_handed_out_is_clean call=1"):
        pool.get_new_blocks(1)
