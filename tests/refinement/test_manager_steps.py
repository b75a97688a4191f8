from collections.abc import Callable
from typing import Any

import pytest

from conformance.exhaustive.tour import Graph

Graphs = Callable[[str], Graph]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "every", "checks"),
    [
        ("tight", 40, 15_213),
        ("drafts", 80, 17_147),
        ("window", 40, 14_059),
        ("no-caching", 20, 9_571),
    ],
)
def test_a_loaded_manager_steps_as_specified(
    graph_of: Graphs, steps_of: Callable[[Graph], Any], name: str, every: int, checks: int
) -> None:
    """From all states each move, and from some all misuse, gives the same answer and state.

    Misuse is a call with any pair of hits, any number of tokens and any look-ahead. Most of it
    breaks a rule, much of it several at once, of which both sides name the same one.
    """
    graph = graph_of(name)
    steps = steps_of(graph)
    assert steps.moves() is None
    assert steps.checks == graph.num_transitions
    assert steps.misuse(every) is None
    assert steps.checks == checks
    assert steps.refused > checks // 2
