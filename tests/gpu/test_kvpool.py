"""A pool's planes do not overlap, its poison is seen, and its guards see every stray byte."""

from __future__ import annotations

import ctypes
import mmap
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.eager import as_integers
from gpu.errors import UnknownBacking
from gpu.fingerprint import words_of
from gpu.layout import TORCH_DTYPES
from gpu.pool import POISON, Backing, KVPool, Place, Stray
from kvcache import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
)
from kvcache.interface import DType

UNHURRIED = settings(deadline=None)
"""A busy machine is no fault."""

NUM_BLOCKS = 4
DTYPES: tuple[DType, ...] = get_args(DType)
BACKINGS: tuple[Backing, ...] = get_args(Backing)


def full(dtype: DType = "bfloat16") -> FullAttentionSpec:
    """Return what a small layer keeps."""
    return FullAttentionSpec(block_size=2, num_kv_heads=3, head_size=5, dtype=dtype)


def pool_of(*specs: KVCacheSpec, backing: Backing = "torch") -> KVPool:
    """Return a pool with a layer for each of the specs."""
    names = [f"layer.{index}" for index in range(len(specs))]
    config = KVCacheConfig(
        num_blocks=NUM_BLOCKS,
        tensors={
            name: KVCacheTensor(size=NUM_BLOCKS * spec.page_size_bytes)
            for name, spec in zip(names, specs, strict=True)
        },
        kv_cache_groups=tuple(
            KVCacheGroupSpec(layer_names=(name,), kv_cache_spec=spec)
            for name, spec in zip(names, specs, strict=True)
        ),
    )
    return KVPool(config, backing=backing)


@pytest.mark.parametrize("backing", BACKINGS)
def test_views_and_planes_are_the_same_memory(backing: Backing) -> None:
    """Block i of the view is block i of the plane, and row i + 1 of what there is."""
    pool = pool_of(
        full(), MLAAttentionSpec(block_size=2, head_size=7, dtype="int8"), backing=backing
    )
    assert pool.layers == ("layer.0", "layer.1")
    assert [pool.num_planes(0), pool.num_planes(1)] == [2, 1]
    assert tuple(pool.view(0).shape) == (2, NUM_BLOCKS, 2, 3, 5)
    assert tuple(pool.view(1).shape) == (1, NUM_BLOCKS, 2, 1, 7)
    assert tuple(pool.plane(0, 1).shape) == (NUM_BLOCKS + 1, 2, 3, 5)
    pool.view(0)[1, 3, 1, 2, 4] = 8.0
    assert pool.plane(0, 1)[3, 1, 2, 4] == 8
    assert pool.physical(0, 1)[4, 1, 2, 4] == 8
    assert pool.strays() == []


@pytest.mark.parametrize("backing", BACKINGS)
def test_no_two_blocks_share_a_byte(backing: Backing) -> None:
    """Blocks of all planes, red zones and trash blocks too, lie one after another."""
    pool = pool_of(full(), full("int8"), backing=backing)
    spans = sorted(
        pool.span(layer, plane, block)
        for layer in range(2)
        for plane in range(2)
        for block in range(-1, NUM_BLOCKS + 2)
    )
    assert len(spans) == 2 * 2 * (NUM_BLOCKS + 3)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    page = full().page_size_bytes // 2
    start, size = pool.span(0, 1, 2)
    assert start == pool.plane(0, 1)[2].data_ptr()
    assert size == (page if backing == "torch" else mmap.PAGESIZE)


def test_a_map_has_blocks_of_whole_memory_pages() -> None:
    """A block that takes more than one page of memory takes whole ones as well."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=40, dtype="bfloat16")
    pool = pool_of(spec, full(), backing="mmap")
    for layer, num_pages in ((0, 2), (1, 1)):
        for block in range(-1, NUM_BLOCKS + 2):
            start, size = pool.span(layer, 1, block)
            assert (start % mmap.PAGESIZE, size) == (0, num_pages * mmap.PAGESIZE)


def test_a_block_of_a_map_can_be_protected_alone() -> None:
    """The system takes the right to write it, and what lies beside it can still be written."""
    pool = pool_of(full(), backing="mmap")
    libc = ctypes.CDLL(None, use_errno=True)
    start, size = pool.span(0, 1, 2)
    read_only = 1
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), read_only) == 0
    pool.plane(0, 1)[1] = 1
    pool.plane(0, 1)[3] = 1
    pool.plane(0, 0)[2] = 1
    assert pool.plane(0, 1)[2].isnan().all()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    rights = [line.split()[1] for line in maps if line.startswith(f"{start:x}-")]
    assert rights == ["r--p"]
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), 3) == 0


@pytest.mark.parametrize("name", DTYPES)
def test_all_is_poison_at_the_start_and_again_when_asked(name: DType) -> None:
    """Poison is a NaN that is quiet, or a value that no model keeps; other blocks stay."""
    pool = pool_of(full(name), full(name))
    dtype = TORCH_DTYPES[name]
    assert POISON.keys() == set(TORCH_DTYPES.values())
    everything = pool.view(1)
    wanted = everything.float().isnan() if dtype.is_floating_point else everything.int().abs() > 127
    assert wanted.all()
    as_integers(everything).fill_(1)
    pool.poison(torch.tensor([1, 3]))
    kept = as_integers(everything)
    assert (kept[:, [1, 3]] == pool.poison_pattern(1)).all()
    assert (kept[:, [0, 2]] == 1).all()
    assert (as_integers(pool.plane(0, 0)) == POISON[dtype]).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_poison_is_a_quiet_nan_with_a_payload(name: DType) -> None:
    """The first bit of the fraction is set, and others are: nobody makes such a NaN by accident."""
    dtype = TORCH_DTYPES[name]
    usual = int(as_integers(torch.tensor(float("nan"), dtype=dtype)))
    assert POISON[dtype] & usual == usual
    assert POISON[dtype] != usual


@pytest.mark.parametrize("backing", BACKINGS)
@UNHURRIED
@given(
    layer=st.integers(0, 1),
    plane=st.integers(0, 1),
    block=st.sampled_from([-1, 0, NUM_BLOCKS + 1]),
    element=st.integers(0, 29),
    bit=st.integers(0, 15),
)
def test_a_stray_bit_is_seen_where_nobody_may_write(
    backing: Backing, layer: int, plane: int, block: int, element: int, bit: int
) -> None:
    """Before and after the blocks of each plane, and in the null block; the place is named."""
    pool = pool_of(full(), full(), backing=backing)
    row = as_integers(pool.physical(layer, plane))[block + 1].flatten()
    # An int16 holds its top bit as a sign.
    row[element] ^= (1 << bit) - (1 << 16) * (bit == 15)
    place: Place = "before" if block < 0 else "after" if block else "null"
    assert pool.strays() == [Stray(layer, plane, place, 2 * element)]
    assert pool.null_block_intact() == (block != 0)
    assert pool.red_zones_intact() == (block == 0)


def test_blocks_and_trash_may_be_written() -> None:
    """No stray is found in what is there to be written."""
    pool = pool_of(full())
    pool.view(0)[:, 1:] = 1
    pool.plane(0, 0)[pool.trash_block] = 1
    assert pool.strays() == []


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("backing", BACKINGS)
def test_rows_are_read_byte_by_byte(name: DType, backing: Backing) -> None:
    """NaNs keep their payload; -1 and slots that are none read the trash block, not the last."""
    pool = pool_of(full(name), backing=backing)
    plane = pool.plane(0, 1)
    shape = (*plane.shape[:3], plane.shape[3] * plane.element_size())
    data = torch.randint(256, shape, dtype=torch.uint8)
    as_integers(plane).copy_(as_integers(data.view(plane.dtype)))
    slots = torch.tensor([0, 7, -1, 3, 8, 2**40, -9])
    flat = data.flatten(2).flatten(0, 1)
    expected = flat[torch.tensor([0, 7, 8, 3, 8, 8, 8])]
    found = pool.rows(0, 1, slots)
    assert tuple(found.shape) == (7, 3, 5)
    assert torch.equal(expected, found.flatten(1).view(torch.uint8))
    assert torch.equal(words_of(expected), pool.row_words(0, 1, slots))


@pytest.mark.parametrize(("backing", "device"), [("file", "cpu"), ("mmap", "meta"), (None, "cpu")])
def test_an_unknown_backing_is_refused(backing: Backing, device: str) -> None:
    """A map is memory of the CPU."""
    config = pool_of(full()).config
    with pytest.raises(UnknownBacking, match=f"backing={backing!r} on {device}"):
        KVPool(config, device, backing)
