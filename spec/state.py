"""What there is: blocks, the free queue, the index of sealed blocks, requests.

Everything here is immutable and hashable. An action of `statemachine.py` takes a `State` and gives
a new one. The production manager does the same thing with linked lists and counters that it
changes in place; here each fact is written down once, in the plainest form that can hold it.

Two kinds of facts stand side by side. *Real* ones exist in every manager (reference counts, keys,
tables). *Ghosts* exist only here: what a block's memory holds (`Block.content`) and who is about to
write it (`Block.pending`). No action decides anything by a ghost; they are there so that
"a request reads its own prefix" can be said at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

NULL = 0
"""The id of the null block: a placeholder in tables, never handed out."""

FREE_RULES = ("append", "unhashed_first")

Extra: TypeAlias = tuple[tuple[Any, ...], ...]
K = TypeVar("K")
V = TypeVar("V")


class Key:
    """Everything that determines the content of a block: the key before it, its tokens, its extras.

    A key *is* the whole prefix from position 0, so the hash function of the specification cannot
    collide. Keys are interned: equal parts give the same object. That makes comparing two prefixes
    one pointer comparison, however long they are, and it is why equality is left to identity.
    """

    __slots__ = ("__weakref__", "extra", "parent", "tokens")
    _known: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()
    parent: Key | None
    tokens: tuple[int, ...]
    extra: Extra

    def __new__(cls, parent: Key | None, tokens: tuple[int, ...], extra: Extra = ()) -> Self:
        """Return the one object with these parts."""
        parts = (parent, tokens, extra)
        known: Self | None = cls._known.get(parts)
        if known is None:
            known = super().__new__(cls)
            known.parent, known.tokens, known.extra = parts
            cls._known[parts] = known
        return known

    def __reduce__(self) -> tuple[Any, ...]:
        # The whole chain in one list: a prefix is longer than the interpreter's stack.
        chain: list[tuple[tuple[int, ...], Extra]] = []
        key: Key | None = self
        while key is not None:
            chain.append((key.tokens, key.extra))
            key = key.parent
        return key_of_chain, (chain[::-1],)

    def __repr__(self) -> str:
        before = "" if self.parent is None else "..."
        return f"<{before}{' '.join(map(str, self.tokens))}{self.extra or ''}>"


def key_of_chain(chain: Iterable[tuple[tuple[int, ...], Extra]]) -> Key | None:
    """Return the key of a prefix: tokens and extras of its blocks, the first block first."""
    key: Key | None = None
    for tokens, extra in chain:
        key = Key(key, tokens, extra)
    return key


class Frozen(dict[K, V]):
    """A mapping that is changed by making another one."""

    def set(self, key: K, value: V) -> Frozen[K, V]:
        """Return the mapping in which `key` has `value`."""
        return Frozen({**self, key: value})

    def without(self, key: K) -> Frozen[K, V]:
        """Return the mapping that lacks `key`."""
        return Frozen({k: v for k, v in self.items() if k != key})

    def __hash__(self) -> int:  # type: ignore[override]  # dict says None: a dict is mutable
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a frozen mapping is not changed; set() and without() make another one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse


class Config(NamedTuple):
    """What is fixed for a run. `num_gpu_blocks` counts the null block."""

    num_gpu_blocks: int
    block_size: int
    max_model_len: int = 1 << 30
    enable_caching: bool = True
    sliding_window: int | None = None
    free_rule: str = "append"
    """`append`: an idle block goes to the tail. `unhashed_first`: idle blocks without a key go to
    the head, those of one call in its order, before those of earlier calls; one with a key goes to
    the tail."""

    @property
    def usable(self) -> int:
        """The number of blocks that can be handed out."""
        return self.num_gpu_blocks - 1

    def skipped_blocks(self, n: int) -> int:
        """How many blocks lie wholly before what the query at position `n` reads."""
        if self.sliding_window is None:
            return 0
        return max(0, n - self.sliding_window + 1) // self.block_size


class BlockState(Enum):
    """The five states of a block, and NULL. Derived from three facts, never stored."""

    FREE = "FREE"
    FREE_CACHED = "FREE_CACHED"
    IN_USE = "IN_USE"
    IN_USE_CACHED = "IN_USE_CACHED"
    SHARED = "SHARED"
    NULL = "NULL"


class Block(NamedTuple):
    """One block: two real facts and two ghosts."""

    ref_cnt: int = 0
    key: Key | None = None
    """The name under which the block can be found; set exactly while the block is sealed."""
    content: Key | None = None
    """Ghost: what its slots hold, as far as they are written. `len(content.tokens)` counts the
    written slots. Full and rightly written means `content is key`."""
    pending: str | None = None
    """Ghost: the request whose step, scheduled but not run, fills this sealed block."""


class Pool(NamedTuple):
    """All blocks, the free queue (head first), and the index from a key to its copies.

    The methods are the only ways in which a pool changes. An implementation of them that changes
    in place turns the same actions into a fast twin of this specification for very large pools.
    """

    blocks: tuple[Block, ...]
    queue: tuple[int, ...]
    by_key: Frozen[Key, tuple[int, ...]]
    """The copies of a key in the order in which they were sealed. A look-up returns the first."""

    def num_free(self) -> int:
        """Return the length of the queue."""
        return len(self.queue)

    def heads(self, n: int) -> tuple[int, ...]:
        """Return the next `n` victims."""
        return self.queue[:n]

    def copies(self, key: Key) -> tuple[int, ...]:
        """Return the blocks sealed under `key`, the first one first."""
        return self.by_key.get(key, ())

    def update(self, changes: Mapping[int, Block]) -> Pool:
        """Return the pool in which some blocks are replaced."""
        if not changes:
            return self
        blocks = list(self.blocks)
        for b, block in changes.items():
            blocks[b] = block
        return self._replace(blocks=tuple(blocks))

    def dequeue(self, ids: Iterable[int]) -> Pool:
        """Return the pool in which `ids` have left the queue."""
        gone = set(ids)
        return self._replace(queue=tuple(b for b in self.queue if b not in gone))

    def enqueue(self, tail: Iterable[int], head: Iterable[int] = ()) -> Pool:
        """Return the pool with `head` before the queue and `tail` behind it, in their order."""
        return self._replace(queue=(*head, *self.queue, *tail))

    def publish(self, b: int, key: Key) -> Pool:
        """Return the pool in which `b` is the last copy of `key`."""
        return self._replace(by_key=self.by_key.set(key, (*self.copies(key), b)))

    def withdraw(self, b: int, key: Key) -> Pool:
        """Return the pool in which `b` cannot be found; the key goes with its last copy."""
        left = tuple(copy for copy in self.copies(key) if copy != b)
        return self._replace(
            by_key=self.by_key.set(key, left) if left else self.by_key.without(key)
        )


class Request(NamedTuple):
    """One live request. Positions count from 0; `table[i]` holds positions `i*B .. (i+1)*B - 1`."""

    tokens: tuple[int, ...]
    """The confirmed tokens: the prompt, then what was sampled or accepted."""
    drafts: tuple[int, ...] = ()
    """Proposed tokens that nobody has confirmed."""
    lora: tuple[int | str, int] | None = None
    """The adapter's id and the generation of its weights."""
    media: tuple[tuple[str, int, int], ...] = ()
    """Media items as (content identifier, offset, length), in tokens."""
    salt: str | None = None
    prompt_logprobs: bool = False
    num_computed: int = 0
    """Tokens whose KV is written. Raised when a step has run."""
    num_preemptions: int = 0
    keys: tuple[Key, ...] = ()
    """The chain: one key for each full block of confirmed tokens."""
    table: tuple[int, ...] | None = None
    """The block table; None before admission and after `free`."""
    num_hits: int = 0
    """How many entries at the front of the table came from the cache."""
    num_cached: int = 0
    """How many entries at the front of the table are dealt with: sealed, hit, or null."""
    start: int = 0
    """The first position of the last scheduled step."""
    end: int = 0
    """One past its last position."""

    @property
    def in_flight(self) -> bool:
        """True between a successful `allocate_slots` and the step's run."""
        return self.table is not None and self.num_computed <= self.start


class State(NamedTuple):
    """The whole world: one pool, the live requests, and references held outside any request."""

    config: Config
    pool: Pool
    requests: Frozen[str, Request] = Frozen()
    loose: tuple[int, ...] = ()
    """One entry for each reference that a direct caller of the pool holds, sorted by id."""
    taken_back: bool = False
    """Ghost: a published key was taken back, unwritten, since the cache was last emptied."""


def initial(config: Config) -> State:
    """Return the state in which every usable block is free, in id order."""
    if config.num_gpu_blocks < 2:
        raise ValueError(f"num_gpu_blocks is {config.num_gpu_blocks}: null and one more are needed")
    if config.block_size < 1:
        raise ValueError(f"block_size is {config.block_size}: a block holds at least one token")
    if config.free_rule not in FREE_RULES:
        raise ValueError(f"free_rule is {config.free_rule!r}: it must be one of {FREE_RULES}")
    if config.sliding_window is not None and config.sliding_window < 2:
        raise ValueError(f"sliding_window is {config.sliding_window}: it must be at least 2")
    blocks = (Block(),) * config.num_gpu_blocks
    return State(config, Pool(blocks, tuple(range(1, config.num_gpu_blocks)), Frozen()))


def block_state(s: State, b: int) -> BlockState:
    """Return the state of a block, by the two facts that tell the five apart."""
    block = s.pool.blocks[b]
    if b == NULL:
        return BlockState.NULL
    if block.ref_cnt == 0:
        return BlockState.FREE if block.key is None else BlockState.FREE_CACHED
    if block.ref_cnt < 0:
        raise ValueError(f"block {b} has {block.ref_cnt} references: that is no state")
    if block.ref_cnt == 1:
        return BlockState.IN_USE if block.key is None else BlockState.IN_USE_CACHED
    return BlockState.SHARED


def extra_keys(r: Request, i: int, block_size: int) -> Extra:
    """Return what besides tokens determines block `i`, tagged so that no two kinds meet."""
    if r.lora is None and r.salt is None and not r.media:
        return ()
    first, last = i * block_size, (i + 1) * block_size
    lora = () if r.lora is None else (("lora", *r.lora),)
    media = tuple(
        ("mm", item, first - offset, min(last, offset + n) - max(first, offset))
        for item, offset, n in sorted(r.media, key=lambda item: item[1])
        if max(first, offset) < min(last, offset + n)
    )
    salt = (("salt", r.salt),) if i == 0 and r.salt is not None else ()
    return lora + media + salt


def with_tokens(r: Request, tokens: tuple[int, ...], block_size: int) -> Request:
    """Return the request with more confirmed tokens and the chain extended to its full blocks."""
    keys = list(r.keys)
    for i in range(len(keys), len(tokens) // block_size):
        parent = keys[-1] if keys else None
        own = tokens[i * block_size : (i + 1) * block_size]
        keys.append(Key(parent, own, extra_keys(r, i, block_size)))
    return r._replace(tokens=tokens, keys=tuple(keys))
