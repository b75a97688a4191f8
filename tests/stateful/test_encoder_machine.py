"""Random calls on the encoder cache manager, misuse included: it does what the specification says.

A rule makes one call on both sides. Most rules name an input for which the call makes sense; others
take any request of any name and any number, and then both sides must refuse alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.divergence import Divergence
from conformance.encoder_lockstep import EncoderLockstep
from kvcache import EncoderCacheManager
from spec.encoder_cache import EncoderStep, Media
from spec.encoder_explore import ENCODER_REACHABLE, OF_AN_INPUT
from spec.pool import Refused

SIZES = {"a": 1, "b": 1, "c": 2, "d": 3}
BUDGETS = st.integers(0, 5)
NAMES = st.sampled_from("ABC")
ITEMS = st.sampled_from(sorted(SIZES.items()))
ODD_ITEMS = st.sampled_from([("a", 2), ("c", 1), ("f", 7)])
"""An identifier for another content than usual, twice, and an item above every budget."""

RULES = {
    "no_such_encoder_input",
    "encoder_input_is_too_large",
    "request_id_holds_encoder_inputs",
    "encoder_input_differs_from_its_entry",
    "encoder_input_is_held",
    "not_enough_encoder_cache",
    "encoder_input_is_not_held",
}


class EncoderMachine(RuleBasedStateMachine):
    """Requests come, hold their media, give them up, and are forgotten."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen
        self.requests: list[Media] = []
        self.pair = EncoderLockstep(EncoderCacheManager(0))

    @initialize(budget=BUDGETS)
    def begin(self, budget: int) -> None:
        """A manager with a budget, in lockstep from here on."""
        self.pair = EncoderLockstep(EncoderCacheManager(budget))
        self.pair.on_step = self.note

    def note(self, step: EncoderStep) -> None:
        """Count what must be seen."""
        self.seen[step.action] += 1
        self.seen.update(name for name, sees in ENCODER_REACHABLE.items() if sees(step))
        if isinstance(step.result, Refused):
            self.seen[step.result.rule] += 1

    def places(self, *, held: bool) -> list[tuple[Media, int]]:
        """Return the inputs that hold their content, or those that do not."""
        every = [(media, i) for media in self.requests for i in range(len(media.inputs))]
        return [place for place in every if (place in self.pair.state.holders) == held]

    @rule(name=NAMES, items=st.lists(ITEMS, min_size=1, max_size=4))
    def arrive(self, name: str, items: list[tuple[str, int]]) -> None:
        """A request arrives, of a name that may be taken."""
        self.requests.append(Media(name, tuple(items), len(self.requests)))

    @rule(name=NAMES, item=ODD_ITEMS, others=st.lists(ITEMS, max_size=2))
    def arrive_with_an_odd_item(
        self, name: str, item: tuple[str, int], others: list[tuple[str, int]]
    ) -> None:
        """A request arrives whose item should be named otherwise, or is too large for anything."""
        self.requests.append(Media(name, (item, *others), len(self.requests)))

    @precondition(lambda self: self.places(held=False))
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        """An input that holds nothing allocates, after the questions that a scheduler asks."""
        media, i = data.draw(st.sampled_from(self.places(held=False)))
        self.pair("has_cache", request=media, input_id=i)
        self.pair("can_allocate", request=media, input_id=i)
        self.pair("allocate", request=media, input_id=i)

    @precondition(lambda self: self.places(held=True))
    @rule(data=st.data())
    def free_encoder_input(self, data: st.DataObject) -> None:
        """An input that holds its content gives it up."""
        media, i = data.draw(st.sampled_from(self.places(held=True)))
        assert self.pair("free_encoder_input", request=media, input_id=i) is None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """A request ends; it may come back later."""
        media = data.draw(st.sampled_from(self.requests))
        self.pair("get_cached_input_ids", request=media)
        self.pair("free", request=media)
        self.pair("free", request=media)

    @rule(name=NAMES, items=st.lists(ITEMS, min_size=1, max_size=2))
    def pass_through(self, name: str, items: list[tuple[str, int]]) -> None:
        """A request holds what there is room for, and ends at once: something is idle then."""
        media = Media(name, tuple(items), len(self.requests))
        self.requests.append(media)
        for i in range(len(items)):
            self.pair("allocate", request=media, input_id=i)
        self.pair("free", request=media)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), action=st.sampled_from(OF_AN_INPUT), i=st.integers(-2, 4))
    def call_with_any_number(self, data: st.DataObject, action: str, i: int) -> None:
        """Somebody makes a call that no careful caller makes."""
        media = data.draw(st.sampled_from(self.requests))
        self.pair(action, request=media, input_id=i)

    @rule()
    def report(self) -> None:
        """A step begins, and the second report of it is empty."""
        self.pair("get_freed")
        assert self.pair("get_freed") == ()

    def teardown(self) -> None:
        """When all requests have ended, the whole budget can be made free."""
        for media in sorted({media for media, _ in self.pair.state.holders}):
            self.pair("free", request=media)
        assert self.pair.manager.num_freeable_slots == self.pair.manager.cache_size


Run = Callable[..., Counter[str]]
FIRST = (Phase.generate,)
"""A fault is to be found; how small its example can be made is of no interest."""


@pytest.fixture(scope="module")
def run(profile: settings) -> Run:
    """Return a run of the machine in the profile, which counts what it sees."""

    def run_machine(phases: tuple[Phase, ...] = (*FIRST, Phase.shrink)) -> Counter[str]:
        seen: Counter[str] = Counter()

        def machine() -> EncoderMachine:
            return EncoderMachine(seen)

        make = seed(0)(machine) if profile.derandomize else machine
        chosen = settings(profile, derandomize=False, print_blob=False, phases=phases)
        # Its annotation asks for a class, its documentation for a callable that makes a machine.
        run_state_machine_as_test(cast("type[EncoderMachine]", make), settings=chosen)
        return seen

    return run_machine


@pytest.mark.slow
def test_the_machine_finds_nothing_and_sees_what_must_be_seen(run: Run) -> None:
    """Every sight and every rule is met, and each call is made many times."""
    seen = run()
    assert sorted(name for name in {*ENCODER_REACHABLE, *RULES} if not seen[name]) == []
    assert all(seen[action] > 100 for action in (*OF_AN_INPUT, "free", "get_freed"))


@pytest.mark.slow
def test_the_machine_sees_what_is_evicted_in_silence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager that reports nothing is found, and the name says what it leaves undone."""
    monkeypatch.setattr(EncoderCacheManager, "get_freed", lambda self: self.freed.clear() or [])
    with pytest.raises(Divergence, match="property=what_is_evicted_is_reported_once"):
        run(FIRST)


@pytest.mark.slow
def test_the_machine_sees_a_request_that_keeps_what_it_gave_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `free` that does nothing is found."""
    monkeypatch.setattr(EncoderCacheManager, "free", lambda *_, **__: None)
    with pytest.raises(Divergence, match="property=an_input_holds_from_allocation_to_release"):
        run(FIRST)
