"""How blocks move: five effects, and the actions of a caller who uses the pool directly.

The effects (`take`, `touch`, `release`, `seal`, `unpublish`) are total: they say what moving a
block means. Whether it may move is said by the GUARD of an action, here for a direct caller and in
`statemachine.py` for a request. A guard that fails raises `Refused` with the name of the rule and
the values; a refused call changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spec.state import NULL, Block, BlockState, Key, Pool, State

Ids: TypeAlias = tuple[int, ...]

FREE, FREE_CACHED = BlockState.FREE, BlockState.FREE_CACHED
IN_USE, IN_USE_CACHED, SHARED = BlockState.IN_USE, BlockState.IN_USE_CACHED, BlockState.SHARED
TRANSITIONS: Mapping[str, frozenset[tuple[BlockState, BlockState]]] = {
    "take": frozenset({(FREE, IN_USE), (FREE_CACHED, IN_USE)}),
    "seal": frozenset({(IN_USE, IN_USE_CACHED)}),
    "touch": frozenset({(FREE_CACHED, IN_USE_CACHED), (IN_USE_CACHED, SHARED), (SHARED, SHARED)}),
    "release": frozenset(
        {(IN_USE, FREE), (IN_USE_CACHED, FREE_CACHED), (SHARED, IN_USE_CACHED), (SHARED, SHARED)}
    ),
    "unpublish": frozenset({(IN_USE_CACHED, IN_USE)}),
    "reset": frozenset({(FREE_CACHED, FREE)}),
}
"""Every transition of a block by one mention of it in an effect. There is no other way to move."""


class Refused(Exception):  # noqa: N818  # a refusal is an answer, not an error of the specification
    """A call that the rules forbid, by the name of the rule and the values that break it."""

    def __init__(self, rule: str, **values: object) -> None:
        super().__init__(rule, values)
        self.rule = rule
        self.values = values

    def __str__(self) -> str:
        return f"{self.rule}: " + ", ".join(
            f"{name}={value}" for name, value in self.values.items()
        )


# The five effects.


def take_effect(pool: Pool, n: int) -> tuple[Pool, Ids]:
    """Hand out the head of the queue `n` times; a sealed victim is evicted."""
    ids = pool.heads(n)
    for b in ids:
        if (key := pool.blocks[b].key) is not None:
            pool = pool.withdraw(b, key)
    return pool.dequeue(ids).update(dict.fromkeys(ids, Block(ref_cnt=1))), ids


def touch_effect(pool: Pool, ids: Iterable[int]) -> Pool:
    """Add one reference for each mention; an idle block leaves the queue."""
    more = Counter(b for b in ids if b != NULL)
    old = {b: pool.blocks[b] for b in more}
    pool = pool.dequeue([b for b, block in old.items() if block.ref_cnt == 0])
    return pool.update({b: old[b]._replace(ref_cnt=old[b].ref_cnt + n) for b, n in more.items()})


def release_effect(pool: Pool, ids: Iterable[int], free_rule: str) -> Pool:
    """Drop one reference for each mention; a block whose last one goes enters the queue."""
    changed: dict[int, Block] = {}
    idle: list[int] = []
    for b in ids:
        if b != NULL:
            block = changed.get(b, pool.blocks[b])
            changed[b] = block._replace(ref_cnt=block.ref_cnt - 1)
            if block.ref_cnt == 1:
                idle.append(b)
    pool = pool.update(changed)
    if free_rule == "append":
        return pool.enqueue(idle)
    plain = [b for b in idle if changed[b].key is None]
    return pool.enqueue([b for b in idle if changed[b].key is not None], head=plain)


def seal_effect(pool: Pool, blocks: Mapping[int, Block]) -> Pool:
    """Give blocks their keys, in the order of the mapping."""
    for b, block in blocks.items():
        if block.key is not None:
            pool = pool.publish(b, block.key)
    return pool.update(blocks)


def unpublish_effect(pool: Pool, ids: Iterable[int]) -> Pool:
    """Take back the keys of blocks that nobody wrote."""
    changed = {b: pool.blocks[b] for b in ids}
    for b, block in changed.items():
        if block.key is not None:
            pool = pool.withdraw(b, block.key)
    return pool.update({b: c._replace(key=None, pending=None) for b, c in changed.items()})


# The pool's actions. Their caller holds what it takes: `State.loose` is its ledger.


def get_new_blocks(s: State, n: int) -> tuple[State, Ids]:
    """Hand out `n` blocks, coldest first."""
    # GUARD
    if n < 0:
        raise Refused("block_count_is_negative", n=n)
    if n > s.pool.num_free():
        raise Refused("not_enough_free_blocks", n=n, free=s.pool.num_free())
    # EFFECT
    pool, ids = take_effect(s.pool, n)
    return s._replace(pool=pool, loose=tuple(sorted(s.loose + ids))), ids


def touch(s: State, ids: Sequence[int]) -> State:
    """Add a reference to sealed blocks."""
    # GUARD
    must_be_of_this_pool(s, ids)
    for b in ids:
        if b != NULL and s.pool.blocks[b].key is None:
            raise Refused("touched_block_is_not_sealed", block=b)
    # EFFECT
    more = tuple(b for b in ids if b != NULL)
    return s._replace(pool=touch_effect(s.pool, ids), loose=tuple(sorted(s.loose + more)))


def free_blocks(s: State, ids: Sequence[int]) -> State:
    """Drop references, in the order given: the first block to become idle is evicted first."""
    # GUARD
    must_be_of_this_pool(s, ids)
    dropped = Counter(b for b in ids if b != NULL)
    for b, n in dropped.items():
        if n > s.pool.blocks[b].ref_cnt:
            raise Refused(
                "released_more_often_than_held", block=b, releases=n, held=s.pool.blocks[b].ref_cnt
            )
    # EFFECT
    left = tuple(sorted((Counter(s.loose) - dropped).elements()))
    return s._replace(pool=release_effect(s.pool, ids, s.config.free_rule), loose=left)


def cache_full_blocks(
    s: State, table: Sequence[int], keys: Sequence[Key], num_cached: int, num_full: int
) -> State:
    """Seal `table[num_cached:num_full]`. The caller has filled the blocks before it says so."""
    # GUARD
    if not 0 <= num_cached <= num_full <= min(len(table), len(keys)):
        raise Refused("seal_range_is_invalid", range=(num_cached, num_full), table=len(table))
    must_be_of_this_pool(s, table[num_cached:num_full])
    new: dict[int, Key] = {}
    for i in range(num_cached, num_full):
        if (b := table[i]) != NULL:
            block = s.pool.blocks[b]
            if block.key is not None or b in new:
                raise Refused("block_is_already_sealed", block=b, key=block.key)
            if block.ref_cnt != 1:
                raise Refused("sealed_block_has_not_one_holder", block=b, held=block.ref_cnt)
            new[b] = keys[i]
    # EFFECT
    sealed = {b: s.pool.blocks[b]._replace(key=key, content=key) for b, key in new.items()}
    return s._replace(pool=seal_effect(s.pool, sealed))


def unpublish(s: State, ids: Sequence[int]) -> State:
    """Take the key from blocks that only their writer holds."""
    # GUARD
    must_be_of_this_pool(s, ids)
    for b, n in Counter(ids).items():
        block = s.pool.blocks[b]
        if block.key is None or block.ref_cnt != 1 or n > 1:
            raise Refused("unpublished_block_is_not_one_holders", block=b, held=block.ref_cnt)
    # EFFECT
    return s._replace(pool=unpublish_effect(s.pool, ids), taken_back=True)


def reset_prefix_cache(s: State) -> tuple[State, bool]:
    """Forget every key, if nothing is in use; the queue keeps its order."""
    # GUARD
    if s.pool.num_free() != s.config.usable:
        return s, False
    # EFFECT
    pool = unpublish_effect(s.pool, range(1, s.config.num_gpu_blocks))
    return s._replace(pool=pool, taken_back=False), True


def must_be_of_this_pool(s: State, ids: Iterable[int]) -> None:
    """Raise `Refused` for an id that no block of this pool has."""
    for b in ids:
        if not 0 <= b < s.config.num_gpu_blocks:
            raise Refused("block_is_not_of_this_pool", block=b, blocks=s.config.num_gpu_blocks)


def must_be_tokens(tokens: Ids) -> None:
    """Raise `Refused` for a token id that does not fit into 63 bits."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < 1 << 63:
        raise Refused("token_id_is_out_of_range", lowest=min(tokens), highest=max(tokens))
