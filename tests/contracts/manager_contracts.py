"""Contracts on `kvcache.manager`: the numbers of blocks that a call asks for, of any size.

The manager's own methods run. Around them stand a table that is only a length, and one object in
the place of pool, chain and kind of attention that writes down what it is asked for: the blocks
themselves play no part in the numbers. A function whose name begins with `wrong_` states what is
false.
"""

from types import SimpleNamespace
from typing import Any, cast

from kvcache import BlockHash, FullAttention, KVCacheBlock, KVCacheManager, Request
from kvcache.admission import Admission


class _Table:
    """A block table that is only a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def extend(self, blocks: list[KVCacheBlock]) -> None:
        """No block comes: what is asked for is written down elsewhere."""
        assert not blocks


class _Asked:
    """What the manager calls, with what it asked for: blocks, a range to seal, keys to look up."""

    null_block = KVCacheBlock(0)
    keeps_every_block = True
    num_skipped_blocks = FullAttention.num_skipped_blocks
    remove_skipped_blocks = FullAttention.remove_skipped_blocks

    def __init__(self, request: Request, free: int = 0) -> None:
        self.request = request
        self.free = free
        self.new: int | None = None
        self.sealed: tuple[int, int] | None = None
        self.num_keys: int | None = None
        self.keys: list[BlockHash] = []

    def get_num_free_blocks(self) -> int:
        """The free blocks of the pool."""
        return self.free

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Blocks of the pool."""
        self.new = num_blocks
        return []

    def cache_full_blocks(self, _table: object, _keys: object, first: int, end: int) -> None:
        """Entries `[first:end]` of a table are sealed."""
        self.sealed = first, end

    def extend(self) -> list[BlockHash]:
        """The keys of the chain."""
        return self.keys

    def adopt(self, found: list[BlockHash], start: int) -> None:
        """Nothing was found."""
        assert not found
        assert not start

    def find_longest_cache_hit(self, *arguments: Any) -> list[KVCacheBlock]:  # noqa: ANN401  # only the number of keys is read
        """Nothing is found."""
        self.num_keys = arguments[2]
        return []


def _request(start: int, num_tokens: int) -> Request:
    fields = {
        "request_id": "r",
        "num_computed_tokens": start,
        "num_tokens": num_tokens,
        "num_tokens_with_spec": num_tokens,
        "prompt_logprobs": None,
    }
    return cast("Request", SimpleNamespace(**fields))


def _admission(request: Request, held: int) -> Admission:
    """Return the record of a request that holds so many blocks and has sealed them all."""
    admission = Admission(request, [])
    admission.table = cast("list[KVCacheBlock]", _Table(held))
    admission.num_cached_blocks = held
    return admission


def _manager(asked: Any, block_size: int, **fields: Any) -> KVCacheManager:  # noqa: ANN401  # it stands in for three classes
    """Return a manager whose pool, chain and kind of attention are `asked`."""
    manager = object.__new__(KVCacheManager)
    config = SimpleNamespace(block_size=block_size, max_model_len=0, enable_caching=True)
    config.__dict__.update(fields)
    vars(manager).update(
        config=config,
        block_pool=asked,
        _attention=asked,
        _chains={"r": asked},
        _admissions={},
        _num_usable_blocks=config.max_model_len,
    )
    return manager


def _allocate(start: int, end: int, lookahead: int, held: int, free: int, block_size: int) -> int:
    """Return how many blocks a running request asks for, or -1 where the answer is None."""
    request = _request(start, end)
    asked = _Asked(request, free)
    # The model is as long as all the slots, and the request as long as its end.
    manager = _manager(asked, block_size, max_model_len=end + lookahead, enable_caching=False)
    manager._admissions["r"] = _admission(request, held)
    if manager.allocate_slots(request, end - start, None, lookahead) is None:
        assert asked.new is None
        return -1
    assert asked.new is not None
    return asked.new


def new_blocks_are_enough_and_no_more(
    start: int, end: int, lookahead: int, held: int, free: int, block_size: int
) -> None:
    """What a request holds and what it gets cover its slots, and one block less would not."""
    assert 1 <= start < end
    assert lookahead >= 0
    assert held >= 0
    assert block_size >= 1
    new = _allocate(start, end, lookahead, held, free, block_size)
    assert new == -1 or (held + new) * block_size >= end + lookahead
    assert new <= 0 or (held + new - 1) * block_size < end + lookahead


def new_is_never_negative_nor_more_than_free(
    start: int, end: int, lookahead: int, held: int, free: int, block_size: int
) -> None:
    """A request asks for no fewer than 0 blocks, and for no more than are free."""
    assert 1 <= start < end
    assert lookahead >= 0
    assert held >= 0
    assert free >= 0
    assert block_size >= 1
    new = _allocate(start, end, lookahead, held, free, block_size)
    assert new == -1 or 0 <= new <= free


def none_means_that_it_does_not_fit(
    start: int, end: int, lookahead: int, held: int, free: int, block_size: int
) -> None:
    """The answer is None exactly when all held and free blocks are too few for the slots."""
    assert 1 <= start < end
    assert lookahead >= 0
    assert held >= 0
    assert free >= 0
    assert block_size >= 1
    new = _allocate(start, end, lookahead, held, free, block_size)
    assert (new == -1) == ((held + free) * block_size < end + lookahead)


def _num_keys(num_tokens: int, block_size: int) -> int:
    """Return how many keys of a request are looked up."""
    request = _request(0, num_tokens)
    asked = _Asked(request)
    _manager(asked, block_size).get_computed_blocks(request)
    assert asked.num_keys is not None
    return asked.num_keys


def a_hit_leaves_a_token(num_tokens: int, block_size: int) -> None:
    """The blocks that may be hit end before the last token, so one is always left to compute."""
    assert num_tokens >= 1
    assert block_size >= 1
    assert 0 <= _num_keys(num_tokens, block_size) * block_size < num_tokens


def a_hit_may_cover_all_else(num_tokens: int, block_size: int) -> None:
    """One more block would reach the last token: the cap is as high as it can be."""
    assert num_tokens >= 1
    assert block_size >= 1
    assert (_num_keys(num_tokens, block_size) + 1) * block_size >= num_tokens


def _sealed(num_tokens: int, end: int, num_cached: int, block_size: int) -> int:
    """Return up to where a table is sealed when a call ends at `end`."""
    request = _request(0, num_tokens)
    asked, admission = _Asked(request), _admission(request, num_cached)
    _manager(asked, block_size)._seal(admission, end)
    # What is written down as sealed is what the pool was asked to seal.
    assert asked.sealed == (num_cached, admission.num_cached_blocks) or (
        asked.sealed is None and admission.num_cached_blocks == num_cached
    )
    return admission.num_cached_blocks


def only_full_confirmed_blocks_are_sealed(
    num_tokens: int, end: int, num_cached: int, block_size: int
) -> None:
    """What a call seals is full of tokens that are confirmed and scheduled."""
    assert num_tokens >= 1
    assert end >= 1
    assert num_cached >= 0
    assert block_size >= 1
    sealed = _sealed(num_tokens, end, num_cached, block_size)
    assert sealed == num_cached or sealed * block_size <= min(num_tokens, end)


def every_full_confirmed_block_is_sealed(
    num_tokens: int, end: int, num_cached: int, block_size: int
) -> None:
    """A call leaves no full block unsealed, and never takes a seal back."""
    assert num_tokens >= 1
    assert end >= 1
    assert num_cached >= 0
    assert block_size >= 1
    sealed = _sealed(num_tokens, end, num_cached, block_size)
    assert sealed >= num_cached
    assert (sealed + 1) * block_size > min(num_tokens, end)


def wrong_a_hit_may_cover_the_prompt(num_tokens: int, block_size: int) -> None:
    """All full blocks of a request may be hit, also one that ends with the last token."""
    assert num_tokens >= 1
    assert block_size >= 1
    assert _num_keys(num_tokens, block_size) == num_tokens // block_size


def wrong_a_block_begun_is_sealed(num_tokens: int, block_size: int) -> None:
    """The number of sealed blocks is rounded up."""
    assert num_tokens >= 1
    assert block_size >= 1
    assert _sealed(num_tokens, num_tokens, 0, block_size) == -(-num_tokens // block_size)


def wrong_drafts_are_sealed(num_tokens: int, end: int, block_size: int) -> None:
    """A block that is full of scheduled tokens is sealed, drafts included."""
    assert num_tokens >= 1
    assert end >= 1
    assert block_size >= 1
    assert _sealed(num_tokens, end, 0, block_size) == end // block_size


def wrong_new_is_a_difference(start: int, end: int, held: int, free: int, block_size: int) -> None:
    """The new blocks are those required less those held, however many those are."""
    assert 1 <= start < end
    assert held >= 0
    assert free >= 0
    assert block_size >= 1
    new = _allocate(start, end, 0, held, free, block_size)
    assert new == -1 or new == -(-end // block_size) - held
