"""A monitor on vLLM 0.33.0: misuse that its pool lets pass is said at the call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from conformance.adapters import sources_0_33_0 as sources
from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.adapters.vllm_0_8_5 import VLLM085
from conformance.monitoring.monitor import Monitor, attach
from conformance.monitoring.profiles import UnknownPoolError
from conformance.monitoring.quiescent import NotQuiescentError, assert_quiescent
from conformance.monitoring.violation import Violation
from conformance.scheduler import stand_in
from conformance.scheduler.script import Add, Setting
from spec.state import Config


@pytest.fixture(scope="module")
def vllm() -> SimpleNamespace:
    """Return the modules of the installed release."""
    try:
        return sources.load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))


class Party:
    """Somebody who misuses a pool; where a monitor is attached, under a name."""

    def __init__(self, vllm: SimpleNamespace, monitor: bool, **options: Any) -> None:  # noqa: ANN401, FBT001  # what attach takes
        self.vllm = vllm
        self.pool = vllm.block_pool.BlockPool(8, enable_caching=True, hash_block_size=1)
        self.monitor: Monitor | None = attach(self.pool, **options) if monitor else None

    def as_owner(self, who: str) -> Any:  # noqa: ANN401  # a context
        """Make the calls inside as `who`."""
        return self.monitor.owner(who) if self.monitor else nullcontext()

    def sealed(self, *names: int) -> list[Any]:
        """Take blocks and seal them."""
        blocks = self.pool.get_new_blocks(len(names))
        self.seal(blocks, *names)
        return list(blocks)

    def seal(self, blocks: list[Any], *names: int) -> None:
        """Seal blocks under made-up hashes."""
        request = SimpleNamespace(request_id="r", block_hashes=[key(name) for name in names])
        self.pool.cache_full_blocks(
            request=request,
            blocks=blocks,
            num_cached_blocks=0,
            num_full_blocks=len(blocks),
            block_size=1,
            kv_cache_group_id=0,
        )


def key(name: int) -> bytes:
    """Return a made-up hash."""
    return bytes([name]) * 32


def double_free(p: Party) -> None:
    """Free a block that is free."""
    blocks = p.pool.get_new_blocks(2)
    p.pool.free_blocks(blocks)
    p.pool.free_blocks(blocks[:1])


def shared_block_freed_twice(p: Party) -> None:
    """One of two owners frees a block twice."""
    with p.as_owner("r1"):
        blocks = p.sealed(1)
    with p.as_owner("r2"):
        p.pool.touch(blocks)
    with p.as_owner("r1"):
        p.pool.free_blocks(blocks)
        p.pool.free_blocks(blocks)


def fewer_than_none(p: Party) -> None:
    """Ask for -1 blocks."""
    p.pool.get_new_blocks(-1)


def stale_entry_found(p: Party) -> None:
    """Take the hash from a block whose entry stays, and look it up."""
    p.sealed(1)[0].reset_hash()
    p.pool.get_cached_block(key(1), [0])


def stale_entry_recycled(p: Party) -> None:
    """Take the hash from a block whose entry stays, and hand the block out again."""
    blocks = p.sealed(1)
    blocks[0].reset_hash()
    p.pool.free_blocks(blocks)
    p.pool.get_new_blocks(1)


def foreign_reuse(p: Party) -> None:
    """Free a block through an old handle, while it belongs to somebody else."""
    with p.as_owner("r1"):
        old = p.pool.get_new_blocks(1)
        p.pool.free_blocks(old)
    with p.as_owner("r2"):
        assert p.pool.get_new_blocks(1)[0] is old[0]
    with p.as_owner("r1"):
        p.pool.free_blocks(old)


def foreign_object(p: Party) -> None:
    """Free an object that no pool made."""
    block = p.vllm.kv_cache_utils.KVCacheBlock(3)
    block.ref_cnt = 1
    p.pool.free_blocks([block])


def unsealed_touch(p: Party) -> None:
    """Share a free block that carries no hash."""
    p.pool.touch([p.pool.blocks[4]])


def unheld_seal(p: Party) -> None:
    """Publish a block that nobody holds."""
    p.seal([p.pool.blocks[3]], 1)


class Misuse(NamedTuple):
    """What is done, how a monitor says it, and whether the pool has changed by then."""

    do: Callable[[Party], None]
    property: str
    verb: str
    before: bool


MISUSES = (
    Misuse(double_free, "ref_cnt_counts_the_holders", "free_blocks", before=True),
    Misuse(shared_block_freed_twice, "ref_cnt_counts_the_holders", "free_blocks", before=True),
    Misuse(fewer_than_none, "the_free_queue_is_a_chain", "get_new_blocks", before=True),
    Misuse(stale_entry_found, "the_index_and_the_blocks_agree", "get_cached_block", before=False),
    Misuse(stale_entry_recycled, "a_block_handed_out_is_clean", "get_new_blocks", before=False),
    Misuse(foreign_reuse, "ref_cnt_counts_the_holders", "free_blocks", before=True),
    Misuse(foreign_object, "the_free_queue_is_a_chain", "free_blocks", before=True),
    Misuse(unsealed_touch, "only_sealed_blocks_are_shared", "touch", before=True),
    Misuse(unheld_seal, "a_writer_owns_its_block", "cache_full_blocks", before=False),
)
NAMES = [misuse.do.__name__ for misuse in MISUSES]


def facts(party: Party) -> list[Any]:
    """Return what a pool is, as plain data."""
    queue = party.pool.free_block_queue
    return [
        *((block.ref_cnt, block.block_hash) for block in party.pool.blocks),
        [block.block_id for block in queue.get_all_free_blocks()],
        queue.num_free_blocks,
        list(party.pool.cached_block_hash_to_block._cache),
    ]


@pytest.mark.parametrize("misuse", MISUSES, ids=NAMES)
def test_misuse_is_said_at_the_call(vllm: SimpleNamespace, misuse: Misuse) -> None:
    """The bare pool is silent; the watched one raises, where it can before anything changes."""
    misuse.do(Party(vllm, monitor=False))
    party = Party(vllm, monitor=True)
    before: list[Any] = []
    if misuse.before:
        inner = getattr(party.pool, misuse.verb)

        def noting(*args: Any) -> Any:  # noqa: ANN401  # as the pool's
            before[:] = facts(party)
            return inner(*args)

        setattr(party.pool, misuse.verb, noting)
    with pytest.raises(Violation) as caught:
        misuse.do(party)
    assert (caught.value.property, caught.value.verb) == (misuse.property, misuse.verb)
    assert not misuse.before or before == facts(party)


@pytest.mark.parametrize("misuse", MISUSES, ids=NAMES)
def test_warning_changes_nothing(vllm: SimpleNamespace, misuse: Misuse) -> None:
    """With a callback the pool comes to the state that it comes to alone, and it is said once."""
    bare, said = Party(vllm, monitor=False), list[Violation]()
    watched = Party(vllm, monitor=True, on_violation=said.append)
    misuse.do(bare)
    misuse.do(watched)
    assert facts(watched) == facts(bare)
    assert [violation.property for violation in said] == [misuse.property]


SETTING = Setting(
    num_gpu_blocks=40, block_size=2, max_model_len=32, max_num_seqs=6, max_num_batched_tokens=24
)


@pytest.mark.usefixtures("vllm")
def test_a_leak_is_said_when_its_owner_ends() -> None:
    """A table that lost a block leaves it held; the end of the request says so."""
    scheduler, said = stand_in.make_scheduler(SETTING), list[Violation]()
    manager = scheduler.kv_cache_manager
    with attach(manager, said.append):
        request = stand_in.make_request(Add("r1", (1, 2, 3, 4, 5), 4), 2, 1)
        scheduler.add_request(request)
        scheduler.schedule()
        lost = manager.coordinator.single_type_managers[0].req_to_blocks["r1"].pop()
        scheduler.finish_requests("r1", stand_in.aborted())
        with pytest.raises(
            NotQuiescentError, match=r"recorded_holders=r1.ended. since=call 1 get_"
        ):
            assert_quiescent(manager)
    (violation,) = said
    assert (violation.property, violation.found.block) == (
        "ref_cnt_counts_the_holders",
        lost.block_id,
    )
    assert "r1 has ended and still holds [3]" in violation.details


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("vllm")
def test_a_scheduler_is_silent(policy: str, kind: str) -> None:
    """A few hundred steps with preemptions, aborts and hits break nothing that a pool shows."""
    scheduler = stand_in.make_scheduler(SETTING._replace(policy=policy, scheduler=kind))
    with attach(scheduler.kv_cache_manager, sweep_every=10) as monitor:
        for step in range(300):
            if step % 2 == 0 and len(scheduler.requests) < 9:
                prompt = tuple((step // 6 % 3 + i) % 5 for i in range(3 + step % 17))
                event = Add(f"r{step}", prompt, 1 + step % 11, priority=step % 3)
                scheduler.add_request(stand_in.make_request(event, 2, step))
            if step % 37 == 36 and scheduler.requests:
                scheduler.finish_requests(next(iter(scheduler.requests)), stand_in.aborted())
            answer(scheduler, scheduler.schedule())
        scheduler.finish_requests(list(scheduler.requests), stand_in.aborted())
        monitor.sweep()
        assert_quiescent(scheduler.kv_cache_manager)
    assert monitor.num_calls > 300


def answer(scheduler: Any, output: Any) -> None:  # noqa: ANN401  # it has no types here
    """Have each request sample a token whose last known one was computed."""
    rids = tuple(output.num_scheduled_tokens)
    done = [
        rid
        for rid in rids
        if scheduler.requests[rid].num_computed_tokens >= scheduler.requests[rid].num_tokens
    ]
    scheduler.update_from_output(output, stand_in.make_output(rids, dict.fromkeys(done, 1)))


def test_another_release_is_refused() -> None:
    """0.8.5 has classes of the same names, and a queue that cannot be read block by block."""
    try:
        manager = VLLM085(Config(9, 2)).manager
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    with pytest.raises(UnknownPoolError, match=r"another release than vLLM 0\.33\.0"):
        attach(manager)
