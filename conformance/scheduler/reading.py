"""Reads a pool of vLLM 0.33.0 and the requests of its scheduler as a state of the specification.

The pool is read twice: as a snapshot, which is plain data and knows hashes, and from that as a
state, whose keys are prefixes. What a hash stands for follows from the requests that carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformance.divergence import KEY_PROPERTIES
from conformance.scheduler.ledger import extend
from conformance.subject import Snapshot
from conformance.view import Difference
from spec.state import Block, Config, Frozen, Key, Pool, Request, State


def pool_snapshot(pool: Any, tables: Mapping[str, Sequence[Any]]) -> Snapshot:  # noqa: ANN401  # it has no types here
    """Return everything about a pool; `tables` are the blocks of each request. Costs O(pool)."""
    blocks, queue = pool.blocks, pool.free_block_queue
    head, tail = queue.fake_free_list_head, queue.fake_free_list_tail
    forward = _walk(head.next_free_block, "next_free_block", tail, len(blocks))
    back = _walk(tail.prev_free_block, "prev_free_block", head, len(blocks))
    queued = set(forward) | set(back)
    listed: dict[Hashable, tuple[int, ...]] = {}
    for key, copies in pool.cached_block_hash_to_block._cache.items():  # noqa: SLF001  # it cannot be asked for all
        listed[key] = tuple(copies) if isinstance(copies, dict) else (copies.block_id,)
    return Snapshot(
        ref_cnts=tuple([block.ref_cnt for block in blocks]),
        keys=tuple([block.block_hash for block in blocks]),
        queue=forward,
        queue_back=back,
        num_free=queue.num_free_blocks,
        index=listed,
        tables={rid: tuple([b.block_id for b in table]) for rid, table in tables.items() if table},
        usage=pool.get_usage(),
        stray=tuple(
            [
                b
                for b, block in enumerate(blocks)
                if b not in queued
                and (block.prev_free_block is not None or block.next_free_block is not None)
            ]
        ),
    )


def _walk(block: Any, link: str, end: Any, most: int) -> tuple[int, ...]:  # noqa: ANN401  # as above
    """Return the ids of a walk along the queue; a ring that never closes is cut off."""
    walked: list[int] = []
    while block is not None and block is not end and len(walked) <= most:
        walked.append(block.block_id)
        block = getattr(block, link)
    return tuple(walked)


class Names:
    """What hashes stand for, as their requests say: each is the prefix up to a block's end.

    `carried` turns the hash of a request's block into what a block is sealed under.
    """

    def __init__(
        self, block_size: int, carried: Callable[[Any], Hashable] = lambda name: name
    ) -> None:
        self._size = block_size
        self._carried = carried
        self._keys: dict[Hashable, Key] = {}
        self._hashes: dict[Key, Hashable] = {}
        self._chains: dict[str, list[Key]] = {}

    def learn(
        self, rid: str, tokens: Iterable[int], hashes: Sequence[Any]
    ) -> Iterator[tuple[str, Difference]]:
        """Take down a request's hashes; yield where one stands for two prefixes, or one has two.

        Hashes that were taken down before are passed over.
        """
        chain = self._chains.setdefault(rid, [])
        known = len(chain)
        if known == len(hashes):
            return
        extend(chain, tokens, self._size)
        for key, one in zip(chain[known:], hashes[known:], strict=False):
            name = self._carried(one)
            first = self._keys.setdefault(name, key)
            if first is not key:
                what = "one key for two contents"
                yield KEY_PROPERTIES[what], Difference(what, None, key, first)
            elif self._hashes.setdefault(key, name) != name:
                what = "two keys for one content"
                yield KEY_PROPERTIES[what], Difference(what, None, self._hashes[key], name)

    def chain(self, rid: str) -> tuple[Key, ...]:
        """Return the keys of a request's full blocks."""
        return tuple(self._chains.get(rid, ()))

    def key(self, name: Hashable) -> Key:
        """Return what a hash stands for; a hash of nobody names no tokens."""
        known = self._keys.get(name)
        if known is None:
            known = Key(None, (), (("unknown to every request", len(self._keys)),))
            self._keys[name] = known
        return known

    def forget(self, rids: Iterable[str]) -> None:
        """Drop the chains of requests that have ended. What their hashes stand for stays known."""
        for rid in rids:
            self._chains.pop(rid, None)


def as_state(  # each is one part of a state
    config: Config,
    seen: Snapshot,
    requests: Mapping[str, Request],
    names: Names,
    contents: Mapping[int, Key],
    pending: Mapping[int, str],
) -> State:
    """Return a snapshot as a state, with the ledger's ghosts."""
    blocks = [
        Block(count, None if name is None else names.key(name), contents.get(b), pending.get(b))
        for b, (count, name) in enumerate(zip(seen.ref_cnts, seen.keys, strict=True))
    ]
    by_key: dict[Key, tuple[int, ...]] = {}
    for name, copies in seen.index.items():
        key = names.key(name)
        by_key[key] = by_key.get(key, ()) + copies
    return State(config, Pool(tuple(blocks), seen.queue, Frozen(by_key)), Frozen(requests))
