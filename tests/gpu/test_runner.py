"""The runner gives every request the tokens and the bytes that it would get alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from gpu.errors import InvalidLimit, PoolIsOfAnotherModel
from gpu.exact_model import PRIMES, ExactDType, ExactModel
from gpu.matrix import (
    shared_prefix_work,
)
from gpu.pool import KVPool
from gpu.reference import LiveSlots, guesses, references
from gpu.runner import Batch, Hooks, Runner
from gpu.scheduling import Limits, Work
from kvcache.request import Request

NUM_REQUESTS = 30
dtypes = pytest.mark.parametrize("dtype", PRIMES)


@dataclass
class Served:
    """A run on the exact decoder beside what its requests get alone."""

    runner: Runner
    live: LiveSlots
    tokens: dict[str, list[int]]
    expected: dict[str, list[int]]


def serve(
    work: list[Work],
    *,
    dtype: ExactDType = "bfloat16",
    window: int | None = None,
    num_blocks: int = 60,
    block_size: int = 4,
    limits: Limits | None = None,
    hooks: Hooks | None = None,
) -> Served:
    """Return a run and its reference."""
    model = ExactModel(dtype, window=window)
    known = references(model, work)
    live = LiveSlots(known)
    runner = Runner(
        model,
        KVPool(model.kv_cache_config(num_blocks, block_size)),
        limits or Limits(max_model_len=256),
        drafter=guesses(known),
        hooks=replace(hooks or Hooks(), after_step=live),
    )
    tokens = runner.serve(work)
    return Served(runner, live, tokens, {name: one.tokens for name, one in known.items()})


def test_a_hit_on_a_block_that_the_same_step_fills() -> None:
    """Twins that arrive together: the second reads what the first writes in this step."""
    twins = [Work(name, list(range(11)), 3) for name in ("a", "b")]
    served = serve(twins)
    assert served.runner.tally.num_hit_tokens == 8
    assert served.tokens == served.expected
    assert served.tokens["a"] == served.tokens["b"]
    assert served.live.num_different == 0


def test_preempted_requests_resume_on_what_they_left() -> None:
    """They lose their blocks, hit what is still cached, and end with the same tokens."""
    work = [Work(f"r{n}", [n, *range(10)], 12) for n in range(4)]
    served = serve(work, num_blocks=14, limits=Limits(max_model_len=64))
    assert served.runner.tally.num_preemptions > 0
    assert served.runner.tally.num_hit_tokens > 0
    assert served.tokens == served.expected
    assert served.live.num_different == 0
    assert served.runner.manager.usage == 0.0


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """Who is given up has nothing in this step that another could have hit; drafts are dropped."""
    preempted, steps = 0, 0

    def look(runner: Runner, batch: Batch) -> None:
        nonlocal preempted, steps
        if runner.tally.num_preemptions > preempted:
            steps += 1
            assert all(part.request.num_computed_tokens for part in batch.parts)
        preempted = runner.tally.num_preemptions
        assert not any(served.request.spec_token_ids for served in runner.scheduler.waiting)

    work = [Work(f"r{n}", [n, *range(10)], 14 + n) for n in range(4)]
    limits = Limits(max_model_len=64, num_speculative_tokens=2)
    served = serve(work, num_blocks=20, limits=limits, hooks=Hooks(before_step=look))
    assert steps > 0
    assert served.tokens == served.expected


def test_look_ahead_slots_are_kept_and_drafts_last_one_step() -> None:
    """A request that decodes holds slots for the drafts of the next step too."""
    drafted: dict[str, Request] = {}

    def look(runner: Runner, batch: Batch) -> None:
        for part, table in zip(batch.parts, batch.block_tables.tolist(), strict=True):
            if part.num_drafts:
                drafted[part.request.request_id] = part.request
                held = len([cell for cell in table if cell >= 0]) * runner.block_size
                assert held >= part.end + 3

    limits = Limits(max_model_len=64, num_speculative_tokens=3)
    served = serve(shared_prefix_work(6, seed=5), limits=limits, hooks=Hooks(before_step=look))
    assert served.tokens == served.expected
    assert len(drafted) > 2
    assert not any(request.spec_token_ids for request in drafted.values())


def test_rows_of_padding_are_written_nowhere() -> None:
    """A step that is padded to a fixed number of rows gives the same tokens and bytes."""

    def pad_slots(_runner: Runner, _batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        return torch.cat([slots, slots.new_full((3,), -1)])

    def pad_rows(
        _runner: Runner, _batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
    ) -> torch.Tensor:
        return torch.cat([rows, torch.ones_like(rows[:1]).expand(3, -1, -1)])

    hooks = Hooks(slot_mapping=pad_slots, source=pad_rows)
    served = serve(shared_prefix_work(6, seed=6), hooks=hooks)
    assert served.tokens == served.expected
    assert served.live.num_different == 0
    assert served.runner.pool.null_block_intact()
    assert served.runner.pool.red_zones_intact()


def test_a_window_lets_blocks_go() -> None:
    """A request longer than the pool fits, because it keeps its window only."""
    work = [Work("a", list(range(6)), 40)]
    served = serve(work, window=5, num_blocks=6, limits=Limits(max_model_len=64))
    assert served.tokens == served.expected
    assert not served.runner.tally.refused


def test_what_the_pool_can_never_hold_ends_and_the_others_go_on() -> None:
    """The refused request has no tokens and a reason."""
    work = [Work("large", list(range(30)), 2), Work("small", [1, 2, 3], 2)]
    served = serve(work, num_blocks=4)
    assert served.tokens["large"] == []
    assert "large" in served.runner.tally.refused["large"]
    assert served.tokens["small"] == served.expected["small"]
    assert served.runner.manager.usage == 0.0


def test_a_request_that_outgrows_the_pool_ends_with_what_it_has() -> None:
    """With drafts, a running request may need a block more than there is; it is told."""
    work = [Work("a", list(range(7)), 3), Work("b", [3, 4], 1)]
    limits = Limits(max_model_len=64, num_speculative_tokens=3)
    served = serve(work, num_blocks=3, limits=limits)
    assert list(served.runner.tally.refused) == ["a"]
    assert served.tokens["a"] == served.expected["a"][: len(served.tokens["a"])]
    assert served.tokens["b"] == served.expected["b"]


def test_a_request_that_wants_no_token_is_computed_and_ends() -> None:
    """Its prompt is cached for others."""
    work = [Work("a", list(range(9)), 0), Work("b", list(range(9)), 2)]
    served = serve(work, limits=Limits(max_model_len=64, max_num_seqs=1))
    assert served.tokens == {"a": [], "b": served.expected["b"]}
    assert served.runner.tally.num_hit_tokens == 8


def test_the_same_run_twice_is_the_same_run() -> None:
    """Tokens and what was done, to the last count."""
    limits = Limits(max_model_len=256, max_num_seqs=5, num_speculative_tokens=2)
    one, other = (
        serve(shared_prefix_work(12, seed=4), num_blocks=25, limits=limits) for _ in range(2)
    )
    assert one.tokens == other.tokens
    assert one.runner.tally == other.runner.tally


def test_a_pool_of_another_model_is_refused() -> None:
    """A window more or another dtype would be read as what it is not."""
    model, other = ExactModel("int8"), ExactModel("int8", window=3)
    with pytest.raises(PoolIsOfAnotherModel, match="make it from the model's own"):
        Runner(model, KVPool(other.kv_cache_config(4, 4)), Limits(max_model_len=8))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("long_prefill_token_threshold", -1),
        ("num_speculative_tokens", -1),
    ],
)
def test_limits_are_checked(name: str, value: int) -> None:
    """A step of no tokens never ends."""
    with pytest.raises(InvalidLimit, match=f"{name}={value}: give"):
        replace(Limits(max_model_len=8), **{name: value})  # type: ignore[arg-type] # any of its fields


def test_a_step_never_holds_more_than_its_limits() -> None:
    """Tokens of a step, of a request in a step, and requests."""
    sizes: list[tuple[int, ...]] = []
    limits = Limits(
        max_model_len=256,
        max_num_seqs=3,
        max_num_batched_tokens=9,
        long_prefill_token_threshold=5,
        num_speculative_tokens=3,
    )
    hooks = Hooks(
        before_step=lambda _, batch: sizes.append(tuple(p.num_tokens for p in batch.parts))
    )
    served = serve(shared_prefix_work(8, seed=2), limits=limits, hooks=hooks)
    assert served.tokens == served.expected
    assert max(map(sum, sizes)) == 9
    assert max(map(max, sizes)) == 5
    assert max(map(len, sizes)) == 3
