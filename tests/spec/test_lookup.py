"""A look-up finds the longest prefix that need not be computed, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from spec.state import NULL

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]


@pytest.mark.parametrize(
    ("letters", "hits"),
    [
        ("a", ()),
        ("ab", ()),
        ("abc", (1,)),
        ("abcd", (1,)),
        ("abcde", (1, 2)),
        ("abcdef", (1, 2)),
        ("abcdefg", (1, 2, 3)),
        ("abxdef", (1,)),
        ("xbcdef", ()),
        ("cdefg", ()),
    ],
)
def test_the_longest_prefix_of_whole_blocks_is_found(
    world: World, letters: str, hits: tuple[int, ...]
) -> None:
    """At least the last token is computed, so two equal prompts share all but its block."""
    w = world(8)
    w.new("A", "abcdefgh")
    w.add("B", letters)
    before = w.state
    assert w.look("B") == hits
    assert before is w.state
    assert w.broken() == []


def test_a_hole_ends_the_prefix(world: World) -> None:
    """What stands behind a block that was taken back cannot be used."""
    w = world(4)
    w.new("A", "abcdef")
    w("unpublish", ids=(2,))
    w.add("B", "abcdefg")
    assert w.look("B") == (1,)


def test_the_first_of_several_copies_is_found(world: World) -> None:
    """Two requests that compute one prompt side by side leave two copies, and one is named."""
    w = world(6)
    for rid in "AB":
        w.add(rid, "abc")
        w.allocate(rid, 3)
    w.run()
    assert (w.table("A"), w.table("B")) == ((1, 2), (3, 4))
    w.add("C", "abc")
    assert w.look("C") == (1,)
    w.end("A")
    w.end("B")
    w("get_new_blocks", n=4)
    assert w.look("C") == (3,)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, False),
        ({"salt": "x"}, True),
        ({"salt": "y"}, False),
        ({"lora": ("x", 0)}, False),
        ({"media": (("x", 0, 2),)}, False),
    ],
)
def test_only_the_same_content_is_found(
    world: World, options: dict[str, Any], *, found: bool
) -> None:
    """Equal tokens under another salt, adapter or image are another prefix."""
    w = world(4)
    w.new("A", "abc", salt="x")
    w.add("B", "abc", **options)
    assert w.look("B") == ((1,) if found else ())
    assert w.broken() == []


def test_prompt_logprobs_need_every_token_and_still_publish(world: World) -> None:
    """Such a request hits nothing; others hit what it computed."""
    w = world(6)
    w.new("A", "abc")
    w.add("B", "abc", prompt_logprobs=True)
    assert w.look("B") == ()
    w.new("C", "xyz", prompt_logprobs=True)
    w.add("D", "xyz")
    assert w.look("D") == w.table("C")[:1]


def test_an_idle_block_at_the_head_of_the_queue_is_found(world: World) -> None:
    """Being the next victim is no reason not to be used."""
    w = world(1)
    w.new("A", "ab")
    w.end("A")
    w.add("B", "abc")
    assert (w.look("B"), w.state.pool.queue) == ((1,), (1,))


def windowed(world: World, window: int, gone: tuple[int, ...]) -> Scene:
    """Return a world in which four blocks of a prompt were cached, less some."""
    w = world(9, sliding_window=window)
    w.new("A", "abcdefgh")
    w("unpublish", ids=gone)
    w.add("B", "abcdefghi")
    return w


@pytest.mark.parametrize(
    ("window", "gone", "hits"),
    [
        (3, (), (NULL, NULL, NULL, 4)),
        (3, (4,), (NULL, NULL, 3)),
        (3, (2, 4), (NULL, NULL, 3)),
        (3, (2, 3, 4), (1,)),
        (3, (1, 2, 3, 4), ()),
        (5, (), (NULL, NULL, 3, 4)),
        (5, (4,), (NULL, 2, 3)),
        (5, (3,), (1, 2)),
        (5, (2,), (NULL, NULL, 3, 4)),
        (5, (2, 4), (1,)),
        (5, (1, 3), ()),
        (6, (), (NULL, 2, 3, 4)),
        (9, (), (1, 2, 3, 4)),
        (9, (4,), (1, 2, 3)),
        (9, (1,), ()),
        (2, (), (NULL, NULL, NULL, 4)),
    ],
)
def test_a_window_needs_only_what_its_next_query_reads(
    world: World, window: int, gone: tuple[int, ...], hits: tuple[int, ...]
) -> None:
    """The right-most run that covers the window is found; a shorter one counts from the start."""
    w = windowed(world, window, gone)
    assert w.look("B") == hits
    assert isinstance(w.admit("B"), tuple)
    w.run()
    assert w.broken() == []
