"""`Admission`, the manager's record of a request that holds blocks, and what refuses a call for it.

The refusals are errors of the caller. Each function raises the first that applies, in the order in
which its lines stand, and `KVCacheManager.allocate_slots` calls them before it changes anything.
Chapter 5.4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.errors import (
    ComputedWithoutBlocks,
    InvalidLookahead,
    InvalidTokenCount,
    NothingConfirmed,
    NullHitIsReadable,
    StaleHit,
    StepHasNotRun,
    TokensBeyondModelLength,
    TokensBeyondRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.block import KVCacheBlock
    from kvcache.hashing import BlockHash
    from kvcache.request import Request


class Admission:
    """What the manager knows of one request between its first allocation and its release.

    `table[i]` holds the tokens `[i * block_size, (i + 1) * block_size)`. The first
    `num_hit_blocks` entries were found, the entries up to `num_cached_blocks` are sealed or null,
    and `last_start` is the position where the last successful call started.
    """

    __slots__ = ("last_start", "num_cached_blocks", "num_hit_blocks", "request", "table")

    def __init__(self, request: Request, hits: Sequence[KVCacheBlock]) -> None:
        self.request = request
        self.table: list[KVCacheBlock] = list(hits)
        self.num_hit_blocks = len(hits)
        self.num_cached_blocks = len(hits)
        self.last_start = 0


def refuse_tokens(
    request: Request, num_tokens: int, num_lookahead_tokens: int, end: int, max_model_len: int
) -> None:
    """The tokens up to position `end` exist and fit the model.

    Raises `InvalidTokenCount`, `InvalidLookahead`, `TokensBeyondRequest` and
    `TokensBeyondModelLength`.
    """
    name, num_tokens_with_spec = request.request_id, request.num_tokens_with_spec
    if num_tokens < 1:
        raise InvalidTokenCount(request_id=name, num_tokens=num_tokens)
    if num_lookahead_tokens < 0:
        raise InvalidLookahead(request_id=name, num_lookahead_tokens=num_lookahead_tokens)
    if end > num_tokens_with_spec:
        raise TokensBeyondRequest(
            request_id=name, end=end, num_tokens_with_spec=num_tokens_with_spec
        )
    if end > max_model_len:
        raise TokensBeyondModelLength(request_id=name, end=end, max_model_len=max_model_len)


def refuse_stale_hits(
    request_id: str, hits: Sequence[KVCacheBlock], keys: Sequence[BlockHash], first_readable: int
) -> None:
    """The hits carry the request's keys, and those from `first_readable` on are not null.

    Raises `StaleHit`, `NullHitIsReadable`.
    """
    if [block.block_hash for block in hits] == keys[: len(hits)]:
        return
    for position, block in enumerate(hits):
        stale = position >= len(keys) or block.block_hash != keys[position]
        if stale and not block.is_null:
            raise StaleHit(request_id=request_id, block_id=block.block_id, position=position)
    for position, block in enumerate(hits[first_readable:], first_readable):
        if block.is_null:
            raise NullHitIsReadable(
                request_id=request_id, position=position, first_readable=first_readable
            )


def refuse_progress(request: Request, admission: Admission | None, start: int) -> None:
    """The last step has run, and this one computes a confirmed token after written ones.

    Raises `StepHasNotRun`, `NothingConfirmed`, `ComputedWithoutBlocks`.
    """
    name, num_computed = request.request_id, request.num_computed_tokens
    if admission is not None and num_computed <= admission.last_start:
        raise StepHasNotRun(
            request_id=name, num_computed_tokens=num_computed, last_start=admission.last_start
        )
    if start >= request.num_tokens:
        raise NothingConfirmed(request_id=name, start=start, num_tokens=request.num_tokens)
    if admission is None and num_computed != 0:
        raise ComputedWithoutBlocks(request_id=name, num_computed_tokens=num_computed)
