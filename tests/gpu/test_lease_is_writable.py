"""A lease is the specification's rule of who may write, after every call of random walks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.pool_walk import PoolWalk
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from gpu.ledger import Ledger
from spec.invariants import Step
from spec.state import NULL, Config, State
from spec.statemachine import Outcome

PLACES = {
    "full attention": Config(9, 2),
    "one token": Config(12, 1),
    "tight": Config(5, 1),
    "window": Config(14, 2, sliding_window=4),
    "narrow window": Config(12, 2, sliding_window=2),
    "caching off": Config(9, 2, enable_caching=False),
}


class Leased(Reference):
    """Our manager with a ledger beside it, which is told what a runner would tell it."""

    name = "leased"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ledger = Ledger(config.num_gpu_blocks)
        self.ledger.watch(self.manager)
        self.pool.listener = self.ledger

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None."""
        self.ledger.before_call(f"allocate_slots({rid}, {num_tokens})", self.requests[rid])
        return super().allocate_slots(rid, num_tokens, hits, num_lookahead)

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran."""
        super().run_step(outcomes)
        self.ledger.after_calls()
        self.ledger.settle(outcomes)

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""
        self.ledger.before_call(f"free({rid})", self.requests[rid])
        super().free(rid)

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out blocks to a direct caller."""
        self.ledger.after_calls()
        return super().get_new_blocks(n)


def writable(state: State) -> list[bool]:
    """Return for each block whether somebody may write it, by the specification."""
    return [
        block_id != NULL
        and ((block.ref_cnt > 0 and block.key is None) or block.pending is not None)
        for block_id, block in enumerate(state.pool.blocks)
    ]


class Compared:
    """Compares after each call, and counts what there was to compare."""

    def __init__(self, subject: Leased) -> None:
        self.ledger = subject.ledger
        self.counts: Counter[str] = Counter()

    def __call__(self, step: Step) -> None:
        """Hold the leases against the state after a call."""
        expected, leases = writable(step.after), self.ledger.lease.tolist()
        assert expected == [lease != 0 for lease in leases], step
        self.counts["calls"] += 1
        self.counts["leased"] += sum(expected)
        for block_id, block in enumerate(step.after.pool.blocks):
            if block.pending is not None:
                self.counts["pending"] += 1
                assert block.pending == self.ledger.name_of(leases[block_id])
        settled = {
            block_id
            for block_id, block in enumerate(step.after.pool.blocks)
            if block.key is not None and block.pending is None
        }
        assert settled == self.ledger.settled_blocks()


def walked(place: str, seed: int, num_moves: int) -> Counter[str]:
    """Return what was compared in one walk of a manager."""
    subject = Leased(PLACES[place])
    pair = Lockstep(subject)
    compared = Compared(subject)
    pair.on_step = compared
    Walk(pair, seed).run(num_moves)
    assert subject.ledger.wrong == []
    return compared.counts


def walks(place: str) -> Counter[str]:
    """Return what was compared in some walks."""
    counts: Counter[str] = Counter()
    for seed in range(10):
        counts += walked(place, seed, 200)
    return counts


@pytest.mark.parametrize("place", PLACES)
def test_a_lease_is_what_the_specification_calls_writable(place: str) -> None:
    """In every place, with preemption, unrun steps, drafts, windows, resets and misuse."""
    counts = walks(place)
    assert counts["calls"] > 1000
    assert counts["leased"] > 100
    assert (counts["pending"] > 20) == PLACES[place].enable_caching


def test_a_lease_is_right_for_direct_callers_too() -> None:
    """Without requests a block is settled at its seal."""
    for seed in range(6):
        subject = Leased(Config(6, 2))
        pair = Lockstep(subject)
        compared = Compared(subject)
        pair.on_step = compared
        PoolWalk(pair, seed).run(150)
        assert compared.counts["leased"] > 50
        assert not compared.counts["pending"]


@pytest.mark.parametrize("verb", ["settle", "release", "unpublish", "seal"])
def test_a_ledger_that_misses_an_event_is_seen(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison has teeth: each event matters in some walk."""
    monkeypatch.setattr(Ledger, verb, lambda *_: None)
    with pytest.raises(AssertionError):
        walks("tight")
