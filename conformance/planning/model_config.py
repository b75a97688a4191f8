"""What a model's `config.json` says about its KV cache.

The file is the one that Hugging Face's transformers writes. Only the fields below are read, and the
many others are allowed. Some shapes of public models are bundled, with these fields only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from conformance.workloads.trace_format import shorten
from kvcache.interface import (
    DTYPE_SIZE_BYTES,
    DType,
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

BUNDLED: Final = {path.stem: path for path in sorted(Path(__file__).parent.glob("models/*.json"))}
"""The bundled shapes by name."""

MAX_FILE_BYTES: Final = 16 * 2**20
_Count = Annotated[int, Field(ge=1, le=2**31)]
_NATURAL, _COUNT = "an integer, 0 or more", "an integer from 1 to 2**31"

EXPECTED: Final = {
    "num_hidden_layers": "an integer from 1 to 10000",
    "num_attention_heads": "an integer from 1 to 65536",
    "sliding_window": "an integer, 2 or more, or null for full attention",
    "use_sliding_window": "true or false",
    "max_window_layers": _NATURAL,
    "qk_rope_head_dim": _NATURAL,
    "layer_types": "a list of full_attention and sliding_attention",
    "torch_dtype": f"one of {', '.join(DTYPE_SIZE_BYTES)}",
    "dtype": f"one of {', '.join(DTYPE_SIZE_BYTES)}",
}
"""What a field must be, in words that do not change with the version of pydantic."""


class ModelConfigError(Exception):
    """A model's KV cache cannot be described; `str()` is `what: value; what to do`."""


class ModelConfig(BaseModel):
    """The fields of a `config.json` that decide the size of the KV cache.

    `num_key_value_heads` counts the heads of the whole model and is `num_attention_heads` where it
    is absent; `head_dim` is `hidden_size / num_attention_heads` where it is absent. A
    `kv_lora_rank` makes the model one with multi-head latent attention.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    num_hidden_layers: int = Field(ge=1, le=10_000)
    num_attention_heads: int = Field(ge=1, le=2**16)
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    hidden_size: _Count | None = None
    kv_lora_rank: _Count | None = None
    qk_rope_head_dim: int | None = Field(default=None, ge=0, le=2**31)
    sliding_window: int | None = Field(default=None, ge=2)
    use_sliding_window: bool | None = None
    max_window_layers: int | None = Field(default=None, ge=0)
    sliding_window_pattern: _Count | None = None
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = Field(
        default=None, strict=False
    )
    cache_implementation: str | None = None
    max_position_embeddings: _Count | None = None
    dtype: DType | None = Field(default=None, validation_alias=AliasChoices("torch_dtype", "dtype"))

    @property
    def is_mla(self) -> bool:
        """Whether the layers keep one latent vector a token."""
        return self.kv_lora_rank is not None

    @property
    def num_kv_heads(self) -> int:
        """The key-value heads of the whole model; 1 for MLA."""
        return 1 if self.is_mla else self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """The elements of the vector that is kept for one token and head."""
        if self.kv_lora_rank is not None:
            return self.kv_lora_rank + (self.qk_rope_head_dim or 0)
        return self.head_dim or (self.hidden_size or 0) // self.num_attention_heads

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer in tokens, None for full attention."""
        window = None if self.use_sliding_window is False else self.sliding_window
        layers = range(self.num_hidden_layers)
        if self.layer_types is not None:
            return tuple(window if "sliding" in kind else None for kind in self.layer_types)
        if self.sliding_window_pattern is not None:
            pattern = self.sliding_window_pattern
            return tuple(None if (layer + 1) % pattern == 0 else window for layer in layers)
        if self.use_sliding_window and self.max_window_layers is not None:
            first = self.max_window_layers
            return tuple(window if layer >= first else None for layer in layers)
        return (window,) * self.num_hidden_layers

    @model_validator(mode="after")
    def _has_a_head_size(self) -> Self:
        if self.is_mla and self.qk_rope_head_dim is None:
            raise ValueError("qk_rope_head_dim is missing beside kv_lora_rank; add it, 0 for none")
        if self.is_mla or self.head_dim is not None:
            return self
        if self.hidden_size is None:
            raise ValueError("head_dim and hidden_size are missing; add one of them")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size is no multiple of num_attention_heads: {self.hidden_size} and "
                f"{self.num_attention_heads}; correct them or add head_dim"
            )
        return self

    @model_validator(mode="after")
    def _has_whole_groups(self) -> Self:
        if not self.is_mla and self.num_attention_heads % self.num_kv_heads:
            raise ValueError(
                f"num_attention_heads is no multiple of num_key_value_heads: "
                f"{self.num_attention_heads} and {self.num_kv_heads}; correct them"
            )
        return self

    @model_validator(mode="after")
    def _says_which_layers_have_the_window(self) -> Self:
        kinds = self.layer_types
        if kinds is not None and len(kinds) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types must hold num_hidden_layers={self.num_hidden_layers} entries: "
                f"{len(kinds)}; correct one of the two"
            )
        if kinds is not None and "sliding_attention" in kinds and self.sliding_window is None:
            raise ValueError("layer_types names sliding_attention without sliding_window; add it")
        if self.is_mla and any(self.windows):
            raise ValueError("kv_lora_rank is given with sliding_window; remove one of them")
        if self.cache_implementation == "hybrid" and kinds is None is self.sliding_window_pattern:
            raise ValueError(
                "cache_implementation is 'hybrid' and no field says which layers have the window; "
                "add layer_types"
            )
        return self

    def worker_counts(self) -> list[int]:
        """Return every number of workers that the heads can be split over, or replicated on.

        The attention heads are split evenly. Key-value heads are split evenly too, or, where there
        are fewer of them than workers, each is kept by the same number of workers. What MLA keeps
        is kept whole by every worker.
        """
        heads, kv_heads = self.num_attention_heads, self.num_kv_heads
        return [
            count
            for count in range(1, heads + 1)
            if heads % count == 0 and (kv_heads % count == 0 or count % kv_heads == 0)
        ]

    def kv_cache_specs(
        self, num_workers: int, block_size: int, dtype: DType
    ) -> dict[str, KVCacheSpec]:
        """Return what each layer keeps on one of the workers, by the layer's name.

        Raises `ModelConfigError` for a number of workers that the heads do not allow.
        """
        counts = self.worker_counts()
        if num_workers not in counts:
            raise ModelConfigError(
                f"{self.num_attention_heads} attention heads and {self.num_kv_heads} key-value "
                f"heads cannot be split over {num_workers} workers; give one of "
                f"{', '.join(map(str, counts))}"
            )
        shape: dict[str, Any] = {
            "block_size": block_size,
            "num_kv_heads": max(1, self.num_kv_heads // num_workers),
            "head_size": self.head_size,
            "dtype": dtype,
        }
        specs: dict[str, KVCacheSpec] = {}
        for layer, window in enumerate(self.windows):
            name = f"layers.{layer}"
            if self.is_mla:
                specs[name] = MLAAttentionSpec(**shape)
            elif window is None:
                specs[name] = FullAttentionSpec(**shape)
            else:
                specs[name] = SlidingWindowSpec(**shape, sliding_window=window)
        return specs


def find_model(name: str) -> Path:
    """Return the file of a bundled shape, of a folder that holds a `config.json`, or the file.

    Raises `ModelConfigError` where there is none.
    """
    path = BUNDLED.get(name) or Path(name)
    try:
        if path.is_dir():
            path /= "config.json"
        if path.is_file():
            return path
        what = "is not a regular file" if path.exists() else "does not exist"
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    raise ModelConfigError(
        f"{path}: {what}; give the path of a config.json or one of {', '.join(BUNDLED)}"
    )


def load_model_config(path: Path) -> ModelConfig:
    """Return what a `config.json` says of the KV cache.

    Raises `ModelConfigError` with the path, what is wrong there, and what to do.
    """
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_FILE_BYTES else b""
    except OSError as error:
        raise ModelConfigError(
            f"{path}: cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
    if size > MAX_FILE_BYTES:
        raise ModelConfigError(
            f"{path}: is larger than {MAX_FILE_BYTES} bytes: {size}; give a config.json"
        )
    try:
        return _parse(raw)
    except ModelConfigError as error:
        raise ModelConfigError(f"{path}: {error}") from error


def _parse(raw: bytes) -> ModelConfig:
    if not raw.strip():
        raise ModelConfigError("is empty; give a config.json")
    try:
        fields = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        bad = f"byte 0x{raw[error.start]:02x} at position {error.start}"
        raise ModelConfigError(f"is not UTF-8: {bad}; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        near = shorten(raw.strip()[:60].decode("utf-8"))
        raise ModelConfigError(f"is not JSON: {error}: {near}; give a config.json") from error
    if not isinstance(fields, dict):
        raise ModelConfigError(f"must be one JSON object: {shorten(fields)}; give a config.json")
    try:
        return ModelConfig.model_validate(_of_the_language_model(fields))
    except ValidationError as error:
        raise ModelConfigError(_problem(error)) from error


def _of_the_language_model(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a model with images that describes its language model."""
    inner = fields.get("text_config")
    if "num_hidden_layers" in fields or not isinstance(inner, dict):
        return fields
    # The dtype often stands outside only; where both name one, servers take the outer one.
    outside = {name: value for name, value in fields.items() if name in {"torch_dtype", "dtype"}}
    names = {"torch_dtype", "dtype"} if outside else set()
    return {name: value for name, value in inner.items() if name not in names} | outside


def _problem(error: ValidationError) -> str:
    """Return the first thing that is wrong as `what: value; what to do`."""
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"])
    name, *index = (str(step) for step in first["loc"])
    if first["type"] == "missing":
        return f"{name} is missing; add the field"
    where = name + "".join(f"[{i}]" for i in index)
    expected = EXPECTED.get(name, _COUNT)
    if index:
        expected = expected.replace("a list of full_attention and", "full_attention or")
    return f"{where} must be {expected}: {shorten(first['input'])}; correct the value"
