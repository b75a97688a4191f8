"""What is served alone shows what is wrong with what is served from blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gpu.exact_model import PRIMES, ExactDType, ExactModel
from gpu.matrix import Setting, serve
from gpu.pool import KVPool
from gpu.reference import LiveSlots, guesses, references
from gpu.runner import Batch, Hooks, Runner
from gpu.scheduling import Limits, Work
from kvcache.request import Request

SETTING = Setting(
    dtype="bfloat16",
    window=None,
    enable_caching=True,
    chunk=64,
    max_num_seqs=2,
    block_size=4,
    tight=False,
    num_drafts=0,
)
dtypes = pytest.mark.parametrize("dtype", PRIMES)


def restart_positions(_runner: Runner, batch: Batch, positions: torch.Tensor) -> torch.Tensor:
    """Count a request's positions from 0 in its first step, as if it had not hit."""
    starts = [p.start if p.request.num_computed_tokens == 0 else 0 for p in batch.parts]
    return positions - torch.tensor(starts)[batch.rows.request_idx]


def one_slot_off(_runner: Runner, batch: Batch, tables: torch.Tensor) -> torch.Tensor:
    """Read the second block where the first one is meant."""
    if tables.shape[1] > 1:
        tables = tables.clone()
        tables[:, 0] = torch.where(tables[:, 1] < 0, tables[:, 0], tables[:, 1])
    assert tables.shape == batch.block_tables.shape
    return tables


def write_one_slot_off(_runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
    """Write each request's last row one slot too far."""
    last = (
        batch.rows.column
        == torch.tensor([p.num_tokens - 1 for p in batch.parts])[batch.rows.request_idx]
    )
    return slots + last


class SharesPartialBlock:
    """The second request reads and writes the first one's last block, which is not full."""

    def __init__(self) -> None:
        self.blocks: tuple[int, int] | None = None

    def slots(self, runner: Runner, batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        """Return slots in the shared block."""
        if self.blocks is None:
            one, other = (t[-1] for t in batch.block_tables.tolist()[:2])
            self.blocks = (one, other)
        size = runner.block_size
        one, other = self.blocks
        return torch.where(slots // size == other, one * size + slots % size, slots)

    def tables(self, _runner: Runner, _batch: Batch, tables: torch.Tensor) -> torch.Tensor:
        """Return tables that name the shared block."""
        assert self.blocks is not None
        return torch.where(tables == self.blocks[1], self.blocks[0], tables)


def swap_planes(_runner: Runner, _batch: Batch, layer: int, plane: int) -> tuple[int, int]:
    """Write keys where values are kept, and the reverse."""
    return layer, 1 - plane


def one_bit(
    _runner: Runner, _batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
) -> torch.Tensor:
    """Return rows of which one element has another lowest bit."""
    rows = rows.clone()
    rows.view(torch.uint8).flatten()[0] ^= 1
    return rows


@dtypes
@pytest.mark.parametrize(
    "hooks",
    [
        pytest.param(
            lambda: Hooks(positions=restart_positions), id="positions_restart_after_a_hit"
        ),
        pytest.param(lambda: Hooks(tables=one_slot_off), id="a_table_is_off"),
        pytest.param(lambda: Hooks(slot_mapping=write_one_slot_off), id="a_slot_is_off"),
        pytest.param(lambda: Hooks(place=swap_planes), id="planes_are_swapped"),
        pytest.param(lambda: Hooks(source=one_bit), id="a_bit_is_flipped"),
    ],
)
def test_a_broken_step_is_seen(dtype: ExactDType, hooks: Callable[[], Hooks]) -> None:
    """The comparison fails where it should: bytes differ, and the first of them are kept."""
    work = [Work(f"r{n}", [*range(9), n], 6) for n in range(4)]
    model = ExactModel(dtype)
    known = references(model, work)
    expected = {name: one.tokens for name, one in known.items()}
    clean, foul = LiveSlots(known), LiveSlots(known)
    outcome = serve(SETTING, model, work, known, Hooks(after_step=clean))
    assert outcome.tokens == expected
    assert outcome.tally.num_hit_tokens > 0
    assert clean.num_different == 0
    outcome = serve(SETTING, model, work, known, replace(hooks(), after_step=foul))
    assert outcome.tokens != expected
    assert foul.num_different > 0
    assert foul.differences[0].expected != foul.differences[0].found


@dtypes
def test_a_partial_block_that_two_share_is_seen(dtype: ExactDType) -> None:
    """A block that is not full belongs to one request; two write over one another."""
    work = [Work("a", [1, 2, 3, 4, 5, 6], 2), Work("b", [1, 2, 3, 4, 7, 8], 2)]
    model, shares = ExactModel(dtype), SharesPartialBlock()
    known = references(model, work)
    live = LiveSlots(known)
    hooks = Hooks(slot_mapping=shares.slots, tables=shares.tables, after_step=live)
    outcome = serve(SETTING, model, work, known, hooks)
    assert any(outcome.tokens[name] != one.tokens for name, one in known.items())
    assert live.num_different > 0


def test_bytes_alone_show_what_no_token_shows() -> None:
    """A value that is never read again leaves the tokens right; the bytes are wrong."""
    work = [Work("a", [1, 2, 3, 4, 5], 1)]

    def smear(runner: Runner, batch: Batch, layer: int) -> None:
        runner.pool.plane(layer, 1)[batch.block_tables[0, 0].long(), 0] = 0

    def after_all(runner: Runner, batch: Batch) -> None:
        smear(runner, batch, 0)
        live(runner, batch)

    model = ExactModel("int8")
    known = references(model, work)
    live = LiveSlots(known)
    runner = Runner(
        model,
        KVPool(model.kv_cache_config(6, 4)),
        Limits(max_model_len=16),
        hooks=Hooks(after_step=after_all),
    )
    assert runner.serve(work) == {"a": known["a"].tokens}
    assert live.num_different == 1
    assert (live.differences[0].layer, live.differences[0].plane) == (0, 1)


def test_a_cached_block_that_nobody_holds_is_compared_too() -> None:
    """It carries a key, so the next request may hit it."""
    work = [Work("a", [1, 2, 3, 4, 5], 1), Work("b", [9, 8], 2)]
    model = ExactModel("int8")
    known = references(model, work)
    live = LiveSlots(known)

    def spoil(runner: Runner, batch: Batch) -> None:
        if batch.parts[0].request.request_id == "b":
            runner.pool.plane(1, 1)[1, 3] ^= 1
        live(runner, batch)

    one_by_one = replace(SETTING, max_num_seqs=1)
    outcome = serve(one_by_one, model, work, known, Hooks(after_step=spoil))
    assert outcome.tokens == {name: one.tokens for name, one in known.items()}
    assert [d.slot for d in live.differences] == [7]
    assert len(bytes.fromhex(live.differences[0].found)) == 16


def test_of_three_guesses_one_is_wrong() -> None:
    """In a fixed pattern, and never more guesses than outputs are left."""
    model, work = ExactModel("int8"), Work("a", [1, 2], 5)
    known = references(model, [work])
    request = Request("a", [1, 2])
    tokens = known["a"].tokens
    draft = guesses(known)
    assert draft(request, 3) == [tokens[0], tokens[1] + 1, tokens[2]]
    request.append_output_token_ids(tokens[:4])
    assert draft(request, 3) == [tokens[4] + 1]
