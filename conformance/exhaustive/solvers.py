"""Finds the prover where the solvers are installed; everything else works without them."""

from __future__ import annotations

import importlib
from types import ModuleType


def prover() -> ModuleType | None:
    """Return the module that proves, or None where the solvers are not installed."""
    try:
        return importlib.import_module("conformance.exhaustive.prove")
    except ModuleNotFoundError as error:
        if error.name not in ("z3", "cvc5"):
            raise
        return None
