"""A pair in lockstep has the verbs of its subject; it passes on answers and refusals alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.lockstep import PROMISES, Check, Divergence, Lockstep, as_request
from conformance.subject import Refusal, RequestSpec, Subject
from spec.invariants import REGISTRY
from spec.state import Config, Key
from spec.statemachine import Outcome, Refused

CONFIG = Config(9, 2, max_model_len=12)
CHECKS: tuple[Check, ...] = ("full", "incremental")


class Both(NamedTuple):
    """A pair and the recording of what its subject was asked."""

    pair: Lockstep
    asked: list[tuple[Any, ...]]


@pytest.fixture(params=CHECKS)
def both(request: pytest.FixtureRequest, recording: Callable[[object], Any]) -> Both:
    """Return a pair of our manager and the specification, checked either way."""
    subject = recording(Reference(CONFIG))
    return Both(Lockstep(subject, request.param, sweep_every=1), subject.calls)


@pytest.fixture
def running(both: Both) -> Both:
    """Return a pair in which request `a` is admitted and in flight, and `asked` is empty."""
    both.pair.add_request("a", RequestSpec([0, 0, 1, 1, 2]))
    both.pair.allocate_slots("a", 5, (), 0)
    both.asked.clear()
    return both


SPEC = RequestSpec([0, 0, 1, 1, 2])
KEYS = (Key(None, (1, 1)), Key(None, (2, 2)))
OF_REQUESTS: tuple[tuple[str, tuple[Any, ...], object], ...] = (
    ("add_request", ("a", SPEC), None),
    ("get_computed_blocks", ("a",), ()),
    ("allocate_slots", ("a", 5, (), 1), (1, 2, 3)),
    ("run_step", ({"a": Outcome(0, (3,))},), None),
    ("propose", ("a", [3, 4]), None),
    ("allocate_slots", ("a", 3, (), 0), (4,)),
    ("run_step", ({"a": Outcome(1, ())},), None),
    ("preempt", ("a",), None),
    ("get_computed_blocks", ("a",), (1, 2, 3)),
    ("allocate_slots", ("a", 1, (1, 2, 3), 0), (5,)),
    ("run_step", ({"a": Outcome()},), None),
    ("free", ("a",), None),
    ("finish", ("a",), None),
    ("reset_prefix_cache", (), True),
)
OF_THE_POOL: tuple[tuple[str, tuple[Any, ...], object], ...] = (
    ("get_new_blocks", (3,), (1, 2, 3)),
    ("cache_full_blocks", ([1, 2], KEYS, 0, 2), None),
    ("touch", ([1, 1],), None),
    ("unpublish", ([2],), None),
    ("free_blocks", ([1, 3, 1],), None),
    ("reset_prefix_cache", (), False),
    ("free_blocks", ((1, 2),), None),
    ("reset_prefix_cache", (), True),
)


@pytest.mark.parametrize(("calls", "levels"), [(OF_REQUESTS, "PM"), (OF_THE_POOL, "P")])
def test_every_verb_reaches_the_subject(
    both: Both, calls: tuple[tuple[str, tuple[Any, ...], object], ...], levels: str
) -> None:
    """Arguments go to the subject as they are, and its answer comes back.

    After a call of the pool itself, only what holds for any user of a pool is asked for.
    """
    for verb, args, answer in calls:
        assert answer == getattr(both.pair, verb)(*args)
    assert both.asked == [(verb, *args) for verb, args, _ in calls]
    assert both.pair.calls == len(calls)
    assert levels == both.pair.levels


def test_a_pair_can_be_looked_at_as_a_subject_can(both: Both) -> None:
    """Tables, free blocks and evictions are told without a call being counted."""
    pair = both.pair
    pair.add_request("a", SPEC)
    assert (pair.table("a"), pair.num_free(), pair.num_evictions()) == ((), 8, 0)
    pair.allocate_slots("a", 5, (), 0)
    assert (pair.table("a"), pair.num_free(), pair.num_evictions()) == ((1, 2, 3), 5, 0)
    pair.run_step({"a": Outcome()})
    pair.finish("a")
    assert pair.get_new_blocks(8) == (4, 5, 6, 7, 8, 3, 2, 1)
    assert (pair.num_free(), pair.num_evictions(), pair.calls) == (0, 2, 5)


def test_no_room_is_an_answer(both: Both) -> None:
    """None comes back as None, and the request can ask again."""
    both.pair.add_request("a", RequestSpec([0] * 10))
    both.pair.add_request("b", RequestSpec([1] * 10))
    assert both.pair.allocate_slots("a", 10, (), 0) == (1, 2, 3, 4, 5)
    assert both.pair.allocate_slots("b", 10, (), 0) is None
    assert both.pair.allocate_slots("b", 6, (), 0) == (6, 7, 8)


REFUSALS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "num_tokens_is_below_one": ("allocate_slots", ("b", 0, (), 0)),
    "num_lookahead_tokens_is_negative": ("allocate_slots", ("b", 1, (), -1)),
    "tokens_beyond_the_request": ("allocate_slots", ("b", 14, (), 0)),
    "tokens_beyond_max_model_len": ("allocate_slots", ("b", 13, (), 0)),
    "hits_for_a_request_with_a_table": ("allocate_slots", ("a", 1, (1,), 0)),
    "block_is_not_of_this_pool": ("allocate_slots", ("b", 1, (9,), 0)),
    "hit_is_stale": ("allocate_slots", ("b", 1, (4,), 0)),
    "null_hit_is_readable": ("allocate_slots", ("b", 1, (0,), 0)),
    "last_step_has_not_run": ("allocate_slots", ("a", 1, (), 0)),
    "hits_with_prompt_logprobs": ("allocate_slots", ("c", 1, (1, 2), 0)),
    "pending_block_is_shared": ("free", ("a",)),
    "block_count_is_negative": ("get_new_blocks", (-1,)),
    "not_enough_free_blocks": ("get_new_blocks", (6,)),
    "touched_block_is_not_sealed": ("touch", ([3],)),
    "released_more_often_than_held": ("free_blocks", ([4],)),
    "seal_range_is_invalid": ("cache_full_blocks", ([], [], 0, 1)),
    "block_is_already_sealed": ("cache_full_blocks", ([1], KEYS, 0, 1)),
    "sealed_block_has_not_one_holder": ("cache_full_blocks", ([4], KEYS, 0, 1)),
    "unpublished_block_is_not_one_holders": ("unpublish", ([3],)),
}


@pytest.mark.parametrize("rule", REFUSALS)
def test_a_refusal_of_both_sides_is_raised(running: Both, rule: str) -> None:
    """The driver gets the rule and the manager's own words, and nothing has changed."""
    pair = running.pair
    pair.add_request("b", RequestSpec([0, 0, 3] + [4] * 10))
    pair.add_request("c", RequestSpec([0, 0, 1, 1, 2], prompt_logprobs=True))
    if rule == "pending_block_is_shared":
        pair.allocate_slots("b", 1, (1,), 0)
    seen, before = pair.subject.snapshot(), pair.state.requests
    verb, args = REFUSALS[rule]
    with pytest.raises(Refusal) as caught:
        getattr(pair, verb)(*args)
    assert rule == caught.value.rule
    assert "; " in caught.value.text  # The manager's message says what to do.
    assert seen == pair.subject.snapshot()
    assert before == pair.state.requests
    pair.sweep()


def test_a_request_that_never_fits_is_refused_by_name(both: Both) -> None:
    """A refusal that the specification returns, and does not raise, is raised to the driver."""
    pair = Lockstep(Reference(Config(3, 2)), both.pair.check)
    pair.add_request("a", RequestSpec([0] * 5))
    with pytest.raises(Refusal) as caught:
        pair.allocate_slots("a", 1, (), 0)
    assert caught.value.rule == "request_is_too_large"
    assert "'a': 3 blocks are needed of 2" in caught.value.text


BREACHES: dict[str, Callable[[Lockstep], None]] = {
    "an id twice": lambda p: p.add_request("a", RequestSpec([1])),
    "an empty prompt": lambda p: p.add_request("b", RequestSpec([])),
    "drafts in flight": lambda p: p.propose("a", [1]),
    "a step without its request": lambda p: p.run_step({}),
    "a step with a stranger": lambda p: p.run_step({"a": Outcome(), "b": Outcome()}),
    "more accepted than proposed": lambda p: p.run_step({"a": Outcome(accepted=1)}),
    "less than nothing accepted": lambda p: p.run_step({"a": Outcome(accepted=-1)}),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_broken_promise_is_the_drivers_fault(running: Both, breach: str) -> None:
    """What binds the driver is raised to it, and the subject never hears of it."""
    before = running.pair.state
    with pytest.raises(Refused) as caught:
        BREACHES[breach](running.pair)
    assert caught.value.rule in PROMISES
    assert running.asked == []
    assert before == running.pair.state
    running.pair.run_step({"a": Outcome(sampled=(1,))})
    running.pair.finish("a")
    running.pair.sweep()


def divergence(call: Callable[[], object]) -> Divergence:
    """Return the divergence that a call raises."""
    with pytest.raises(Divergence) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("check", CHECKS)
def test_a_subject_that_crashes_is_a_finding(
    damaged: Callable[..., type[Reference]], check: Check
) -> None:
    """An error of the subject's own is a divergence that names the error, not an error of ours."""

    def crash(*_: object) -> None:
        raise ZeroDivisionError("by the subject")

    pair = Lockstep(damaged("allocate_slots", 1, crash)(CONFIG), check)
    pair.add_request("a", RequestSpec([1]))
    found = divergence(lambda: pair.allocate_slots("a", 1, (), 0))
    assert "raised_ZeroDivisionError" in found.details
    assert found.call.action == "allocate_slots"


@pytest.mark.parametrize("check", CHECKS)
def test_a_ctrl_c_in_the_subject_is_no_finding(
    damaged: Callable[..., type[Reference]], check: Check
) -> None:
    """Who stops the run is not blamed on the subject."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    pair = Lockstep(damaged("add_request", 1, stop)(CONFIG), check)
    with pytest.raises(KeyboardInterrupt):
        pair.add_request("a", RequestSpec([1]))


def refuse(*_: object) -> None:
    """Refuse what was asked, under a name of the subject's own."""
    raise Refusal("i_do_not_want_to", "ask me tomorrow")


class Others(Reference):
    """A manager with manners of its own: it takes any count, and names its refusals itself."""

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out nothing for less than nothing."""
        return super().get_new_blocks(max(0, n))

    def touch(self, ids: Sequence[int]) -> None:
        """Refuse whatever is asked."""
        refuse(ids)


def test_refusals_must_agree(damaged: Callable[..., type[Reference]]) -> None:
    """A refusal of one side only, and one under another name, are findings."""
    pair = Lockstep(damaged("allocate_slots", 1, refuse)(CONFIG))
    pair.add_request("a", RequestSpec([1]))
    found = divergence(lambda: pair.allocate_slots("a", 1, (), 0))
    assert "refused:i_do_not_want_to" in found.details
    pair = Lockstep(Others(CONFIG))
    found = divergence(lambda: pair.get_new_blocks(-1))
    assert "expected=refused:block_count_is_negative actual=() " in str(found)
    pair = Lockstep(Others(CONFIG))
    found = divergence(lambda: pair.touch([3]))
    assert "expected=refused:touched_block_is_not_sealed" in str(found)
    assert "actual=refused:i_do_not_want_to" in str(found)


def test_a_free_rule_is_taken_from_the_subject(model_of: Callable[[Config], Subject]) -> None:
    """The specification follows the order in which the subject says that it frees."""
    config = Config(5, 2, free_rule="unhashed_first")
    for check in CHECKS:
        pair = Lockstep(model_of(config), check, sweep_every=1)
        assert pair.config.free_rule == "unhashed_first"
        pair.add_request("a", RequestSpec([0, 0, 1]))
        pair.allocate_slots("a", 3, (), 0)
        pair.run_step({"a": Outcome()})
        pair.finish("a")
        assert pair.subject.snapshot().queue == (2, 3, 4, 1)


def test_a_request_arrives_with_everything_that_names_its_content() -> None:
    """No field of a request is lost on its way to the specification."""
    spec = RequestSpec([1, 2], ("x", 3), (("picture", 0, 1),), "salt", prompt_logprobs=True)
    r = as_request(spec)
    assert (r.tokens, r.lora, r.media) == ((1, 2), ("x", 3), (("picture", 0, 1),))
    assert (r.salt, r.prompt_logprobs) == ("salt", True)


def test_a_refused_reset_is_logged_and_not_raised(
    both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset while blocks are held answers False; who reads the log sees how many."""
    both.pair.add_request("a", RequestSpec([1]))
    both.pair.allocate_slots("a", 1, (), 0)
    with caplog.at_level(logging.WARNING):
        assert both.pair.reset_prefix_cache() is False
    assert "1 blocks are held" in caplog.text


def test_a_divergence_names_a_property_of_the_registry(
    damaged: Callable[..., type[Reference]],
) -> None:
    """The name can be looked up, and the details quote what it says."""
    kind = damaged("get_computed_blocks", 1, lambda *_: (3,))
    pair = Lockstep(kind(CONFIG))
    pair.add_request("a", RequestSpec([1, 1, 1]))
    found = divergence(lambda: pair.get_computed_blocks("a"))
    assert REGISTRY[found.property].statement in found.details
    assert REGISTRY[found.property].why in found.details
