"""Contracts on `kvcache.interface` and `kvcache.planning`: bytes, pages and blocks of any size.

A function whose name begins with `wrong_` states what is false.
"""

from kvcache.interface import num_pages_of, num_window_pages_of, page_size_bytes_of
from kvcache.planning import num_blocks_of


def a_page_holds_its_tokens(
    coef: int, block_size: int, num_kv_heads: int, head_size: int, dtype_size: int
) -> None:
    """A page is the bytes of one token, for each token of the block, and never empty."""
    assert coef >= 1
    assert block_size >= 1
    assert num_kv_heads >= 1
    assert head_size >= 1
    assert dtype_size >= 1
    page = page_size_bytes_of(coef, block_size, num_kv_heads, head_size, dtype_size)
    assert page == page_size_bytes_of(coef, 1, num_kv_heads, head_size, dtype_size) * block_size
    assert page >= block_size


def pages_hold_the_tokens(num_tokens: int, block_size: int) -> None:
    """The pages of a request have room for its tokens, and one page less has not."""
    assert num_tokens >= 0
    assert block_size >= 1
    pages = num_pages_of(num_tokens, block_size)
    assert pages >= 0
    assert (pages - 1) * block_size < num_tokens <= pages * block_size


def window_pages_hold_any_window(
    window: int, batched: int, longest: int, block_size: int, first: int
) -> None:
    """The pages of a window hold it with a step's tokens, wherever in a block it begins."""
    assert window >= 2
    assert batched >= 1
    assert longest >= 1
    assert block_size >= 1
    assert 0 <= first < block_size
    num_tokens = min(window - 1 + batched, longest)
    pages = num_window_pages_of(window, batched, longest, block_size)
    assert first + num_tokens <= pages * block_size


def blocks_fit_the_memory(available: int, page: int, layers: int) -> None:
    """The pages of all blocks in all layers are no more bytes than there are."""
    assert page >= 1
    assert layers >= 1
    blocks = num_blocks_of(available, page, layers)
    assert blocks >= 0
    assert blocks * page * layers <= max(0, available)


def one_block_more_does_not_fit(available: int, page: int, layers: int) -> None:
    """One block more, in all layers, would be more bytes than there are."""
    assert page >= 1
    assert layers >= 1
    assert (num_blocks_of(available, page, layers) + 1) * page * layers > available


def wrong_a_window_needs_no_page_more(
    window: int, batched: int, longest: int, block_size: int, first: int
) -> None:
    """The pages of a window are those of its tokens, though it may begin inside a block."""
    assert window >= 2
    assert batched >= 1
    assert longest >= 1
    assert block_size >= 1
    assert 0 <= first < block_size
    num_tokens = min(window - 1 + batched, longest)
    assert first + num_tokens <= num_pages_of(num_tokens, block_size) * block_size


def wrong_the_budget_is_rounded_up(available: int, page: int, layers: int) -> None:
    """The blocks use up every byte there is."""
    assert available >= 0
    assert page >= 1
    assert layers >= 1
    assert num_blocks_of(available, page, layers) * page * layers >= available
