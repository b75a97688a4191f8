"""What the adapter of vLLM calls is compared with what an installed release takes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from conformance.adapters import sources_0_33_0
from conformance.adapters.sources_0_33_0 import differences


class Pool:
    """A pool of which one call takes what is given, and the others do not."""

    def touch(self, blocks: list[int]) -> None:
        """Take what is given."""

    def free_blocks(self, blocks: list[int], why: str) -> None:
        """Want more than is given, under another name."""

    def get_new_blocks(self, num_blocks: int, *more: int, kind: int = 0, **rest: int) -> None:
        """Take more than is given, and need none of it."""


GIVEN: Mapping[str, tuple[str, ...]] = {
    "block_pool.Pool.touch": ("self", "blocks"),
    "block_pool.Pool.free_blocks": ("self", "ordered_blocks"),
    "block_pool.Pool.get_new_blocks": ("self", "num_blocks"),
    "block_pool.Pool.gone": ("self",),
    "block_pool.Gone.touch": ("self",),
}


def test_each_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is gone, an argument that is not taken, one that is needed; nothing else."""
    monkeypatch.setattr(sources_0_33_0, "GIVEN", GIVEN)
    release = SimpleNamespace(block_pool=SimpleNamespace(Pool=Pool))
    assert list(differences(release)) == [
        "block_pool.Pool.free_blocks takes no ordered_blocks",
        "block_pool.Pool.free_blocks needs blocks",
        "block_pool.Pool.free_blocks needs why",
        "there is no block_pool.Pool.gone",
        "there is no block_pool.Gone.touch",
    ]
