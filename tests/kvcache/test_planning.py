"""From bytes to blocks: what fits, and what is refused and why."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    LayersDiffer,
    MemoryBelowOneRequest,
    MLAAttentionSpec,
    NoAttentionLayers,
    NoMemoryForBlocks,
    PlanningConfig,
    SlidingWindowSpec,
    check_enough_kv_cache_memory,
    estimate_max_model_len,
    get_kv_cache_config,
    max_concurrency_of,
    num_blocks_of,
    unify_hybrid_kv_cache_specs,
)

GIB = 2**30
SHAPE: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 8, "dtype": "float16"}
FULL = FullAttentionSpec(**SHAPE)
WINDOW = SlidingWindowSpec(**SHAPE, sliding_window=6)
PAGE = FULL.page_size_bytes


def layers(*specs: KVCacheSpec) -> dict[str, KVCacheSpec]:
    """Return the specs by the names of their layers."""
    return {f"layers.{index}": spec for index, spec in enumerate(specs)}


def planning(length: int = 40, step: int = 8, override: int | None = None) -> PlanningConfig:
    """Return what is to be served."""
    return PlanningConfig(
        max_model_len=length, max_num_batched_tokens=step, num_gpu_blocks_override=override
    )


MODELS = st.one_of(
    st.lists(st.just(FULL), min_size=1, max_size=4),
    st.lists(st.just(WINDOW), min_size=1, max_size=4),
    st.lists(st.sampled_from([FULL, WINDOW]), min_size=1, max_size=4),
).map(lambda specs: layers(*specs))
SERVED = st.builds(planning, st.integers(1, 80), st.integers(1, 40))


def test_the_chapters_example_has_its_blocks() -> None:
    """40 GiB over 40 layers of 327,680 bytes: 3,276 blocks with null, 52,400 tokens beside it."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=40, head_size=128, dtype="float16")
    config = get_kv_cache_config(layers(*[spec] * 40), 40 * GIB, planning(4096, 2048))
    assert config.num_blocks == 3276
    assert (config.num_blocks - 1) * 16 == 52_400
    assert {tensor.size for tensor in config.tensors.values()} == {3276 * 327_680}
    assert max_concurrency_of(config.num_blocks, 4096 // 16) == 3275 / 256


@given(MODELS, st.integers(1, 60 * 4 * PAGE), SERVED)
def test_a_budget_is_refused_exactly_when_one_request_and_null_do_not_fit(
    specs: dict[str, KVCacheSpec], available: int, served: PlanningConfig
) -> None:
    """What passes gives a pool that holds the longest request beside null; what fails does not."""
    (spec,) = set(unify_hybrid_kv_cache_specs(specs).values())
    pages = spec.num_pages(served.max_model_len, served.max_num_batched_tokens)
    num_blocks = available // (PAGE * len(specs))
    if num_blocks > pages:
        assert get_kv_cache_config(specs, available, served).num_blocks == num_blocks
        return
    with pytest.raises(MemoryBelowOneRequest) as caught:
        get_kv_cache_config(specs, available, served)
    assert (pages + 1) * PAGE * len(specs) == caught.value.needed_bytes


@given(MODELS, st.integers(1, 60 * 4 * PAGE), SERVED)
def test_bisection_finds_what_a_walk_finds(
    specs: dict[str, KVCacheSpec], available: int, served: PlanningConfig
) -> None:
    """The greatest length that fits is the last that passes the check, tried one by one."""

    def fits(length: int) -> bool:
        one = planning(length, served.max_num_batched_tokens)
        try:
            check_enough_kv_cache_memory(specs, available, one)
        except MemoryBelowOneRequest:
            return False
        return True

    expected = max(filter(fits, range(1, served.max_model_len + 1)), default=0)
    assert expected == estimate_max_model_len(specs, available, served)


def test_the_refusal_says_what_would_fit() -> None:
    """10 pages and null are needed, there are 8: seven pages of 4 tokens fit beside null."""
    with pytest.raises(MemoryBelowOneRequest) as caught:
        get_kv_cache_config(layers(FULL, FULL), 8 * 2 * PAGE, planning(40))
    error = caught.value
    assert (error.needed_bytes, error.available_bytes) == (22 * PAGE, 16 * PAGE)
    assert error.greatest_model_len == 28
    assert "the greatest length that fits is 28 tokens: lower max_model_len" in str(error)
    check_enough_kv_cache_memory(layers(FULL, FULL), 8 * 2 * PAGE, planning(28))


def test_a_budget_for_null_alone_fits_no_length() -> None:
    """One block is null; nothing is left for a single token."""
    with pytest.raises(MemoryBelowOneRequest) as caught:
        check_enough_kv_cache_memory(layers(FULL), PAGE, planning(1))
    assert caught.value.greatest_model_len == 0


@pytest.mark.parametrize("available", [0, -1, -(10**20)])
def test_no_memory_is_refused(available: int) -> None:
    """Zero and less come from a profile that took everything; the refusal shows the number."""
    with pytest.raises(NoMemoryForBlocks, match=f"^{available} bytes are available"):
        get_kv_cache_config(layers(FULL), available, planning())


def test_a_model_without_layers_is_refused() -> None:
    """Zero layers would divide by zero; more memory would not help."""
    with pytest.raises(NoAttentionLayers, match="give the spec of 1 layer or more"):
        get_kv_cache_config({}, GIB, planning())


@given(MODELS, st.integers(100 * PAGE, 900 * PAGE), st.integers(0, 900 * PAGE))
def test_blocks_rise_with_memory_and_fall_with_layers(
    specs: dict[str, KVCacheSpec], available: int, more: int
) -> None:
    """More bytes never give fewer blocks, and one more layer never gives more."""
    served = planning(8, 8)
    num_blocks = get_kv_cache_config(specs, available, served).num_blocks
    assert get_kv_cache_config(specs, available + more, served).num_blocks >= num_blocks
    deeper = specs | {"another": specs["layers.0"]}
    assert get_kv_cache_config(deeper, available, served).num_blocks <= num_blocks


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**9), st.integers(1, 200))
def test_the_blocks_fit_and_one_more_does_not(available: int, page: int, num_layers: int) -> None:
    """The number of blocks is the greatest whose pages fit, and 0 where there is no memory."""
    num_blocks = num_blocks_of(available, page, num_layers)
    assert num_blocks >= 0
    assert num_blocks == 0 or num_blocks * page * num_layers <= available
    assert (num_blocks + 1) * page * num_layers > available


def test_windows_beside_full_layers_are_kept_as_full() -> None:
    """One block table serves both; which layers read a window only is recorded."""
    specs = layers(WINDOW, FULL, WINDOW)
    assert unify_hybrid_kv_cache_specs(specs) == layers(FULL, FULL, FULL)
    config = get_kv_cache_config(specs, 100 * PAGE, planning())
    assert config.windows_kept_as_full == {"layers.0": 6, "layers.2": 6}
    assert config.kv_cache_groups == (
        KVCacheGroupSpec(layer_names=tuple(specs), kv_cache_spec=FULL),
    )


def test_a_hybrid_is_measured_as_what_it_keeps() -> None:
    """10 pages and null in each layer, the window's too: a check before unifying asks for less."""
    specs = layers(FULL, WINDOW, WINDOW)
    assert WINDOW.num_pages(40, 1) < FULL.num_pages(40, 1)
    with pytest.raises(MemoryBelowOneRequest):
        get_kv_cache_config(specs, 11 * 3 * PAGE - 1, planning(40, 1))
    assert get_kv_cache_config(specs, 11 * 3 * PAGE, planning(40, 1)).num_blocks == 11


@pytest.mark.parametrize("spec", [FULL, WINDOW])
def test_layers_of_one_kind_stay_as_they_are(spec: KVCacheSpec) -> None:
    """A model of windows only keeps its windows."""
    specs = layers(spec, spec)
    config = get_kv_cache_config(specs, 100 * PAGE, planning())
    assert unify_hybrid_kv_cache_specs(specs) == specs == config.layer_specs
    assert config.windows_kept_as_full == {}


@pytest.mark.parametrize(
    "other",
    [
        FullAttentionSpec(**SHAPE | {"head_size": 16}),
        FullAttentionSpec(**SHAPE | {"head_size": 4, "num_kv_heads": 4}),
        MLAAttentionSpec(block_size=4, head_size=32, dtype="float16"),
        SlidingWindowSpec(**SHAPE | {"block_size": 8}, sliding_window=6),
    ],
    ids=["wider", "same bytes", "latent", "window of another size"],
)
def test_layers_that_cannot_share_a_table_are_refused(other: KVCacheSpec) -> None:
    """Both layers are named with what they keep, equal page bytes or not."""
    with pytest.raises(LayersDiffer, match=r"layer 'layers\.1' keeps .* 'layers\.0' keeps Full"):
        get_kv_cache_config(layers(FULL, other), GIB, planning())


def test_windows_of_two_sizes_are_refused() -> None:
    """Without a full layer there is nothing to unify to."""
    wider = SlidingWindowSpec(**SHAPE, sliding_window=7)
    with pytest.raises(LayersDiffer):
        get_kv_cache_config(layers(WINDOW, wider), GIB, planning())


def test_an_override_is_used_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """More than fits or less: the number is the user's, and the log shows both."""
    for override in (2, 1000):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            config = get_kv_cache_config(layers(FULL), 60 * PAGE, planning(override=override))
        assert config.num_blocks == override
        assert config.tensors["layers.0"].size == override * PAGE
        text = f"num_gpu_blocks_override={override} is used; the memory holds 60 blocks"
        assert [text] == caplog.messages


@pytest.mark.parametrize("fields", [(0, 1), (1, 0), (1, 1, 1), (1, 1, -2), (2.0, 1), (2**62, 1)])
def test_what_cannot_be_served_is_refused(fields: tuple[Any, ...]) -> None:
    """A request and a step have a token, and a pool has null and one block."""
    with pytest.raises(ValueError, match="Input should be"):
        planning(*fields)


@given(MODELS)
def test_arguments_stay_as_they_were(specs: dict[str, KVCacheSpec]) -> None:
    """Planning changes no mapping that it is given, and hands none of them out."""
    before = dict(specs)
    unify_hybrid_kv_cache_specs(specs).clear()
    get_kv_cache_config(specs, 900 * PAGE, planning()).tensors.clear()
    assert list(before.items()) == list(specs.items())
