"""Finds a block manager by name: ours, or anybody's as `module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Final, cast

from conformance.adapters.reference import Reference
from conformance.program import VERBS, Factory

BUILT_IN: Final[Mapping[str, Factory]] = {
    "reference": Reference,
    "reference-builtin": partial(Reference, caching_hash_algo="builtin"),
}
"""Our manager, with keys by sha256 and by Python's own hash."""

LOOKS: Final = ("snapshot", "look", "table", "num_free", "num_evictions")


class UnknownSubjectError(Exception):
    """A name that leads to no block manager; the text says why, and what to give."""


def find_subject(name: str) -> Factory:
    """Return what makes a subject of this name from a configuration."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        known = ", ".join(BUILT_IN)
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
