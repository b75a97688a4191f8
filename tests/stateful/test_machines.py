"""The machines find nothing on our manager, and see in the profile all that must be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from rich.console import Console
from rich.table import Table

from conformance.exhaustive.coverage import ALL_STATES, ALL_TRANSITIONS
from spec.pool import TRANSITIONS
from spec.reachable import REACHABLE

Session = Any


@pytest.mark.slow
def test_the_machines_find_nothing_on_our_manager(session: Session, profile: settings) -> None:
    """Every example of the profile was made, on both kinds of keys, and none failed."""
    assert [run.failure for run in session.runs] == [None] * 3
    for run in session.runs:
        assert run.examples >= profile.max_examples
        assert run.calls > 10 * run.examples


@pytest.mark.slow
def test_all_that_must_be_seen_is_seen(
    session: Session,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every reachable property, state and transition was met; the counts are printed."""
    counts = dict(session.reached.counts())
    table = Table("seen", "times", title="What the machines saw")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
        record_property(name, count)
    with capsys.disabled():
        Console().print(table)
    assert session.reached.missing() == []
    assert set(REACHABLE) <= set(counts)
    assert len(counts) == len(REACHABLE) + len(ALL_STATES) + len(ALL_TRANSITIONS)


@pytest.mark.slow
def test_a_block_makes_no_other_transition_in_a_call_of_one_reference(session: Session) -> None:
    """What was seen beyond the allowed transitions are several of one kind in one call."""
    for effect, before, after in set(session.reached.transitions) - ALL_TRANSITIONS:
        between = {pair[1] for pair in TRANSITIONS[effect] if pair[0] is before}
        assert any((middle, after) in TRANSITIONS[effect] for middle in between)
