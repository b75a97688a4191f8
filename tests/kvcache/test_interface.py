"""What a layer keeps is computed to the byte, and what is wrong does not get in."""

from __future__ import annotations

import pickle
from math import ceil
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvcache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvcache.interface import DTYPE_SIZE_BYTES, DType, num_pages_of, num_window_pages_of

SHAPE: dict[str, Any] = {"block_size": 16, "num_kv_heads": 40, "head_size": 128, "dtype": "float16"}
SMALL = st.integers(1, 300)
SPECS: st.SearchStrategy[KVCacheSpec] = st.one_of(
    st.builds(FullAttentionSpec, block_size=SMALL, num_kv_heads=SMALL, head_size=SMALL),
    st.builds(MLAAttentionSpec, block_size=SMALL, head_size=SMALL),
    st.builds(
        SlidingWindowSpec,
        block_size=SMALL,
        num_kv_heads=SMALL,
        head_size=SMALL,
        sliding_window=st.integers(2, 300),
    ),
)


def config_of(spec: KVCacheSpec, **changes: Any) -> KVCacheConfig:  # noqa: ANN401  # any field
    """Return a configuration of two layers and three blocks."""
    fields: dict[str, Any] = {
        "num_blocks": 3,
        "tensors": {name: KVCacheTensor(size=3 * spec.page_size_bytes) for name in ("a", "b")},
        "kv_cache_groups": (KVCacheGroupSpec(layer_names=("a", "b"), kv_cache_spec=spec),),
    }
    return KVCacheConfig(**fields | changes)


def test_a_page_of_the_chapters_example_has_its_bytes() -> None:
    """Llama-2-13B in float16 with blocks of 16: 327,680 bytes a layer, 13,107,200 over 40."""
    spec = FullAttentionSpec(**SHAPE)
    assert spec.page_size_bytes == 327_680
    assert spec.page_size_bytes * 40 == 13_107_200
    assert spec.type_id == "full_attention_16_327680"


def test_a_latent_is_kept_once() -> None:
    """MLA keeps one vector of 512 + 64 elements a token and has one head."""
    spec = MLAAttentionSpec(block_size=64, head_size=576, dtype="bfloat16")
    assert spec.page_size_bytes == 64 * 576 * 2
    assert (spec.num_kv_heads, spec.type_id) == (1, "mla_attention_64_73728")
    with pytest.raises(ValidationError):
        MLAAttentionSpec.model_validate(spec.model_dump() | {"num_kv_heads": 2})


@given(SPECS)
def test_page_bytes_count_the_elements(spec: KVCacheSpec) -> None:
    """A page has a vector for every plane, token and head, each of so many elements."""
    planes = ["latent"] if spec.kind == "mla_attention" else ["key", "value"]
    tokens, heads = range(spec.block_size), range(spec.num_kv_heads)
    vectors = len(planes) * len(tokens) * len(heads)
    assert spec.page_size_bytes == vectors * spec.head_size * DTYPE_SIZE_BYTES[spec.dtype]
    assert str(spec.page_size_bytes) == spec.type_id.rpartition("_")[2]


def test_every_dtype_has_a_size() -> None:
    """The table of sizes has the names that a spec takes, and its sizes are the names' bits."""
    assert tuple(DTYPE_SIZE_BYTES) == get_args(DType)
    for name, size in DTYPE_SIZE_BYTES.items():
        bits = "".join(filter(str.isdigit, name.removeprefix("b").partition("_")[0]))
        assert 8 * size == int(bits)


@given(st.integers(0, 10**30), st.integers(1, 10**6))
def test_pages_hold_the_tokens_and_no_page_is_idle(num_tokens: int, block_size: int) -> None:
    """One page fewer would be too few; no float takes part."""
    pages = num_pages_of(num_tokens, block_size)
    assert pages * block_size >= num_tokens > (pages - 1) * block_size


@given(SPECS, st.integers(1, 5000), st.integers(1, 5000))
def test_a_request_needs_the_pages_of_its_tokens(spec: KVCacheSpec, length: int, step: int) -> None:
    """Full: of all tokens. Window: of `W - 1` tokens and a step, at most all, and one page more."""
    pages = ceil(length / spec.block_size)
    if isinstance(spec, SlidingWindowSpec):
        pages = ceil(min(spec.sliding_window - 1 + step, length) / spec.block_size) + 1
    assert pages == spec.num_pages(length, step)
    assert pages * spec.page_size_bytes == spec.max_memory_usage_bytes(length, step)


@given(
    window=st.integers(2, 12),
    step=st.integers(1, 8),
    length=st.integers(1, 60),
    size=st.integers(1, 5),
)
def test_the_window_never_holds_more_pages(window: int, step: int, length: int, size: int) -> None:
    """A request that is computed step by step, and lets go of what it no longer reads, fits."""
    limit = num_window_pages_of(window, step, length, size)
    for computed in range(0, length, step):
        end = min(computed + step, length)
        first = max(0, computed - window + 1) // size
        assert ceil(end / size) - first <= limit


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 0},
        {"num_kv_heads": 0},
        {"head_size": -1},
        {"dtype": "float17"},
        {"dtype": None},
        {"block_size": 16.0},
        {"block_size": True},
        {"kind": "sliding_window"},
        {"sliding_window": 4},
    ],
)
def test_a_spec_out_of_range_is_refused(change: dict[str, object]) -> None:
    """Sizes are 1 or more, dtypes are known, types are strict, unknown fields are errors."""
    with pytest.raises(ValidationError):
        FullAttentionSpec.model_validate(SHAPE | change)


@pytest.mark.parametrize("window", [1, 0, -4, None])
def test_a_window_below_two_is_refused(window: int | None) -> None:
    """A query reads itself and at least one token before it."""
    with pytest.raises(ValidationError):
        SlidingWindowSpec.model_validate(SHAPE | {"sliding_window": window})


@given(SPECS, st.integers(2, 9))
def test_a_configuration_comes_back_from_json(spec: KVCacheSpec, window: int) -> None:
    """What is read is what was written, the kind of each spec included; so it is when pickled."""
    kept = {"a": window} if spec.kind == "full_attention" else {}
    config = config_of(spec, windows_kept_as_full=kept)
    copy = KVCacheConfig.model_validate_json(config.model_dump_json())
    assert config == copy == pickle.loads(pickle.dumps(config))  # noqa: S301  # the bytes are our own
    assert type(spec) is type(copy.layer_specs["b"])


def test_a_configuration_is_frozen() -> None:
    """No field of a configuration or of a spec in it can be set."""
    config = config_of(FullAttentionSpec(**SHAPE))
    with pytest.raises(ValidationError):
        config.num_blocks = 4
    with pytest.raises(ValidationError):
        config.kv_cache_groups[0].kv_cache_spec.block_size = 4


PAGE = FullAttentionSpec(**SHAPE).page_size_bytes
GROUP = KVCacheGroupSpec(layer_names=("a", "b"), kv_cache_spec=FullAttentionSpec(**SHAPE))
WINDOW = SlidingWindowSpec(**SHAPE, sliding_window=4)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one block": ({"num_blocks": 1}, "greater than or equal to 2"),
    "no group": ({"kv_cache_groups": ()}, "at least 1 item"),
    "two groups": ({"kv_cache_groups": (GROUP, GROUP)}, "layer 'a' is named twice"),
    "no tensor": ({"tensors": {"a": KVCacheTensor(size=3 * PAGE)}}, r"layers \['b'\] are in a"),
    "more blocks than the tensors hold": (
        {"num_blocks": 4},
        "layer 'a' has a tensor of 983040 bytes; give whole pages of 327680 bytes, 4 or more",
    ),
    "half a page": (
        {"tensors": {name: KVCacheTensor(size=3 * PAGE + 1) for name in "ab"}},
        "983041 bytes",
    ),
    "a window of an unknown layer": ({"windows_kept_as_full": {"c": 4}}, r"layers \['c'\] keep no"),
    "a window of a window": (
        {
            "windows_kept_as_full": {"a": 4},
            "kv_cache_groups": (KVCacheGroupSpec(layer_names=("a", "b"), kv_cache_spec=WINDOW),),
        },
        r"layers \['a'\] keep no full attention",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_configuration_that_contradicts_itself_is_refused(name: str) -> None:
    """Every layer has one group and one tensor, and the tensor holds the blocks."""
    changes, problem = WRONG[name]
    with pytest.raises(ValidationError, match=problem):
        config_of(FullAttentionSpec(**SHAPE), **changes)


def test_a_larger_tensor_is_fine() -> None:
    """Another worker may have had less memory: the first blocks of the tensor are used."""
    tensors = {name: KVCacheTensor(size=9 * PAGE) for name in "ab"}
    assert config_of(FullAttentionSpec(**SHAPE), tensors=tensors).num_blocks == 3
