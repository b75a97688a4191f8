"""A toy block manager: lists and dicts, full attention, no drafts. It knows nothing of kvspec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


class ToyError(Exception):
    """A call that the toy refuses; nothing has changed."""


class PoolIsEmpty(ToyError):  # noqa: N818  # it names what is the case
    """More blocks are asked for than are free."""


class NotHeld(ToyError):  # noqa: N818  # the same
    """A block is given back more often than it is held."""


class TooLarge(ToyError):  # noqa: N818  # the same
    """A request would not fit into the empty pool."""


class StillNeeded(ToyError):  # noqa: N818  # the same
    """Somebody found a block that its writer gives back unwritten."""


class ToyPool:
    """Blocks by number. Block 0 stands for no block: it is never handed out and never counted."""

    def __init__(self, num_blocks: int) -> None:
        self.counts = [0] * num_blocks
        self.keys: list[Hashable | None] = [None] * num_blocks
        self.queue = list(range(1, num_blocks))
        self.index: dict[Hashable, list[int]] = {}
        self.num_evictions = 0

    def take(self, n: int) -> list[int]:
        """Hand out the `n` blocks that were given back the longest ago."""
        if n > len(self.queue):
            raise PoolIsEmpty(f"{n} blocks of {len(self.queue)}")
        taken, self.queue = self.queue[:n], self.queue[n:]
        for b in taken:
            self.num_evictions += self.keys[b] is not None
            self.forget(b)
            self.counts[b] = 1
        return taken

    def touch(self, ids: Sequence[int]) -> None:
        """Hold blocks once more."""
        for b in filter(None, ids):
            if self.counts[b] == 0:
                self.queue.remove(b)
            self.counts[b] += 1

    def release(self, ids: Sequence[int]) -> None:
        """Give blocks back; the first to become idle is the first to be handed out again."""
        for b, n in Counter(filter(None, ids)).items():
            if n > self.counts[b]:
                raise NotHeld(f"block {b}: {n} times of {self.counts[b]}")
        for b in filter(None, ids):
            self.counts[b] -= 1
            if self.counts[b] == 0:
                self.queue.append(b)

    def seal(self, b: int, key: Hashable) -> None:
        """Let a full block be found under its key, after the others that have it."""
        self.keys[b] = key
        self.index.setdefault(key, []).append(b)

    def forget(self, b: int) -> None:
        """Let a block be found no longer."""
        key, self.keys[b] = self.keys[b], None
        if key is not None:
            self.index[key].remove(b)
            if not self.index[key]:
                del self.index[key]

    def reset(self) -> bool:
        """Forget all blocks, if none is held."""
        idle = len(self.queue) == len(self.counts) - 1
        for b in self.queue if idle else ():
            self.forget(b)
        return idle


@dataclass
class ToyRequest:
    """A request; `names` determine what its blocks hold, beside the tokens."""

    tokens: list[int]
    media: tuple[tuple[str, int, int], ...] = ()
    names: tuple[Hashable, ...] = ()
    reads_cache: bool = True
    computed: int = 0
    end: int = 0
    table: list[int] = field(default_factory=list)
    num_hits: int = 0
    num_cached: int = 0


class ToyManager:
    """Serves requests from one pool."""

    pool_class = ToyPool

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool) -> None:
        self.pool = self.pool_class(num_blocks)
        self.size = block_size
        self.caching = caching
        self.requests: dict[str, ToyRequest] = {}

    def key(self, r: ToyRequest, i: int) -> Hashable:
        """Return all that determines what block `i` holds: everything up to its end."""
        end = (i + 1) * self.size
        media = sorted((at, min(n, end - at), item) for item, at, n in r.media if at < end)
        return tuple(r.tokens[:end]), tuple(media), r.names

    def num_full(self, num_tokens: int) -> int:
        """Return how many blocks so many tokens fill."""
        return num_tokens // self.size

    def look_up(self, rid: str) -> list[int]:
        """Return the blocks of the longest known prefix; the last token is always computed."""
        r, found = self.requests[rid], list[int]()
        if self.caching and r.reads_cache:
            for i in range((len(r.tokens) - 1) // self.size):
                if (key := self.key(r, i)) not in self.pool.index:
                    break
                found.append(self.pool.index[key][0])
        return found

    def reserve(self, rid: str, num_tokens: int, hits: Sequence[int]) -> list[int] | None:
        """Reserve the blocks of the next step; None where there is no room now."""
        r, pool = self.requests[rid], self.pool
        end = r.computed + len(hits) * self.size + num_tokens
        longest = end if r.table else len(r.tokens)
        if -(-longest // self.size) > len(pool.counts) - 1:
            raise TooLarge(f"{longest} tokens in {len(pool.counts) - 1} blocks")
        new = -(-end // self.size) - len(r.table) - len(hits)
        if new + sum(pool.counts[b] == 0 for b in hits) > len(pool.queue):
            return None
        pool.touch(hits)
        taken = pool.take(new)
        if not r.table:
            r.num_hits = r.num_cached = len(hits)
        r.table += [*hits, *taken]
        r.end = end
        if self.caching:
            full = self.num_full(end)
            for i in range(r.num_cached, full):
                pool.seal(r.table[i], self.key(r, i))
            r.num_cached = max(r.num_cached, full)
        return taken

    def ran(self, rid: str, sampled: Sequence[int]) -> None:
        """The step that was reserved ran."""
        r = self.requests[rid]
        r.computed = r.end
        r.tokens += sampled

    def order_of_release(self, r: ToyRequest) -> list[int]:
        """Return a table in the order in which it is given back: what many share comes last."""
        return r.table[::-1] if self.caching else r.table

    def release(self, rid: str) -> None:
        """Give back a request's blocks; those that no step wrote are not found any more."""
        r = self.requests[rid]
        unwritten = r.table[max(r.num_hits, r.computed // self.size) : r.num_cached]
        for b in unwritten:
            if self.pool.counts[b] > 1:
                raise StillNeeded(f"block {b} of {rid}")
        for b in unwritten:
            self.pool.forget(b)
        self.pool.release(self.order_of_release(r))
        r.table, r.num_hits, r.num_cached = [], 0, 0
