"""MS64: the fingerprint of a row, which is what one layer keeps of one token as keys or as values.

A row is read as little-endian 64-bit words, the last one filled up with zeros, and

    MS64(row) = sum over its words of mix64(word + seed + GOLDEN * index)   mod 2**64
    index     = ((2 * layer + plane) * block_size + offset in the block) * words of a row + word

where mix64 is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014). A sum has no order,
so Python integers, eager torch and every schedule of a kernel give the same number; an index in
each summand means that whatever changes places is seen: words, tokens, planes, layers. The block's
id is no part of it, so a copy of a block keeps its fingerprint. That of a page is the sum of its
rows'.

A change inside one word is seen with certainty, because mix64 is a bijection; any other fixed
change is missed with odds of about 2**-64. What is simpler misses more: an exclusive or and a plain
sum miss every exchange, and a sum of weights times words misses every even number of sign flips.
"""

from __future__ import annotations

from math import prod
from typing import Final

import torch

MASK: Final = 2**64 - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd: the step of splitmix64."""
WORD_BYTES: Final = 8

_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_NUM_CHUNK_WORDS: Final = 2**14
"""128 KiB: eager torch writes each step of the mixing to memory, and so it stays in the cache."""


def signed(value: int) -> int:
    """The int64 with the bits of `value` mod 2**64, which is how a tensor holds a fingerprint."""
    value &= MASK
    return value - 2**64 if value >> 63 else value


def mix64(word: int) -> int:
    """A word from 0 to 2**64 - 1, mixed; a bijection."""
    word = ((word ^ (word >> 30)) * _FIRST) & MASK
    word = ((word ^ (word >> 27)) * _SECOND) & MASK
    return word ^ (word >> 31)


def num_words_of(num_bytes: int) -> int:
    """`ceil(num_bytes / 8)`."""
    return -(-num_bytes // WORD_BYTES)


def first_word_index(layer: int, plane: int, offset: int, block_size: int, num_words: int) -> int:
    """The index of a row's first word; `plane` is 0 for keys, 1 for values."""
    return ((2 * layer + plane) * block_size + offset) * num_words


def ms64_of_row(row: bytes, *, seed: int, first_index: int) -> int:
    """The fingerprint of a row's bytes, from 0 to 2**64 - 1, in Python integers."""
    starts = range(0, len(row), WORD_BYTES)
    words = (int.from_bytes(row[start : start + WORD_BYTES], "little") for start in starts)
    return (
        sum(
            mix64((word + seed + GOLDEN * index) & MASK)
            for index, word in enumerate(words, first_index)
        )
        & MASK
    )


def words_of(rows: torch.Tensor) -> torch.Tensor:
    """The words of rows `[n, ...]` of any dtype: int64 `[n, words]`, a view where that is possible.

    NaNs keep their payload, because nothing is read as a float.
    """
    flat = rows.reshape(rows.shape[0], prod(rows.shape[1:])).contiguous().view(torch.uint8)
    if missing := -flat.shape[1] % WORD_BYTES:
        flat = torch.nn.functional.pad(flat, (0, missing))
    elif flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    return flat.view(torch.int64)


def word_steps(num_words: int, device: torch.device) -> torch.Tensor:
    """`GOLDEN * word` for the words of a row, int64 `[num_words]`."""
    return torch.arange(num_words, device=device) * signed(GOLDEN)


def row_keys(
    offsets: torch.Tensor, *, seed: int, layer: int, plane: int, block_size: int, num_words: int
) -> torch.Tensor:
    """`seed + GOLDEN * first_word_index` for offsets in blocks, int64 `[n]` both."""
    start = seed + GOLDEN * first_word_index(layer, plane, 0, block_size, num_words)
    return offsets * signed(GOLDEN * num_words) + signed(start)


def ms64_rows(words: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """The fingerprints of rows: int64 `[n, words]`, `[n]` and `[words]` to int64 `[n]`.

    int64 wraps as an unsigned word does, and has no logical shift: what comes in from the left is
    masked away. The steps are an argument because torch 2.13 compiles `arange(n) * GOLDEN` wrongly
    where n is not fixed.
    """
    mixed = words + steps
    mixed += keys.unsqueeze(-1)
    mixed ^= (mixed >> 30) & (MASK >> 30)
    mixed *= signed(_FIRST)
    mixed ^= (mixed >> 27) & (MASK >> 27)
    mixed *= signed(_SECOND)
    mixed ^= (mixed >> 31) & (MASK >> 31)
    return mixed.sum(-1)


def ms64_rows_in_chunks(
    words: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor
) -> torch.Tensor:
    """What `ms64_rows` gives, some rows at a time: faster in eager torch, where rows are many."""
    num_rows = max(1, _NUM_CHUNK_WORDS // max(1, words.shape[1]))
    if words.shape[0] <= num_rows:
        return ms64_rows(words, keys, steps)
    parts = zip(torch.split(words, num_rows), torch.split(keys, num_rows), strict=True)
    return torch.cat([ms64_rows(some, their_keys, steps) for some, their_keys in parts])
