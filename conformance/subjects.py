"""Finds a block manager by name: ours, a release of vLLM, or anybody's as `module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple, cast

from conformance.adapters.reference import Reference
from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.program import VERBS, Factory

BUILT_IN: Final[Mapping[str, Factory]] = {
    "reference": Reference,
    "reference-builtin": partial(Reference, caching_hash_algo="builtin"),
}
"""Our manager, with keys by sha256 and by Python's own hash."""


class Peer(NamedTuple):
    """Where the adapter of a release of vLLM stands, and the module that loads the release."""

    adapter: str
    class_name: str
    loader: str


PEERS: Final[Mapping[str, Peer]] = {
    "vllm-0.8.5": Peer("vllm_0_8_5", "VLLM085", "sources_0_8_5"),
    "vllm": Peer("vllm", "VLLM", "sources_0_33_0"),
}
"""Releases of vLLM, which are loaded when they are asked for and need not be here."""

LOOKS: Final = ("snapshot", "look", "table", "num_free", "num_evictions")


class UnknownSubjectError(Exception):
    """A name that leads to no block manager; the text says why, and what to give."""


def find_subject(name: str) -> Factory:
    """Return what makes a subject of this name from a configuration."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in PEERS:
        return _peer(PEERS[name])
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        known = ", ".join((*BUILT_IN, *PEERS))
        raise UnknownSubjectError(f"{name!r} is no subject; give one of {known}, or module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UnknownSubjectError(
            f"{name!r}: there is no module {error.name!r}; put its folder on PYTHONPATH"
        ) from error
    made = getattr(module, class_name, None)
    if made is None:
        raise UnknownSubjectError(f"{name!r}: the module has no {class_name!r}")
    missing = [verb for verb in (*VERBS, *LOOKS) if not hasattr(made, verb)]
    if missing:
        raise UnknownSubjectError(f"{name!r} lacks {', '.join(missing)}; a subject has all of them")
    return cast("Factory", made)


def _peer(peer: Peer) -> Factory:
    """Return what makes a release of vLLM, which must be here."""
    try:
        importlib.import_module(f"conformance.adapters.{peer.loader}").load()
    except PeerMissingError as missing:
        raise UnknownSubjectError(str(missing)) from missing
    module = importlib.import_module(f"conformance.adapters.{peer.adapter}")
    return cast("Factory", getattr(module, peer.class_name))
