"""Loads the block manager of vLLM 0.8.5 from its sources, without vLLM's own requirements.

Six files under `vllm/v1` need little of the rest: a logger, a few helpers, names for annotations.
Small modules of our own stand in for that while they are loaded. Another release of vLLM may be
installed, or loaded, in the same process: what is known as `vllm` is put back afterwards.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

RELEASE: Final = "0.8.5"
LOADED: Final = ("core.kv_cache_manager", "core.kv_cache_utils", "kv_cache_interface", "request")
"""What is loaded by name, below `vllm.v1`; these bring the other two."""


class PeerMissingError(Exception):
    """A release of vLLM is not here; the text says what was looked for, and how to get it."""


class PlaceholderRange(NamedTuple):
    """Where a media item stands in a prompt, in tokens."""

    offset: int
    length: int


def sources() -> Path:
    """Return the folder that holds `vllm/v1` of the release. Raises `PeerMissingError`."""
    peers = os.environ.get("KVSPEC_PEERS")
    root = Path(peers) if peers else Path(__file__).parents[2] / ".venv-peers"
    folder = root / f"vllm-{RELEASE}"
    if not (folder / "vllm" / "v1" / "core" / "kv_cache_manager.py").is_file():
        raise PeerMissingError(
            f"the sources of vLLM {RELEASE} are not in {folder}; run `make peers`, or name the "
            "folder that it made in KVSPEC_PEERS"
        )
    return folder


@cache
def load() -> SimpleNamespace:
    """Return the release's modules, by the last part of their names. Raises `PeerMissingError`."""
    with _alone(sources()):
        modules = [importlib.import_module(f"vllm.v1.{name}") for name in LOADED]
    return SimpleNamespace(**{m.__name__.rpartition(".")[2]: m for m in modules})


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make `vllm` mean the sources in a folder, and what stands in for the rest."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_loaded_anew(name)}
    package = ModuleType("vllm")
    package.__path__ = [str(folder / "vllm")]
    sys.modules["vllm"] = package
    for name, contents in _stand_ins().items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _is_loaded_anew(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _is_loaded_anew(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("vllm", "torch")


def _stand_ins() -> Mapping[str, Mapping[str, Any]]:
    names = {
        "torch": ["dtype"],
        "vllm.config": ["VllmConfig"],
        "vllm.multimodal.inputs": ["MultiModalKwargs"],
        "vllm.sampling_params": ["SamplingParams"],
        "vllm.v1.engine": ["EngineCoreEvent", "EngineCoreEventType", "EngineCoreRequest"],
        "vllm.v1.spec_decode.metrics": ["SpecDecodingStats"],
        "vllm.v1.structured_output.request": ["StructuredOutputRequest"],
    }
    made: dict[str, dict[str, Any]] = {
        module: {name: type(name, (), {}) for name in known} for module, known in names.items()
    }
    made["vllm.multimodal.inputs"]["PlaceholderRange"] = PlaceholderRange
    made["vllm.v1.engine"]["FinishReason"] = Enum("FinishReason", "STOP LENGTH ABORT")
    made["vllm.logger"] = {"init_logger": logging.getLogger}
    made["vllm.v1.utils"] = {"ConstantList": lambda tokens: tokens}
    made["vllm.utils"] = {
        "GiB_bytes": 1 << 30,
        "cdiv": lambda a, b: -(-a // b),
        "get_dtype_size": lambda dtype: dtype.itemsize,
        "is_list_of": lambda values, kind: all(isinstance(value, kind) for value in values),
        "sha256": _sha256,
    }
    return made


def _sha256(value: object) -> int:
    """Return the digest of a value's pickle as a number, as the release makes its keys."""
    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return int.from_bytes(hashlib.sha256(pickled).digest(), "big")
