"""A small continuous-batching engine: many requests at once, chunks, decode, drafts, preemption."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from conformance.driving.driver import TOO_LARGE, Tally
from conformance.subject import Refusal, RequestSpec, Served
from conformance.workloads.workload import WorkItem, Workload
from spec.statemachine import Outcome


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much a step may hold. `num_drafts` tokens are proposed for each decoding request."""

    token_budget: int = 8192
    max_num_seqs: int = 256
    num_drafts: int = 0
    seed: int = 0


@dataclass(slots=True)
class _Live:
    """A request between arrival and end, as an engine keeps it."""

    item: WorkItem
    num_tokens: int
    last_token: int
    num_computed: int = 0
    num_output: int = 0
    drafts: tuple[int, ...] = ()
    num_found: int = 0
    resumed: bool = False


def next_token(token: int) -> int:
    """Return the token that always follows `token`: equal prompts go on equally."""
    return (token * 6364136223846793005 + 1442695040888963407) % (1 << 61)


class Batch:
    """Serves a workload step by step.

    Each step schedules what runs, in order of admission, then admits what waits, within a budget of
    tokens. A prompt longer than what is left of the budget is computed in chunks. When there is no
    room for a running request, the one admitted last is preempted and waits in front of all others.
    """

    def __init__(
        self, served: Served, workload: Workload, tally: Tally, limits: BatchLimits
    ) -> None:
        self.served = served
        self.tally = tally
        self.limits = limits
        self.rng = Random(limits.seed)  # noqa: S311 (drafts must be repeatable, not secret)
        self._arrivals = iter(workload)
        self._waiting: deque[str] = deque()
        self._running: dict[str, None] = {}
        self._preempted = False
        self._live: dict[str, _Live] = {}

    def serve(self) -> Iterator[int]:
        """Serve everything. Yields the number of requests that ended, after each step."""
        while self._fill() or self._running:
            scheduled: dict[str, int] = {}
            budget = self._schedule_running(scheduled, self.limits.token_budget)
            if not self._preempted:
                self._admit(scheduled, budget)
            if scheduled:
                self._run(scheduled)
            elif self._waiting and not self._running:
                self._starve(self._waiting[0])
            yield self.tally.requests

    def _fill(self) -> bool:
        """Let requests arrive, as many as may run; return whether any waits."""
        while len(self._waiting) < self.limits.max_num_seqs:
            if (item := next(self._arrivals, None)) is None:
                break
            prompt = item.prompt_token_ids
            self.tally.calls += 1
            self.served.add_request(item.request_id, RequestSpec(prompt))
            self._live[item.request_id] = _Live(item, len(prompt), prompt[-1])
            self._waiting.append(item.request_id)
        return bool(self._waiting)

    def _schedule_running(self, scheduled: dict[str, int], budget: int) -> int:
        self._preempted = False
        for rid in list(self._running):
            live = self._live[rid]
            num_tokens = min(live.num_tokens + len(live.drafts) - live.num_computed, budget)
            while rid in self._running and num_tokens > 0:
                if self._allocate(rid, num_tokens, ()):
                    scheduled[rid] = live.num_computed + num_tokens
                    budget -= num_tokens
                    break
                if len(self._running) > 1:
                    self._preempt_last()
                elif self._running:
                    self._starve(rid)
        return budget

    def _starve(self, rid: str) -> None:
        """Give up a request that gets no room though it has the pool to itself: it never will."""
        self.tally.starved += 1
        self._end(rid)

    def _preempt_last(self) -> None:
        """Preempt the request admitted last. It is never scheduled yet: they are in order."""
        rid, _ = self._running.popitem()
        self.tally.calls += 1
        self.served.preempt(rid)
        self.tally.preemptions += 1
        live = self._live[rid]
        live.num_computed, live.drafts, live.resumed = 0, (), True
        self._waiting.appendleft(rid)
        self._preempted = True

    def _admit(self, scheduled: dict[str, int], budget: int) -> None:
        size = self.served.config.block_size
        while self._waiting and budget > 0 and len(self._running) < self.limits.max_num_seqs:
            rid = self._waiting[0]
            live = self._live[rid]
            self.tally.calls += 1
            hits = self.served.get_computed_blocks(rid)
            found = len(hits) * size
            num_tokens = min(live.num_tokens - found, budget)
            if not self._allocate(rid, num_tokens, hits):
                if rid in self._live:
                    return
                continue
            self._waiting.popleft()
            self._running[rid] = None
            if not live.resumed:
                live.num_found = found
            self.tally.blocks += len(hits)
            scheduled[rid] = found + num_tokens
            budget -= num_tokens

    def _allocate(self, rid: str, num_tokens: int, hits: tuple[int, ...]) -> bool:
        """Return whether there is room now; end a request for which there will never be any."""
        self.tally.calls += 1
        try:
            new = self.served.allocate_slots(rid, num_tokens, hits, self.limits.num_drafts)
        except Refusal as refusal:
            if refusal.rule != TOO_LARGE:
                raise
            self.tally.refuse(rid, refusal.text)
            self._end(rid)
            return False
        if new is None:
            self.tally.no_room += 1
            return False
        self.tally.blocks += len(new)
        self.tally.saw_free(self.served.num_free())
        return True

    def _run(self, scheduled: dict[str, int]) -> None:
        outcomes = {}
        for rid, end in scheduled.items():
            live = self._live[rid]
            accepted = 0
            sampled: tuple[int, ...] = ()
            token = live.last_token
            wanted = live.item.output_length - live.num_output
            if end >= live.num_tokens and wanted > 0:
                for draft in live.drafts[: min(end - live.num_tokens, wanted - 1)]:
                    if draft != next_token(token):
                        break
                    accepted, token = accepted + 1, draft
                token = next_token(token)
                sampled = (token,)
            outcomes[rid] = Outcome(accepted, sampled)
            live.num_computed = min(end, live.num_tokens + accepted)
            live.num_tokens += accepted + len(sampled)
            live.num_output += accepted + len(sampled)
            live.last_token, live.drafts = token, ()
        self.tally.calls += 1
        self.served.run_step(outcomes)
        self.tally.steps += 1
        for rid in scheduled:
            live = self._live[rid]
            done = live.num_output >= live.item.output_length
            if done and live.num_computed >= len(live.item.prompt_token_ids):
                self.tally.served += 1
                self._end(rid)
            elif self.limits.num_drafts and live.num_output:
                self._propose(rid, live)

    def _propose(self, rid: str, live: _Live) -> None:
        """Propose drafts, of which the first few are right."""
        drafts, token = [], live.last_token
        right = self.rng.randint(0, self.limits.num_drafts)
        for i in range(self.limits.num_drafts):
            token = next_token(token)
            drafts.append(token if i < right else token ^ 1)
        live.drafts = tuple(drafts)
        self.tally.calls += 1
        self.served.propose(rid, live.drafts)

    def _end(self, rid: str) -> None:
        """End a request, wherever it stands."""
        self.tally.calls += 1
        self.served.finish(rid)
        live = self._live.pop(rid)
        self._running.pop(rid, None)
        if rid in self._waiting:
            self._waiting.remove(rid)
        self.tally.requests += 1
        self.tally.input_tokens += live.item.num_input_tokens
        self.tally.hit_tokens += live.num_found
        self.tally.output_tokens += live.num_output
