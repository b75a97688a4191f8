"""What a layer keeps for a block of tokens, and what a worker allocates for all of its layers.

A *page* is what one layer keeps for one block; a block of the pool is a page in every layer. The
kinds of layers differ in two figures only: the bytes of a page, and the pages that one request may
need at once. Both are plain integer functions here, so that they can be checked without a model;
the models around them check what enters and do not change. Chapter 5.6.3; dtypes are named as torch
names them, and torch is not needed.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DType = Literal[
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
]
"""What a key or a value may be stored as, by torch's name."""

DTYPE_SIZE_BYTES: Final[dict[DType, int]] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


def page_size_bytes_of(
    coef: int, block_size: int, num_kv_heads: int, head_size: int, dtype_size: int
) -> int:
    """The bytes that one layer keeps for one block (chapter 5.6.3).

    `coef` counts the vectors of a token and head: 2 for a key and a value, 1 for the latent of MLA.
    """
    return coef * block_size * num_kv_heads * head_size * dtype_size


def num_pages_of(num_tokens: int, block_size: int) -> int:
    """`ceil(num_tokens / block_size)`: the pages that so many tokens fill or begin."""
    return -(-num_tokens // block_size)


def num_window_pages_of(
    sliding_window: int, max_num_batched_tokens: int, max_model_len: int, block_size: int
) -> int:
    """The most pages that a request with a sliding window holds at once (chapter 5.6.3).

    A step reads the last `sliding_window - 1` computed tokens and writes up to
    `max_num_batched_tokens`; the extra page is there because the window may begin inside a block.
    """
    num_tokens = min(sliding_window - 1 + max_num_batched_tokens, max_model_len)
    return num_pages_of(num_tokens, block_size) + 1


class FrozenModel(BaseModel):
    """Data that is checked when it enters and does not change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class AttentionSpec(FrozenModel):
    """What every kind of layer has; one request needs the pages of all of its tokens.

    `block_size` counts the tokens of a block, `num_kv_heads` the key-value heads *of one worker*,
    `head_size` the elements of one head's vector. A value out of range raises pydantic's
    `ValidationError`.
    """

    coef: ClassVar[int] = 2

    kind: str
    block_size: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)
    dtype: DType

    @property
    def type_id(self) -> str:
        """The name of what makes layers alike to the manager; groups are sorted by it."""
        return f"{self.kind}_{self.block_size}_{self.page_size_bytes}"

    @property
    def page_size_bytes(self) -> int:
        """The bytes that one layer of this kind keeps for one block."""
        return page_size_bytes_of(
            self.coef,
            self.block_size,
            self.num_kv_heads,
            self.head_size,
            DTYPE_SIZE_BYTES[self.dtype],
        )

    def num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:  # noqa: ARG002  # the kinds share one signature
        """The most pages that one request holds at once in one layer."""
        return num_pages_of(max_model_len, self.block_size)

    def max_memory_usage_bytes(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most bytes that one request needs at once in one layer (chapter 5.6.3)."""
        return self.num_pages(max_model_len, max_num_batched_tokens) * self.page_size_bytes


class FullAttentionSpec(AttentionSpec):
    """A layer whose queries read every earlier position; it keeps a key and a value."""

    kind: Literal["full_attention"] = "full_attention"


class MLAAttentionSpec(AttentionSpec):
    """A full-attention layer that keeps one latent vector in place of keys and values.

    `head_size` is the latent's rank plus its rotary part. There is one head, and every worker keeps
    it.
    """

    coef: ClassVar[int] = 1

    kind: Literal["mla_attention"] = "mla_attention"
    num_kv_heads: Literal[1] = 1


class SlidingWindowSpec(AttentionSpec):
    """A layer whose queries read the last `sliding_window` positions, their own included."""

    kind: Literal["sliding_window"] = "sliding_window"
    sliding_window: int = Field(ge=2)

    @property
    def type_id(self) -> str:
        """The name of what makes layers alike to the manager; groups are sorted by it."""
        return f"{self.kind}_{self.sliding_window}_{self.block_size}_{self.page_size_bytes}"

    def num_pages(self, max_model_len: int, max_num_batched_tokens: int) -> int:
        """The most pages that one request holds at once in one layer: the window's and a step's."""
        return num_window_pages_of(
            self.sliding_window, max_num_batched_tokens, max_model_len, self.block_size
        )


KVCacheSpec = FullAttentionSpec | MLAAttentionSpec | SlidingWindowSpec
"""What one layer keeps; in JSON, `kind` tells which it is."""


class KVCacheTensor(FrozenModel):
    """What a worker allocates for one layer: `size` bytes."""

    size: int = Field(ge=1)


class KVCacheGroupSpec(FrozenModel):
    """Layers that share one block table, because they keep the same."""

    layer_names: tuple[str, ...] = Field(min_length=1)
    kv_cache_spec: Annotated[KVCacheSpec, Field(discriminator="kind")]


class KVCacheConfig(FrozenModel):
    """What one worker allocates and what the manager hands out (chapter 5.6.3 and 5.8).

    `num_blocks` counts the blocks that may be used, the null block included. A tensor holds at
    least as many pages: it is larger where another worker had less memory.
    `windows_kept_as_full` names the layers that read a window only and keep everything because
    other layers do, with the window's tokens.

    Raises pydantic's `ValidationError` for a layer in two groups or in none, a layer without a
    tensor, a tensor that is no whole number of pages or smaller than `num_blocks`.
    """

    num_blocks: int = Field(ge=2)
    tensors: dict[str, KVCacheTensor]
    kv_cache_groups: tuple[KVCacheGroupSpec, ...] = Field(min_length=1)
    windows_kept_as_full: dict[str, Annotated[int, Field(ge=2)]] = Field(default_factory=dict)

    @property
    def layer_specs(self) -> dict[str, KVCacheSpec]:
        """What each layer keeps, by the layer's name."""
        return {
            name: group.kv_cache_spec
            for group in self.kv_cache_groups
            for name in group.layer_names
        }

    @model_validator(mode="after")
    def _layers_have_tensors(self) -> Self:
        names = [name for group in self.kv_cache_groups for name in group.layer_names]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"layer {twice!r} is named twice; a layer is in one group, once")
        if odd := sorted(set(names) ^ set(self.tensors)):
            raise ValueError(f"layers {odd} are in a group or have a tensor, not both; give both")
        return self

    @model_validator(mode="after")
    def _tensors_hold_the_blocks(self) -> Self:
        for name, spec in self.layer_specs.items():
            size, page = self.tensors[name].size, spec.page_size_bytes
            if size % page or size < self.num_blocks * page:
                raise ValueError(
                    f"layer {name!r} has a tensor of {size} bytes; give whole pages of {page} "
                    f"bytes, {self.num_blocks} or more"
                )
        return self

    @model_validator(mode="after")
    def _kept_windows_are_full(self) -> Self:
        full = {n for n, spec in self.layer_specs.items() if isinstance(spec, FullAttentionSpec)}
        if odd := sorted(self.windows_kept_as_full.keys() - full):
            raise ValueError(f"layers {odd} keep no full attention; name layers that do")
        return self
