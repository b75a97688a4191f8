"""Contracts on `kvcache.attention`: where a window begins, for integers of any size.

A query at position `n` reads the positions `n - window + 1 .. n`. A function whose name begins with
`wrong_` states what is false.
"""

from kvcache import FullAttention, SlidingWindow


def no_skipped_block_is_read(window: int, n: int, block_size: int) -> None:
    """The last slot of the last skipped block lies before the first position that is read."""
    assert window >= 2
    assert n >= 0
    assert block_size >= 1
    skipped = SlidingWindow(window).num_skipped_blocks(n, block_size)
    assert skipped >= 0
    assert skipped == 0 or skipped * block_size - 1 < n - window + 1


def the_first_block_kept_is_read(window: int, n: int, block_size: int) -> None:
    """The first block that is not skipped holds a position that is read."""
    assert window >= 2
    assert n >= 0
    assert block_size >= 1
    skipped = SlidingWindow(window).num_skipped_blocks(n, block_size)
    assert (skipped + 1) * block_size > n - window + 1


def a_window_only_moves_on(window: int, n: int, block_size: int) -> None:
    """One more token skips at most one more block, and never one less."""
    assert window >= 2
    assert n >= 0
    assert block_size >= 1
    kind = SlidingWindow(window)
    now, then = kind.num_skipped_blocks(n, block_size), kind.num_skipped_blocks(n + 1, block_size)
    assert now <= then <= now + 1


def full_attention_skips_nothing(n: int, block_size: int) -> None:
    """With full attention no block is skipped."""
    assert n >= 0
    assert block_size >= 1
    assert FullAttention().num_skipped_blocks(n, block_size) == 0


def wrong_a_window_lets_go_one_token_early(window: int, n: int, block_size: int) -> None:
    """The window begins one position later than it does: a block is let go too early."""
    assert window >= 2
    assert n >= 0
    assert block_size >= 1
    skipped = SlidingWindow(window).num_skipped_blocks(n, block_size)
    assert skipped == max(0, n - window + 2) // block_size


def wrong_a_window_lets_go_one_token_late(window: int, n: int, block_size: int) -> None:
    """The window begins one position earlier than it does: a block is kept too long."""
    assert window >= 2
    assert n >= 0
    assert block_size >= 1
    skipped = SlidingWindow(window).num_skipped_blocks(n, block_size)
    assert skipped == max(0, n - window) // block_size
