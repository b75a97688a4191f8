"""Faults that the replay, its drivers and the walk once had and must not have again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.replay import ReplayPlan, replay
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.subject import Refusal, RequestSpec
from spec.state import Config, Key
from spec.statemachine import Outcome, Refused

ByHand = Callable[..., Any]


def test_a_hit_rate_is_at_most_one(by_hand: ByHand) -> None:
    """A run that is stopped has counted the hits of no request whose prompt it has not counted."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    plan = ReplayPlan(num_blocks=900, block_size=2, batch=True)
    report = replay(by_hand(*[([1] * 9, 9)] * 50), plan, stop)
    assert report.verdict == "interrupted"
    assert report.hit_rate <= 1


def test_the_calls_of_a_report_were_made(by_hand: ByHand) -> None:
    """A request that is refused costs the calls that were made for it, and no step."""
    report = replay(by_hand(([1] * 9, 0)), ReplayPlan(num_blocks=4, block_size=2))
    assert (report.verdict, report.num_refused) == ("clean", 1)
    assert report.calls == report.calls_checked == 4


def test_a_refusal_without_checks_is_a_line_of_its_form(by_hand: ByHand) -> None:
    """A subject that refuses what a driver does is reported in one line, by the driver."""

    class Contrary(Reference):
        def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
            raise Refusal("last_step_has_not_run", f"no step for {len(outcomes)}")

    plan = ReplayPlan(num_blocks=4, block_size=2, check="off")
    report = replay(by_hand(([1], 0)), plan, subject=Contrary(plan.config()))
    assert report.verdict == "violation"
    assert re.fullmatch(
        r"kvspec violation: property=refinement call=\d+ [a-z_]+ block=- expected=accepted "
        r"actual=refused:last_step_has_not_run holders=- found_by=driver",
        report.violation or "",
    )
    assert report.details == "  no step for 1"


def test_the_walk_counts_admissions_that_happened() -> None:
    """An admission with hits that got no room is none."""

    class Seen(Lockstep):
        real = 0
        in_vain = 0

        def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
            result = super()._call(action, **args)
            if action == "allocate_slots" and any(args["hits"]):
                self.real += result is not None
                self.in_vain += result is None
            return result

    pair = Seen(Reference(Config(9, 2)))
    walk = Walk(pair, 1)
    walk.run(1500)
    assert pair.in_vain > 0
    assert 0 < walk.counts["admitted with hits"] <= pair.real


KEY = Key(None, (1, 1))
SEALS: dict[str, tuple[int, tuple[Any, ...], str]] = {
    "no range": (1, ([99], [KEY], 1, 0), "seal_range_is_invalid"),
    "free and twice": (0, ([1, 1], [KEY, KEY], 0, 2), "sealed_block_has_not_one_holder"),
}
"""How many blocks are taken, what is sealed, and the first thing that is wrong with it."""


@pytest.mark.parametrize("name", SEALS)
def test_both_refuse_the_same_seals(name: str) -> None:
    """What is wrong in two ways is refused by the same rule on both sides."""
    num_taken, args, rule = SEALS[name]
    pair = Lockstep(Reference(Config(4, 2)))
    pair.get_new_blocks(num_taken)
    with pytest.raises(Refusal) as refused:
        pair.cache_full_blocks(*args)
    assert refused.value.rule == rule


def test_both_look_only_at_the_range_of_a_seal() -> None:
    """A block that no pool has may stand in a table before the blocks that are sealed."""
    pair = Lockstep(Reference(Config(4, 2)))
    pair.get_new_blocks(1)
    pair.cache_full_blocks([99, 1], [KEY, KEY], 1, 2)
    assert pair.state.pool.blocks[1].key == KEY
    assert pair.subject.snapshot().keys[1] == KEY


@pytest.mark.parametrize("token", [-1, 2**63])
def test_both_refuse_a_token_that_is_no_index(token: int) -> None:
    """The subject is asked, and refuses by the specification's rule."""
    pair = Lockstep(Reference(Config(9, 2)))
    with pytest.raises(Refusal) as refused:
        pair.add_request("a", RequestSpec([token]))
    assert refused.value.rule == "token_id_is_out_of_range"
    assert pair.calls == 1


@pytest.mark.parametrize("media", [(("a", 0, 2), ("b", 1, 1)), (("a", 0, 0),)])
def test_pictures_that_cannot_be_are_the_drivers_fault(
    media: tuple[tuple[str, int, int], ...],
) -> None:
    """Pictures that overlap, or have no length, reach no subject."""
    pair = Lockstep(Reference(Config(9, 2)))
    with pytest.raises(Refused) as refused:
        pair.add_request("a", RequestSpec([1, 2, 3], media=media))
    assert refused.value.rule == "request_is_invalid"
    assert pair.calls == 0
