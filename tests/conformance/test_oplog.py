"""A log says what was called and answered, line by line, and reading gives what was written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.adapters.reference import Reference
from conformance.driving.driver import Tally, serve_sequentially
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.logs.oplog import (
    UNANSWERED,
    Header,
    LogWriter,
    Odd,
    Raising,
    Refusing,
    logged,
    read_log,
    record_program,
    write_program,
)
from conformance.program import FOUND, VERBS, Operation, Program, failure, recording
from conformance.subject import Refusal, RequestSpec, Snapshot
from conformance.workloads.workload import GeneratedWorkload
from spec.state import Config, Key
from spec.statemachine import Outcome

NUMBERS = st.integers(-(1 << 64), 1 << 64)
SOME_IDS = st.lists(NUMBERS, max_size=4).map(tuple)
NAMES = st.text(max_size=4)
EXTRAS = st.lists(st.lists(NAMES | NUMBERS, max_size=3).map(tuple), max_size=2).map(tuple)
KEYS = st.lists(st.tuples(SOME_IDS, EXTRAS), min_size=1, max_size=3).map(
    lambda chain: cast("Key", _chained(chain))
)
REQUESTS = st.builds(
    RequestSpec,
    prompt=SOME_IDS,
    lora=st.none() | st.tuples(NAMES | NUMBERS, NUMBERS),
    media=st.lists(st.tuples(NAMES, NUMBERS, NUMBERS), max_size=2).map(tuple),
    salt=st.none() | NAMES,
    prompt_logprobs=st.booleans(),
)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "rid": NAMES,
    "request": REQUESTS,
    "drafts": SOME_IDS,
    "hits": SOME_IDS | st.just(FOUND),
    "outcomes": st.dictionaries(NAMES, st.builds(Outcome, NUMBERS, SOME_IDS), max_size=3),
    "ids": SOME_IDS,
    "table": SOME_IDS,
    "keys": st.lists(KEYS | NAMES, max_size=3).map(tuple),
}
OPERATIONS = st.one_of(
    [
        st.builds(
            Operation,
            st.just(verb),
            st.fixed_dictionaries({name: ARGUMENTS.get(name, NUMBERS) for name in names}),
        )
        for verb, names in VERBS.items()
    ]
)
CONFIGS = st.builds(
    Config,
    st.integers(2, 1 << 30),
    st.integers(1, 1 << 30),
    st.integers(1, 1 << 62),
    st.booleans(),
    st.none() | st.integers(2, 1 << 62),
    st.sampled_from(["append", "unhashed_first"]),
)
PROGRAMS = st.builds(Program, CONFIGS, st.lists(OPERATIONS, max_size=6).map(tuple))


def _chained(chain: list[tuple[Any, ...]]) -> Key | None:
    key: Key | None = None
    for tokens, extra in chain:
        key = Key(key, tokens, extra)
    return key


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file to write one log after the other into."""
    return tmp_path_factory.mktemp("log") / "calls.ndjson"


@pytest.mark.slow
@given(program=PROGRAMS, seed=st.none() | NUMBERS)
def test_any_program_comes_back_as_it_was_written(
    path: Path, program: Program, seed: int | None
) -> None:
    """Every verb, whatever its arguments, misuse included; and the header says what was given."""
    write_program(path, program, "some:Manager", seed, "a test")
    log = read_log(path)
    assert log.program() == program
    assert (log.header.subject, log.header.seed, log.header.made_by) == (
        "some:Manager",
        seed,
        "a test",
    )
    assert [call.number for call in log] == list(range(1, len(program.operations) + 1))
    assert all((call.answer, call.snapshot) == (UNANSWERED, None) for call in log)
    assert log.notices == []


def test_what_is_recorded_is_what_happened(tmp_path: Path) -> None:
    """Answers are those of the manager, and each snapshot is the manager after its call."""
    path = tmp_path / "log"
    config = Config(9, 2, sliding_window=5)
    shown: list[Snapshot] = []
    with LogWriter(path, Header.of(config, "reference", 3, "a test")) as writer:
        subject = logged(Reference(config), writer)
        told, operations = recording(subject)
        pair = Lockstep(told)
        pair.on_step = lambda _: shown.append(told.snapshot())
        walk = Walk(pair, 3)
        walk.run(150)
    calls = list(read_log(path))
    assert [call.operation.action for call in calls] == [o.action for o in operations]
    kinds = {type(call.answer) for call in calls}
    assert {tuple, type(None), bool, Refusing} >= kinds >= {tuple, type(None)}
    before: dict[Any, Any] = {}
    for call, real in zip(calls, shown, strict=True):
        seen = cast("Snapshot", call.snapshot)
        assert (seen.ref_cnts, seen.queue, seen.tables) == (real.ref_cnts, real.queue, real.tables)
        names = dict(zip(real.keys, seen.keys, strict=True))
        assert [names[key] for key in real.keys] == list(seen.keys)
        assert {names[key]: copies for key, copies in real.index.items()} == seen.index
        before = {key: name for key, name in before.items() if key in names}
        assert before.items() <= names.items(), "a key keeps its name for as long as it is seen"
        before = names


def test_a_recorded_program_fails_as_it_did(
    tmp_path: Path, damaged: Callable[..., type[Reference]]
) -> None:
    """The log of a failure gives the failure again; it ends with the call that differs."""

    def forget(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
        subject.pool.blocks[2].ref_cnt += 1
        return result

    make = damaged("run_step", 5, forget)
    subject, operations = recording(make(Config(9, 2)))
    pair = Lockstep(subject)
    with pytest.raises(Exception, match="kvspec violation"):
        Walk(pair, 1).run(300)
    program = Program(pair.config, tuple(operations))
    found = record_program(tmp_path / "log", program, make, "reference", 1)
    again = failure(read_log(tmp_path / "log").program(), make)
    assert str(found) == str(again) == str(failure(program, make))
    assert len(list(read_log(tmp_path / "log"))) == len(operations)


def test_hits_are_written_by_their_ids_where_they_are_not_those_just_found(tmp_path: Path) -> None:
    """A driver that uses other hits, or the same ones again, is quoted."""
    path = tmp_path / "log"
    with LogWriter(path, Header.of(Config(9, 1), "reference", None, "a test")) as writer:
        subject = logged(Reference(Config(9, 1)), writer)
        for rid in "ab":
            subject.add_request(rid, RequestSpec((1, 2, 3)))
            hits = subject.get_computed_blocks(rid)
            subject.allocate_slots(rid, 3 - len(hits), hits, 0)
            subject.run_step({rid: Outcome()})
            subject.preempt(rid)
        assert hits
        for used in (hits, hits[:1]):
            subject.get_computed_blocks("b")
            subject.allocate_slots("b", 1, used, 0)
            subject.preempt("b")
        subject.allocate_slots("b", 1, hits, 0)
    calls = [call.operation for call in read_log(path)]
    shown = [args["hits"] for action, args in calls if action == "allocate_slots"]
    assert shown == [FOUND, FOUND, FOUND, hits[:1], hits]


class Strange(Reference):
    """Answers what no verb has, refuses, crashes, and cannot be looked at after that."""

    def get_new_blocks(self, n: int) -> Any:  # noqa: ANN401  # what it answers is the matter
        """Answer with a mapping."""
        return {"blocks": n}

    def touch(self, ids: Sequence[int]) -> None:
        """Refuse."""
        raise Refusal("hit_is_stale", f"stale: {ids}")

    def unpublish(self, ids: Sequence[int]) -> None:
        """Crash."""
        raise KeyError(ids)

    def free_blocks(self, ids: Sequence[int]) -> None:  # noqa: ARG002  # as the verb takes it
        """Lose what there is to look at."""
        del self.manager


def test_every_kind_of_answer_has_a_form(tmp_path: Path) -> None:
    """What was refused, raised, or is no answer of the verb is written and read as such."""
    path = tmp_path / "log"
    with LogWriter(path, Header.of(Config(3, 1), "m:C", None, "a test")) as writer:
        subject = logged(Strange(Config(3, 1)), writer)
        subject.get_new_blocks(1)
        for verb, error in (("touch", Refusal), ("unpublish", KeyError)):
            with pytest.raises(error):
                getattr(subject, verb)((7,))
        subject.free_blocks((1,))
    new, refused, crashed, freed = read_log(path)
    assert new.answer == Odd(returned="dict", text="{'blocks': 1}")
    assert refused.answer == Refusing(refused="hit_is_stale", text="stale: (7,)")
    assert crashed.answer == Raising(raised="KeyError", text="(7,)")
    assert isinstance(crashed.snapshot, Snapshot)
    assert (freed.answer, cast("Raising", freed.snapshot).raised) == (None, "AttributeError")


def test_a_call_is_in_the_file_before_it_is_made_and_its_answer_after(tmp_path: Path) -> None:
    """A manager that takes the process with it leaves the call that did it."""
    path = tmp_path / "log"
    seen: list[str] = []

    class Peeking(Reference):
        def get_new_blocks(self, n: int) -> tuple[int, ...]:
            seen.append(path.read_text())
            return super().get_new_blocks(n)

    with LogWriter(path, Header.of(Config(3, 1), "m:C", None, "a test"), 2) as writer:
        subject = logged(Peeking(Config(3, 1)), writer)
        subject.get_new_blocks(1)
        assert path.read_text().endswith(', "answer": [1]}\n')
    assert seen[0].endswith('\n{"n": 1, "call": "get_new_blocks", "args": {"n": 1}')
    path.write_text(seen[0])
    log = read_log(path)
    (call,) = log
    assert (call.operation, call.answer) == (Operation("get_new_blocks", {"n": 1}), UNANSWERED)
    place = f"{path}:2"
    assert log.notices == [f"{place}: the last call, get_new_blocks, was begun and never answered"]


@pytest.mark.slow
def test_the_pool_decides_how_often_all_of_it_is_shown(tmp_path: Path) -> None:
    """At each call up to 64 blocks, else at each 1,000th; or as asked."""

    def shown(blocks: int, every: int | None) -> list[int]:
        path = tmp_path / "log"
        config = Config(blocks, 1)
        with LogWriter(path, Header.of(config, "reference", None, "a test"), every) as writer:
            subject = logged(Reference(config), writer)
            for _ in range(2_000):
                subject.reset_prefix_cache()
        return [call.number for call in read_log(path) if call.snapshot is not None]

    assert shown(64, None) == list(range(1, 2_001))
    assert shown(65, None) == [1_000, 2_000]
    assert shown(65, 700) == [700, 1_400]


def peak(work: Callable[[], None]) -> int:
    """Return how many bytes some work holds at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_is_flat(tmp_path: Path) -> None:
    """Thirty times the calls need as much memory, in writing and in reading."""
    config = Config(101, 4)

    def write(num_requests: int) -> None:
        with LogWriter(tmp_path / "log", Header.of(config, "reference", 0, "a test")) as writer:
            work = GeneratedWorkload(0, num_requests, 4)
            for _ in serve_sequentially(logged(Reference(config), writer), work, Tally()):
                continue

    def read() -> None:
        for call in read_log(tmp_path / "log"):
            assert call.number

    write(50)  # What is made once, such as caches, is made now.
    peaks = [(peak(partial(write, n)), peak(read)) for n in (50, 1_500)]
    assert len(list(read_log(tmp_path / "log"))) == 7_500
    assert all(large < small + 200_000 for small, large in zip(*peaks, strict=True)), peaks
