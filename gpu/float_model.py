"""A small decoder in floats, of the usual parts, to see what rounding does to a cache.

RMSNorm, rotary positions, grouped heads, softmax attention (`attention.float_mix`), a gated MLP
with SiLU, residual sums, the likeliest token next. A matrix product of another shape may add in
another order, so the same request has other last bits in another batch or chunk. This decoder is
therefore compared with tolerances (`tolerances.py`) and is no oracle; `exact_model.py` is.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch.nn import functional

from gpu.attention import Attend, Mix, float_mix
from gpu.exact_model import kv_cache_config
from gpu.layout import TORCH_DTYPES
from kvcache.interface import KVCacheConfig

FloatDType = Literal["float32", "bfloat16"]

ROPE_BASE: Final = 10_000.0


class FloatModel:
    """A decoder whose weights, arithmetic and cache are in one float dtype.

    `seed` decides the weights. `window` is the number of tokens that a query reads, its own
    included; None is all. A token stands for itself modulo the vocabulary.
    """

    num_heads: Final = 4
    num_kv_heads: Final = 2
    head_size: Final = 16
    hidden_size: Final = 64
    intermediate_size: Final = 128
    vocabulary_size: Final = 512

    def __init__(
        self,
        dtype: FloatDType,
        *,
        seed: int = 0,
        num_layers: int = 2,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dtype: FloatDType = dtype
        self.kv_dtype = TORCH_DTYPES[dtype]
        self.seed = seed
        self.num_layers = num_layers
        self.window = window
        self.device = torch.device(device)
        self.mix: Mix = float_mix
        self._weights = self._make_weights()
        pairs = torch.arange(0, self.head_size, 2, device=device) / self.head_size
        self._frequencies = ROPE_BASE**-pairs

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """The logits after each token: float32 `[T, vocabulary_size]`.

        `token_ids` and `positions` are int64 `[T]`; `attend` keeps keys and values and attends.
        """
        weights = self._weights
        hidden = weights["token"][token_ids % self.vocabulary_size]
        angles = positions[:, None].float() * self._frequencies
        rotations = angles.cos()[:, None], angles.sin()[:, None]
        for layer in range(self.num_layers):
            normed = self._norm(hidden)
            query, key, value = (
                (normed @ weights[f"{layer}.{name}"]).view(len(hidden), -1, self.head_size)
                for name in ("query", "key", "value")
            )
            mixed = attend(layer, _rotate(query, *rotations), _rotate(key, *rotations), value)
            hidden = hidden + mixed.flatten(1) @ weights[f"{layer}.output"]
            normed = self._norm(hidden)
            gate = functional.silu(normed @ weights[f"{layer}.gate"])
            up = normed @ weights[f"{layer}.up"]
            hidden = hidden + (gate * up) @ weights[f"{layer}.down"]
        return (self._norm(hidden) @ weights["logits"]).float()

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        """The likeliest tokens: int64 `[T]`."""
        return logits.argmax(dim=1)

    def kv_cache_config(self, num_blocks: int, block_size: int) -> KVCacheConfig:
        """What this model keeps: layers `layer.0`, `layer.1` and so on, of one kind."""
        shape = {
            "block_size": block_size,
            "num_kv_heads": self.num_kv_heads,
            "head_size": self.head_size,
            "dtype": self.dtype,
        }
        return kv_cache_config(shape, self.num_layers, self.window, num_blocks)

    def _norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self.hidden_size,))

    def _make_weights(self) -> dict[str, torch.Tensor]:
        """Normal numbers, scaled so that each map keeps the size of its input."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries = self.num_heads * self.head_size
        pairs = self.num_kv_heads * self.head_size
        shapes = {
            "token": (self.vocabulary_size, hidden),
            "logits": (hidden, self.vocabulary_size),
        }
        for layer in range(self.num_layers):
            shapes |= {
                f"{layer}.query": (hidden, queries),
                f"{layer}.key": (hidden, pairs),
                f"{layer}.value": (hidden, pairs),
                f"{layer}.output": (queries, hidden),
                f"{layer}.gate": (hidden, inner),
                f"{layer}.up": (hidden, inner),
                f"{layer}.down": (inner, hidden),
            }
        source = torch.Generator().manual_seed(self.seed)
        return {
            name: (torch.randn(shape, generator=source) * shape[0] ** -0.5).to(
                self.device, self.kv_dtype
            )
            for name, shape in shapes.items()
        }


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn element i and the one half a head further by their angle; angles are `[T, 1, half]`."""
    one, other = heads.float().chunk(2, dim=2)
    turned = (one * cosine - other * sine, one * sine + other * cosine)
    return torch.cat(turned, dim=2).to(heads.dtype)
