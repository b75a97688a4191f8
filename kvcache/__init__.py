"""A block manager for paged, prefix-shared key-value caches.

`KVCacheManager` serves requests (chapter 5.4), `BlockPool` serves blocks (chapter 5.2 and 5.3), and
every refusal is a `KVCacheError` with a stable rule name.

Import order: errors, config, hashing, block, free_queue, block_index, request, block_pool,
attention, stats, admission, manager.
"""

from kvcache.attention import AttentionKind, FullAttention, SlidingWindow, attention_kind
from kvcache.block import BlockState, KVCacheBlock
from kvcache.block_index import BlockIndex
from kvcache.block_pool import BlockPool, PoolListener
from kvcache.config import CacheConfig
from kvcache.errors import (
    AlreadyInFreeQueue,
    AlreadySealed,
    ComputedWithoutBlocks,
    ForeignBlock,
    HitsForRunningRequest,
    HitsWithoutCaching,
    HitsWithPromptLogprobs,
    InvalidLookahead,
    InvalidPoolSize,
    InvalidRequest,
    InvalidRunningCount,
    InvalidTokenCount,
    InvalidTokenId,
    KVCacheError,
    NegativeBlockCount,
    NotEnoughBlocks,
    NothingConfirmed,
    NotInFreeQueue,
    NullHitIsReadable,
    PendingBlockShared,
    ReleasedTooOften,
    RequestIdInUse,
    RequestTooLarge,
    SealedByMany,
    SealRangeInvalid,
    StaleHit,
    StepHasNotRun,
    TokensBeyondModelLength,
    TokensBeyondRequest,
    TouchedUnsealed,
    UnpublishRefused,
)
from kvcache.free_queue import FreeKVCacheBlockQueue
from kvcache.hashing import (
    BlockHash,
    BuiltinKey,
    HashChain,
    encode_extra_keys,
    generate_extra_keys,
)
from kvcache.manager import KVCacheManager
from kvcache.request import LoRARequest, MultiModalItem, Request
from kvcache.stats import PrefixCacheStats, PrefixCachingMetrics

__all__ = [
    "AlreadyInFreeQueue",
    "AlreadySealed",
    "AttentionKind",
    "BlockHash",
    "BlockIndex",
    "BlockPool",
    "BlockState",
    "BuiltinKey",
    "CacheConfig",
    "ComputedWithoutBlocks",
    "ForeignBlock",
    "FreeKVCacheBlockQueue",
    "FullAttention",
    "HashChain",
    "HitsForRunningRequest",
    "HitsWithPromptLogprobs",
    "HitsWithoutCaching",
    "InvalidLookahead",
    "InvalidPoolSize",
    "InvalidRequest",
    "InvalidRunningCount",
    "InvalidTokenCount",
    "InvalidTokenId",
    "KVCacheBlock",
    "KVCacheError",
    "KVCacheManager",
    "LoRARequest",
    "MultiModalItem",
    "NegativeBlockCount",
    "NotEnoughBlocks",
    "NotInFreeQueue",
    "NothingConfirmed",
    "NullHitIsReadable",
    "PendingBlockShared",
    "PoolListener",
    "PrefixCacheStats",
    "PrefixCachingMetrics",
    "ReleasedTooOften",
    "Request",
    "RequestIdInUse",
    "RequestTooLarge",
    "SealRangeInvalid",
    "SealedByMany",
    "SlidingWindow",
    "StaleHit",
    "StepHasNotRun",
    "TokensBeyondModelLength",
    "TokensBeyondRequest",
    "TouchedUnsealed",
    "UnpublishRefused",
    "attention_kind",
    "encode_extra_keys",
    "generate_extra_keys",
]
