"""Attention over blocks: a request's keys and values are read through its block table.

A step computes rows of many requests at once. `Rows` says whose a row is and where it stands; the
rows of each request are laid side by side and padded, so that a request's blocks are gathered once,
whatever the number of its rows. Two rules keep foreign content out of every sum:

* A cell of a table that names no block (-1) is read as the null block, so no index is negative.
* What no row of the request may read is set to zero before it is used. A mask alone does not do:
  NaN times zero is NaN, and unwritten memory may hold one.

There are two ways to mix: whole numbers modulo a prime, where any order of a sum gives the same
number, and softmax. Chapter 5.7 has the window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from gpu import ops

Mix: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`mix(query, keys, values, readable) -> mixed`, for R requests, Q rows each, N positions:

query and mixed `[R, Q, num_heads, head_size]`; keys and values `[R, N, num_kv_heads, head_size]`,
zero where nobody reads; readable, bool, `[R, Q, N]`.
"""

Attend: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`attend(layer, query, key, value) -> mixed`: keep a layer's keys and values, then attend.

For T rows: query and mixed `[T, num_heads, head_size]`, key and value
`[T, num_kv_heads, head_size]`, all in the dtype in which the model computes.
"""


@dataclass(frozen=True)
class Rows:
    """The T rows of a step: row i is of request `request_idx[i]`, at position `positions[i]`.

    All are int64 `[T]`. `column` counts a request's rows from 0. `num_columns` is the most rows of
    a request and `num_positions` the longest context, so both are known without asking the device.
    """

    request_idx: torch.Tensor
    column: torch.Tensor
    positions: torch.Tensor
    num_requests: int
    num_columns: int
    num_positions: int

    @classmethod
    def of(
        cls, starts: Sequence[int], num_tokens: Sequence[int], device: torch.device | str
    ) -> Rows:
        """The rows of requests that compute positions `[start, start + num_tokens)` each."""
        columns = [c for n in num_tokens for c in range(n)]
        requests = [r for r, n in enumerate(num_tokens) for _ in range(n)]
        positions = [starts[r] + c for r, c in zip(requests, columns, strict=True)]
        table = torch.tensor([requests, columns, positions], dtype=torch.int64, device=device)
        ends = [start + n for start, n in zip(starts, num_tokens, strict=True)]
        return cls(table[0], table[1], table[2], len(starts), max(num_tokens), max(ends))

    def padded(self, values: torch.Tensor, fill: int = 0) -> torch.Tensor:
        """`[T, ...]` as `[num_requests, num_columns, ...]`, with `fill` where there is no row."""
        shape = (self.num_requests, self.num_columns, *values.shape[1:])
        table = values.new_full(shape, fill)
        table[self.request_idx, self.column] = values
        return table

    def flat(self, table: torch.Tensor) -> torch.Tensor:
        """The reverse of `padded`."""
        return table[self.request_idx, self.column]

    def readable(self, window: int | None) -> torch.Tensor:
        """Whether a row reads a position: bool `[num_requests, num_columns, num_positions]`.

        A row at position n reads `0 .. n`, with a window of W tokens `n - W + 1 .. n`. A row that
        is padding reads nothing.
        """
        queries = self.padded(self.positions, fill=-1)[:, :, None]
        keys = torch.arange(self.num_positions, device=queries.device)
        readable = keys <= queries
        return readable if window is None else readable & (keys > queries - window)

    def span(self, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The positions that some row of a request reads, `[first, last)`: int64 `[R]` each."""
        shape = self.positions.new_zeros(self.num_requests)
        last = shape.scatter_reduce(0, self.request_idx, self.positions + 1, "amax")
        if window is None:
            return shape, last
        starts = shape.scatter_reduce(
            0, self.request_idx, self.positions, "amin", include_self=False
        )
        return (starts - window + 1).clamp(min=0), last


def context_slots(block_tables: torch.Tensor, block_size: int, num_positions: int) -> torch.Tensor:
    """The slot of each position of each request: int64 `[R, num_positions]`.

    `block_tables` is int32 `[R, max_blocks]`, -1 where there is no block.
    """
    blocks = torch.where(block_tables < 0, 0, block_tables).to(torch.int64)
    offsets = torch.arange(block_size, device=blocks.device)
    slots = blocks[:, :, None] * block_size + offsets
    return slots.flatten(1)[:, :num_positions]


def paged_attention(
    mix: Mix,
    query: torch.Tensor,
    planes: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    rows: Rows,
    window: int | None,
) -> torch.Tensor:
    """What the rows make of their contexts: `[T, num_heads, head_size]`, as `query`.

    `planes` are a layer's keys and values as `KVPool.plane` shows them,
    `(num_blocks + 1, block_size, num_kv_heads, head_size)`, the trash block last; what is read is
    turned into the dtype of `query`. The slots of the rows themselves are written before.
    """
    first, last = rows.span(window)
    keys, values = (
        ops.gather_kv(plane, block_tables, first, last)[:, : rows.num_positions].to(query.dtype)
        for plane in planes
    )
    return rows.flat(mix(rows.padded(query), keys, values, rows.readable(window)))


def exact_mix(prime: int) -> Mix:
    """Attention in whole numbers modulo a prime, carried in float64.

    The weight of a position is `q.k mod p mod (p - 1) + 1`: never 0 modulo p, so a change of any
    one value that is read changes the sum. (Modulo p first: turned pairs keep their product modulo
    p only.) Every number is below 2^53, so no sum is ever rounded.
    """

    def mix(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, readable: torch.Tensor
    ) -> torch.Tensor:
        grouped = _by_kv_head(query, keys.shape[2])
        scores = grouped @ keys.permute(0, 2, 3, 1)[:, :, None]
        weights = torch.remainder(torch.remainder(scores, prime), prime - 1) + 1
        weights = torch.where(readable[:, None, None], weights, 0)
        mixed = weights @ values.transpose(1, 2)[:, :, None]
        return _by_row(torch.remainder(mixed, prime))

    return mix


def float_mix(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, readable: torch.Tensor
) -> torch.Tensor:
    """Softmax attention; scores and weights in float32, the result in the dtype of `query`."""
    scale = query.shape[-1] ** -0.5
    grouped = _by_kv_head(query.float(), keys.shape[2])
    scores = grouped @ keys.float().permute(0, 2, 3, 1)[:, :, None] * scale
    # The least number, not minus infinity: a row of padding would become NaN.
    least = torch.finfo(scores.dtype).min
    weights = torch.where(readable[:, None, None], scores, least).softmax(dim=-1)
    mixed = weights @ values.float().transpose(1, 2)[:, :, None]
    return _by_row(mixed).to(query.dtype)


def _by_kv_head(query: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """`[R, Q, num_heads, D]` as `[R, num_kv_heads, heads of a group, Q, D]`."""
    num_requests, num_columns, _, head_size = query.shape
    grouped = query.reshape(num_requests, num_columns, num_kv_heads, -1, head_size)
    return grouped.permute(0, 2, 3, 1, 4)


def _by_row(mixed: torch.Tensor) -> torch.Tensor:
    """The reverse of `_by_kv_head`."""
    return mixed.permute(0, 3, 1, 2, 4).flatten(2, 3)
