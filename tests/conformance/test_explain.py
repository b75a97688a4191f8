"""A program is performed and kept call by call, whatever the subject does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.pictures.explain import NO_PROPERTY, Explained, explained
from conformance.pictures.explain_text import as_text
from conformance.program import FOUND, Operation, Program, recording
from conformance.subject import RequestSpec, Snapshot
from spec.invariants import REGISTRY
from spec.state import Config, block_state
from spec.statemachine import Outcome, Refused

Damaged = Callable[..., type[Reference]]


def story(rid: str = "r1") -> tuple[Operation, ...]:
    """Return six calls of one request: arrive, look up, admit, run, end; then a misuse."""
    return (
        Operation("add_request", {"rid": rid, "request": RequestSpec((0, 1, 0))}),
        Operation("get_computed_blocks", {"rid": rid}),
        Operation(
            "allocate_slots", {"rid": rid, "num_tokens": 3, "hits": FOUND, "num_lookahead": 0}
        ),
        Operation("run_step", {"outcomes": {rid: Outcome(0, (1,))}}),
        Operation("finish", {"rid": rid}),
        Operation("get_new_blocks", {"n": 99}),
    )


STORY = Program(Config(4, 2), story())


def walked(config: Config, seed: int, num_moves: int) -> Program:
    """Return the program of a random walk."""
    subject, operations = recording(Reference(config))
    Walk(Lockstep(subject, "incremental"), seed).run(num_moves)
    return Program(config, tuple(operations))


def seen_by(verb: str, at: int, damaged: Damaged, damage: Callable[..., Any]) -> Explained:
    """Return the story on a subject that is damaged right after a call."""
    return explained(STORY, damaged(verb, at, damage))


def test_a_clean_program_is_a_film() -> None:
    """A frame for the start and one for each call, with the states around it and the answer."""
    film = explained(STORY, Reference)
    assert (film.subject, film.total, film.divergence, film.guilty) == ("reference", 6, None, None)
    assert [frame.number for frame in film.frames] == list(range(7))
    assert [frame.action for frame in film.frames] == ["start", *(op.action for op in STORY[1])]
    for before, frame in zip(film.frames, film.frames[1:], strict=False):
        assert frame.before is before.after
        assert (frame.expected, frame.seen, frame.bad) == (frame.actual, None, False)
    admitted, refused = film.frames[3], film.frames[6]
    assert (admitted.args["hits"], admitted.actual) == ((), (1, 2))
    assert (admitted.changed(), admitted.differing()) == ({1, 2}, set())
    assert [admitted.holders(b) for b in (0, 1, 2, 3)] == ["-", "r1", "r1", "nobody"]
    assert isinstance(refused.actual, Refused)
    assert refused.actual.rule == "not_enough_free_blocks"
    assert refused.touched() == set()


def test_a_violation_is_the_last_frame(damaged: Damaged) -> None:
    """The line, the guilty block and its history, both sides' cells, and what the rule is for."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[1].ref_cnt += 1
        return result

    film = seen_by("run_step", 1, damaged, damage)
    last, divergence = film.frames[-1], film.divergence
    assert divergence is not None
    assert divergence.property == "ref_cnt_counts_the_holders"
    assert (film.guilty, film.total, last.number, last.bad) == (1, 4, 4, True)
    assert [frame.number for frame in film.history(1)] == [3, 4]
    assert (last.differing(), last.changed()) == ({1}, {1, 2})
    assert last.seen is not None
    assert (last.after.pool.blocks[1].ref_cnt, last.seen.ref_cnts[1]) == (1, 2)
    known = REGISTRY["ref_cnt_counts_the_holders"]
    assert film.meaning == (known.statement, known.why)


def test_a_block_that_the_call_should_not_touch_is_in_its_history(damaged: Damaged) -> None:
    """What the subject did to a block counts as touching it, whatever the specification says."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[3].ref_cnt += 1
        return result

    film = seen_by("run_step", 1, damaged, damage)
    assert (film.guilty, [frame.number for frame in film.history(3)]) == (3, [4])


def test_a_block_that_a_call_names_is_touched() -> None:
    """A look-up changes nothing, and yet it speaks of the blocks that it found."""
    again = (story("r1")[:4] + story("r2")[:2],)
    found = explained(Program(Config(4, 2), *again), Reference).frames[-1]
    assert (found.actual, found.changed(), found.touched()) == ((1,), set(), {1})


def test_two_answers_are_both_kept(damaged: Damaged) -> None:
    """What the specification answers stands beside what the subject answered."""
    film = seen_by("allocate_slots", 1, damaged, lambda _subject, _args, _result: [2, 1])
    assert (film.frames[-1].expected, film.frames[-1].actual) == ((1, 2), (2, 1))
    assert "= [1, 2] ! [2, 1]" in as_text(film, width=200)


def crash(*_: object) -> None:
    """Fail as no manager should."""
    raise RuntimeError("out of luck")


def forget_the_queue(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
    """Leave the queue without its middle."""
    queue = subject.pool.free_block_queue
    queue.head.next_free_block = queue.head
    return result


def below_zero(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
    """Leave a count that is none, and a key that is no key of anybody."""
    subject.pool.blocks[3].ref_cnt = -5
    subject.pool.blocks[3].block_hash = b"?"
    return result


CORRUPT: dict[str, Callable[..., Any]] = {
    "crashes": crash,
    "a ring": forget_the_queue,
    "a count below zero": below_zero,
}


@pytest.mark.parametrize("name", CORRUPT)
@pytest.mark.parametrize("verb", ["add_request", "allocate_slots", "run_step", "finish"])
def test_a_corrupt_subject_is_shown(damaged: Damaged, name: str, verb: str) -> None:
    """Whatever is left of it, the frame stands, and the table says what differs."""
    film = seen_by(verb, 1, damaged, CORRUPT[name])
    assert film.divergence is not None
    assert film.frames[-1].action == verb
    assert str(film.divergence) in as_text(film)


def snapshot(**odd: Any) -> type[Reference]:  # noqa: ANN401  # whatever a snapshot must not be
    """Return a subject that shows something odd while it holds a block."""

    def look(self: Reference) -> Snapshot:
        seen = Reference.snapshot(self)
        return Snapshot(**{**vars_of(seen), **odd}) if any(seen.ref_cnts) else seen

    return type("Odd", (Reference,), {"snapshot": look})


def vars_of(seen: Snapshot) -> dict[str, Any]:
    """Return the fields of a snapshot."""
    return {name: getattr(seen, name) for name in Snapshot.__slots__}


ODD: dict[str, dict[str, Any]] = {
    "fewer blocks": {"ref_cnts": (0, 1), "keys": (None, None)},
    "ids that no block has": {"queue": (77, -3), "queue_back": (-3, 77), "num_free": 2},
    "a table of nobody": {"tables": {"ghost": (9, 1)}},
    "an index of nothing": {"index": {b"k": (), b"m": (55,)}},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_snapshot_is_shown(name: str) -> None:
    """Ids out of range, blocks that are missing and requests that are not there end in a table."""
    film = explained(STORY, snapshot(**ODD[name]))
    assert film.divergence is not None
    assert film.total == 3
    assert str(film.divergence) in as_text(film)


def test_a_subject_that_cannot_be_looked_at() -> None:
    """The frame says why there is no snapshot."""
    film = explained(STORY, type("Blind", (Reference,), {"snapshot": crash}))
    last = film.frames[-1]
    assert (last.number, last.seen, last.trouble) == (1, None, "RuntimeError: out of luck")
    assert film.meaning == NO_PROPERTY
    assert "the subject cannot be looked at: RuntimeError: out of luck" in as_text(film)


def test_what_only_a_closer_look_shows_is_shown() -> None:
    """Snapshots that are right do not hide that the look at single blocks is wrong."""

    def look(self: Reference, ids: Sequence[int]) -> Any:  # noqa: ANN401  # as `look`
        views, head, tail, length = Reference.look(self, ids)
        return views, head, tail, length + (self.pool.blocks[1].ref_cnt == 1)

    film = explained(STORY, type("Squinting", (Reference,), {"look": look}))
    assert film.divergence is not None
    assert (film.divergence.call.number, film.total, film.frames[-1].number) == (3, 3, 3)
    assert film.frames[-1].bad
    assert str(film.divergence) in as_text(film)


def test_no_calls_at_all() -> None:
    """The start alone is a picture too, and a subject that starts wrong is told."""
    assert [f.number for f in explained(Program(Config(3, 2), ()), Reference).frames] == [0]
    blind = explained(Program(Config(3, 2), ()), type("Blind", (Reference,), {"snapshot": crash}))
    assert blind.divergence is not None
    assert blind.frames[-1].trouble == "RuntimeError: out of luck"


def test_only_the_last_calls_are_kept() -> None:
    """The calls before them were made and counted."""
    program = walked(Config(9, 2), 1, 300)
    whole, film = explained(program, Reference), explained(program, Reference, keep=10)
    assert film.total == whole.total > 100
    assert [f.number for f in film.frames] == list(range(film.total - 10, film.total + 1))
    assert film.frames[-1].after == whole.frames[-1].after


def test_ctrl_c_keeps_what_there_is() -> None:
    """The calls until then are shown, and nobody is accused."""

    def press(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    film = explained(STORY, Reference, on_call=press)
    assert (film.interrupted, film.total, film.divergence) == (True, 3, None)
    assert [frame.number for frame in film.frames] == [0, 1, 2, 3]


def test_a_large_pool_shows_what_was_touched() -> None:
    """All blocks of a small pool; of a large one those that a call changed or named."""
    assert explained(STORY, Reference).blocks() == [1, 2, 3]
    assert explained(Program(Config(500, 2), story()[:5]), Reference).blocks() == [1, 2]


def test_the_states_are_those_of_a_run() -> None:
    """Under every kind of call what is kept is what lockstep saw, and states have names."""
    for config in (Config(9, 2), Config(12, 2, sliding_window=4)):
        film = explained(walked(config, 3, 200), Reference)
        pair = Lockstep(Reference(config))
        Walk(pair, 3).run(200)
        assert film.frames[-1].after == pair.state
        for frame in film.frames:
            assert all(block_state(frame.after, b) for b in range(config.num_gpu_blocks))
