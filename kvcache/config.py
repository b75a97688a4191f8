"""The configuration of one block manager."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CacheConfig(BaseModel):
    """The parameters of a pool and its manager, checked when they enter and frozen since.

    `num_gpu_blocks` counts blocks and includes the null block (chapter 5.3.3); `block_size`,
    `max_model_len` and `sliding_window` count tokens. `sliding_window=None` is full attention
    (chapter 5.7). `caching_hash_algo` chooses the key function (chapter 5.5.3). A value out of
    range raises pydantic's `ValidationError`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    num_gpu_blocks: int = Field(ge=2)
    block_size: int = Field(ge=1)
    max_model_len: int = Field(ge=1)
    enable_caching: bool = True
    caching_hash_algo: Literal["sha256", "builtin"] = "sha256"
    sliding_window: int | None = Field(default=None, ge=2)
