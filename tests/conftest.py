"""Fixtures that more than one test file needs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

TRACES_VARIABLE = "KVSPEC_TRACES"


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """Return the folder of the public traces; a test that needs it skips when none is named."""
    folder = os.environ.get(TRACES_VARIABLE)
    if not folder:
        pytest.skip(
            f"{TRACES_VARIABLE} is not set: name the folder that holds mooncake/ and "
            "kv-cache-tester/ (`make traces` says which files belong there)"
        )
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"{TRACES_VARIABLE} is not a folder: {folder!r}; correct it or unset it")
    return path


@pytest.fixture(scope="session")
def sources_of() -> Callable[..., dict[str, str]]:
    """Return a function from rooms to the content of their Python files, by path."""
    root = Path(__file__).parents[1]

    def read(*rooms: str) -> dict[str, str]:
        paths = sorted(path for room in rooms for path in (root / room).rglob("*.py"))
        return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in paths}

    return read
