"""The sequential driver computes one prompt after the other and counts what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.driver import TOO_LARGE, Tally, serve_sequentially
from conformance.lockstep import Lockstep
from conformance.subject import Refusal, RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

ByHand = Callable[..., Any]
Recorder = Callable[[object], Any]

CONFIG = Config(6, 2)


def served(subject: object, workload: Any) -> tuple[Tally, list[int]]:  # noqa: ANN401
    """Serve a workload; return what was counted and what the driver told on the way."""
    tally = Tally()
    told = list(serve_sequentially(subject, workload, tally))  # type: ignore[arg-type]
    return tally, told


def test_the_calls_come_in_this_order(by_hand: ByHand, recording: Recorder) -> None:
    """Arrival, look-up, allocation of what was not found, one step without output, end."""
    subject = recording(Reference(CONFIG))
    prompts = ([0, 0, 1, 1, 2], [0, 0, 1, 1, 3], [0, 0])
    tally, told = served(subject, by_hand(*((prompt, 7) for prompt in prompts)))
    assert subject.calls == [
        ("add_request", "r0", RequestSpec(prompts[0])),
        ("get_computed_blocks", "r0"),
        ("allocate_slots", "r0", 5, (), 0),
        ("run_step", {"r0": Outcome()}),
        ("finish", "r0"),
        ("add_request", "r1", RequestSpec(prompts[1])),
        ("get_computed_blocks", "r1"),
        ("allocate_slots", "r1", 1, (1, 2), 0),
        ("run_step", {"r1": Outcome()}),
        ("finish", "r1"),
        ("add_request", "r2", RequestSpec(prompts[2])),
        ("get_computed_blocks", "r2"),
        ("allocate_slots", "r2", 2, (), 0),
        ("run_step", {"r2": Outcome()}),
        ("finish", "r2"),
    ]
    assert told == [1, 2, 3]
    assert tally == Tally(
        requests=3,
        served=3,
        input_tokens=12,
        hit_tokens=4,
        blocks=3 + 3 + 1,
        steps=3,
        calls=15,
        least_free=2,
    )


def test_a_request_that_never_fits_is_counted_and_named(by_hand: ByHand) -> None:
    """The replay goes on after a request that is too large; the first five are kept by name."""
    large, small = ([0] * 11, 0), ([1, 1, 1], 0)
    subject = Reference(CONFIG)
    tally, told = served(subject, by_hand(small, *[large] * 7, small))
    assert told == list(range(1, 10))
    assert (tally.requests, tally.served, tally.num_refused) == (9, 2, 7)
    assert list(tally.refused) == ["r1", "r2", "r3", "r4", "r5"]
    assert "6 blocks are needed of 5" in tally.refused["r1"]
    assert (tally.hit_tokens, tally.input_tokens) == (2, 2 * 3 + 7 * 11)
    assert (tally.steps, tally.no_room, tally.starved) == (2, 0, 0)
    assert subject.num_free() == 5
    assert subject.requests == {}


def test_a_request_that_gets_no_room_is_given_up(by_hand: ByHand) -> None:
    """Nothing else runs, so a None cannot change by waiting."""

    class Stingy(Reference):
        """Has never any room."""

        def allocate_slots(self, *_: object) -> None:
            """Give nothing."""

    tally, told = served(Stingy(CONFIG), by_hand(([1, 1], 3), ([2, 2], 3)))
    assert told == [1, 2]
    assert (tally.no_room, tally.starved, tally.served, tally.steps) == (2, 2, 0, 0)
    assert tally.least_free is None


def test_another_refusal_stops_the_replay(by_hand: ByHand) -> None:
    """Only one rule is about the workload; any other is the driver's or the manager's fault."""

    class Contrary(Reference):
        """Refuses the second request for no good reason."""

        def allocate_slots(
            self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
        ) -> tuple[int, ...] | None:
            """Refuse `r1`."""
            if rid == "r1":
                raise Refusal("because", "I say so")
            return super().allocate_slots(rid, num_tokens, hits, num_lookahead)

    tally = Tally()
    driver = serve_sequentially(Contrary(CONFIG), by_hand(([1], 0), ([1], 0)), tally)
    assert next(driver) == 1
    with pytest.raises(Refusal, match="because"):
        next(driver)
    assert (tally.requests, tally.served) == (1, 1)


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_pair_is_served_as_its_subject_is(by_hand: ByHand, check: Any) -> None:  # noqa: ANN401
    """The driver cannot tell lockstep from the manager alone."""
    prompts = [([0, 0, 1, 1, at % 3], 0) for at in range(8)] + [([5] * 11, 0)]
    alone, _ = served(Reference(CONFIG), by_hand(*prompts))
    pair = Lockstep(Reference(CONFIG), check, sweep_every=1)
    together, _ = served(pair, by_hand(*prompts))
    assert alone == together
    assert alone.num_refused == 1
    pair.sweep()


def test_the_tally_is_right_at_every_moment(by_hand: ByHand) -> None:
    """A run that is stopped after any request has its figures so far."""
    tally = Tally()
    driver = serve_sequentially(Reference(CONFIG), by_hand(*[([1, 1, 1], 0)] * 3), tally)
    for at in range(1, 4):
        assert next(driver) == at
        assert (tally.requests, tally.served, tally.input_tokens) == (at, at, 3 * at)
        assert tally.hit_tokens == 2 * (at - 1)


def test_the_least_number_of_free_blocks_is_kept() -> None:
    """The first number counts, and then only a smaller one."""
    tally = Tally()
    seen = []
    for num_free in (5, 7, 0, 3):
        tally.saw_free(num_free)
        seen.append(tally.least_free)
    assert seen == [5, 5, 0, 0]
    assert TOO_LARGE == "request_is_too_large"
