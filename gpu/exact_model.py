"""A small decoder in whole numbers: the same tokens and the same cache, bit for bit, anywhere.

All arithmetic is modulo a prime and carried in float64. Sums stay below 2^53, so no order of a
reduction, no batch size, no chunk size and no device can change a number, and whatever differs from
a run without a cache is a fault of the cache. Floats cannot do that: the same request has other
last bits in another batch.

The shape is that of a decoder: linear maps, rotary positions, grouped heads, attention over the
prefix (`attention.exact_mix`), a quadratic MLP, residual sums, logits. Three things are made so
that a fault shows: the embedding sees all digits of the token and of its position, the weight of a
position is never 0, and the sampler reads the logits as the digits of the next token, so that two
different rows of logits are two different tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_256
from itertools import product
from math import ceil, log2
from typing import Final, Literal

import torch

from gpu.attention import Attend, Mix, exact_mix
from gpu.layout import TORCH_DTYPES
from kvcache.interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)

ExactDType = Literal["bfloat16", "int8", "float8_e4m3fn"]

PRIMES: Final[dict[ExactDType, int]] = {"bfloat16": 251, "int8": 127, "float8_e4m3fn": 13}
"""The largest prime p for which the dtype holds 0 .. p - 1 exactly; above lies what is no content.

bfloat16 counts to 256, int8 to 127, float8_e4m3fn to 16. int8 keeps 127 and the negative numbers,
the floats keep NaN for memory that nobody wrote.
"""

TOKEN_BITS: Final = 63
NEW_TOKEN_BITS: Final = 62
"""A generated token is below this power of two; a digit too many still fits int64."""

EXACT_LIMIT: Final = 2**53
"""float64 counts to here without a gap."""


class ExactModel:
    """A decoder modulo the prime of its cache's dtype.

    `seed` and shape decide every weight, on every machine. `window` is the number of tokens that a
    query reads, its own included; None is all. `device` is where it computes.
    """

    num_heads: Final = 4
    num_kv_heads: Final = 2
    head_size: Final = 8
    hidden_size: Final = 16
    intermediate_size: Final = 24

    def __init__(
        self,
        dtype: ExactDType,
        *,
        seed: int = 0,
        num_layers: int = 2,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dtype: ExactDType = dtype
        self.kv_dtype = TORCH_DTYPES[dtype]
        self.compute_dtype = torch.float64
        self.prime = PRIMES[dtype]
        self.seed = seed
        self.num_layers = num_layers
        self.window = window
        self.device = torch.device(device)
        self.mix: Mix = exact_mix(self.prime)
        # A token's digits in base p, and so many digits of logits that a token stays below 2^62.
        num_digits = ceil(TOKEN_BITS / log2(self.prime))
        self.num_logits = int(NEW_TOKEN_BITS / log2(self.prime))
        powers = [self.prime**i for i in range(num_digits)]
        self._powers = torch.tensor(powers, dtype=torch.int64, device=device)
        self._rotations = self._rotation_table()
        self._weights = self._make_weights(num_digits)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """The logits after each token: float64 `[T, num_logits]`, whole numbers below the prime.

        `token_ids` and `positions` are int64 `[T]`. `attend(layer, query, key, value)` keeps the
        keys and values, each `[T, num_kv_heads, head_size]`, and returns what the rows make of
        their contexts, `[T, num_heads, head_size]` as `query`; see `attention.Mix`.
        """
        weights, mod = self._weights, self._mod
        hidden = self._digits(token_ids) @ weights["token"]
        hidden = mod(hidden + self._digits(positions) @ weights["position"])
        for layer in range(self.num_layers):
            query, key, value = (
                mod(hidden @ weights[f"{layer}.{name}"]).view(len(hidden), -1, self.head_size)
                for name in ("query", "key", "value")
            )
            rotations = self._rotations[positions % len(self._rotations)]
            mixed = attend(
                layer, self._rotate(query, rotations), self._rotate(key, rotations), value
            )
            hidden = mod(hidden + mixed.flatten(1) @ weights[f"{layer}.output"])
            inner = mod(hidden @ weights[f"{layer}.up"] + weights[f"{layer}.bias"])
            hidden = mod(hidden + mod(inner * inner) @ weights[f"{layer}.down"])
        return mod(hidden @ weights["logits"])

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        """The next tokens: int64 `[T]`, 0 or more.

        The logits are the digits. One that is not finite, because memory that nobody wrote was
        read, counts as the digit p, which no good run has.
        """
        digits = torch.where(logits.isfinite(), logits, self.prime).to(torch.int64)
        return (digits * self._powers[: self.num_logits]).sum(dim=1)

    def kv_cache_config(self, num_blocks: int, block_size: int) -> KVCacheConfig:
        """What this model keeps: layers `layer.0`, `layer.1` and so on, of one kind."""
        shape = {
            "block_size": block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "dtype": self.dtype,
        }
        return kv_cache_config(shape, self.num_layers, self.window, num_blocks)

    def _mod(self, values: torch.Tensor) -> torch.Tensor:
        return torch.remainder(values, self.prime)

    def _digits(self, numbers: torch.Tensor) -> torch.Tensor:
        """int64 `[T]` in base p: float64 `[T, digits]`."""
        return (numbers[:, None] // self._powers % self.prime).to(torch.float64)

    def _rotate(self, heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        """Turn each pair of a head's elements; `rotations` is `[T, pairs, 2]`, cosine and sine."""
        cosine, sine = rotations[:, None, :, 0], rotations[:, None, :, 1]
        one, other = heads.view(*heads.shape[:2], -1, 2).unbind(dim=3)
        turned = (one * cosine - other * sine, one * sine + other * cosine)
        return self._mod(torch.stack(turned, dim=3).flatten(2))

    def _rotation_table(self) -> torch.Tensor:
        """Cosine and sine by position and pair: float64 `[period, pairs, 2]`.

        Pair j turns j + 1 times as fast as pair 0. The product of a turned query and a turned key
        depends on the distance of their positions only, as with angles.
        """
        turns = powers_of_rotation(self.prime)
        period = len(turns)
        table = [
            [turns[position * (pair + 1) % period] for pair in range(self.head_size // 2)]
            for position in range(period)
        ]
        return torch.tensor(table, dtype=torch.float64, device=self.device)

    def _make_weights(self, num_digits: int) -> dict[str, torch.Tensor]:
        hidden, inner = self.hidden_size, self.intermediate_size
        queries = self.num_heads * self.head_size
        pairs = self.num_kv_heads * self.head_size
        shapes = {
            "token": (num_digits, hidden),
            "position": (num_digits, hidden),
            "logits": (hidden, self.num_logits),
        }
        for layer in range(self.num_layers):
            shapes |= {
                f"{layer}.query": (hidden, queries),
                f"{layer}.key": (hidden, pairs),
                f"{layer}.value": (hidden, pairs),
                f"{layer}.output": (queries, hidden),
                f"{layer}.up": (hidden, inner),
                f"{layer}.bias": (1, inner),
                f"{layer}.down": (inner, hidden),
            }
        widest = max(rows for rows, _ in shapes.values())
        assert 2 * widest * self.prime**2 < EXACT_LIMIT, "a sum could be rounded"
        return {name: self._weight(name, *shape) for name, shape in shapes.items()}

    def _weight(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Numbers below p, from the seed and the name; the same on every machine."""
        data = shake_256(f"{self.seed}/{self.prime}/{name}".encode()).digest(rows * columns * 8)
        words = torch.frombuffer(bytearray(data), dtype=torch.int64) % self.prime
        return words.view(rows, columns).to(torch.float64).to(self.device)


def kv_cache_config(
    shape: Mapping[str, object], num_layers: int, window: int | None, num_blocks: int
) -> KVCacheConfig:
    """The configuration of layers that all keep the same; `shape` are the fields of their spec."""
    spec = (
        FullAttentionSpec.model_validate(shape)
        if window is None
        else SlidingWindowSpec.model_validate({**shape, "sliding_window": window})
    )
    names = tuple(f"layer.{layer}" for layer in range(num_layers))
    return KVCacheConfig(
        num_blocks=num_blocks,
        tensors={n: KVCacheTensor(size=num_blocks * spec.page_size_bytes) for n in names},
        kv_cache_groups=(KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec),),
    )


def powers_of_rotation(prime: int) -> list[tuple[int, int]]:
    """The powers of a rotation (cosine, sine) modulo a prime, from the 0th on, each once.

    A rotation is a pair with c*c + s*s = 1. They form a group of p - 1 or p + 1 members; the first
    one, in order, that has all others among its powers is taken.
    """
    order = prime - 1 if prime % 4 == 1 else prime + 1
    for cosine, sine in product(range(prime), repeat=2):
        if (cosine * cosine + sine * sine) % prime != 1:
            continue
        powers = [(1, 0)]
        while (turned := _turn(powers[-1], (cosine, sine), prime)) != (1, 0):
            powers.append(turned)
        if len(powers) == order:
            return powers
    raise ValueError(f"{prime} is no odd prime; no rotation has {order} powers")


def _turn(pair: tuple[int, int], by: tuple[int, int], prime: int) -> tuple[int, int]:
    (c, s), (cosine, sine) = pair, by
    return (c * cosine - s * sine) % prime, (c * sine + s * cosine) % prime
