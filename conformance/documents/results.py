"""What was recorded, for the documents: JSON below `docs/results/`, each with what it is of.

A result carries the versions that it was made with and a digest of the specification. When the
specification changes, a test asks for new results.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"

SPECIFIED = (
    "state",
    "pool",
    "statemachine",
    "registry",
    "steps",
    "invariants",
    "reachable",
    "scope",
    "world",
    "worlds",
    "liveness",
    "pairs",
)

ENCODER_SPECIFIED = ("encoder_cache", "encoder_properties", "encoder_explore", "encoder_worlds")
"""What the results of the encoder cache are of; it is searched within itself."""

OF: Mapping[str, tuple[str, ...]] = {
    "encoder": ENCODER_SPECIFIED,
    "contracts": (),
    "gpu": (),
    "kernels": (),
    "monitor": (),
}
"""What is not of the whole specification; contracts and tensors are of our manager alone."""


def specified(name: str) -> tuple[str, ...]:
    """Return the modules of the specification that a result is of."""
    return OF.get(name, SPECIFIED)


def digest_of_spec(modules: Sequence[str] = SPECIFIED) -> str:
    """Return a digest of what the specification says and what a world is.

    The search is left out: it decides how a world is walked, and the frozen counts hold it.
    """
    files = [ROOT / "spec" / f"{name}.py" for name in modules]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def stamp(modules: Sequence[str]) -> dict[str, Any]:
    """Return what a result was made of and with."""
    return {
        "spec": digest_of_spec(modules),
        "python": platform.python_version(),
        "kvspec": version("kvspec"),
        "machine": platform.machine(),
    }


def read(name: str) -> Mapping[str, Any]:
    """Return a recorded result; empty where there is none."""
    file = RESULTS / f"{name}.json"
    data: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return data


def write(name: str, data: Mapping[str, Any]) -> None:
    """Write a result down."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**stamp(specified(name)), **data}, indent=1, sort_keys=True)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
