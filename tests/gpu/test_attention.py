"""Attention over blocks reads a request's own positions, in whole numbers and in floats."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch.nn import functional

from gpu.attention import Rows, context_slots, exact_mix, float_mix, paged_attention

PRIME = 251
BLOCK_SIZE = 4
STARTS, NUM_TOKENS = [0, 6, 2], [5, 1, 3]
TABLES = [[3, 5, -1], [2, 1, -1], [4, 6, -1]]
NUM_BLOCKS = 7


def whole(seed: int, *shape: int, prime: int = PRIME) -> torch.Tensor:
    """Return random whole numbers below the prime, as float64."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, prime, shape, generator=source).to(torch.float64)


def by_hand(
    query: list[list[int]], keys: list[list[list[int]]], values: list[list[list[int]]]
) -> list[list[int]]:
    """Return one row's attention in Python integers; keys and values are by position and head."""
    group = len(query) // len(keys[0])
    mixed = []
    for head, row in enumerate(query):
        total = [0] * len(row)
        for key, value in zip(keys, values, strict=True):
            score = sum(a * b for a, b in zip(row, key[head // group], strict=True))
            weight = score % PRIME % (PRIME - 1) + 1
            total = [t + weight * v for t, v in zip(total, value[head // group], strict=True)]
        mixed.append([t % PRIME for t in total])
    return mixed


def ints(tensor: torch.Tensor) -> list[list[list[int]]]:
    """Return whole numbers as nested lists of integers."""
    nested: list[list[list[int]]] = tensor.to(torch.int64).tolist()
    return nested


def pool(dtype: torch.dtype, fill: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return planes whose live slots hold whole numbers and whose other slots hold `fill`."""
    planes = []
    ends = [start + n for start, n in zip(STARTS, NUM_TOKENS, strict=True)]
    for plane in (0, 1):
        memory = torch.full((NUM_BLOCKS + 1, BLOCK_SIZE, 2, 8), fill, dtype=torch.float64)
        rows = memory.flatten(0, 1)
        for request, (table, end) in enumerate(zip(TABLES, ends, strict=True)):
            slots = [table[n // BLOCK_SIZE] * BLOCK_SIZE + n % BLOCK_SIZE for n in range(end)]
            rows[slots] = whole(7 * plane + request, end, 2, 8, prime=13)
        planes.append(memory.to(dtype))
    return planes[0], planes[1]


@pytest.mark.parametrize("window", [None, 3])
def test_exact_attention_is_that_of_python_integers(window: int | None) -> None:
    """The order of no sum matters, so slow integers and float64 tensors give the same numbers."""
    rows = Rows.of(STARTS, NUM_TOKENS, "cpu")
    query = whole(1, len(rows.positions), 4, 8)
    key, value = pool(torch.bfloat16, fill=250)
    tables = torch.tensor(TABLES, dtype=torch.int32)
    found = paged_attention(exact_mix(PRIME), query, (key, value), tables, rows, window)
    for row, (request, position) in enumerate(
        zip(rows.request_idx.tolist(), rows.positions.tolist(), strict=True)
    ):
        first = 0 if window is None else max(0, position - window + 1)
        read = [
            (TABLES[request][n // BLOCK_SIZE], n % BLOCK_SIZE) for n in range(first, position + 1)
        ]
        keys, values = (ints(torch.stack([p[b, o] for b, o in read])) for p in (key, value))
        assert found[row].tolist() == by_hand(ints(query)[row], keys, values)


def test_float_attention_is_that_of_torch() -> None:
    """The grouped softmax agrees with torch's own, whose mask and scale are told apart."""
    query, keys, values = (
        torch.randn(2, n, heads, 8, generator=torch.Generator().manual_seed(n))
        for n, heads in ((3, 4), (9, 2), (9, 2))
    )
    readable = torch.arange(9) <= torch.tensor([[2, 5, 8], [0, 1, 7]])[:, :, None]
    theirs = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=readable[:, None],
        enable_gqa=True,
    )
    ours = float_mix(query, keys, values, readable)
    assert (ours - theirs.transpose(1, 2)).abs().max() < 1e-6


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_nan_that_nobody_may_read_reaches_no_sum(dtype: torch.dtype, window: int | None) -> None:
    """Slots behind a request's end, of other blocks and of the null block may hold anything."""
    rows = Rows.of(STARTS, NUM_TOKENS, "cpu")
    query = whole(1, len(rows.positions), 4, 8)
    tables = torch.tensor(TABLES, dtype=torch.int32)
    for mix in (exact_mix(PRIME), float_mix):
        clean, foul = (
            paged_attention(mix, query, pool(dtype, fill), tables, rows, window)
            for fill in (0.0, float("nan"))
        )
        assert torch.equal(clean, foul)


def test_a_mask_alone_does_not_silence_nan() -> None:
    """The reason for the zeros: a weight of zero times NaN is NaN."""
    query, keys, values = whole(1, 1, 1, 2, 8), whole(2, 1, 3, 2, 8), whole(3, 1, 3, 2, 8)
    readable = torch.tensor([[[True, True, False]]])
    assert exact_mix(PRIME)(query, keys, values, readable).isfinite().all()
    values[0, 2] = torch.nan
    assert exact_mix(PRIME)(query, keys, values, readable).isnan().all()


def test_window_blocks_that_were_let_go_are_not_read() -> None:
    """With a window, a table may begin with the null block, whatever that holds."""
    rows, window = Rows.of([9], [2], "cpu"), 3
    query, mix = whole(1, 2, 4, 8), exact_mix(PRIME)
    memory = whole(5, NUM_BLOCKS + 1, BLOCK_SIZE, 2, 8, prime=13)
    memory[0] = torch.nan
    planes = (memory.to(torch.bfloat16), memory.to(torch.bfloat16))
    kept, let_go = (
        paged_attention(mix, query, planes, torch.tensor([t], dtype=torch.int32), rows, window)
        for t in ([3, 5, 2], [0, 5, 2])
    )
    assert torch.equal(kept, let_go)
    assert kept.isfinite().all()


def test_every_element_that_is_read_counts() -> None:
    """No weight is 0 modulo the prime: each change of one value changes the sum."""
    random = Random(3)  # noqa: S311 # a reproducible sample, no secret
    mix = exact_mix(PRIME)
    query, keys, values = whole(1, 1, 1, 2, 8), whole(2, 1, 6, 1, 8), whole(3, 1, 6, 1, 8)
    readable = torch.ones(1, 1, 6, dtype=torch.bool)
    before = mix(query, keys, values, readable)
    for position in range(6):
        for element in range(8):
            changed = values.clone()
            changed[0, position, 0, element] += random.randrange(1, PRIME)
            after = mix(query, keys, torch.remainder(changed, PRIME), readable)
            assert (after != before).sum() == 2, "both heads of the group see it"


def test_rows_know_whose_they_are() -> None:
    """A row's request, place and position; padding and back again lose nothing."""
    rows = Rows.of(STARTS, NUM_TOKENS, "cpu")
    assert rows.request_idx.tolist() == [0, 0, 0, 0, 0, 1, 2, 2, 2]
    assert rows.positions.tolist() == [0, 1, 2, 3, 4, 6, 2, 3, 4]
    assert (rows.num_requests, rows.num_columns, rows.num_positions) == (3, 5, 7)
    values = whole(4, 9, 2)
    assert rows.padded(values).shape == (3, 5, 2)
    assert rows.padded(values)[1, 1:].count_nonzero() == 0
    assert torch.equal(rows.flat(rows.padded(values)), values)


@pytest.mark.parametrize("window", [None, 2, 4])
def test_what_is_gathered_is_what_some_row_reads(window: int | None) -> None:
    """The span of a request is the hull of what its rows read, and padding reads nothing."""
    rows = Rows.of(STARTS, NUM_TOKENS, "cpu")
    readable = rows.readable(window)
    first, last = (bound.tolist() for bound in rows.span(window))
    for request, (start, num_tokens) in enumerate(zip(STARTS, NUM_TOKENS, strict=True)):
        places = readable[request].any(dim=0).nonzero().flatten().tolist()
        assert places == list(range(first[request], last[request]))
        assert not readable[request, num_tokens:].any()
        reach = start + 1 if window is None else min(start + 1, window)
        assert int(readable[request, 0].sum()) == reach


def test_a_slot_is_block_times_size_and_offset() -> None:
    """A cell without a block is read as the null block, never as the last one."""
    slots = context_slots(torch.tensor([[3, 1], [2, -1]], dtype=torch.int32), 2, 3)
    assert slots.tolist() == [[6, 7, 2], [4, 5, 0]]
