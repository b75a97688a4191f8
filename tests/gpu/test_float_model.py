"""The float decoder with a paged cache stays within stated tolerances of itself alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

import gpu.tolerances
from gpu.attention import float_mix
from gpu.float_model import FloatDType, FloatModel, _rotate
from gpu.matrix import Setting, cover, serve, shared_prefix_work
from gpu.pool import KVPool
from gpu.reference import reference, references
from gpu.runner import Batch, Hooks, Runner
from gpu.scheduling import Limits, Work
from gpu.tolerances import TOLERANCES, KVError, Tolerance, first_change, measure

dtypes = pytest.mark.parametrize("dtype", get_args(FloatDType))
SETTING = Setting(
    dtype="bfloat16",
    window=None,
    enable_caching=True,
    chunk=7,
    max_num_seqs=6,
    block_size=4,
    tight=True,
    num_drafts=0,
)


@pytest.mark.slow
@dtypes
def test_every_way_to_serve_is_within_tolerance(dtype: FloatDType) -> None:
    """Thirty requests, in settings that have every pair of choices."""
    rows = measure(dtype, shared_prefix_work(30, seed=1), cover(2))
    assert {row.verdict for row in rows} == {"within"}
    assert {row.num_requests for row in rows} == {30}
    assert max(row.kv_error for row in rows) > 0, "rounding differs, so this decoder is no oracle"


@pytest.mark.slow
@dtypes
def test_a_fault_is_beyond_tolerance(dtype: FloatDType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that restart after a hit are no matter of rounding."""
    work = shared_prefix_work(8, seed=1)
    assert [row.verdict for row in measure(dtype, work, [SETTING])] == ["within"]
    clean = Runner.__init__

    def restart(runner: Runner, batch: Batch, positions: torch.Tensor) -> torch.Tensor:
        assert runner.manager.config.enable_caching
        starts = [p.start if p.request.num_computed_tokens == 0 else 0 for p in batch.parts]
        return positions - torch.tensor(starts)[batch.rows.request_idx]

    def broken(runner: Runner, *arguments: object, hooks: Hooks, **others: object) -> None:
        clean(runner, *arguments, hooks=replace(hooks, positions=restart), **others)  # type: ignore[arg-type] # whatever it is given

    monkeypatch.setattr(Runner, "__init__", broken)
    assert [row.verdict for row in measure(dtype, work, [SETTING])] == ["beyond"]


@pytest.mark.parametrize("fill", [0.125, float("nan")])
def test_a_wrong_or_unwritten_element_is_seen(fill: float) -> None:
    """NaN is an error that no comparison may lose."""
    model, work = FloatModel("float32"), [Work("a", list(range(6)), 2)]
    known = references(model, work)
    errors = KVError(known)

    def spoil(runner: Runner, batch: Batch) -> None:
        runner.pool.plane(1, 0)[int(batch.block_tables[0, 0]), 2, 1, 3] += fill
        errors(runner, batch)

    pool = KVPool(model.kv_cache_config(5, 4))
    runner = Runner(model, pool, Limits(max_model_len=16), hooks=Hooks(after_step=spoil))
    runner.serve(work)
    assert not errors.largest <= TOLERANCES["float32"].kv


def test_what_follows_another_token_is_not_compared() -> None:
    """From the first token that differs on, keys and values are those of another text."""
    model, work = FloatModel("float32"), [Work("a", list(range(6)), 4)]
    alone = references(model, work)["a"]
    for first_kept, seen in ((7, False), (6, True)):
        kv = alone.kv.clone()
        kv[:, :, first_kept:] *= -1
        tokens = [alone.tokens[0], alone.tokens[1] + 1, *alone.tokens[2:]]
        errors = KVError({"a": replace(alone, tokens=tokens, kv=kv)})
        pool = KVPool(model.kv_cache_config(5, 4))
        Runner(model, pool, Limits(max_model_len=16), hooks=Hooks(after_step=errors)).serve(work)
        assert (errors.largest > TOLERANCES["float32"].kv) is seen


@pytest.mark.parametrize(
    "bounds",
    [
        Tolerance(kv=0.0, lead=1.0, percent_changed=100.0),
        Tolerance(kv=1.0, lead=-1.0, percent_changed=100.0),
        Tolerance(kv=1.0, lead=1.0, percent_changed=-1.0),
    ],
)
def test_each_bound_decides(bounds: Tolerance, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that cannot be met is not met, whatever the other two allow."""
    monkeypatch.setitem(gpu.tolerances.TOLERANCES, "float32", bounds)
    (row,) = measure("float32", shared_prefix_work(6, seed=1), [SETTING])
    assert row.verdict == "beyond"


@dtypes
def test_the_cache_alone_decides_nothing(dtype: FloatDType) -> None:
    """The same requests, served twice in one way, give the same bits."""
    model, work = FloatModel(dtype), shared_prefix_work(5, seed=3)
    known = references(model, work)
    errors = [KVError(known), KVError(known)]
    one, other = (serve(SETTING, model, work, known, Hooks(after_step=error)) for error in errors)
    assert one.tokens == other.tokens
    assert errors[0].largest == errors[1].largest


def test_turned_heads_keep_length_and_distance() -> None:
    """The product of a turned query and key depends on the distance of their positions."""
    frequencies = FloatModel("float32")._frequencies
    source = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, 16, generator=source, dtype=torch.float32)

    def turned(head: torch.Tensor, position: int) -> torch.Tensor:
        angles = torch.tensor([[[position]]]) * frequencies
        return _rotate(head, angles.cos(), angles.sin())

    products = torch.tensor(
        [float((turned(query, n + 3) * turned(key, n)).sum()) for n in range(9)]
    )
    assert (products - products[0]).abs().max() < 1e-5
    assert abs(float((turned(query, 4) * turned(key, 0)).sum() - products[0])) > 1e-3
    assert (turned(query, 5).norm() - query.norm()).abs() < 1e-5


def test_a_norm_has_size_one() -> None:
    """The root of the mean of squares, whatever the size before."""
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)) * 40
    normed = FloatModel("float32")._norm(hidden)
    assert (normed.square().mean(dim=1) - 1).abs().max() < 1e-5
    assert torch.allclose(normed * hidden.square().mean(dim=1).sqrt()[:, None], hidden)


def test_rows_of_padding_are_numbers() -> None:
    """A row that reads nothing is no NaN that could be carried on."""
    query, keys = torch.ones(1, 2, 2, 8), torch.ones(1, 3, 1, 8)
    readable = torch.tensor([[[True, True, False], [False, False, False]]])
    assert float_mix(query, keys, keys, readable).isfinite().all()


def test_the_first_change_counts() -> None:
    """A stream that ends early differs where it ends."""
    assert first_change([1, 2, 3], [1, 2, 3]) == 3
    assert first_change([1, 9, 3], [1, 2, 3]) == 1
    assert first_change([1], [1, 2, 3]) == 1


def test_a_request_alone_keeps_what_it_computes() -> None:
    """Keys, values and logits are there for every output, in the dtype of the cache."""
    alone = reference(FloatModel("bfloat16"), Work("a", [1, 2, 3], 4))
    assert len(alone.tokens) == len(alone.logits) == 4
    assert alone.kv.shape == (2, 2, 6, 2, 16)
    assert alone.kv.dtype == torch.bfloat16
    assert alone.logits.argmax(dim=1).tolist() == alone.tokens
