"""Judges what a scheduler did, from what was seen of it after each event.

What is seen is plain: the pool as a snapshot, and a few facts of each request. It may come from a
scheduler in this process or from a log that was written elsewhere; the judgement is the same, and
the ledger is kept here and believes nobody's account of what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.divergence import Divergence
from conformance.scheduler.ledger import Ledger, Work
from conformance.scheduler.properties import Moment, faults, violation
from conformance.scheduler.reading import Names, as_state
from conformance.subject import Snapshot
from conformance.view import Difference
from spec.state import Config, Request, State, initial


class Facts(NamedTuple):
    """What is seen of a request."""

    tokens: Sequence[int]
    """Confirmed tokens: the prompt, then what the scheduler has heard was sampled."""
    hashes: Sequence[Any]
    """One for each full block of them, as the scheduler made them."""
    num_computed: int
    """Raised when a step is scheduled, so what is on its way is in it."""
    num_cached: int
    """Blocks at the front of the table that count as sealed."""
    num_preemptions: int
    lives: bool = True
    """False in the last glimpse of a request, after it has ended."""


class Glimpse(NamedTuple):
    """What is seen after an event."""

    seen: Snapshot
    requests: Mapping[str, Facts]
    taken: tuple[int, ...] = ()
    """The blocks that were handed out since the last glimpse."""


class Judge:
    """The ledger, what hashes stand for, and the state after the last event."""

    def __init__(self, config: Config, names: Names | None = None) -> None:
        self.state: State = initial(config)
        self.calls = 0
        self._ledger = Ledger(config.block_size)
        self._names = Names(config.block_size) if names is None else names
        self._misnamed: list[tuple[str, Difference]] = []

    def moment(
        self,
        action: str,
        args: Mapping[str, Any],
        glimpse: Glimpse,
        work: tuple[Work, ...] = (),
        result: object = None,
    ) -> Moment:
        """Return what an event did, by what is seen after it; `work` is what it scheduled."""
        before, self.state = self.state, self._state(glimpse, work)
        self.calls += 1
        return Moment(action, args, before, self.state, glimpse.seen, work, result)

    def run(self, work: tuple[Work, ...], token: int) -> dict[str, int]:
        """Write what a scheduled step computes; return what each request samples."""
        sampled = self._ledger.run(work, token)
        blocks, contents = self.state.pool.blocks, self._ledger.contents
        written = {b for one in work for b in one.table if blocks[b].content is not contents.get(b)}
        settled = {
            b: blocks[b]._replace(content=contents.get(b), pending=None)
            for b in written | {b for b, block in enumerate(blocks) if block.pending is not None}
        }
        self.state = self.state._replace(pool=self.state.pool.update(settled))
        return sampled

    def faults(self, moment: Moment) -> Iterator[tuple[str, Difference]]:
        """Yield each broken property of the moment that has just passed."""
        yield from self._misnamed
        yield from faults(moment)

    def broken(self, moment: Moment) -> Divergence | None:
        """Return the first broken property of the moment that has just passed."""
        return violation(self.calls, moment, self.faults(moment))

    def _state(self, glimpse: Glimpse, work: tuple[Work, ...]) -> State:
        seen, requests = glimpse.seen, glimpse.requests
        self._ledger.taken(glimpse.taken)
        self._misnamed = [
            fault
            for rid, facts in requests.items()
            for fault in self._names.learn(rid, facts.tokens, facts.hashes)
        ]
        on_its_way = {one.rid: one for one in work}
        live = {
            rid: self._request(rid, requests.get(rid), seen.tables.get(rid), on_its_way.get(rid))
            for rid in {**requests, **seen.tables}
            if rid in seen.tables or requests[rid].lives
        }
        sealed = {b for b, name in enumerate(seen.keys) if name is not None}
        pending, contents = self._ledger.pending(work, sealed), self._ledger.contents
        state = as_state(self.state.config, seen, live, self._names, contents, pending)
        ended = [rid for rid, facts in requests.items() if not facts.lives]
        self._names.forget(ended)
        self._ledger.forget(ended)
        return state

    def _request(
        self, rid: str, facts: Facts | None, table: tuple[int, ...] | None, work: Work | None
    ) -> Request:
        if facts is None or not facts.lives:
            # Blocks of a request that has ended: the properties say what that is.
            return Request((), table=table, num_computed=1)
        computed = max(facts.num_computed, 1)
        return Request(
            tokens=tuple(facts.tokens),
            keys=self._names.chain(rid),
            table=table,
            num_preemptions=facts.num_preemptions,
            num_cached=facts.num_cached if table else 0,
            num_computed=work.start if work else computed,
            start=work.start if work else computed - 1,
            end=work.end if work else computed,
        )
