"""A failing program becomes a few calls that fail by the same property."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.exhaustive.production import quiet
from conformance.faults.mutants import MUTANTS, planted
from conformance.lockstep import Divergence, Lockstep
from conformance.program import FOUND, Factory, Operation, Program, failure, recording
from conformance.shrinking.shrink import NoFailureError, Shrinker, shrink
from conformance.shrinking.simpler import cost
from conformance.subject import BlockView, RequestSpec
from spec.state import Config, Key
from spec.statemachine import Outcome

PLACES = (Config(9, 2), Config(20, 1, sliding_window=4), Config(40, 4))
MAGIC = 777
LEAK = "a_block_is_free_exactly_when_nobody_holds_it"
"""What a reference is to a block that nobody holds."""


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def walked(make: Factory, num_moves: int = 3_000) -> Program:
    """Return what a walk calls until the manager fails, in the first place where it does."""
    for config in PLACES:
        for seed in range(6):
            subject, operations = recording(make(config))
            pair = Lockstep(subject, "incremental")
            try:
                Walk(pair, seed).run(num_moves)
                pair.sweep()
            except Divergence:
                return Program(config, tuple(operations))
    raise AssertionError("no walk meets the fault")


def allocation(rid: str, num_tokens: int, hits: Any = (), lookahead: int = 0) -> Operation:  # noqa: ANN401  # ids or FOUND
    """Return the call."""
    args = {"rid": rid, "num_tokens": num_tokens, "hits": hits, "num_lookahead": lookahead}
    return Operation("allocate_slots", args)


def arrival(rid: str, prompt: Sequence[int], **more: Any) -> Operation:  # noqa: ANN401  # as a request has it
    """Return the call."""
    return Operation("add_request", {"rid": rid, "request": RequestSpec(tuple(prompt), **more)})


class Leaky(Reference):
    """A request that has the magic token and is preempted leaves a reference behind."""

    def preempt(self, rid: str) -> None:
        """Spoil the count of the first block."""
        magic = MAGIC in self.requests[rid].token_ids
        table = self.table(rid)
        super().preempt(rid)
        if magic and table:
            self.pool.blocks[table[0]].ref_cnt += 1


@pytest.fixture(scope="module")
def long_program() -> Program:
    """Return a walk of some thousand calls with three calls in its midst that meet the leak."""
    config = Config(40, 4)
    subject, operations = recording(Reference(config))
    Walk(Lockstep(subject, "incremental"), 1).run(3_000)
    middle = [
        arrival("m", [3, MAGIC, 5] * 3),
        allocation("m", 1),
        Operation("preempt", {"rid": "m"}),
    ]
    # Room is made first, so that the magic request is sure to get a block.
    ends = [Operation("finish", {"rid": f"r{n}"}) for n in range(3_000)]
    return Program(config, (*operations, *ends, *middle, *operations[:100]))


FAULTS = (
    "forward-release",
    "hit-stays-queued",
    "whole-prompt-hit",
    "idle-hits-free",
    "evicted-stays-listed",
    "salt-not-in-key",
    "window-one-late",
    "unwritten-stays-published",
    "too-large-waits",
)
FEW = 10
"""Calls that show any of them; most need four."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_shrinks_to_a_few_calls(name: str) -> None:
    """The same property, twice the same program, and what is left fails by itself."""
    with planted(MUTANTS[name]):
        program = walked(Reference)
        named = failure(program, Reference)
        small, divergence = shrink(program, Reference)
        again, _ = shrink(program, Reference)
        assert str(failure(small, Reference)) == str(divergence)
    assert named is not None
    assert divergence.property == named.property
    assert small == again
    assert len(small.operations) <= FEW
    assert cost(small) < cost(program)
    assert failure(small, Reference) is None, "a mended manager passes"


@pytest.mark.slow
def test_a_long_program_shrinks_in_seconds(long_program: Program) -> None:
    """Three calls of thousands are left, in the smallest pool, and it takes no minute."""
    started = time.monotonic()
    small, divergence = shrink(long_program, Leaky, max_seconds=60)
    assert time.monotonic() - started < 30
    assert len(long_program.operations) > 4_000
    assert [operation.action for operation in small.operations] == [
        "add_request",
        "allocate_slots",
        "preempt",
    ]
    assert small.config == Config(2, 1)
    assert small.operations[0].args["request"] == RequestSpec((MAGIC,))
    assert divergence.property == LEAK


def test_everything_that_does_not_matter_goes() -> None:
    """Adapters, media, salts, drafts, look-ahead, tokens, samples, the window, and large blocks."""
    more = {"lora": ("x", 1), "media": (("p", 1, 3),), "salt": "s"}
    program = Program(
        Config(30, 4, max_model_len=99, sliding_window=9),
        (
            arrival("other", range(20)),
            arrival("magic", [9, MAGIC, *range(9)], **more),
            Operation("get_computed_blocks", {"rid": "magic"}),
            Operation("propose", {"rid": "other", "drafts": (4, 5)}),
            allocation("other", 7),
            allocation("magic", 11, FOUND, 3),
            Operation("run_step", {"outcomes": {"magic": Outcome(0, (8,)), "other": Outcome()}}),
            Operation("propose", {"rid": "magic", "drafts": (4, 5)}),
            allocation("magic", 3),
            Operation("preempt", {"rid": "magic"}),
            Operation("finish", {"rid": "other"}),
        ),
    )
    small, _ = shrink(program, Leaky)
    assert small == Program(
        Config(2, 1),
        (arrival("r1", [MAGIC]), allocation("r1", 1), Operation("preempt", {"rid": "r1"})),
    )


class Touchy(Reference):
    """Does not start with blocks of one token; breaks down for good at the second hand-out."""

    def __init__(self, config: Config) -> None:
        if config.block_size < 2:
            raise MemoryError("blocks of one token are not for me")
        super().__init__(config)
        self.times = 0

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Lose the pool at the second call."""
        self.times += 1
        if self.times == 2:
            del self.manager
        return super().get_new_blocks(n)


def test_a_manager_that_breaks_down_does_not_end_the_search() -> None:
    """It crashes, it cannot be looked at, it does not start: each try is only one that fails."""
    resets = [Operation("reset_prefix_cache", {})] * 5
    new = [Operation("get_new_blocks", {"n": n}) for n in (3, 2, 1)]
    program = Program(Config(12, 4), (*resets, new[0], *resets, new[1], *resets, new[2]))
    small, divergence = shrink(program, Touchy)
    assert divergence.property == "refinement"
    assert small.config == Config(2, 2)
    assert [operation.args for operation in small.operations] == [{"n": 0}, {"n": 0}]


class Sealing(Reference):
    """Keeps a reference too many on what is sealed under its own kind of key."""

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Any], num_cached: int, num_full: int
    ) -> None:
        """Seal, and spoil the count."""
        super().cache_full_blocks(table, keys, num_cached, num_full)
        if num_full > num_cached:
            self.pool.blocks[table[num_cached]].ref_cnt += 1


def test_ids_and_ranges_get_smaller() -> None:
    """A direct caller's calls lose what they name besides."""
    names = ("first", "second", "third")
    seal = {"table": (3, 2, 1), "keys": names, "num_cached": 1, "num_full": 3}
    program = Program(
        Config(12, 4),
        (
            Operation("get_new_blocks", {"n": 5}),
            Operation("free_blocks", {"ids": (5, 4)}),
            Operation("cache_full_blocks", seal),
        ),
    )
    small, _ = shrink(program, Sealing)
    assert small.config == Config(2, 1)
    assert small.operations == (
        Operation("get_new_blocks", {"n": 1}),
        Operation(
            "cache_full_blocks",
            {"table": (1,), "keys": (Key(None, (0,)),), "num_cached": 0, "num_full": 1},
        ),
    )


class Blurred(Reference):
    """Shows one block wrongly where it is looked at, and rightly where all is shown."""

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Count a reference more."""
        views, head, tail, length = super().look(ids)
        return [(n + 1, copies, a, b) for n, copies, a, b in views], head, tail, length


def test_what_only_incremental_checks_see_shrinks_under_them() -> None:
    """The shrinker says under which checks its program fails."""
    program = Program(Config(9, 2), tuple(Operation("get_new_blocks", {"n": n}) for n in (1, 2)))
    shrinker = Shrinker(program, Blurred)
    shrinker.run()
    assert shrinker.check == "incremental"
    assert shrinker.program == Program(Config(2, 1), (Operation("get_new_blocks", {"n": 0}),))


def test_a_program_that_does_not_fail_is_refused() -> None:
    """There is nothing to keep."""
    with pytest.raises(NoFailureError, match="do not fail on this subject"):
        shrink(Program(Config(3, 1), (arrival("a", [1]),)), Reference)


@pytest.mark.slow
def test_when_the_time_is_over_there_is_what_was_found(long_program: Program) -> None:
    """Nothing behind the failing call is left, whatever the time; and it fails."""
    small, divergence = shrink(long_program, Leaky, max_seconds=0)
    assert divergence.property == LEAK
    assert small.operations[-1].action == "preempt"
    assert str(failure(small, Leaky)) == str(divergence)
