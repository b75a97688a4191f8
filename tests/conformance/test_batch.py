"""The batch driver schedules as an engine does: chunks, decode, drafts, preemption, ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.batch import Batch, BatchLimits, next_token
from conformance.driving.driver import Tally
from conformance.lockstep import Lockstep
from conformance.subject import Refusal
from conformance.workloads.workload import GeneratedWorkload
from spec.state import Config
from spec.statemachine import Outcome

ByHand = Callable[..., Any]
Recorder = Callable[[object], Any]


def serve(
    subject: Any,  # noqa: ANN401
    workload: Any,  # noqa: ANN401
    limits: BatchLimits = BatchLimits(),  # noqa: B008  # it is frozen
    max_steps: int = 2_000,
) -> Tally:
    """Serve a workload to its end, which must come within some steps."""
    tally = Tally()
    for step, ended in enumerate(Batch(subject, workload, tally, limits).serve()):
        assert ended == tally.requests
        assert step < max_steps, "the driver does not come to an end"
    return tally


def of(calls: list[tuple[Any, ...]], *names: str) -> list[tuple[Any, ...]]:
    """Return the calls of some verbs."""
    return [call for call in calls if call[0] in names]


def follow(token: int, count: int) -> list[int]:
    """Return the tokens that follow one."""
    tokens = []
    for _ in range(count):
        token = next_token(token)
        tokens.append(token)
    return tokens


def test_a_request_is_decoded_to_its_length(by_hand: ByHand, recording: Recorder) -> None:
    """The prompt's step samples the first token, each later step one more, the last ends it."""
    subject = recording(Reference(Config(6, 2)))
    prompt = [0, 0, 1]
    tally = serve(subject, by_hand((prompt, 3)))
    one, two, three = follow(1, 3)
    assert [call[:5] for call in subject.calls[1:]] == [
        ("get_computed_blocks", "r0"),
        ("allocate_slots", "r0", 3, (), 0),
        ("run_step", {"r0": Outcome(0, (one,))}),
        ("allocate_slots", "r0", 1, (), 0),
        ("run_step", {"r0": Outcome(0, (two,))}),
        ("allocate_slots", "r0", 1, (), 0),
        ("run_step", {"r0": Outcome(0, (three,))}),
        ("finish", "r0"),
    ]
    assert tally == Tally(
        requests=1,
        served=1,
        input_tokens=3,
        output_tokens=3,
        blocks=2 + 0 + 1,
        steps=3,
        calls=9,
        least_free=2,
    )


def test_a_prompt_without_output_ends_with_its_last_chunk(
    by_hand: ByHand, recording: Recorder
) -> None:
    """An output length of 0 samples nothing, and a long prompt is computed in chunks."""
    subject = recording(Reference(Config(9, 2)))
    tally = serve(subject, by_hand(([1] * 10, 0)), BatchLimits(token_budget=4))
    sizes = [call[2] for call in of(subject.calls, "allocate_slots")]
    assert sizes == [4, 4, 2]
    assert [call[1] for call in of(subject.calls, "run_step")] == [{"r0": Outcome()}] * 3
    assert (tally.served, tally.output_tokens, tally.steps) == (1, 0, 3)


def test_the_budget_goes_to_the_running_first(by_hand: ByHand, recording: Recorder) -> None:
    """Decodes come first, then the next chunk, then what waits; a step never holds more."""
    subject = recording(Reference(Config(20, 2)))
    serve(subject, by_hand(([1] * 3, 4), ([2] * 9, 0), ([3] * 2, 0)), BatchLimits(token_budget=5))
    steps: list[dict[str, int]] = [{}]
    for verb, rid, *rest in subject.calls:
        if verb == "allocate_slots":
            steps[-1][rid] = rest[0]
        elif verb == "run_step":
            assert list(rid) == list(steps[-1])
            steps.append({})
    assert steps == [
        {"r0": 3, "r1": 2},
        {"r0": 1, "r1": 4},
        {"r0": 1, "r1": 3, "r2": 1},
        {"r0": 1, "r2": 1},
        {},
    ]


def test_no_more_run_at_once_than_may(by_hand: ByHand, recording: Recorder) -> None:
    """The next request is admitted when one has ended, and none arrives long before that."""
    subject = recording(Reference(Config(20, 2)))
    serve(subject, by_hand(*[([at] * 3, 2) for at in range(5)]), BatchLimits(max_num_seqs=2))
    together = [set(call[1]) for call in of(subject.calls, "run_step")]
    assert together == [{"r0", "r1"}, {"r0", "r1"}, {"r2", "r3"}, {"r2", "r3"}, {"r4"}, {"r4"}]
    arrived = 0
    for verb, *_ in subject.calls:
        arrived += (verb == "add_request") - (verb == "finish")
        assert arrived <= 4


def test_who_was_admitted_last_is_preempted_and_waits_in_front(
    by_hand: ByHand, recording: Recorder
) -> None:
    """A preempted request resumes before others, on its confirmed tokens, from what is cached."""
    subject = recording(Lockstep(Reference(Config(5, 2)), sweep_every=1))
    tally = serve(subject, by_hand(([0, 0, 1], 4), ([0, 5, 5], 4), ([7, 7], 1)))
    story = of(subject.calls, "preempt", "allocate_slots", "finish")
    assert [call[:3] for call in story] == [
        ("allocate_slots", "r0", 3),  # Blocks 1 and 2.
        ("allocate_slots", "r1", 3),  # Blocks 3 and 4; r2 gets no room.
        ("allocate_slots", "r2", 2),
        ("allocate_slots", "r0", 1),
        ("allocate_slots", "r1", 1),
        ("allocate_slots", "r2", 2),
        ("allocate_slots", "r0", 1),  # A third block: there is none,
        ("preempt", "r1"),  # so the last one goes,
        ("allocate_slots", "r0", 1),  # and nobody is admitted in this step.
        ("allocate_slots", "r0", 1),
        ("allocate_slots", "r1", 3),  # Its first block is still cached, and 5 tokens are known.
        ("finish", "r0"),
        ("allocate_slots", "r1", 3),
        ("allocate_slots", "r2", 2),
        ("finish", "r2"),
        ("allocate_slots", "r1", 1),
        ("finish", "r1"),
    ]
    assert (tally.preemptions, tally.served, tally.output_tokens) == (1, 3, 9)
    assert tally.hit_tokens == 0  # What a resumed request finds is its own.
    assert subject.num_free() == 4


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_change_nothing_but_the_steps(
    by_hand: ByHand, recording: Recorder, num_drafts: int, seed: int
) -> None:
    """Some are accepted, some are not, and the output is the same tokens at the same length."""
    lengths = [0, 1, 2, 3, 9, 17]
    workload = by_hand(*[([at, at, at], length) for at, length in enumerate(lengths)])
    subject = recording(Lockstep(Reference(Config(40, 2))))
    limits = BatchLimits(token_budget=16, num_drafts=num_drafts, seed=seed)
    tally = serve(subject, workload, limits)
    tokens: dict[str, list[int]] = {f"r{at}": [] for at in range(len(lengths))}
    drafts: dict[str, list[int]] = {}
    for verb, first, *rest in subject.calls:
        if verb == "propose":
            drafts[first] = list(rest[0])
        elif verb == "run_step":
            for rid, (accepted, sampled) in first.items():
                tokens[rid] += [*drafts.pop(rid, [])[:accepted], *sampled]
    assert tokens == {f"r{at}": follow(at, length) for at, length in enumerate(lengths)}
    assert tally.output_tokens == sum(lengths)
    lookahead = {call[4] for call in of(subject.calls, "allocate_slots")}
    assert lookahead == {num_drafts}


def test_drafts_are_both_accepted_and_rejected(by_hand: ByHand, recording: Recorder) -> None:
    """With two drafts a step, none, one and both of them are right now and then."""
    subject = recording(Reference(Config(99, 4)))
    serve(subject, by_hand(([1], 90)), BatchLimits(num_drafts=2))
    accepted = [outcomes["r0"].accepted for _, outcomes in of(subject.calls, "run_step")]
    assert set(accepted) == {0, 1, 2}
    assert len(accepted) < 90


def test_a_request_too_large_is_named_and_the_rest_is_served(by_hand: ByHand) -> None:
    """A prompt above the pool is refused at once, an output above it when it is reached."""
    subject = Lockstep(Reference(Config(5, 2)))
    tally = serve(subject, by_hand(([1] * 9, 1), ([2] * 3, 2), ([3] * 5, 50), ([4], 1)))
    assert (tally.num_refused, tally.served, tally.requests) == (2, 2, 4)
    assert list(tally.refused) == ["r0", "r2"]
    assert "5 blocks are needed of 4" in tally.refused["r2"]
    assert subject.num_free() == 4
    assert tally.output_tokens == 2 + 1 + (8 - 5 + 1)


class Scarce(Reference):
    """Has room for some allocations only, and then never again."""

    room = 0

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Give what is asked while there is room."""
        self.room -= 1
        if self.room < 0:
            return None
        return super().allocate_slots(rid, num_tokens, hits, num_lookahead)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 5, 8])
def test_a_driver_that_gets_no_room_gives_up(by_hand: ByHand, room: int) -> None:
    """A manager that always says None cannot make the driver wait for ever."""
    subject = Scarce(Config(20, 2))
    subject.room = room
    workload = by_hand(*[([at] * 5, 4) for at in range(4)])
    tally = serve(subject, workload, BatchLimits(token_budget=7), max_steps=100)
    assert tally.requests == 4
    assert tally.starved + tally.served == 4
    assert tally.starved > 0
    assert tally.no_room >= tally.starved
    assert subject.num_free() == 19
    assert subject.requests == {}


@pytest.mark.parametrize("limits", [BatchLimits(token_budget=0), BatchLimits(token_budget=1)])
def test_a_small_budget_ends_too(by_hand: ByHand, limits: BatchLimits) -> None:
    """One token a step is slow, and none at all is given up."""
    tally = serve(Reference(Config(20, 2)), by_hand(([1] * 5, 2), ([1] * 5, 2)), limits)
    assert tally.requests == 2
    assert tally.served == 2 * limits.token_budget


def test_another_refusal_stops_the_replay(by_hand: ByHand) -> None:
    """A refusal that is not about size is not swallowed."""

    class Contrary(Reference):
        """Refuses to run."""

        def run_step(self, outcomes: object) -> None:
            """Refuse."""
            raise Refusal("because", f"{outcomes}")

    with pytest.raises(Refusal, match="because"):
        serve(Contrary(Config(9, 2)), by_hand(([1], 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("num_blocks", "window"), [(24, None), (18, 5)])
def test_a_tally_is_a_function_of_the_seed(num_blocks: int, window: int | None) -> None:
    """The same workload and limits give the same figures, however the calls are checked."""

    def tally(seed: int, check: Any) -> Tally:  # noqa: ANN401  # "off" means the manager alone
        config = Config(num_blocks, 4, sliding_window=window)
        subject: Any = Reference(config)
        subject = subject if check == "off" else Lockstep(subject, check)
        limits = BatchLimits(token_budget=24, max_num_seqs=8, num_drafts=3, seed=seed)
        counted = serve(subject, GeneratedWorkload(5, 150, 4), limits)
        assert subject.num_free() == config.usable
        return counted

    first = tally(1, "full")
    assert first == tally(1, "incremental") == tally(1, "off") == tally(1, "full")
    assert first != tally(2, "off")
    assert first.served == 150
    assert first.preemptions > 0
    assert first.output_tokens == sum(item.output_length for item in GeneratedWorkload(5, 150, 4))
