"""Cases 64 and 68: when a block leaves a sliding window."""

from collections.abc import Callable
from typing import Any

import pytest

Pool = Callable[..., Any]


def test_case_64_blocks_outside_the_window_are_released_at_the_first_decode_step(
    pool: Pool,
) -> None:
    """A prompt of 6 and a window of 3: the first step after the prefill gives back two blocks."""
    scene = pool(6, window=3)
    scene.new("A", "abcdef", says="g")
    assert (scene.table("A"), scene.held) == ([1, 2, 3], {1: 1, 2: 1, 3: 1})
    scene.gen("A", "h")
    assert scene.table("A") == [0, 0, 3, 4]
    assert (scene.held, scene.queue) == ({3: 1, 4: 1}, [5, 6, 2, 1])


@pytest.mark.parametrize("algo", ["sha256", "builtin"])
def test_case_64_no_step_holds_a_block_wholly_outside_the_window(pool: Pool, algo: str) -> None:
    """However long a request runs, it holds what the window covers and nothing else."""
    scene = pool(4, window=3, algo=algo)
    scene.new("A", "abcdef", says="g")
    for n in range(6, 20):
        scene.gen("A", "abcdefghijklmnopqrstuvwxyz"[n + 1])
        table = scene.table("A")
        assert table.count(0) == (n - 3 + 1) // 2
        assert len(scene.held) == len(table) - table.count(0)


BOUNDARY = [
    # window, block size, n, blocks that the query at position n does not read
    (3, 2, 2, 0),
    (3, 2, 3, 0),
    (3, 2, 4, 1),
    (3, 2, 5, 1),
    (3, 2, 6, 2),
    (2, 2, 2, 0),
    (2, 2, 3, 1),
    (4, 2, 4, 0),
    (4, 2, 5, 1),
    (5, 2, 6, 1),
    (2, 1, 2, 1),
    (3, 1, 2, 0),
    (3, 1, 3, 1),
    (4, 3, 5, 0),
    (4, 3, 6, 1),
]


@pytest.mark.parametrize(("window", "bs", "n", "released"), BOUNDARY)
def test_case_68_the_boundary_of_the_window_is_exact(
    pool: Pool, window: int, bs: int, n: int, released: int
) -> None:
    """`max(0, n - W + 1) // block_size` blocks go: one less is late, one more is read by n."""
    scene = pool(8, window=window, bs=bs)
    text = "abcdefgh"
    scene.new("A", text, tokens=n)
    filled = scene.table("A")
    assert filled == list(range(1, -(-n // bs) + 1))
    scene.adm("A", tokens=1)
    assert scene.table("A")[: len(filled)] == [0] * released + filled[released:]


def test_case_68_the_boundary_counts_written_tokens_and_not_scheduled_ones(pool: Pool) -> None:
    """A second chunk that starts at 3 still reads block 0, however far it reaches."""
    scene = pool(8, window=3)
    scene.play("new(A,abcdefgh,tokens=3); adm(A)")
    assert scene.table("A") == [1, 2, 3, 4]


def test_case_68_a_window_hit_shows_null_where_nothing_is_read(pool: Pool) -> None:
    """The next query at 4 reads 2 and 3: block 1 is needed and block 0 is null."""
    scene = pool(6, window=3)
    scene.play("new(A,abcde); free(A)")
    assert scene.look("B", "abcdx") == (0, 2)
    assert scene.refusal(scene.adm, "B", hits=(0, 0)) == "null_hit_is_readable"
    assert scene.adm("B").new == (4,)
    assert scene.table("B") == [0, 2, 4]
