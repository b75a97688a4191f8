"""Tensors have the bytes of their plan, and a block's id names its own bytes and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu.errors import (
    BlockIdNotValid,
    DeviceMemoryExhausted,
    LayersWithoutTensors,
    NoSuchLayer,
    TensorIsNoPages,
    TensorsOverlap,
    TooFewBlocksInTensor,
    UnknownDType,
)
from gpu.layout import TORCH_DTYPES, LocalKVCache, allocate, shape_of, torch_dtype_of, view_of
from kvcache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvcache.interface import DTYPE_SIZE_BYTES

SHAPE: dict[str, Any] = {"block_size": 3, "num_kv_heads": 2, "head_size": 5, "dtype": "float16"}
FULL = FullAttentionSpec(**SHAPE)
WINDOW = SlidingWindowSpec(**SHAPE, sliding_window=4)
LATENT = MLAAttentionSpec(block_size=3, head_size=5, dtype="bfloat16")


def config_of(num_blocks: int, spec: KVCacheSpec = FULL, more: int = 0) -> KVCacheConfig:
    """Return a configuration of two layers, whose tensors hold some blocks more."""
    names = ("a", "b")
    size = (num_blocks + more) * spec.page_size_bytes
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors={name: KVCacheTensor(size=size) for name in names},
        kv_cache_groups=(KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec),),
    )


def test_the_dtypes_are_those_of_the_specs_and_have_their_sizes() -> None:
    """Every name that a spec takes is torch's name of a dtype of so many bytes."""
    sizes = {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()}
    assert dict(DTYPE_SIZE_BYTES) == sizes
    for name, dtype in TORCH_DTYPES.items():
        assert str(dtype) == f"torch.{name}"


@pytest.mark.parametrize("name", ["float15", "torch.float16", "complex64", ""])
def test_an_unknown_dtype_is_refused(name: str) -> None:
    """The refusal lists the names; torch knows more dtypes than a cache is kept in."""
    with pytest.raises(UnknownDType, match=r"give one of \('float64', "):
        torch_dtype_of(name)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(FULL, (2, 7, 3, 2, 5)), (WINDOW, (2, 7, 3, 2, 5)), (LATENT, (7, 3, 5))],
    ids=["full", "window", "latent"],
)
def test_a_view_has_its_shape_and_every_byte(spec: KVCacheSpec, shape: tuple[int, ...]) -> None:
    """The bytes of the plan are the bytes of the view, which is no copy, and zero."""
    tensors = allocate(config_of(7, spec), "cpu")
    assert [t.nbytes for t in tensors.values()] == [7 * spec.page_size_bytes] * 2
    cache = LocalKVCache(config_of(7, spec), tensors)
    for layer, view in cache.views.items():
        assert shape == tuple(view.shape) == shape_of(spec, 7)
        assert view.dtype == torch_dtype_of(spec.dtype)
        assert view.nbytes == 7 * spec.page_size_bytes
        assert view.data_ptr() == tensors[layer].data_ptr()
        assert view.is_contiguous()
        assert not view.any()


def test_the_chapters_layer_is_327_680_bytes_a_block() -> None:
    """Llama-2-13B in fp16: 13,107,200 bytes a block over its 40 layers."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=40, head_size=128, dtype="float16")
    cache = LocalKVCache(config_of(2, spec), allocate(config_of(2, spec), "cpu"))
    assert cache.block("a", 1).nbytes == 327_680
    assert cache.block("a", 1).nbytes * 40 == 13_107_200


SPECS = st.one_of(
    st.builds(
        FullAttentionSpec,
        block_size=st.integers(1, 4),
        num_kv_heads=st.integers(1, 3),
        head_size=st.integers(1, 5),
        dtype=st.sampled_from(list(DTYPE_SIZE_BYTES)),
    ),
    st.builds(
        MLAAttentionSpec,
        block_size=st.integers(1, 4),
        head_size=st.integers(1, 5),
        dtype=st.sampled_from(list(DTYPE_SIZE_BYTES)),
    ),
)


@given(SPECS, st.integers(2, 5), st.integers(0, 3))
def test_the_blocks_of_a_layer_divide_its_bytes(spec: KVCacheSpec, blocks: int, more: int) -> None:
    """Every byte is in exactly one block; what is beyond the common number is in none."""
    config = config_of(blocks, spec, more)
    tensors = allocate(config, "cpu")
    cache = LocalKVCache(config, tensors)
    for block_id in range(blocks):
        block = cache.block("b", block_id)
        assert block.nbytes == spec.page_size_bytes
        block.view(torch.uint8).add_(block_id + 1)
    counts = torch.bincount(tensors["b"].to(torch.int64), minlength=blocks + 1).tolist()
    page = spec.page_size_bytes
    assert [more * page, *[page] * blocks] == counts
    assert not tensors["a"].any()


def test_keys_and_values_of_a_block_are_its_two_planes() -> None:
    """What is written through a block is read in the view: plane, block, slot, head, element."""
    cache = LocalKVCache(config_of(4), allocate(config_of(4), "cpu"))
    cache.block("a", 2)[1, 0, 1, 4] = 7.0
    assert cache.views["a"].nonzero().tolist() == [[1, 2, 0, 1, 4]]


@pytest.mark.parametrize(
    "raw",
    [
        torch.zeros(FULL.page_size_bytes + 1, dtype=torch.uint8),
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(FULL.page_size_bytes, dtype=torch.int8),
        torch.zeros(2, FULL.page_size_bytes, dtype=torch.uint8),
        torch.zeros(2 * FULL.page_size_bytes, dtype=torch.uint8)[::2],
        torch.tensor(1, dtype=torch.uint8),
    ],
    ids=["part of a page", "empty", "another dtype", "two-dimensional", "with gaps", "scalar"],
)
def test_what_is_no_row_of_pages_is_refused(raw: torch.Tensor) -> None:
    """The refusal shows what was given and the size of a page."""
    with pytest.raises(TensorIsNoPages, match="whole pages of 120 bytes") as caught:
        view_of(raw, FULL)
    assert caught.value.shape == tuple(raw.shape)


def test_more_blocks_than_all_have_are_legal_and_fewer_are_not() -> None:
    """A worker keeps the tensors that it proposed; the common number must be within them."""
    mine = allocate(config_of(5), "cpu")
    cache = LocalKVCache(config_of(3), mine, rank=2)
    assert cache.views["a"].shape[1] == 5
    cache.check_block_ids(range(3))
    with pytest.raises(TooFewBlocksInTensor) as caught:
        LocalKVCache(config_of(6), mine, rank=2)
    error = caught.value
    assert (error.rank, error.layer, error.num_blocks, error.num_local_blocks) == (2, "a", 6, 5)
    assert str(error).startswith("worker 2, layer 'a': the configuration has 6 blocks")


@pytest.mark.parametrize("wrong", [-1, 3, 4, 10**9])
def test_an_id_that_not_all_have_is_refused(wrong: int) -> None:
    """The worker has five blocks; -1 would be its last one, and 3 and 4 are its own."""
    cache = LocalKVCache(config_of(3, more=2), allocate(config_of(3, more=2), "cpu"), rank=1)
    for ask in (lambda: cache.block("a", wrong), lambda: cache.check_block_ids([0, wrong, 1])):
        with pytest.raises(BlockIdNotValid, match=f"worker 1: block {wrong} is none") as caught:
            ask()
        assert (caught.value.rank, caught.value.num_blocks) == (1, 3)


def test_an_id_is_a_whole_number() -> None:
    """A float has no index, even a whole one."""
    cache = LocalKVCache(config_of(3), allocate(config_of(3), "cpu"))
    wrong: Any = 1.0
    with pytest.raises(TypeError):
        cache.block("a", wrong)


def test_layers_and_tensors_must_be_the_same() -> None:
    """A layer without a tensor, and a tensor without a layer, are named; so is a strange layer."""
    tensors = allocate(config_of(3), "cpu")
    cache = LocalKVCache(config_of(3), tensors)
    with pytest.raises(NoSuchLayer, match=r"^worker 0 has no layer 'c'; its layers are \('a', 'b'"):
        cache.block("c", 1)
    with pytest.raises(LayersWithoutTensors, match=r"layers \('b', 'c'\)"):
        LocalKVCache(config_of(3), {"a": tensors["a"], "c": tensors["b"]})


def test_two_layers_in_one_memory_are_refused() -> None:
    """One byte in common is enough."""
    page = FULL.page_size_bytes
    memory = torch.zeros(8 * page, dtype=torch.uint8)
    LocalKVCache(config_of(4), {"a": memory[: 4 * page], "b": memory[4 * page :]})
    shared = {"b": memory[: 4 * page], "a": memory[3 * page : 7 * page]}
    with pytest.raises(TensorsOverlap, match="layers 'b' and 'a' share memory"):
        LocalKVCache(config_of(4), shared)


def test_memory_that_the_device_has_not_got_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer, its bytes and what was taken before it; other errors stay what they are."""
    huge = config_of(2**50)
    with pytest.raises(DeviceMemoryExhausted, match=r"layer 'a'.*on cpu after 0 bytes"):
        allocate(huge, "cpu")
    calls: list[int] = []
    zeros = torch.zeros

    def full(size: int, **options: Any) -> torch.Tensor:  # noqa: ANN401  # as torch has it
        calls.append(size)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return zeros(size, **options)

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(DeviceMemoryExhausted, match=r"layer 'b'.*after 480 bytes"):
        allocate(config_of(4), "cpu")
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="device") as caught:
        allocate(config_of(4), "no such device")
    assert not isinstance(caught.value, DeviceMemoryExhausted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_holds_the_same_bytes() -> None:
    """Views and blocks are those of the CPU."""
    config = config_of(4)
    cache = LocalKVCache(config, allocate(config, "cuda"))
    cache.block("a", 3).fill_(2.0)
    assert cache.views["a"].is_cuda
    assert cache.views["a"].count_nonzero().item() == FULL.page_size_bytes // 2
