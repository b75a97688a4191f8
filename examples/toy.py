"""The toy as a subject: what docs/adapters.md walks through."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from conformance.subject import BlockView, Capabilities, Refusal, RequestSpec, Snapshot
from examples.toy_manager import (
    NotHeld,
    PoolIsEmpty,
    StillNeeded,
    TooLarge,
    ToyError,
    ToyManager,
    ToyRequest,
)
from spec.state import Config
from spec.statemachine import Outcome

RULES: Mapping[type[ToyError], str] = {
    PoolIsEmpty: "not_enough_free_blocks",
    NotHeld: "released_more_often_than_held",
    TooLarge: "request_is_too_large",
    StillNeeded: "pending_block_is_shared",
}


@contextmanager
def refusing() -> Iterator[None]:
    """Give an error of the toy the name that the specification has for it."""
    try:
        yield
    except ToyError as error:
        raise Refusal(RULES[type(error)], str(error)) from error


class Toy:
    """`ToyManager` behind the verbs of `conformance.subject.Subject`."""

    name = "toy"
    capabilities = Capabilities(window=False, lookahead=False, rules=frozenset(RULES.values()))
    manager_class = ToyManager

    def __init__(self, config: Config) -> None:
        self.config = config
        self.manager = self.manager_class(
            config.num_gpu_blocks, config.block_size, caching=config.enable_caching
        )
        self.pool = self.manager.pool

    # What a scheduler does.

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        self.manager.requests[rid] = ToyRequest(
            tokens=list(request.prompt),
            media=request.media,
            names=(request.lora, request.salt),
            reads_cache=not request.prompt_logprobs,
        )

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """No drafts come: `lookahead` is False."""

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit."""
        return tuple(self.manager.look_up(rid))

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None where there is no room now."""
        assert num_lookahead == 0, "none is asked for: `lookahead` is False"
        with refusing():
            new = self.manager.reserve(rid, num_tokens, hits)
        return None if new is None else tuple(new)

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        for rid, outcome in outcomes.items():
            self.manager.ran(rid, outcome.sampled)

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""
        with refusing():
            self.manager.release(rid)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks; it will start again."""
        self.free(rid)
        self.manager.requests[rid].computed = 0

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self.free(rid)
        del self.manager.requests[rid]

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        return self.pool.reset()

    # What a direct caller of the pool does.

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks."""
        with refusing():
            return tuple(self.pool.take(n))

    def touch(self, ids: Sequence[int]) -> None:
        """Add references."""
        self.pool.touch(ids)

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop references."""
        with refusing():
            self.pool.release(ids)

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal the blocks of a part of a table."""
        for i in range(num_cached, num_full):
            if table[i]:
                self.pool.seal(table[i], keys[i])

    def unpublish(self, ids: Sequence[int]) -> None:
        """Take keys away."""
        for b in ids:
            self.pool.forget(b)

    # What can be seen.

    def snapshot(self) -> Snapshot:
        """Return everything, as plain data."""
        pool = self.pool
        return Snapshot(
            ref_cnts=tuple(pool.counts),
            keys=tuple(pool.keys),
            queue=tuple(pool.queue),
            queue_back=tuple(reversed(pool.queue)),
            num_free=len(pool.queue),
            index={key: tuple(copies) for key, copies in pool.index.items()},
            tables={rid: tuple(r.table) for rid, r in self.manager.requests.items() if r.table},
        )

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return (references, copies, before, after) of blocks; head, tail, length of the queue."""
        ring = [0, *self.pool.queue, 0]
        views: list[BlockView] = []
        for b in ids:
            key = self.pool.keys[b]
            copies = None if key is None else tuple(self.pool.index.get(key, ()))
            at = ring.index(b, 1) if b and b in ring else None
            before, after = (None, None) if at is None else (ring[at - 1], ring[at + 1])
            views.append((self.pool.counts[b], copies, before, after))
        return views, ring[1], ring[-2], len(self.pool.queue)

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        r = self.manager.requests.get(rid)
        return tuple(r.table) if r else ()

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return len(self.pool.queue)

    def num_evictions(self) -> int:
        """Return how many cached blocks were handed out since the beginning."""
        return self.pool.num_evictions
