"""Each guard keeps a property: when it is dropped, or a boundary moves, that property breaks."""

from collections.abc import Callable
from typing import Any

import pytest

from spec import statemachine as right
from spec.state import NULL, Config

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]


def one_token_early(config: Config, n: int) -> int:
    """Let the window reach one token less far back."""
    window = config.sliding_window
    return 0 if window is None else max(0, n - window + 2) // config.block_size


def test_a_window_that_ends_too_early_is_refuted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With W=3 the query at 3 reads position 1, in a block that is given up too early."""
    monkeypatch.setattr(Config, "skipped_blocks", one_token_early)
    w = world(4, sliding_window=3)
    w.add("A", "abcd")
    w.allocate("A", 3)
    w.run()
    assert w.broken() == []
    w.allocate("A", 1)
    names = {name for name, _ in w.broken()}
    assert names == {"a_request_reads_its_own_prefix", "skipped_positions_show_null"}


def _stale(w: Scene) -> None:
    w.new("A", "ab")
    w.add("B", "xyz")
    w.allocate("B", 1, (1,))


def _readable(w: Scene) -> None:
    w.add("B", "xyz")
    w.allocate("B", 1, (NULL,))


def _twice(w: Scene) -> None:
    w.add("A", "abcd")
    w.allocate("A", 4)
    w.allocate("A", 2)


def _without_reset(w: Scene) -> None:
    w.add("A", "abcd")
    w.allocate("A", 2)
    w.run()
    w("free", rid="A")
    w.allocate("A", 2)


@pytest.mark.parametrize(
    ("call", "rule", "violated"),
    [
        (_stale, "hit_is_stale", "a_request_reads_its_own_prefix"),
        (_readable, "null_hit_is_readable", "a_request_reads_its_own_prefix"),
        (_twice, "last_step_has_not_run", "nothing_unwritten_is_found"),
        (_without_reset, "computed_tokens_without_blocks", "nothing_unwritten_is_found"),
    ],
)
def test_a_guard_is_there_for_a_property(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Scene], None],
    rule: str,
    violated: str,
) -> None:
    """With the guard the call is refused; without it, the property breaks."""
    w = world(4)
    call(w)
    assert (w.steps[-1].result.rule, w.broken()) == (rule, [])
    monkeypatch.setattr(right, "may_allocate", lambda *_: None)
    w = world(4)
    call(w)
    assert violated in {name for name, _ in w.broken()}
