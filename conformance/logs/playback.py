"""Runs a log through the specification: the calls are made, and the log answers for the manager.

`Playback` is the log as a subject, so that lockstep compares and names a difference as it does with
a manager that is there. A log does not show everything at every call: where it shows nothing but an
answer, nothing but the answer is compared, and the rest at the next line that has a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from conformance.divergence import Call, Divergence
from conformance.lockstep import PROMISES, Check, Lockstep
from conformance.logs.oplog import (
    SMALL_POOL,
    UNANSWERED,
    Log,
    LogError,
    LoggedCall,
    Odd,
    Raising,
    Refusing,
)
from conformance.program import FOUND, VERBS, with_keys
from conformance.subject import Capabilities, Refusal, Snapshot, Subject
from conformance.view import differences
from spec.state import State
from spec.statemachine import Refused


class Playback:
    """A subject that answers what the log says and shows what the log shows."""

    def __init__(self, log: Log) -> None:
        self.name = log.header.subject
        self.config = log.header.settings
        self.capabilities = Capabilities(free_rule=self.config.free_rule)
        self.now: LoggedCall | None = None
        """The call that is being made."""
        self.behind: Callable[[], State] | None = None
        """The specification's state, which stands in where the log shows nothing."""

    def __getattr__(self, verb: str) -> Callable[..., object]:
        """Return a verb."""
        if verb not in VERBS:
            raise AttributeError(verb)
        return self._answer

    def _answer(self, **_: object) -> object:
        assert self.now is not None, "a verb of a log is called outside its line"
        answer = self.now.answer
        if isinstance(answer, Refusing):
            raise Refusal(answer.refused, answer.text)
        if isinstance(answer, Raising):
            raise _exception(answer)
        return f"{answer.returned}:{answer.text}" if isinstance(answer, Odd) else answer

    def snapshot(self) -> Snapshot:
        """Return what the log shows of the subject after the call."""
        shown = None if self.now is None else self.now.snapshot
        if isinstance(shown, Raising):
            raise _exception(shown)
        if shown is not None:
            return shown
        assert self.behind is not None, "nothing stands behind the log"
        return as_snapshot(self.behind())


def _exception(raised: Raising) -> Exception:
    """Return an exception of the recorded name and text."""
    made: Exception = type(raised.raised, (Exception,), {})(raised.text)
    return made


def as_snapshot(s: State) -> Snapshot:
    """Return a state of the specification as a subject would show it."""
    return Snapshot(
        ref_cnts=tuple(block.ref_cnt for block in s.pool.blocks),
        keys=tuple(block.key for block in s.pool.blocks),
        queue=s.pool.queue,
        queue_back=s.pool.queue[::-1],
        num_free=len(s.pool.queue),
        index=dict(s.pool.by_key.items()),
        tables={rid: r.table for rid, r in s.requests.items() if r.table},
    )


class Validation(Lockstep):
    """The specification against a log. `run` makes the calls, in order.

    Full checks, the usual ones for a small pool, evaluate the properties of every step and compare
    the counters. Incremental ones compare all else that a line shows.
    """

    def __init__(self, log: Log, check: Check | None = None) -> None:
        self.log = log
        self.playback = Playback(log)
        self.snapshots = 0
        """How many lines showed the whole subject."""
        small = self.playback.config.num_gpu_blocks <= SMALL_POOL
        usual: Check = "full" if small else "incremental"
        super().__init__(cast("Subject", self.playback), check or usual)
        self.playback.behind = self._frozen
        self._found: dict[str, Sequence[int]] = {}

    def run(self) -> Iterator[int]:
        """Make each call of the log; yield its number. Raises `Divergence`, and `LogError`.

        A call that no driver may make is the log's fault and no answer of a manager's.
        """
        for logged in self.log:
            self.playback.now = logged
            if logged.answer is UNANSWERED:
                if self.log.notices:
                    return
                what = f"call {logged.number} has no answer to compare"
                raise self._error(f"{what}; replay the log on a manager instead")
            self._make(logged)
            self.snapshots += logged.snapshot is not None
            yield logged.number

    def _make(self, logged: LoggedCall) -> None:
        action, args = logged.operation.action, self._arguments(logged)
        try:
            result = getattr(self, action)(**args)
        except Refusal:
            return
        except Refused as broken:
            if broken.rule not in PROMISES:
                raise
            what = f"{action} breaks a promise of the driver, {broken}"
            raise self._error(f"{what}; no manager is asked that, so mend the driver") from broken
        if action == "get_computed_blocks":
            self._found[args["rid"]] = result
        elif action == "finish":
            self._found.pop(args["rid"], None)

    def _arguments(self, logged: LoggedCall) -> Mapping[str, Any]:
        action, args = logged.operation
        rid = args.get("rid")
        if rid is not None and (rid in self.state.requests) == (action == "add_request"):
            there = "is there already" if action == "add_request" else "is not there"
            what = f"{action} is called for {rid!r}, which {there}"
            raise self._error(f"{what}; calls are missing, so record again from the beginning")
        if args.get("hits") != FOUND:
            return with_keys(args, self.config.block_size)
        if rid not in self._found:
            what = f'the hits of {rid!r} are "found", and it was never looked up'
            raise self._error(f"{what}; name the blocks, or record again")
        return {**args, "hits": self._found[rid]}

    def _error(self, problem: str) -> LogError:
        now = self.playback.now
        return LogError(self.log.path, None if now is None else now.line, problem)

    def _diagnosis(self, call: Call, before: State, results: tuple[object, object]) -> Divergence:
        if isinstance(results[1], Refused):
            # Where the log does not show that a refused call did something, it did nothing.
            self.playback.behind = lambda: before
        return super()._diagnosis(call, before, results)

    def _touched_differ(self, before: State, call: Call) -> bool:  # noqa: ARG002  # as it overrides
        """Return whether a snapshot differs, where the line has one: a log has no other look."""
        now = self.playback.now
        if now is None or now.snapshot is None:
            return False
        seen = self._see(call, self.subject.snapshot)
        return any(True for _ in differences(self._frozen(), seen))


__all__ = ["Playback", "Validation", "as_snapshot"]
