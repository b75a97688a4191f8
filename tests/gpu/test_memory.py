"""What is left for the cache is computed from snapshots of the device."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu.errors import ImpossibleMemory
from gpu.memory import (
    MemorySnapshot,
    available_by_growth,
    available_by_peak,
    requested_bytes_of,
)

GIB = 2**30

BYTES = st.integers(0, 100 * GIB)
SHARES = st.floats(0.01, 1)


@st.composite
def snapshots(draw: st.DrawFn) -> MemorySnapshot:
    """Draw figures of one moment, with a device that may be too full to be true."""
    total = draw(st.integers(1, 100 * GIB))
    peak = draw(BYTES)
    return MemorySnapshot(draw(st.integers(0, total)), total, draw(st.integers(0, peak)), peak)


def test_the_chapters_formula_by_hand() -> None:
    """80 at 0.9 is 72; the peak is 30, and 5 of what is taken are not torch's: 37 are left."""
    after = MemorySnapshot(
        free_bytes=55, total_bytes=80, torch_current_bytes=20, torch_peak_bytes=30
    )
    assert after.non_torch_bytes == 5
    assert available_by_peak(after, 0.9) == 72 - 30 - 5


def test_what_is_not_torchs_counts_only_above_zero() -> None:
    """Figures of two moments may say that torch has more than is taken; nothing is added then."""
    after = MemorySnapshot(
        free_bytes=70, total_bytes=80, torch_current_bytes=20, torch_peak_bytes=30
    )
    assert after.non_torch_bytes == -10
    assert available_by_peak(after, 0.9) == 72 - 30


def test_the_later_formula_by_hand() -> None:
    """75 were free and 50 are; 25 went, and a step needs 10 more: of 72, 37 are left.

    5 were taken by neighbours before the start. The chapter's formula charges for them, too.
    """
    started = MemorySnapshot(75, 80, 0, 0)
    after = MemorySnapshot(50, 80, 22, 32)
    assert available_by_growth(started, after, 0.9) == 72 - (75 - 50 + 32 - 22)
    assert available_by_peak(after, 0.9) == 72 - 32 - 8


def test_a_neighbour_that_left_is_not_counted_twice() -> None:
    """It gave back 40 while this worker took 25: less is taken than before, by 15."""
    started = MemorySnapshot(35, 80, 0, 0)
    after = MemorySnapshot(50, 80, 22, 32)
    assert available_by_growth(started, after, 0.9) == 50 - 10
    assert available_by_growth(started, after, 0.5) == 40 - 22 - 10


def test_a_neighbour_that_arrived_is_paid_for() -> None:
    """What it took is not free, whoever took it."""
    started = MemorySnapshot(80, 80, 0, 0)
    after = MemorySnapshot(20, 80, 22, 32)
    assert available_by_growth(started, after, 1) == 80 - 60 - 10
    assert available_by_peak(after, 1) == 80 - 32 - 38


@given(snapshots(), snapshots(), SHARES)
def test_the_figures_are_between_nothing_and_what_is_free(
    started: MemorySnapshot, after: MemorySnapshot, share: float
) -> None:
    """Both formulas, whatever the figures are."""
    most = max(0, after.free_bytes - after.activation_bytes)
    for available in (
        available_by_peak(after, share),
        available_by_growth(started, after, share),
    ):
        assert 0 <= available <= most


@given(snapshots(), SHARES)
def test_the_chapters_formula_needs_no_upper_bound(after: MemorySnapshot, share: float) -> None:
    """The bound by what is free changes nothing: the figure is the listing's, or 0."""
    listing = int(after.total_bytes * share) - after.torch_peak_bytes
    listing -= max(0, after.non_torch_bytes)
    assert available_by_peak(after, share) == max(0, listing)


@given(snapshots(), st.integers(0, GIB), SHARES, SHARES)
def test_more_use_leaves_less_and_more_share_leaves_more(
    after: MemorySnapshot, more: int, share: float, other: float
) -> None:
    """Monotone in the peak, in what neighbours take, and in the utilization."""
    current, peak = after.torch_current_bytes, after.torch_peak_bytes
    available = available_by_peak(after, share)
    higher = MemorySnapshot(after.free_bytes, after.total_bytes, current, peak + more)
    assert available_by_peak(higher, share) <= available
    fuller = MemorySnapshot(max(0, after.free_bytes - more), after.total_bytes, current, peak)
    assert available_by_peak(fuller, share) <= available
    low, high = sorted((share, other))
    assert available_by_peak(after, low) <= available_by_peak(after, high)


@given(snapshots(), snapshots(), SHARES)
def test_both_formulas_agree_on_an_empty_device(
    empty: MemorySnapshot, after: MemorySnapshot, share: float
) -> None:
    """Where nobody was before the start, what went since is what is taken."""
    assume(after.non_torch_bytes >= 0)
    empty = MemorySnapshot(after.total_bytes, after.total_bytes, 0, empty.torch_peak_bytes)
    assert available_by_growth(empty, after, share) == available_by_peak(after, share)


def test_all_of_the_device_may_be_asked_for() -> None:
    """1 is a share, as a whole number too."""
    assert requested_bytes_of(GIB, 1) == requested_bytes_of(GIB, 1.0) == GIB


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        ((0, 0, 0, 0), "total_bytes=0"),
        ((0, -5, 0, 0), "total_bytes=-5"),
        ((-1, 5, 0, 0), "free_bytes=-1"),
        ((6, 5, 0, 0), "free_bytes=6"),
        ((5, 5, -1, 0), "torch_current_bytes=-1"),
        ((5, 5, 3, 2), "torch_current_bytes=3"),
        ((5, 5, 0, -1), "torch_peak_bytes=-1"),
        ((5, 2**54, 0, 0), "total_bytes="),
        ((5.0, 6, 0, 0), r"free_bytes=5\.0"),
    ],
)
def test_figures_that_cannot_be_are_refused(figures: tuple[Any, ...], name: str) -> None:
    """The figure is named with its value and its bounds."""
    with pytest.raises(ImpossibleMemory, match=f"{name}.*give a whole number from"):
        MemorySnapshot(*figures)
