"""What is always true of a state, and the door to the whole registry.

Each property's name is a sentence and its only id, its docstring is the statement, and its reason
says what a user would see if it broke. What is true of a call stands in `steps.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import spec.steps  # noqa: F401  # enters the properties of a call into the registry
from spec.registry import REGISTRY, Broken, Property, Step, always, block_of, holders, relevant
from spec.state import NULL, Block, BlockState, Key, Request, State, extra_keys

__all__ = [
    "REGISTRY",
    "Broken",
    "Property",
    "Step",
    "always",
    "broken",
    "holders",
]


def broken(subject: State | Step, levels: str = "PM", of: str = "") -> Iterator[tuple[str, Broken]]:
    """Yield every broken property of a state or of a step, in the order of the registry.

    `of` narrows the properties of a state to those that read one part of it.
    """
    if isinstance(subject, State):
        selected = relevant("state", levels, of)
    else:
        selected = relevant("step", levels, subject.action)
    for p in selected:
        for instance in p.check(subject):
            yield p.name, instance


def _real(s: State) -> Iterator[tuple[int, Block]]:
    return ((b, block) for b, block in enumerate(s.pool.blocks) if b != NULL)


def _unread(s: State, r: Request, n: int) -> int:
    """Return how many blocks of a table the query at `n` does not read: not one position."""
    size, window = s.config.block_size, s.config.sliding_window
    first = 0 if window is None else n - window + 1
    return sum((i + 1) * size <= first for i in range(len(r.table or ())))


def _own(s: State, r: Request, i: int, stop: int) -> Key:
    """Return what block `i` must hold when `r` has its own tokens up to `stop` there."""
    size = s.config.block_size
    parent, extra = (r.keys[i - 1] if i else None), extra_keys(r, i, size)
    return Key(parent, r.tokens[i * size : min(stop, (i + 1) * size)], extra)


@always(
    "state", "P", "Every request whose window moved reads and writes one common block.", ("tables",)
)
def the_null_block_is_inert(s: State) -> Iterator[Broken]:
    """The null block is never queued, counted, sealed, held or written."""
    indexed = any(NULL in copies for copies in s.pool.by_key.values())
    if s.pool.blocks[NULL] != Block() or NULL in s.pool.queue or NULL in s.loose or indexed:
        yield Broken(NULL, Block(), s.pool.blocks[NULL])


@always("state", "P", "Blocks vanish from the pool or are handed out twice.", ("pool",))
def the_free_queue_is_a_chain(s: State) -> Iterator[Broken]:
    """The free queue names no block twice and only blocks that exist."""
    for b, n in Counter(s.pool.queue).items():
        if n > 1 or not 0 <= b < s.config.num_gpu_blocks:
            yield Broken(b, 1, n)


@always("state", "P", "The block of a running request is given to another one.", ("pool",))
def a_block_is_free_exactly_when_nobody_holds_it(s: State) -> Iterator[Broken]:
    """A block stands in the free queue, once, if and only if its reference count is 0."""
    queued = Counter(s.pool.queue)
    for b, block in _real(s):
        if queued[b] != (block.ref_cnt == 0):
            yield Broken(b, int(block.ref_cnt == 0), queued[b])


@always(
    "state", "P", "Too high leaks memory for ever; too low frees what somebody reads.", ("tables",)
)
def ref_cnt_counts_the_holders(s: State) -> Iterator[Broken]:
    """The reference count of a block is the number of its holders, block by block."""
    held = holders(s)
    for b in sorted(held.keys() | set(range(1, s.config.num_gpu_blocks))):
        if block_of(s, b).ref_cnt != held[b]:
            yield Broken(b, held[b], block_of(s, b).ref_cnt)


@always("state", "P", "The pool grows or shrinks over time.", ("tables",))
def free_and_held_and_null_make_the_pool(s: State) -> Iterator[Broken]:
    """The free blocks, the held blocks and null are disjoint and are all blocks."""
    free, held, null = set(s.pool.queue), set(holders(s)), {NULL}
    whole = set(range(s.config.num_gpu_blocks))
    for b in (free & held) | (free & null) | (held & null) | (whole ^ (free | held | null)):
        yield Broken(b, "one of three", [b in free, b in held, b == NULL])


@always(
    "state", "P", "A look-up finds a block that holds something else, or misses one.", ("pool",)
)
def the_index_and_the_blocks_agree(s: State) -> Iterator[Broken]:
    """A block is in the index under a key if and only if it carries that key; no entry is empty."""
    for key, copies in s.pool.by_key.items():
        if not copies or len(set(copies)) != len(copies):
            yield Broken(None, "distinct copies", copies)
        for b in copies:
            if block_of(s, b).key is not key:
                yield Broken(b, key, block_of(s, b).key)
    for b, block in _real(s):
        if block.key is not None and b not in s.pool.copies(block.key):
            yield Broken(b, block.key, None)


@always("state", "P", "Two requests write the same half-filled block.", ("pool",))
def only_sealed_blocks_are_shared(s: State) -> Iterator[Broken]:
    """A block with more than one reference has a key."""
    for b, block in _real(s):
        if block.ref_cnt > 1 and block.key is None:
            yield Broken(b, "a key", None)


@always(
    "state", "P", "A block in no known state is leaked, or handed out while it is read.", ("pool",)
)
def every_block_is_in_one_of_five_states(s: State) -> Iterator[Broken]:
    """Reference count, key and place in the queue of a block are one of five combinations."""
    queued = set(s.pool.queue)
    for b, block in _real(s):
        shared = block.ref_cnt > 1 and block.key is None
        if block.ref_cnt < 0 or shared or (b in queued) != (block.ref_cnt == 0):
            facts = (block.ref_cnt, block.key, b in queued)
            yield Broken(b, [state.value for state in BlockState], facts)


@always("state", "PM", "A hit covers slots that nobody has filled.", ("pool",))
def only_full_blocks_have_a_hash(s: State) -> Iterator[Broken]:
    """A sealed block's key names `block_size` tokens."""
    for b, block in _real(s):
        if block.key is not None and len(block.key.tokens) != s.config.block_size:
            yield Broken(b, s.config.block_size, len(block.key.tokens))


@always("state", "M", "A rejected draft becomes part of somebody's prompt.", ("request",))
def unconfirmed_tokens_are_never_sealed(s: State) -> Iterator[Broken]:
    """A block of a table that carries a key, or counts as sealed, is full of confirmed tokens."""
    size = s.config.block_size
    for r in s.requests.values():
        full = len(r.tokens) // size
        for b in (r.table or ())[full:]:
            if block_of(s, b).key is not None:
                yield Broken(b, f"{full} full blocks", block_of(s, b).key)
        if r.num_cached > full:
            yield Broken(None, f"{full} full blocks", f"{r.num_cached} sealed")


@always(
    "state",
    "PM",
    "A request starts on memory that holds nothing, or a stranger's text.",
    ("state",),
)
def nothing_unwritten_is_found(s: State) -> Iterator[Broken]:
    """A sealed block is written, or is pending on a request that the next run lets fill it."""
    for b, block in _real(s):
        if block.key is not None and block.pending is None:
            written = 0 if block.content is None else len(block.content.tokens)
            if written != s.config.block_size:
                yield Broken(b, s.config.block_size, written)
        if block.pending is not None:
            w = s.requests.get(block.pending)
            at = (w.table or ()).index(b) if w and b in (w.table or ()) else None
            if w is None or at is None or w.end < (at + 1) * s.config.block_size or not w.in_flight:
                yield Broken(b, "scheduled to be written", block.pending)


@always("state", "PM", "A hit returns the text of another prompt.", ("pool",))
def a_key_tells_the_content(s: State) -> Iterator[Broken]:
    """A settled sealed block holds exactly what its key names."""
    for b, block in _real(s):
        full = block.content is not None and len(block.content.tokens) == s.config.block_size
        settled = block.key is not None and block.pending is None
        if settled and full and block.content is not block.key:
            yield Broken(b, block.key, block.content)


@always("state", "M", "Two requests write into each other's memory.", ("state",))
def a_writer_owns_its_block(s: State) -> Iterator[Broken]:
    """A scheduled slot is in a block that its writer alone holds unsealed, or pending on it."""
    held, size = holders(s), s.config.block_size
    for rid, r in s.requests.items():
        if r.in_flight:
            if r.end > len(r.table or ()) * size:
                yield Broken(None, f"{r.end} slots for {rid}", len(r.table or ()) * size)
            for b in (r.table or ())[r.start // size : -(-r.end // size)]:
                block = block_of(s, b)
                alone = block.key is None and held[b] == 1
                if b == NULL or not (alone or block.pending == rid):
                    yield Broken(b, rid, block.pending or f"{held[b]} holders")


@always("state", "M", "Blocks stay cached that no look-up can reach.", ("pool",))
def the_cache_is_prefix_closed(s: State) -> Iterator[Broken]:
    """With full attention the parent of a cached block is cached, unless keys were taken back.

    A key that is taken back, unwritten, may have been the copy through which a child was found.
    """
    if s.config.sliding_window is None and not s.taken_back:
        for key, copies in s.pool.by_key.items():
            if key.parent is not None and not s.pool.copies(key.parent):
                yield Broken(copies[0] if copies else None, key.parent, None)


@always(
    "state", "M", "A window layer reads a placeholder, or never gives memory back.", ("request",)
)
def skipped_positions_show_null(s: State) -> Iterator[Broken]:
    """The nulls of a table are its front: what the window has left behind, and nothing else."""
    for r in s.requests.values():
        nulls = [i for i, b in enumerate(r.table or ()) if b == NULL]
        least, most = (_unread(s, r, n) for n in (r.start, max(r.start, r.num_computed)))
        if nulls != list(range(len(nulls))) or not least <= len(nulls) <= most:
            yield Broken(NULL, (least, most), nulls)


@always("state", "M", "A server that is idle refuses work.", ("tables",))
def an_idle_pool_is_whole(s: State) -> Iterator[Broken]:
    """When nobody holds anything, every usable block is free."""
    if not holders(s) and s.pool.num_free() != s.config.usable:
        yield Broken(None, s.config.usable, s.pool.num_free())


@always("state", "M", "Output depends on what else the server was doing.", ("request",))
def a_request_reads_its_own_prefix(s: State) -> Iterator[Broken]:
    """Every position that a scheduled step reads holds the request's own prefix up to there.

    This is what the others are for: a paged, shared, evicting cache behaves like a private one.
    """
    size, window = s.config.block_size, s.config.sliding_window
    for r in s.requests.values():
        if r.in_flight:
            first = 0 if window is None else max(0, r.start - window + 1)
            for i in range(first // size, -(-r.start // size)):
                b, own = ((r.table or ())[i : i + 1] or (NULL,))[0], _own(s, r, i, r.start)
                block = block_of(s, b)
                if block.content is not own and not (block.pending and block.key is own):
                    yield Broken(b, own, block.content)
