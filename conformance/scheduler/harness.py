"""Runs one script on a scheduler, step by step, and has each moment judged.

A step of a scheduler is two moments: it schedules, and it hears what came of it. Between the two
the worker runs, which is the ledger's part. In the asynchronous kind a second step is scheduled
before the first is heard of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from conformance.divergence import Call, Divergence
from conformance.scheduler import stand_in
from conformance.scheduler.judge import Facts, Glimpse, Judge
from conformance.scheduler.ledger import Work
from conformance.scheduler.properties import Moment
from conformance.scheduler.reading import Names, pool_snapshot
from conformance.scheduler.script import Abort, Add, Event, Reset, Script, Setting, Step
from conformance.subject import Snapshot
from conformance.view import Difference
from spec.state import Config

Make = Callable[[Setting], Any]
OnMoment = Callable[[Moment, Glimpse, int | None], None]

UNSEEN = Glimpse(Snapshot((), (), (), (), 0, {}), {})


class _Flight(NamedTuple):
    """A step that was handed out and not heard of."""

    output: Any
    work: tuple[Work, ...]
    sampled: Mapping[str, int]


def config_of(setting: Setting) -> Config:
    """Return a setting as the specification has it."""
    return Config(
        setting.num_gpu_blocks,
        setting.block_size,
        setting.max_model_len,
        setting.enable_caching,
        free_rule="unhashed_first",
    )


class Harness:
    """One scheduler and its judge.

    With `checked` off nothing is looked at, to see what looking costs. `on_moment` is told each
    moment, what was seen, and, where a step was scheduled, the token that it samples.
    """

    def __init__(
        self,
        setting: Setting,
        make: Make = stand_in.make_scheduler,
        *,
        checked: bool = True,
        on_moment: OnMoment = lambda *_: None,
    ) -> None:
        self.setting = setting
        self.config = config_of(setting)
        self.scheduler = make(setting)
        self.judge = Judge(self.config, Names(setting.block_size, stand_in.carried_hash))
        self.num_steps = 0
        self.num_preempted = 0
        self._checked = checked
        self._on_moment = on_moment
        self._requests: dict[str, Any] = {}
        self._num_added = 0
        self._flights: deque[_Flight] = deque()
        self._tables: dict[str, tuple[int, ...]] = {}
        self._taken: list[int] = []
        self._watch_the_taking()

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Return the tokens of each request that lives."""
        return {rid: tuple(r.all_token_ids) for rid, r in self.scheduler.requests.items()}

    def perform(self, event: Event) -> Iterator[Moment]:
        """Let one event happen; yield its moments as they pass."""
        match event:
            case Add():
                yield from self._add(event)
            case Step():
                yield from self._step(event)
            case Abort():
                if event.rid in self.scheduler.requests:
                    self.scheduler.finish_requests(event.rid, stand_in.aborted())
                    yield self._moment("abort", {"rid": event.rid})
            case Reset():
                yield from self._reset(event)

    def _watch_the_taking(self) -> None:
        """Have it known which blocks are handed out: what they held is of no use to anyone.

        A request that is preempted in the step that gave it the blocks is in no output of a step.
        """
        pool = self.scheduler.kv_cache_manager.block_pool
        inner = pool.get_new_blocks

        def taken(num_blocks: int) -> Any:  # noqa: ANN401  # it has no types here
            blocks = inner(num_blocks)
            self._taken += [block.block_id for block in blocks]
            return blocks

        pool.get_new_blocks = taken

    def _add(self, event: Add) -> Iterator[Moment]:
        fits = 0 < len(event.prompt) < self.setting.max_model_len
        if fits and event.rid not in self.scheduler.requests:
            request = stand_in.make_request(event, self.setting.block_size, self._num_added)
            self._num_added += 1
            self.scheduler.add_request(request)
            self._requests[event.rid] = request
            args = {"rid": event.rid, "prompt": event.prompt, "max_tokens": event.max_tokens}
            if self.setting.policy == "priority":
                args["priority"] = event.priority
            yield self._moment("add_request", args)

    def _step(self, event: Step) -> Iterator[Moment]:
        output = self.scheduler.schedule()
        self.num_steps += 1
        work = self._work(output)
        preempted = sorted(output.preempted_req_ids or ())
        self.num_preempted += len(preempted)
        args = {
            "runs": ",".join(f"{w.rid}[{w.start}:{w.end}]" for w in work) or "nothing",
            **({"preempted": ",".join(preempted)} if preempted else {}),
        }
        yield self._moment("schedule", args, work, event.token)
        sampled = self.judge.run(work, event.token)
        self._flights.append(_Flight(output, work, sampled))
        if len(self._flights) >= self.setting.steps_in_flight or not work:
            yield self._hear()

    def _hear(self) -> Moment:
        """Let the scheduler hear of the oldest step on its way."""
        output, work, sampled = self._flights.popleft()
        rids = tuple(one.rid for one in work)
        self.scheduler.update_from_output(output, stand_in.make_output(rids, sampled))
        samples = ",".join(f"{rid}:{token}" for rid, token in sampled.items())
        return self._moment("update_from_output", {"sampled": samples or "nothing"})

    def _reset(self, event: Reset) -> Iterator[Moment]:
        """Reset; where that preempts what runs, the pool in between is a moment of its own."""
        manager, between = self.scheduler.kv_cache_manager, list[Moment]()
        inner = manager.reset_prefix_cache

        def watched() -> bool:
            if event.running:
                between.append(self._moment("preempt_running", {}))
            return bool(inner())

        manager.reset_prefix_cache = watched
        try:
            result = bool(self.scheduler.reset_prefix_cache(reset_running_requests=event.running))
        finally:
            manager.reset_prefix_cache = inner
        yield from between
        yield self._moment("reset_prefix_cache", {}, result=result)

    def _work(self, output: Any) -> tuple[Work, ...]:  # noqa: ANN401  # it has no types here
        """Return what a step computes, as the worker is told it, whose tables these are."""
        told: dict[str, tuple[int, bool]] = {}
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = tuple(new.block_ids[0])
            told[new.req_id] = new.num_computed_tokens, True
        cached = output.scheduled_cached_reqs
        for at, rid in enumerate(cached.req_ids):
            ids, back = cached.new_block_ids[at], rid in cached.resumed_req_ids
            more = () if ids is None else tuple(ids[0])
            self._tables[rid] = more if back else self._tables[rid] + more
            told[rid] = cached.num_computed_tokens[at], back
        work = []
        for rid, num_tokens in output.num_scheduled_tokens.items():
            start, anew = told[rid]
            tokens = tuple(self.scheduler.requests[rid].all_token_ids) if anew else None
            work.append(Work(rid, start, start + num_tokens, self._tables[rid], tokens))
        return tuple(work)

    def _moment(
        self,
        action: str,
        args: Mapping[str, Any],
        work: tuple[Work, ...] = (),
        token: int | None = None,
        result: object = None,
    ) -> Moment:
        if not self._checked:
            state = self.judge.state
            return Moment(action, args, state, state, UNSEEN.seen, work, result)
        glimpse = self._look()
        moment = self.judge.moment(action, args, glimpse, work, result)
        self._on_moment(moment, glimpse, token)
        return moment

    def _look(self) -> Glimpse:
        """Look at the pool and at the requests, for the last time at those that have ended."""
        live = self.scheduler.requests
        manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        seen = pool_snapshot(self.scheduler.kv_cache_manager.block_pool, manager.req_to_blocks)
        requests = {
            rid: Facts(
                r.all_token_ids,
                r.block_hashes,
                r.num_computed_tokens,
                manager.num_cached_block.get(rid, 0),
                r.num_preemptions,
                rid in live,
            )
            for rid, r in self._requests.items()
        }
        self._requests = {rid: r for rid, r in self._requests.items() if rid in live}
        taken, self._taken = tuple(self._taken), []
        return Glimpse(seen, requests, taken)


class Run:
    """A script as it is performed and checked, event by event."""

    def __init__(self, setting: Setting, make: Make = stand_in.make_scheduler) -> None:
        self.harness = Harness(setting, make)
        self.first = self.harness.judge.state
        self.events: list[Event] = []
        self.moments: list[Moment] = []
        self.divergence: Divergence | None = None
        """What broke; nothing happens after it."""

    @property
    def script(self) -> Script:
        """What happened so far."""
        return Script(self.harness.setting, tuple(self.events))

    def happen(self, event: Event) -> Divergence | None:
        """Let one event happen; return what it broke, if anything."""
        self.events.append(event)
        try:
            for moment in self.harness.perform(event):
                self.moments.append(moment)
                self.divergence = self.harness.judge.broken(moment)
                if self.divergence is not None:
                    break
        except Exception as crash:  # noqa: BLE001  # whatever the scheduler dies of is a finding
            self.divergence = self._crashed(event, crash)
        return self.divergence

    def _crashed(self, event: Event, crash: Exception) -> Divergence:
        call = Call(len(self.moments) + 1, type(event).__name__.lower(), event._asdict())
        text = f"{type(crash).__name__}: {crash}"
        found = Difference("what the scheduler raised", None, "no error", text)
        name = f"raised_{type(crash).__name__}"
        return Divergence(name, call, found, "-", found_by="scheduler")


def run(script: Script, make: Make = stand_in.make_scheduler) -> Run:
    """Perform a script to its end or to the first broken property."""
    performed = Run(script.setting, make)
    for event in script.events:
        if performed.happen(event) is not None:
            break
    return performed
