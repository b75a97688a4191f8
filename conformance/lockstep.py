"""Runs a subject and the specification side by side and compares them after every call.

`Lockstep` has the verbs of a `Subject`, so whatever drives a subject drives the pair. For each call
the specification says what must happen, then the subject is called. *Full* compares a whole
snapshot and evaluates every property at every call, at a cost of O(pool). *Incremental* keeps the
specification's pool as a `TwinPool` and compares the blocks that the call touched, the ends and the
length of the queue, and the request's table; a full sweep follows every so many calls.

The first difference raises `Divergence`, which `divergence.py` names.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

from conformance.counters import counted
from conformance.divergence import Call, Divergence, answer, diagnose
from conformance.subject import Refusal, RequestSpec, Subject
from conformance.twin import TwinPool
from conformance.view import Difference, differences
from spec import statemachine as sm
from spec.invariants import Step, broken
from spec.state import NULL, Pool, Request, State, initial
from spec.statemachine import Outcome, Refused

Check = Literal["full", "incremental", "off"]

ACTIONS: Mapping[str, Callable[..., tuple[State, Any]]] = {
    "add_request": lambda s, rid, request: (sm.add_request(s, rid, as_request(request)), None),
    "propose": lambda s, rid, drafts: (sm.propose(s, rid, drafts), None),
    "get_computed_blocks": lambda s, rid: (s, sm.get_computed_blocks(s, rid)),
    "allocate_slots": sm.allocate_slots,
    "run_step": lambda s, outcomes: (sm.run_step(s, outcomes), None),
    "free": lambda s, rid: (sm.free(s, rid), None),
    "preempt": lambda s, rid: (sm.preempt(s, rid), None),
    "finish": lambda s, rid: (sm.finish(s, rid), None),
    "reset_prefix_cache": sm.reset_prefix_cache,
    "get_new_blocks": sm.get_new_blocks,
    "touch": lambda s, ids: (sm.touch(s, ids), None),
    "free_blocks": lambda s, ids: (sm.free_blocks(s, ids), None),
    "cache_full_blocks": lambda s, **args: (sm.cache_full_blocks(s, **args), None),
    "unpublish": lambda s, ids: (sm.unpublish(s, ids), None),
}

PROMISES = frozenset(
    {
        "request_is_invalid",
        "drafts_while_a_step_is_in_flight",
        "a_step_runs_all_that_is_scheduled",
        "outcome_is_impossible",
    }
)
"""Rules that bind the driver. No manager can see them, so no subject is asked about them."""


def as_request(request: RequestSpec) -> Request:
    """Return the specification's record of a request that arrives."""
    return Request(
        tokens=tuple(request.prompt),
        lora=request.lora,
        media=tuple(request.media),
        salt=request.salt,
        prompt_logprobs=request.prompt_logprobs,
    )


class Lockstep:
    """A subject and the specification as one: the verbs of a subject, each checked."""

    def __init__(
        self, subject: Subject, check: Check = "full", sweep_every: int | None = None
    ) -> None:
        self.subject = subject
        self.name = subject.name
        self.config = subject.config._replace(free_rule=subject.capabilities.free_rule)
        self.capabilities = subject.capabilities
        self.check = check
        self.sweep_every = sweep_every or max(1_000, self.config.num_gpu_blocks)
        self.calls = 0
        self.unasked: Counter[str] = Counter()
        """Calls that break a rule which the subject does not enforce, by the rule: never made."""
        self.counters: Counter[str] = Counter()
        """What full checks say that the subject's statistics must have counted."""
        self.levels = "PM"
        self.on_step: Callable[[Step], None] | None = None
        """Is told of every call under full checks, with the states around it."""
        self.state = initial(self.config)
        self._twin: TwinPool | None = None
        if check == "incremental":
            self._twin = TwinPool(self.state.pool)
            # It answers every method of a pool; a test holds the two against each other.
            self.state = self.state._replace(pool=cast("Pool", self._twin))

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        self._call("add_request", rid=rid, request=request)

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens."""
        self._call("propose", rid=rid, drafts=drafts)

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit."""
        return cast("tuple[int, ...]", self._call("get_computed_blocks", rid=rid))

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        args = {"rid": rid, "num_tokens": num_tokens, "hits": hits, "num_lookahead": num_lookahead}
        return cast("tuple[int, ...] | None", self._call("allocate_slots", **args))

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        self._call("run_step", outcomes=outcomes)

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""
        self._call("free", rid=rid)

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks."""
        self._call("preempt", rid=rid)

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""
        self._call("finish", rid=rid)

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        return bool(self._call("reset_prefix_cache"))

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks to a direct caller."""
        return cast("tuple[int, ...]", self._call("get_new_blocks", n=n))

    def touch(self, ids: Sequence[int]) -> None:
        """Add a direct caller's references."""
        self._call("touch", ids=ids)

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""
        self._call("free_blocks", ids=ids)

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal a direct caller's blocks."""
        args = {"table": table, "keys": keys, "num_cached": num_cached, "num_full": num_full}
        self._call("cache_full_blocks", **args)

    def unpublish(self, ids: Sequence[int]) -> None:
        """Take the keys from a direct caller's blocks."""
        self._call("unpublish", ids=ids)

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        return self.state.requests[rid].table or ()

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return self.state.pool.num_free()

    def num_evictions(self) -> int:
        """Return the subject's count of evictions."""
        return self.subject.num_evictions()

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # each verb casts its own
        if action in ("get_new_blocks", "touch", "free_blocks", "cache_full_blocks", "unpublish"):
            self.levels = "P"  # What only requests keep is not promised to a direct caller.
        if self._twin is not None:
            self._twin.begin()
        before = self.state
        try:
            self.state, expected = ACTIONS[action](before, **args)
        except Refused as refused:
            if refused.rule in PROMISES:
                raise
            expected = refused
            if not self.capabilities.enforces(refused.rule, action):
                self.unasked[refused.rule] += 1
                raise Refusal(refused.rule, str(refused)) from None
        self.calls += 1
        actual = self._ask(action, args)
        call = Call(self.calls, action, args)
        self._compare(call, before, expected, actual)
        if isinstance(actual, Refused):
            raise Refusal(actual.rule, str(actual.values.get("text", actual)))
        return actual

    def _ask(self, action: str, args: Mapping[str, Any]) -> Any:  # noqa: ANN401  # as the verb's
        try:
            answered = getattr(self.subject, action)(**args)
        except Refusal as refusal:
            return Refused(refusal.rule, text=refusal.text)
        except Exception as crash:  # noqa: BLE001  # a subject that crashes is a finding
            where = raised_at(crash)
            # Where an object lies is another place in every run.
            text = re.sub(r" at 0x[0-9a-f]+", "", str(crash))
            return Refused(f"raised_{type(crash).__name__}", text=text, where=where)
        return tuple(answered) if isinstance(answered, list) else answered

    def _compare(self, call: Call, before: State, expected: object, actual: object) -> None:
        differs = answer(expected) != answer(actual)
        if self._twin is not None:
            differs = differs or self._touched_differ(before, call)
        elif not differs:
            step = Step(before, call.action, call.args, actual, self.state)
            seen = self._see(call, self.subject.snapshot)
            failed = chain(broken(step, self.levels), broken(self.state, self.levels))
            differs = any(True for _ in chain(differences(self.state, seen), failed))
            self.counters += counted(step)
            if not differs:
                self._compare_counters(call, seen.counters)
            if self.on_step is not None:
                self.on_step(step)
        if differs:
            if self._twin is not None:
                before = before._replace(pool=self._twin.before())
            results = (expected, actual)
            raise self._diagnosis(call, before, results)
        if self._twin is not None and self.calls % self.sweep_every == 0:
            self.sweep()

    def _compare_counters(self, call: Call, seen: Mapping[str, int]) -> None:
        """No property speaks of statistics, and no later call shows a wrong one."""
        for name, number in seen.items():
            if number != self.counters[name]:
                found = Difference(f"count of {name}", None, self.counters[name], number)
                raise Divergence("refinement", call, found, "-")

    def _touched_differ(self, before: State, call: Call) -> bool:
        twin = cast("TwinPool", self._twin)
        ids = [NULL, *twin.touched()]
        views, *ends = self._see(call, self.subject.look, ids)
        if tuple(ends) != twin.ends() or views != twin.views(ids):
            return True
        rid = call.args.get("rid")
        old = None if rid is None else before.requests.get(rid)
        new = None if rid is None else self.state.requests.get(rid)
        if rid is None or (old and old.table) == (new and new.table):
            return False
        return bool(((new and new.table) or ()) != self._see(call, self.subject.table, rid))

    def sweep(self) -> None:
        """Compare everything and evaluate every state property, whatever the mode."""
        call = Call(self.calls, "sweep", {})
        if self._twin is not None:
            self._twin.begin()
        whole = self._frozen()
        seen = self._see(call, self.subject.snapshot)
        if any(True for _ in chain(differences(whole, seen), broken(whole, self.levels))):
            raise self._diagnosis(call, whole, (None, None))

    def _frozen(self) -> State:
        return self.state if self._twin is None else self.state._replace(pool=self._twin.frozen())

    def _diagnosis(self, call: Call, before: State, results: tuple[object, object]) -> Divergence:
        seen = self._see(call, self.subject.snapshot)
        return diagnose(call, before, self._frozen(), results, seen, self.levels)

    def _see(self, call: Call, look: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401  # as `look`
        """Return what can be seen of the subject; that it cannot be looked at is a finding."""
        try:
            return look(*args)
        except Exception as crash:
            what = f"looking at the subject raised {type(crash).__name__}: {crash}"
            raised = Refused(f"raised_{type(crash).__name__}", where=raised_at(crash))
            found = Difference(what, None, "a_view", raised.rule)
            raise Divergence("refinement", call, found, "-", (None, raised)) from crash


def raised_at(crash: BaseException) -> str:
    """Return where an exception was raised: module, function, and the line as it stands there."""
    last = traceback.extract_tb(crash.__traceback__)[-1]
    return f"{Path(last.filename).stem}.{last.name}: {last.line}"


__all__ = [
    "ACTIONS",
    "PROMISES",
    "Call",
    "Check",
    "Divergence",
    "Lockstep",
    "as_request",
    "raised_at",
]
