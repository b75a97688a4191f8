# ruff: noqa: N818 -- a refusal is named after what is wrong, as its rule is
"""Every refusal of this package is a class of its own, with the values that led to it.

A refusal has a `rule`, a stable name that another implementation's can be compared with, attributes
that carry the values, and a message that shows them, says what is wrong and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class KVCacheError(Exception):
    """The base of all refusals; keyword arguments become attributes and fill the message."""

    rule: ClassVar[str] = "kv_cache_error"
    about: ClassVar[str] = ""
    says: ClassVar[str] = "a call was refused"

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)
        super().__init__((self.about + self.says).format(**values))

    def __reduce__(self) -> tuple[object, ...]:
        # The default rebuilds from positional arguments, of which there are none.
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[KVCacheError], values: dict[str, object]) -> KVCacheError:
    return kind(**values)


class BlockRefusal(KVCacheError):
    """The base of refusals that concern one block of the pool."""

    about = "block {block_id} "
    block_id: int


class RequestRefusal(KVCacheError):
    """The base of refusals that concern one request."""

    about = "request {request_id!r}: "
    request_id: str


class InvalidPoolSize(KVCacheError, ValueError):
    """A pool needs the null block and one more."""

    rule = "pool_size_is_below_two"
    says = "num_gpu_blocks={num_gpu_blocks} counts the null block; give 2 or more"
    num_gpu_blocks: int


class NegativeBlockCount(KVCacheError, ValueError):
    """Fewer than zero blocks were asked for."""

    rule = "block_count_is_negative"
    says = "{wanted} blocks were asked for; ask for 0 or more"
    wanted: int


class NotEnoughBlocks(KVCacheError):
    """More blocks were asked for than are free."""

    rule = "not_enough_free_blocks"
    says = "{wanted} blocks were asked for and {free} are free; ask for less or free a request"
    wanted: int
    free: int


class ForeignBlock(KVCacheError):
    """A block belongs to another pool, or is no block at all."""

    rule = "block_is_not_of_this_pool"
    says = "{block!r} is none of this pool's {num_gpu_blocks} blocks; pass the pool's own objects"
    block: object
    num_gpu_blocks: int


class TouchedUnsealed(BlockRefusal):
    """A block without a key was touched; only sealed blocks are shared."""

    rule = "touched_block_is_not_sealed"
    says = "(ref_cnt={ref_cnt}) has no key and cannot be shared; look it up again"
    ref_cnt: int


class ReleasedTooOften(BlockRefusal):
    """One call releases a block more often than it is held."""

    rule = "released_more_often_than_held"
    says = "is released {releases} times and held {ref_cnt} times; release each reference once"
    ref_cnt: int
    releases: int


class SealRangeInvalid(KVCacheError, ValueError):
    """The range to seal does not lie inside table and chain."""

    rule = "seal_range_is_invalid"
    says = (
        "blocks [{num_cached_blocks}:{num_full_blocks}] cannot be sealed in a table of "
        "{num_blocks} blocks with {num_keys} keys; keep 0 <= cached <= full <= both"
    )
    num_cached_blocks: int
    num_full_blocks: int
    num_blocks: int
    num_keys: int


class AlreadySealed(BlockRefusal):
    """A block that has a key, or gets one earlier in the same call, is sealed again."""

    rule = "block_is_already_sealed"
    says = "at position {position} is sealed already; seal each block once"
    position: int


class SealedByMany(BlockRefusal):
    """A block is sealed that has no holder, or several."""

    rule = "sealed_block_has_not_one_holder"
    says = "at position {position} has {ref_cnt} holders; only its one writer may seal it"
    position: int
    ref_cnt: int


class UnpublishRefused(BlockRefusal):
    """A block is unpublished that is not a sealed block with one holder."""

    rule = "unpublished_block_is_not_one_holders"
    says = "is {state}, not IN_USE_CACHED; only its one holder may take its key back"
    state: str


class NotInFreeQueue(BlockRefusal):
    """A block is removed from the free queue that is not in it, or is named twice."""

    rule = "block_is_not_in_the_free_queue"
    says = "is not in the free queue; remove a queued block, once"


class AlreadyInFreeQueue(BlockRefusal):
    """A block is appended to the free queue that is in it, or is named twice."""

    rule = "block_is_already_in_the_free_queue"
    says = "is in the free queue already; append a block once"


class InvalidTokenCount(RequestRefusal, ValueError):
    """A call schedules no token."""

    rule = "num_tokens_is_below_one"
    says = "num_tokens={num_tokens}; schedule 1 token or more"
    num_tokens: int


class InvalidLookahead(RequestRefusal, ValueError):
    """A call asks for fewer than zero look-ahead slots."""

    rule = "num_lookahead_tokens_is_negative"
    says = "num_lookahead_tokens={num_lookahead_tokens}; give 0 or more"
    num_lookahead_tokens: int


class TokensBeyondRequest(RequestRefusal, ValueError):
    """A call schedules tokens that the request does not have."""

    rule = "tokens_beyond_the_request"
    says = "{end} tokens would be computed of {num_tokens_with_spec} with drafts; schedule less"
    end: int
    num_tokens_with_spec: int


class TokensBeyondModelLength(RequestRefusal, ValueError):
    """A call schedules tokens that the model cannot hold."""

    rule = "tokens_beyond_max_model_len"
    says = "{end} tokens would be computed of max_model_len={max_model_len}; end the request"
    end: int
    max_model_len: int


class HitsForRunningRequest(RequestRefusal):
    """Hits are given for a request that has a table."""

    rule = "hits_for_a_request_with_a_table"
    says = "it holds {num_blocks} blocks already; give hits at its first call only"
    num_blocks: int


class HitsWithoutCaching(RequestRefusal):
    """Hits are given while caching is off."""

    rule = "hits_while_caching_is_off"
    says = "{num_hits} hits are given while enable_caching=False; give none"
    num_hits: int


class StaleHit(RequestRefusal):
    """A hit does not carry the request's key at its position."""

    rule = "hit_is_stale"
    says = "block {block_id} lacks the key of position {position}; call get_computed_blocks again"
    block_id: int
    position: int


class NullHitIsReadable(RequestRefusal):
    """A hit is null at a position that the next query reads."""

    rule = "null_hit_is_readable"
    says = "hit {position} is null and blocks from {first_readable} on are read; look it up again"
    position: int
    first_readable: int


class StepHasNotRun(RequestRefusal):
    """A second call comes before the tokens of the last one ran."""

    rule = "last_step_has_not_run"
    says = "num_computed_tokens={num_computed_tokens} is not above {last_start}; run the step first"
    num_computed_tokens: int
    last_start: int


class NothingConfirmed(RequestRefusal):
    """A call schedules no confirmed token, so the request can never advance."""

    rule = "no_confirmed_token_to_compute"
    says = "the call starts at {start} of {num_tokens} confirmed tokens; leave one to compute"
    start: int
    num_tokens: int


class ComputedWithoutBlocks(RequestRefusal):
    """A request without a table claims computed tokens."""

    rule = "computed_tokens_without_blocks"
    says = "num_computed_tokens={num_computed_tokens} without blocks; reset it to 0 after free"
    num_computed_tokens: int


class HitsWithPromptLogprobs(RequestRefusal):
    """Hits are given for a request that needs every prompt position computed."""

    rule = "hits_with_prompt_logprobs"
    says = "{num_hits} hits are given and prompt_logprobs are wanted; give none"
    num_hits: int


class RequestTooLarge(RequestRefusal):
    """A request needs more blocks than the pool has, so waiting is in vain."""

    rule = "request_is_too_large"
    says = "{required_blocks} blocks are needed of {usable_blocks}; end it or schedule less of it"
    required_blocks: int
    usable_blocks: int


class PendingBlockShared(BlockRefusal):
    """A request is freed whose unwritten block another request holds."""

    rule = "pending_block_is_shared"
    says = "is unwritten by {writer!r}, held by {holders}; free the latest first or run the step"
    writer: str
    holders: tuple[str, ...]


class InvalidTokenId(KVCacheError, ValueError):
    """A token id is no integer with 0 <= id < 2**63."""

    rule = "token_id_is_out_of_range"
    says = "token id {token_id!r} at position {position} is no integer in 0 <= id < 2**63"
    token_id: object
    position: int


class InvalidRequest(RequestRefusal, ValueError):
    """A request is described in a way that cannot be served."""

    rule = "request_is_invalid"
    says = "{reason}"
    reason: str


class RequestIdInUse(RequestRefusal):
    """Another request object has an id whose table or hash chain is still kept."""

    rule = "request_id_is_in_use"
    says = "the id belongs to another request; call free and free_block_hashes for that one first"


class InvalidRunningCount(KVCacheError, ValueError):
    """A common prefix is asked for among fewer than one request."""

    rule = "num_running_is_below_one"
    says = "num_running_requests={num_running_requests}; give 1 or more"
    num_running_requests: int
