# ruff: noqa: SLF001 -- this file reads and builds the inside of the production manager
"""Reads the production manager as a state, puts it into one, and compares their steps one by one.

`view` is the refinement map: which state a pool or a manager is in. It reads every field, so a link
too many or a list of copies that should have gone is seen at the call that left it behind, and not
at the one that trips over it. `load` is its inverse, for tests only: nothing else may make a pool
that its own calls did not make. What the specification alone keeps, its ghosts, is in neither.

`refine` makes every call of a list from every state of a list on both sides. When the list of
states is all that satisfy the invariants, that is a proof by induction for pools of this size: no
history is too long for it, because every history is in one of those states.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from conformance.adapters.reference import Reference
from conformance.divergence import answer
from conformance.lockstep import ACTIONS
from conformance.subject import Refusal, RequestSpec
from kvcache import BlockHash, BlockPool, HashChain, encode_extra_keys
from kvcache.admission import Admission
from kvcache.hashing import TOKEN_BYTES, sha256_root
from spec.state import NULL, Block, Config, Frozen, Key, Pool, Request, State, with_tokens
from spec.statemachine import Refused


class Names:
    """The digests of keys, worked out from the keys alone, and the way back for those asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._digests: dict[Key, bytes] = {}
        self._keys: dict[BlockHash, Key] = {}

    def digest(self, key: Key) -> bytes:
        """Return the digest of a key."""
        found = self._digests.get(key)
        if found is None:
            root = sha256_root(self.config.block_size)
            parent = root if key.parent is None else self.digest(key.parent)
            tokens = b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in key.tokens)
            found = sha256(parent + tokens + encode_extra_keys(key.extra)).digest()
            self._digests[key], self._keys[found] = found, key
        return found

    def key(self, digest: BlockHash) -> Key:
        """Return the key that a digest names."""
        key = self._keys.get(digest)
        assert key is not None, f"{digest!r} is the digest of no known key"
        return key


def real(s: State) -> State:
    """Return a state without its ghosts, and without the end of a step that has run."""
    ghostly = {
        b: Block(block.ref_cnt, block.key)
        for b, block in enumerate(s.pool.blocks)
        if block.content is not None or block.pending is not None
    }
    requests = {rid: r if r.in_flight else r._replace(end=0) for rid, r in s.requests.items()}
    return State(s.config, s.pool.update(ghostly), Frozen(requests), s.loose)


def view(production: BlockPool | Reference, names: Names) -> State:
    """Return the state of a pool, all held by a direct caller, or of a manager with its adapter.

    AssertionError says what is in no state at all.
    """
    if isinstance(production, BlockPool):
        pool = _view_pool(production, names)
        held = [b for b, block in enumerate(pool.blocks) for _ in range(block.ref_cnt)]
        return State(names.config, pool, loose=tuple(held))
    requests = {rid: _view_request(production, rid, names) for rid in production.requests}
    unknown = production.manager._admissions.keys() - requests.keys()
    assert not unknown, f"the manager holds blocks for {unknown}, which have ended"
    return State(production.config, _view_pool(production.pool, names), Frozen(requests))


def _view_pool(pool: BlockPool, names: Names) -> Pool:
    queue, blocks = _walk(pool), []
    ends = (len(pool.blocks), pool.blocks[NULL])
    assert ends == (pool.num_gpu_blocks, pool.null_block), f"{ends}, null is {pool.null_block!r}"
    for b, block in enumerate(pool.blocks):
        assert block.block_id == b, f"{block!r} stands at {b}"
        assert block.is_null == (b == NULL), f"{block!r} is marked wrongly"
        linked = (block.prev_free_block is not None) + (block.next_free_block is not None)
        assert linked == 2 * (b in queue), f"{block!r} has {linked} links, the queue is {queue}"
        digest = block.block_hash
        blocks.append(Block(block.ref_cnt, None if digest is None else names.key(digest)))
    by_key, index = {}, pool.index
    for digest in index:
        copies = index.copies(digest)
        assert copies[:1] == (index.first(digest),), f"{copies} do not begin with the first"
        ids = by_key[names.key(digest)] = tuple([copy.block_id for copy in copies])
        assert copies == tuple([pool.blocks[b] for b in ids]), f"{copies} are of another pool"
    for digest, listed in index._copies.items():
        assert len(listed) > 1, f"{list(listed)} are listed as several copies"
        assert tuple(listed) == by_key.get(names.key(digest)), f"{list(listed)} cannot be found"
    return Pool(tuple(blocks), queue, Frozen(by_key))


def _walk(pool: BlockPool) -> tuple[int, ...]:
    """Return the free queue, of which every link is read and the count is checked."""
    queue = pool.free_block_queue
    walked: list[int] = []
    before = ring = queue._ring
    while (block := before.next_free_block) is not None and len(walked) <= len(pool.blocks):
        assert block.prev_free_block is before, f"{block!r} does not link back to {before!r}"
        if block is ring:
            break
        assert block is pool.blocks[block.block_id], f"{block!r} is of another pool"
        walked.append(block.block_id)
        before = block
    assert block is ring, f"the queue {walked} does not close"
    assert queue.num_free_blocks == len(walked), f"{queue.num_free_blocks} are counted of {walked}"
    return tuple(walked)


def _view_request(subject: Reference, rid: str, names: Names) -> Request:
    request, admission = subject.requests[rid], subject.manager._admissions.get(rid)
    lora = request.lora_request
    seen = Request(
        tokens=(),
        drafts=request.spec_token_ids,
        lora=None if lora is None else (lora.lora_id, lora.generation),
        media=tuple((item.identifier, item.offset, item.length) for item in request.mm_items),
        salt=request.cache_salt,
        prompt_logprobs=request.prompt_logprobs is not None,
        num_computed=request.num_computed_tokens,
        num_preemptions=request.num_preemptions,
    )
    seen = with_tokens(seen, tuple(request.token_ids), names.config.block_size)
    chain = subject.manager._chains.get(rid)
    if chain is not None:
        # A chain grows when it is next asked for, so it may be behind.
        expected = [names.digest(key) for key in seen.keys[: len(chain.keys)]]
        assert chain.request is request, f"the chain of {rid!r} is another request's"
        assert chain.keys == expected, f"the chain of {rid!r} is {chain.keys}, not {expected}"
    if admission is None:
        assert rid not in subject._ends, f"{rid!r} has a step in flight and no blocks"
        return seen
    assert admission.request is request, f"the admission of {rid!r} is another request's"
    return seen._replace(
        table=tuple([block.block_id for block in admission.table]),
        num_hits=admission.num_hit_blocks,
        num_cached=admission.num_cached_blocks,
        start=admission.last_start,
        end=subject._ends.get(rid, 0),
    )


def load(s: State, names: Names) -> BlockPool:
    """Return a production pool that is in a given state. For tests only."""
    pool = BlockPool(s.config.num_gpu_blocks)
    _put(s.pool, pool, names)
    pool.check()
    return pool


def _put(s: Pool, pool: BlockPool, names: Names) -> None:
    """Overwrite every field of a pool."""
    blocks = pool.blocks
    for block, facts in zip(blocks, s.blocks, strict=True):
        block.ref_cnt = facts.ref_cnt
        block.block_hash = None if facts.key is None else names.digest(facts.key)
        block.prev_free_block = block.next_free_block = None
    queue, before = pool.free_block_queue, pool.free_block_queue._ring
    for b in s.queue:
        before.next_free_block, blocks[b].prev_free_block = blocks[b], before
        before = blocks[b]
    before.next_free_block, queue._ring.prev_free_block = queue._ring, before
    queue.num_free_blocks = len(s.queue)
    pool.index.clear()
    for key, copies in s.by_key.items():
        digest = names.digest(key)
        pool.index._first[digest] = blocks[copies[0]]
        if len(copies) > 1:
            pool.index._copies[digest] = OrderedDict((b, blocks[b]) for b in copies)
    pool.num_evictions = 0


def load_manager(s: State, names: Names) -> Reference:
    """Return a manager, with its requests, that is in a given state. For tests only.

    All tokens count as prompt: which of them were sampled makes no difference.
    """
    subject = Reference(s.config)
    _put(s.pool, subject.pool, names)
    for rid, r in s.requests.items():
        subject.add_request(rid, RequestSpec(r.tokens, r.lora, r.media, r.salt, r.prompt_logprobs))
        request = subject.requests[rid]
        request.spec_token_ids = r.drafts
        request.num_computed_tokens, request.num_preemptions = r.num_computed, r.num_preemptions
        if s.config.enable_caching:
            subject.manager._chains[rid] = HashChain(request, subject.manager._key_kind)
            subject.manager._chains[rid].extend()
        if r.table is not None:
            admission = Admission(request, [subject.pool.blocks[b] for b in r.table])
            admission.num_hit_blocks, admission.num_cached_blocks = r.num_hits, r.num_cached
            admission.last_start = r.start
            subject.manager._admissions[rid] = admission
        if r.in_flight:
            subject._ends[rid] = r.end
    subject.manager.check()
    return subject


PoolCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""One call of the pool: the verb and its arguments."""


class Mismatch(NamedTuple):
    """The first call that differs: the answer, the state after it, and the count of evictions."""

    state: State
    call: PoolCall
    expected: tuple[object, object, int]
    actual: tuple[object, object, int]


@dataclass(slots=True)
class Refined:
    """How many steps were compared, how many of them were refused, and the one that differs."""

    states: int = 0
    checks: int = 0
    refused: int = 0
    found: Mismatch | None = None


def refine(states: Iterable[State], calls: Sequence[PoolCall], names: Names) -> Refined:
    """Make every call from every state of a pool on both sides, up to the first that differs."""
    done = Refined()
    subject = Reference(names.config)
    ours = [
        {**args, "keys": list(map(names.digest, args["keys"]))} if "keys" in args else args
        for _, args in calls
    ]
    with quiet():
        for s in map(real, states):
            done.states += 1
            pool = subject.manager.block_pool = load(s, names)
            assert view(pool, names) == s, f"{view(pool, names)} was loaded for {s}"
            for call, args in zip(calls, ours, strict=True):
                done.checks += 1
                expected = _specified(s, *call)
                actual = _made(subject, call[0], args, names)
                done.refused += isinstance(expected[0], str)
                if expected != actual:
                    done.found = Mismatch(s, call, expected, actual)
                    return done
                if expected[1] != s:
                    _put(s.pool, pool, names)
    return done


def _specified(s: State, action: str, args: Mapping[str, Any]) -> tuple[object, object, int]:
    try:
        after, result = ACTIONS[action](s, **args)
    except Refused as refused:
        return answer(refused), s, 0
    taken = result if action == "get_new_blocks" else ()
    return answer(result), real(after), sum(s.pool.blocks[b].key is not None for b in taken)


def _made(
    subject: Reference, action: str, args: Mapping[str, Any], names: Names
) -> tuple[object, object, int]:
    try:
        result = answer(getattr(subject, action)(**args))
    except Refusal as refusal:
        result = answer(Refused(refusal.rule))
    except Exception as crash:  # noqa: BLE001  # a crash is a difference like others
        result = f"raised {crash!r}"
    try:
        seen: object = view(subject.pool, names)
    except Exception as error:  # noqa: BLE001  # a pool that is in no state is one too
        seen = repr(error)
    return result, seen, subject.num_evictions()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings back: a cache in use is reset thousands of times."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
