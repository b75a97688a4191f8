"""Who computes what in a step: prefill in chunks, decode with drafts, hits, preemption, resume.

The order of a step follows vLLM V1: requests that run come first, in order of arrival; one that
gets no blocks preempts the latest; new ones are admitted only in a step that preempted nobody. So
a request that is given up has nothing scheduled in the same step that another could have hit, and
`KVCacheManager.free` never refuses it.

Nothing here knows a tensor: `Scheduler.schedule` says which positions are computed, and
`Scheduler.confirm` takes the tokens that came out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu.errors import InvalidLimit
from kvcache.errors import RequestTooLarge
from kvcache.manager import KVCacheManager
from kvcache.request import Request

Drafter: TypeAlias = Callable[[Request, int], Sequence[int]]
"""`drafter(request, n)`: at most n guesses of the tokens that follow the request's own."""


@dataclass(frozen=True)
class Limits:
    """What a step may hold, and how the cache is used; all sizes in tokens unless named otherwise.

    `max_num_seqs` counts requests that run together, `max_num_batched_tokens` the tokens of a step,
    `long_prefill_token_threshold` those of one request in a step (its chunk),
    `num_speculative_tokens` the drafts of a request in a step; so many slots are kept as look-ahead
    besides. Raises `InvalidLimit`.
    """

    max_model_len: int
    enable_caching: bool = True
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256
    long_prefill_token_threshold: int = 256
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"):
            if getattr(self, name) < 1:
                raise InvalidLimit(name=name, value=getattr(self, name), least=1)
        if self.num_speculative_tokens < 0:
            raise InvalidLimit(
                name="num_speculative_tokens", value=self.num_speculative_tokens, least=0
            )


@dataclass(frozen=True)
class Work:
    """A request to serve: its prompt, and the tokens that are wanted of it (0 or more)."""

    request_id: str
    prompt_token_ids: Sequence[int]
    num_output_tokens: int


@dataclass(eq=False)
class Served:
    """A request between its arrival and its end, at `num_wanted_tokens` confirmed tokens."""

    request: Request
    num_wanted_tokens: int

    @property
    def num_missing(self) -> int:
        """The tokens that are still to be generated."""
        return self.num_wanted_tokens - self.request.num_tokens


@dataclass(frozen=True)
class Scheduled:
    """A request's part of a step: positions `[start, start + num_tokens)` are computed."""

    served: Served
    start: int
    num_tokens: int

    @property
    def request(self) -> Request:
        """The request."""
        return self.served.request

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + self.num_tokens

    @property
    def num_drafts(self) -> int:
        """How many of the last positions hold drafts."""
        return max(0, self.end - self.request.num_tokens)


@dataclass
class Tally:
    """What a scheduler has done, so that a check can show that it had something to check."""

    num_steps: int = 0
    num_finished: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_accepted_drafts: int = 0
    num_rejected_drafts: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """By request: why the pool can never hold it."""


class Scheduler:
    """The requests that wait and those that run; `manager` has nobody else's."""

    def __init__(self, manager: KVCacheManager, limits: Limits, drafter: Drafter | None) -> None:
        self.manager = manager
        self.limits = limits
        self.drafter = drafter
        self.waiting: deque[Served] = deque()
        self.running: list[Served] = []
        self.tally = Tally()

    @property
    def has_work(self) -> bool:
        """Some request is not at its end."""
        return bool(self.waiting or self.running)

    def add(self, work: Work) -> Served:
        """A request arrives. Raises what `Request` raises."""
        request = Request(work.request_id, work.prompt_token_ids)
        served = Served(request, request.num_tokens + work.num_output_tokens)
        self.waiting.append(served)
        return served

    def schedule(self) -> list[Scheduled]:
        """The parts of the next step, in order; empty where the step could only give up blocks."""
        step: list[Scheduled] = []
        before = self.tally.num_preemptions
        budget = self.limits.max_num_batched_tokens
        for served in list(self.running):
            if budget and served in self.running:
                budget -= self._go_on(served, budget, step)
        while budget and self.waiting and self.tally.num_preemptions == before:
            if len(self.running) == self.limits.max_num_seqs:
                break
            served = self.waiting[0]
            num_tokens = self._admit(served, budget, step)
            if num_tokens is None:
                break
            budget -= num_tokens
        self.tally.num_steps += bool(step)
        return step

    def confirm(self, step: Sequence[Scheduled], sampled: Sequence[Sequence[int]]) -> list[Served]:
        """The step has run; `sampled` has a token after each computed position, by request.

        Drafts are kept as long as each is the token that the position before it gave. Returns the
        requests that have all their tokens; they hold their blocks until `retire`.
        """
        done: list[Served] = []
        for part, tokens in zip(step, sampled, strict=True):
            request = part.request
            num_rejected = 0
            if part.end >= request.num_tokens:
                drafts = request.spec_token_ids[: part.num_drafts]
                new = tokens[len(tokens) - len(drafts) - 1 :]
                num_accepted = _num_equal(drafts, new)
                num_rejected = len(drafts) - num_accepted
                self.tally.num_accepted_drafts += num_accepted
                self.tally.num_rejected_drafts += num_rejected
                num_new = min(num_accepted + 1, part.served.num_missing)
                request.append_output_token_ids(new[:num_new])
                if not part.served.num_missing:
                    done.append(part.served)
            request.spec_token_ids = ()
            request.num_computed_tokens = part.end - num_rejected
        self.tally.num_finished += len(done)
        return done

    def retire(self, served: Served) -> None:
        """The request gives up its blocks and is forgotten."""
        self.manager.free(served.request)
        self.manager.free_block_hashes(served.request)
        self.running.remove(served)

    def _go_on(self, served: Served, budget: int, step: list[Scheduled]) -> int:
        """Schedule a request that runs, at others' cost where need be; its tokens, 0 for none."""
        request = served.request
        start = request.num_computed_tokens
        budget = min(budget, self.limits.long_prefill_token_threshold)
        if start + 1 == request.num_tokens:
            request.spec_token_ids = self._draft(served, budget - 1)
        num_tokens = min(request.num_tokens_with_spec - start, budget)
        try:
            while self._allocate(served, num_tokens) is None:
                if self._preempt() is served:
                    return 0
        except RequestTooLarge as error:
            self._refuse(served, error)
            return 0
        step.append(Scheduled(served, start, num_tokens))
        return num_tokens

    def _admit(self, served: Served, budget: int, step: list[Scheduled]) -> int | None:
        """Admit the first request that waits; its tokens, 0 where it is refused, None: no room."""
        request = served.request
        hits, num_hit_tokens = self.manager.get_computed_blocks(request)
        budget = min(budget, self.limits.long_prefill_token_threshold)
        num_tokens = min(request.num_tokens - num_hit_tokens, budget)
        try:
            if self.manager.allocate_slots(request, num_tokens, hits) is None:
                return None
        except RequestTooLarge as error:
            self.waiting.popleft()
            self.tally.refused[request.request_id] = str(error)
            self.manager.free_block_hashes(request)
            return 0
        self.running.append(self.waiting.popleft())
        self.tally.num_hit_tokens += num_hit_tokens
        step.append(Scheduled(served, num_hit_tokens, num_tokens))
        return num_tokens

    def _allocate(self, served: Served, num_tokens: int) -> object | None:
        return self.manager.allocate_slots(
            served.request, num_tokens, num_lookahead_tokens=self.limits.num_speculative_tokens
        )

    def _draft(self, served: Served, most: int) -> tuple[int, ...]:
        """Guesses for a request that decodes: no more than are wanted after the next token."""
        wanted = min(self.limits.num_speculative_tokens, served.num_missing - 1, most)
        if self.drafter is None or wanted < 1:
            return ()
        return tuple(self.drafter(served.request, wanted))[:wanted]

    def _preempt(self) -> Served:
        """The latest request gives up its blocks and waits first in line."""
        victim = self.running.pop()
        request = victim.request
        self.manager.free(request)
        request.spec_token_ids = ()
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.appendleft(victim)
        self.tally.num_preemptions += 1
        return victim

    def _refuse(self, served: Served, error: RequestTooLarge) -> None:
        """The pool can never hold what a request needs next, so it ends here."""
        self.tally.refused[served.request.request_id] = str(error)
        self.retire(served)


def _num_equal(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """The number of leading drafts that are the tokens."""
    for place, draft in enumerate(drafts):
        if tokens[place] != draft:
            return place
    return len(drafts)
