# ruff: noqa: N818 -- a refusal is named after what is wrong, as its rule is
"""What makes it impossible to go from bytes to blocks, with the values that led to it."""

from __future__ import annotations

from kvcache.errors import KVCacheError
from kvcache.interface import KVCacheSpec


class NoAttentionLayers(KVCacheError, ValueError):
    """A model has no layer that keeps anything."""

    rule = "no_attention_layers"
    says = "the model has 0 layers with a KV cache; give the spec of 1 layer or more"


class NoMemoryForBlocks(KVCacheError, ValueError):
    """Nothing is left for the cache."""

    rule = "no_memory_for_blocks"
    says = (
        "{available_bytes} bytes are available for the cache; give 1 or more: raise "
        "gpu_memory_utilization, or use a smaller model or more workers"
    )
    available_bytes: int


class MemoryBelowOneRequest(KVCacheError, ValueError):
    """The memory cannot hold one request of the greatest length beside the null block."""

    rule = "memory_is_below_one_request"
    says = (
        "a request of max_model_len={max_model_len} tokens needs {needed_bytes} bytes with the "
        "null block and {available_bytes} are available; the greatest length that fits is "
        "{greatest_model_len} tokens: lower max_model_len, or raise gpu_memory_utilization"
    )
    max_model_len: int
    needed_bytes: int
    available_bytes: int
    greatest_model_len: int


class LayersDiffer(KVCacheError, ValueError):
    """Two layers keep different things, and one block table cannot serve both."""

    rule = "layers_have_different_specs"
    says = (
        "layer {layer!r} keeps {spec!r} and layer {other_layer!r} keeps {other_spec!r}; full and "
        "window layers of one shape are served together, anything else needs one spec"
    )
    layer: str
    spec: KVCacheSpec
    other_layer: str
    other_spec: KVCacheSpec


class NoWorkers(KVCacheError, ValueError):
    """There is nothing to agree on."""

    rule = "no_workers"
    says = "0 configurations were given; give one for each worker"


class WorkersDiffer(KVCacheError, ValueError):
    """A worker's layers keep something else than those of worker 0."""

    rule = "workers_have_different_specs"
    says = (
        "worker {worker}, layer {layer!r}: it keeps {found} and worker 0 keeps {expected}; start "
        "every worker with the same model, cache dtype and block size"
    )
    worker: int
    layer: str
    found: str
    expected: str
