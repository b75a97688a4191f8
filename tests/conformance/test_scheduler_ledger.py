"""The ledger knows what a worker's memory holds, and the reading of a pool shows what is wrong."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.scheduler.ledger import Ledger, UnknownTokenError, Work
from conformance.scheduler.properties import NOT_ASKED, Moment, asked, faults
from conformance.scheduler.reading import Names, as_state, pool_snapshot
from spec.invariants import REGISTRY
from spec.state import Config, Key, Request, State, initial

SIZE = 2
PROMPT = (5, 6, 7)


def first_of(*tokens: int) -> Key:
    """Return the key of a first block."""
    return Key(None, tokens)


def test_a_step_writes_what_it_computes_and_samples_at_the_end() -> None:
    """Full blocks hold their key, a started one its beginning; a chunk samples nothing."""
    ledger = Ledger(SIZE)
    assert ledger.run([Work("a", 0, 2, (4, 9), PROMPT)], token=8) == {}
    assert ledger.contents == {4: first_of(5, 6)}
    assert ledger.run([Work("a", 2, 3, (4, 9))], token=8) == {"a": 8}
    assert ledger.contents[9] == Key(first_of(5, 6), (7,))
    ledger.run([Work("a", 3, 4, (4, 9))], token=1)
    assert ledger.contents[9] == Key(first_of(5, 6), (7, 8))


def test_a_block_that_is_taken_holds_nothing() -> None:
    """What the last owner left is of no use; what is written behind it is torn."""
    ledger = Ledger(SIZE)
    ledger.run([Work("a", 0, 1, (4,), PROMPT)], token=0)
    ledger.taken([4])
    assert ledger.contents == {}
    ledger.run([Work("a", 1, 2, (4,))], token=0)
    assert ledger.contents[4] != first_of(5, 6)
    assert ledger.contents[4].extra


def test_a_request_that_comes_back_is_told_its_tokens_anew() -> None:
    """A token that was sampled and dropped is not what stands there after the second time."""
    ledger = Ledger(SIZE)
    ledger.run([Work("a", 0, 3, (1, 2), PROMPT)], token=8)
    ledger.run([Work("a", 0, 3, (3, 4), PROMPT)], token=9)
    ledger.run([Work("a", 3, 4, (3, 4))], token=0)
    assert ledger.contents[4].tokens == (7, 9)


def test_a_position_without_a_token_cannot_be_computed() -> None:
    """A step that runs ahead of what was sampled is an error that says so."""
    with pytest.raises(UnknownTokenError, match="a computes 0 to 4, and 3 tokens are known"):
        Ledger(SIZE).run([Work("a", 0, 4, (1, 2), PROMPT)], token=0)


def test_pending_is_what_a_step_comes_to_the_end_of() -> None:
    """Only sealed blocks that the step fills are pending, on the request that fills them."""
    ledger, work = Ledger(SIZE), Work("a", 2, 5, (1, 2, 3), None)
    assert ledger.pending([work], {1, 2, 3}) == {2: "a"}
    assert ledger.pending([work], {1, 3}) == {}


class FakePool:
    """A pool of 0.33.0's shape: linked blocks between two ends, and an index of blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [self._block(b) for b in range(num_blocks)]
        head, tail = self._block(-1), self._block(-1)
        self.free_block_queue = SimpleNamespace(
            fake_free_list_head=head, fake_free_list_tail=tail, num_free_blocks=0
        )
        self.cached_block_hash_to_block = SimpleNamespace(_cache={})
        self.chain(*range(1, num_blocks))

    @staticmethod
    def _block(b: int) -> Any:  # noqa: ANN401  # a stand-in
        return SimpleNamespace(
            block_id=b, ref_cnt=0, block_hash=None, prev_free_block=None, next_free_block=None
        )

    def get_usage(self) -> float:
        """Return the share of the pool that is held."""
        return 1 - float(self.free_block_queue.num_free_blocks) / (len(self.blocks) - 1)

    def chain(self, *ids: int) -> None:
        """Put these blocks into the queue and no others."""
        queue = self.free_block_queue
        row = [queue.fake_free_list_head, *(self.blocks[b] for b in ids), queue.fake_free_list_tail]
        for block in self.blocks:
            block.prev_free_block = block.next_free_block = None
        for before, after in pairwise(row):
            before.next_free_block, after.prev_free_block = after, before
        queue.num_free_blocks = len(ids)

    def hold(self, *ids: int) -> list[Any]:
        """Take blocks out of the queue, once each."""
        for b in ids:
            self.blocks[b].ref_cnt = 1
        self.chain(*(b for b in range(1, len(self.blocks)) if b not in ids))
        return [self.blocks[b] for b in ids]

    def seal(self, b: int, name: str) -> None:
        """Put a block into the index."""
        self.blocks[b].block_hash = name
        self.cached_block_hash_to_block._cache[name] = self.blocks[b]


CONFIG = Config(5, SIZE, free_rule="unhashed_first")


@pytest.fixture
def names() -> Names:
    """Return what the hashes of a request "a" stand for."""
    learned = Names(SIZE)
    assert list(learned.learn("a", PROMPT, ["h0"])) == []
    return learned


def moment(
    pool: FakePool, names: Names, ledger: Ledger, tables: dict[str, list[Any]], *work: Work
) -> Moment:
    """Return the moment of a scheduler that has just scheduled `work`."""
    seen = pool_snapshot(pool, tables)
    requests = {
        rid: Request(PROMPT, keys=names.chain(rid), table=table, num_computed=1)
        for rid, table in seen.tables.items()
    }
    for one in work:
        requests[one.rid] = requests[one.rid]._replace(
            num_computed=one.start, start=one.start, end=one.end
        )
    sealed = {b for b, name in enumerate(seen.keys) if name is not None}
    pending = ledger.pending(work, sealed)
    state = as_state(CONFIG, seen, requests, names, ledger.contents, pending)
    before: State = initial(CONFIG)
    return Moment("schedule", {}, before, state, seen, work)


def broken(m: Moment) -> set[str]:
    """Return the names of all that is broken."""
    return {name for name, _ in faults(m)}


def test_a_good_moment_has_no_faults(names: Names) -> None:
    """A block sealed by a step that is on its way is pending, and written once the step has run."""
    pool, ledger = FakePool(5), Ledger(SIZE)
    table, work = pool.hold(1, 2), Work("a", 0, 3, (1, 2), PROMPT)
    pool.seal(1, "h0")
    assert broken(moment(pool, names, ledger, {"a": table}, work)) == set()
    ledger.run([work], token=0)
    assert broken(moment(pool, names, ledger, {"a": table})) == set()


def test_a_key_that_no_step_writes_is_found(names: Names) -> None:
    """Published, not written, and in no step: whoever looks it up gets nothing."""
    pool = FakePool(5)
    pool.seal(1, "h0")
    assert broken(moment(pool, names, Ledger(SIZE), {})) == {"nothing_unwritten_is_found"}


def test_what_is_read_must_be_the_own_prefix(names: Names) -> None:
    """A hit on another prefix is seen when a step reads it, and so is what was never written."""
    pool, ledger = FakePool(5), Ledger(SIZE)
    table, work = pool.hold(1, 2), Work("a", 2, 3, (1, 2), PROMPT)
    pool.seal(1, "h0")
    ledger.contents[1] = first_of(9, 9)
    found = broken(moment(pool, names, ledger, {"a": table}, work))
    assert {"a_request_reads_its_own_prefix", "a_key_tells_the_content"} <= found
    del ledger.contents[1]
    found = broken(moment(pool, names, ledger, {"a": table}, work))
    assert {"a_request_reads_its_own_prefix", "nothing_unwritten_is_found"} <= found


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("ref_cnt_counts_the_holders", lambda p: setattr(p.blocks[1], "ref_cnt", 2)),
        ("a_block_is_free_exactly_when_nobody_holds_it", lambda p: p.chain(1, 2, 3, 4)),
        ("free_and_held_and_null_make_the_pool", lambda p: p.chain(2, 3)),
        ("the_free_queue_is_a_chain", lambda p: setattr(p.blocks[1], "next_free_block", p)),
        (
            "the_free_queue_is_a_chain",
            lambda p: setattr(p.free_block_queue, "num_free_blocks", 9),
        ),
        ("the_free_queue_is_a_chain", lambda p: setattr(p.blocks[3], "next_free_block", None)),
        ("the_null_block_is_inert", lambda p: p.chain(0, 2, 3, 4)),
        ("the_index_and_the_blocks_agree", lambda p: setattr(p.blocks[3], "block_hash", "h9")),
        ("only_full_blocks_have_a_hash", lambda p: p.seal(3, "h9")),
        ("unconfirmed_tokens_are_never_sealed", lambda p: p.seal(2, "h1")),
    ],
)
def test_a_spoilt_pool_is_named(names: Names, name: str, spoil: Any) -> None:  # noqa: ANN401  # a lambda
    """Each way to spoil a pool shows the property of its name."""
    pool, ledger = FakePool(5), Ledger(SIZE)
    table = pool.hold(1) if name != "unconfirmed_tokens_are_never_sealed" else pool.hold(1, 2)
    pool.seal(1, "h0")
    ledger.run([Work("a", 0, 2, (1,), PROMPT)], token=0)
    assert broken(moment(pool, names, ledger, {"a": table})) == set()
    spoil(pool)
    assert name in broken(moment(pool, names, ledger, {"a": table}))


def test_the_worker_and_the_manager_have_one_table(names: Names) -> None:
    """A worker that was told other blocks than the manager keeps reads the wrong slots."""
    pool, ledger = FakePool(5), Ledger(SIZE)
    table = pool.hold(1, 2)
    work = Work("a", 0, 3, (2, 1), PROMPT)
    assert "positions_never_move" in broken(moment(pool, names, ledger, {"a": table}, work))


def test_one_hash_stands_for_one_prefix() -> None:
    """Two prefixes under one hash, and two hashes of one prefix, are named."""
    names = Names(SIZE)
    assert list(names.learn("a", (1, 2), ["h"])) == []
    assert [name for name, _ in names.learn("b", (1, 3), ["h"])] == [
        "equal_keys_mean_equal_prefixes"
    ]
    assert [name for name, _ in names.learn("c", (1, 2), ["g"])] == ["a_repeated_prompt_hits"]
    names.forget(["a"])
    assert names.chain("a") == ()


def test_every_property_is_asked_or_there_is_a_reason() -> None:
    """No property of the specification is forgotten."""
    assert set(asked()) | set(NOT_ASKED) == set(REGISTRY)
    assert not set(asked()) & set(NOT_ASKED)
