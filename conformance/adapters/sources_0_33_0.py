"""Loads the block manager of the installed vLLM, and says how it differs from release 0.33.0.

vLLM is loaded by name and when it is asked for, so that all else works without it. The adapter
beside this file was written for one release. Another one is tried: what it takes is compared with
what the adapter gives, and a warning names the difference.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any, Final

from conformance.adapters.sources_0_8_5 import PeerMissingError

RELEASE: Final = "0.33.0"

LOADED: Final = (
    "torch",
    "vllm.lora.request",
    "vllm.multimodal.inputs",
    "vllm.sampling_params",
    "vllm.utils.hashing",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.request",
)

GIVEN: Final[Mapping[str, tuple[str, ...]]] = {
    "kv_cache_manager.KVCacheManager": (
        "kv_cache_config",
        "max_model_len",
        "scheduler_block_size",
        "hash_block_size",
        "enable_caching",
    ),
    "kv_cache_manager.KVCacheManager.get_computed_blocks": ("self", "request"),
    "kv_cache_manager.KVCacheManager.allocate_slots": (
        "self",
        "request",
        "num_new_tokens",
        "num_new_computed_tokens",
        "new_computed_blocks",
        "num_lookahead_tokens",
    ),
    "kv_cache_manager.KVCacheManager.free": ("self", "request"),
    "kv_cache_manager.KVCacheManager.reset_prefix_cache": ("self",),
    "kv_cache_manager.KVCacheBlocks": ("blocks",),
    "block_pool.BlockPool.get_new_blocks": ("self", "num_blocks"),
    "block_pool.BlockPool.touch": ("self", "blocks"),
    "block_pool.BlockPool.free_blocks": ("self", "ordered_blocks"),
    "block_pool.BlockPool.cache_full_blocks": (
        "self",
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
    ),
    "block_pool.BlockPool._maybe_evict_cached_block": ("self", "block"),
    "kv_cache_utils.KVCacheBlock": ("block_id",),
    "kv_cache_utils.get_request_block_hasher": ("hash_block_size", "caching_hash_fn"),
    "kv_cache_utils.init_none_hash": ("hash_fn",),
    "kv_cache_interface.KVCacheConfig": ("num_blocks", "kv_cache_tensors", "kv_cache_groups"),
    "kv_cache_interface.KVCacheGroupSpec": ("layer_names", "kv_cache_spec"),
    "kv_cache_interface.FullAttentionSpec": ("block_size", "num_kv_heads", "head_size", "dtype"),
    "kv_cache_interface.SlidingWindowSpec": (
        "block_size",
        "num_kv_heads",
        "head_size",
        "dtype",
        "sliding_window",
    ),
    "request.Request": (
        "request_id",
        "prompt_token_ids",
        "sampling_params",
        "pooling_params",
        "mm_features",
        "lora_request",
        "cache_salt",
        "block_hasher",
    ),
    "request.Request.append_output_token_ids": ("self", "token_ids"),
}
"""What the adapter calls, and the arguments that it gives."""


class ReleaseWarning(UserWarning):
    """Another release than the adapter was written for; the text names the difference."""


@cache
def load() -> SimpleNamespace:
    """Return the modules of the installed vLLM, by the last part of their names.

    Warns with `ReleaseWarning` when it is another release than 0.33.0. Raises `PeerMissingError`
    where none is installed.
    """
    try:
        installed = version("vllm")
    except PackageNotFoundError:
        raise PeerMissingError(
            f"vLLM is not installed beside {sys.executable}; run `make peers`, which installs "
            f"release {RELEASE}, and use the command in .venv-peers/bin"
        ) from None
    with warnings.catch_warnings():
        # What the release imports uses old names of its own libraries; that is not ours to mend.
        warnings.simplefilter("ignore", DeprecationWarning)
        modules = [importlib.import_module(name) for name in LOADED]
    # A reset that is refused is a warning there, and a search asks for thousands.
    logging.getLogger("vllm").setLevel(logging.ERROR)
    vllm = SimpleNamespace(lora=modules[1], **{_last(m.__name__): m for m in modules[2:]})
    vllm.torch, vllm.release = modules[0], installed
    vllm.block_pool = importlib.import_module(vllm.kv_cache_manager.__package__ + ".block_pool")
    vllm.kv_cache_utils.init_none_hash(vllm.hashing.sha256)
    if installed != RELEASE:
        found = list(differences(vllm)) or ["none in what is called; the behaviour may differ"]
        warnings.warn(
            f"this adapter was written for vLLM {RELEASE} and {installed} is installed; "
            f"differences: {'; '.join(found)}",
            ReleaseWarning,
            stacklevel=2,
        )
    return vllm


def differences(vllm: SimpleNamespace) -> Iterator[str]:
    """Yield what of the adapter's calls does not fit what is there."""
    for name, given in GIVEN.items():
        module, *path = name.split(".")
        found: Any = getattr(vllm, module)
        for part in path:
            found = getattr(found, part, None)
        if found is None:
            yield f"there is no {name}"
            continue
        yield from _unfit(name, found, given)


def _unfit(name: str, called: Callable[..., object], given: tuple[str, ...]) -> Iterator[str]:
    taken = inspect.signature(called).parameters
    for argument in given:
        if argument not in taken:
            yield f"{name} takes no {argument}"
    for argument, parameter in taken.items():
        needed = parameter.default is parameter.empty
        if needed and argument not in given and parameter.kind not in VARIABLE:
            yield f"{name} needs {argument}"


VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
