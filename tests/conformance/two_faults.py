"""A manager with several faults at once, to be found by a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.adapters.reference import Reference
from conformance.subject import Refusal, Snapshot


class TwoFaults(Reference):
    """Two crashes under one property, a reset that always succeeds, and a gauge that is wrong."""

    name = "two-faults"

    def snapshot(self) -> Snapshot:
        """Return everything, and half of the pool as held."""
        return replace(super().snapshot(), usage=0.5)

    def touch(self, ids: Sequence[int]) -> None:
        """Touch blocks; two at once and three at once are too much."""
        super().touch(ids)
        assert len(ids) != 2, "two"
        assert len(ids) != 3, "three"

    def reset_prefix_cache(self) -> bool:
        """Say that the reset succeeded."""
        super().reset_prefix_cache()
        return True

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks; fewer than none are none."""
        try:
            return super().get_new_blocks(n)
        except Refusal:
            if n < 0:
                return ()
            raise
