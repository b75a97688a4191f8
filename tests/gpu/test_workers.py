"""What workers send one another, and what they make of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import InvalidWorkerGroup, WorkerCannotPropose
from gpu.workers import Proposal, agree, connect, propose, unify
from kvcache import (
    FullAttentionSpec,
    KVCacheSpec,
    PlanningConfig,
    SlidingWindowSpec,
    WorkersDiffer,
    get_kv_cache_config,
)

SHAPE: dict[str, Any] = {"block_size": 2, "num_kv_heads": 1, "head_size": 4, "dtype": "float16"}
FULL = FullAttentionSpec(**SHAPE)
WINDOW = SlidingWindowSpec(**SHAPE, sliding_window=3)
PLANNING = PlanningConfig(max_model_len=8, max_num_batched_tokens=8)
PAGE = FULL.page_size_bytes


class Mailbox:
    """A group whose other workers have sent what is in the box."""

    def __init__(self, rank: int, others: dict[int, str]) -> None:
        self.rank = rank
        self.others = others

    def all_gather(self, text: str) -> list[str]:
        """Return the texts by rank."""
        return [text for _, text in sorted((self.others | {self.rank: text}).items())]


def proposal(blocks: int, **layers: KVCacheSpec) -> Proposal:
    """Return what a worker proposes that has room for so many blocks."""
    specs = layers or {"a": FULL}
    return propose(specs, blocks * PAGE * len(specs), PLANNING)


def test_a_proposal_travels_as_json() -> None:
    """A configuration with everything in it comes back equal, and so does a refusal."""
    hybrid = proposal(9, a=FULL, b=WINDOW)
    assert hybrid.config is not None
    assert hybrid.config.windows_kept_as_full == {"b": 3}
    for one in (hybrid, proposal(0)):
        assert Proposal.model_validate_json(one.model_dump_json()) == one


def test_a_worker_proposes_what_its_own_memory_holds() -> None:
    """What planning refuses is told instead of raised: the others are waiting."""
    config = get_kv_cache_config({"a": FULL}, 9 * PAGE, PLANNING)
    assert proposal(9) == Proposal(config=config)
    refused = proposal(3)
    assert refused.config is None
    assert refused.refusal.startswith("a request of max_model_len=8 tokens needs")


def test_each_worker_gets_its_own_tensors_and_the_common_number() -> None:
    """The result of a rank is that rank's."""
    proposals = [proposal(9), proposal(7), proposal(8)]
    for rank, mine in enumerate(proposals):
        others = {r: one.model_dump_json() for r, one in enumerate(proposals) if r != rank}
        group: Any = Mailbox(rank, others)
        config = agree(group, mine)
        assert config.num_blocks == 7
        assert mine.config is not None
        assert config.tensors == mine.config.tensors


@given(st.lists(st.integers(1, 60 * PAGE), min_size=1, max_size=4), st.integers(0, 9 * PAGE))
def test_the_worker_with_the_least_memory_decides(memory: list[int], more: int) -> None:
    """All get its blocks, or none gets any, exactly where it cannot hold one request and null.

    More memory on any worker never takes a block away.
    """
    needed = (PLANNING.max_model_len // FULL.block_size + 1) * PAGE
    proposals = [propose({"a": FULL}, available, PLANNING) for available in memory]
    if min(memory) < needed:
        with pytest.raises(WorkerCannotPropose) as caught:
            unify(proposals)
        assert caught.value.rank == next(r for r, has in enumerate(memory) if has < needed)
        return
    blocks = min(memory) // PAGE
    assert [config.num_blocks for config in unify(proposals)] == [blocks] * len(memory)
    for rank, available in enumerate(memory):
        richer = propose({"a": FULL}, available + more, PLANNING)
        unified = unify([*proposals[:rank], richer, *proposals[rank + 1 :]])
        assert unified[0].num_blocks >= blocks


def test_the_first_worker_that_cannot_propose_is_named() -> None:
    """Its refusal is every worker's, and comes before a difference of specs."""
    other = proposal(18, a=FullAttentionSpec(**SHAPE | {"head_size": 8}))
    nothing = Proposal(refusal="0 bytes are available")
    with pytest.raises(WorkerCannotPropose) as caught:
        unify([proposal(9), other, nothing, proposal(3)])
    assert str(caught.value) == "worker 2 proposes no configuration: 0 bytes are available"
    with pytest.raises(WorkersDiffer, match="worker 1, layer 'a'"):
        unify([proposal(9), other])


def test_a_message_of_another_form_is_refused() -> None:
    """What is received is read as a proposal and as nothing else."""
    for text in ("[]", "not json", '{"config": null, "more": 1}', '{"config": {"num_blocks": 3}}'):
        group: Any = Mailbox(0, {1: text})
        with pytest.raises(ValueError, match="for Proposal"):
            agree(group, proposal(9))


@pytest.mark.parametrize(("rank", "size", "timeout"), [(2, 2, 1), (-1, 2, 1), (0, 0, 1), (0, 1, 0)])
def test_an_impossible_place_is_refused(rank: int, size: int, timeout: float) -> None:
    """Before anything is opened."""
    with (
        pytest.raises(InvalidWorkerGroup, match=f"rank={rank} world_size={size}"),
        connect("127.0.0.1", 1, rank, size, timeout_s=timeout),
    ):
        pytest.fail("the group was made")
