"""Faults that the pair in lockstep once had and must not have again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.subject import Refusal, RequestSpec, Snapshot
from kvcache import FreeKVCacheBlockQueue
from spec.state import Config
from spec.statemachine import Outcome, Refused

SMALL, ROOMY = Config(6, 2), Config(9, 2)

LINE = re.compile(
    r"kvspec violation: property=[a-z_]+ call=\d+ [a-z_]+ block=(?:\d+|-) "
    r"expected=\S+ actual=\S+ holders=\S+ found_by=lockstep"
)

Damage = Callable[[Any, tuple[Any, ...], Any], Any]
Damaged = Callable[[str, int, Damage], type[Reference]]


def divergence(call: Callable[[], object]) -> Divergence:
    """Return the divergence that a call comes to."""
    with pytest.raises(Divergence) as caught:
        call()
    return caught.value


def admit(pair: Lockstep, rid: str, prompt: Sequence[int]) -> None:
    """Let a request arrive, look it up, and admit all of it: three calls."""
    pair.add_request(rid, RequestSpec(prompt))
    hits = pair.get_computed_blocks(rid)
    pair.allocate_slots(rid, len(prompt) - 2 * len(hits), hits, 0)


def serve(pair: Lockstep, rid: str, prompt: Sequence[int]) -> None:
    """Admit a request, run its step and end it: five calls."""
    admit(pair, rid, prompt)
    pair.run_step({rid: Outcome()})
    pair.finish(rid)


def raising(error: Exception) -> Damage:
    """Return the damage that an exception does."""

    def crash(*_: object) -> object:
        raise error

    return crash


def one_more_reference(b: int) -> Damage:
    """Return the damage of a holder of a block that does not exist."""

    def damage(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
        subject.pool.blocks[b].ref_cnt += 1
        return result

    return damage


def cannot_be_seen(_: Snapshot) -> Snapshot:
    """Crash where a snapshot is taken."""
    raise ZeroDivisionError


LIES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "fewer blocks": lambda s: replace(s, ref_cnts=s.ref_cnts[:-1], keys=s.keys[:-1]),
    "more blocks": lambda s: replace(s, ref_cnts=(*s.ref_cnts, 0), keys=(*s.keys, None)),
    "index of nowhere": lambda s: replace(s, index={**s.index, "x": (77,)}),
    "table of nowhere": lambda s: replace(s, tables=dict.fromkeys(s.tables, (99,))),
    "crash": cannot_be_seen,
}


@pytest.mark.parametrize("name", LIES)
def test_whatever_a_snapshot_shows_is_a_finding(name: str) -> None:
    """Blocks that are not, and a snapshot that cannot be taken, end in no crash of the pair."""

    class Lying(Reference):
        def snapshot(self) -> Snapshot:
            return LIES[name](super().snapshot())

    walk = Walk(Lockstep(Lying(SMALL)), 1)
    assert LINE.fullmatch(str(divergence(lambda: walk.run(300))))


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("verb", ["allocate_slots", "get_computed_blocks", "get_new_blocks"])
def test_whatever_block_a_result_names_is_a_finding(
    damaged: Damaged, verb: str, check: Check
) -> None:
    """A block that no pool has is found at the call that named it."""
    pair = Lockstep(damaged(verb, 1, lambda *_: (99,))(SMALL), check)

    def go() -> None:
        pair.add_request("a", RequestSpec([1, 1, 1]))
        pair.get_computed_blocks("a")
        pair.allocate_slots("a", 3, (), 0)
        pair.get_new_blocks(1)

    assert divergence(go).call.action == verb


@pytest.mark.parametrize("look", ["look", "table"])
def test_a_crash_while_looking_is_a_finding(damaged: Damaged, look: str) -> None:
    """A subject that cannot be looked at is reported, by the name of its exception."""
    pair = Lockstep(damaged(look, 1, raising(ZeroDivisionError()))(SMALL), "incremental")
    walk = Walk(pair, 1)
    found = divergence(lambda: walk.run(50))
    assert "actual=raised_ZeroDivisionError" in str(found)


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_list_is_as_good_as_a_tuple(damaged: Damaged, check: Check) -> None:
    """Both ways to check accept blocks in a list, and hand a tuple on."""
    pair = Lockstep(damaged("allocate_slots", 1, lambda *seen: list(seen[-1]))(SMALL), check)
    pair.add_request("a", RequestSpec([1]))
    assert pair.allocate_slots("a", 1, (), 0) == (1,)


def test_a_result_is_one_word_of_the_line(damaged: Damaged) -> None:
    """A line feed in what a subject answers makes no second line."""
    pair = Lockstep(damaged("get_computed_blocks", 1, lambda *_: "a\nb")(SMALL))
    pair.add_request("a", RequestSpec([1]))
    assert LINE.fullmatch(str(divergence(lambda: pair.get_computed_blocks("a"))))


def test_an_id_with_a_blank_is_one_word_of_the_line(damaged: Damaged) -> None:
    """A holder's name makes no further field."""
    pair = Lockstep(damaged("allocate_slots", 1, one_more_reference(1))(SMALL))
    pair.add_request("a b", RequestSpec([1]))
    found = divergence(lambda: pair.allocate_slots("a b", 1, (), 0))
    assert LINE.fullmatch(str(found))
    assert " holders=ab " in str(found)


PROGRAM = """
from conformance.adapters.reference import Reference
from conformance.lockstep import Divergence, Lockstep
from conformance.subject import RequestSpec
from kvcache import BuiltinKey
from spec.state import Config

class Faulty(Reference):
    def allocate_slots(self, *args, **named):
        result = super().allocate_slots(*args, **named)
        key = BuiltinKey(None, (5, 6), (("salt", "x"),))
        self.pool.index._first[key] = self.pool.blocks[7]
        return result

pair = Lockstep(Faulty(Config(9, 2), "builtin"))
pair.add_request("a", RequestSpec([1, 2, 3], salt="x"))
try:
    pair.allocate_slots("a", 3, (), 0)
except Divergence as found:
    print(found)
"""


@pytest.mark.slow
def test_an_unknown_key_reads_the_same_in_every_process(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A key whose hash depends on the process is shown in a line that does not."""
    first, second = (python("-c", PROGRAM, hash_seed=seed) for seed in ("0", "1"))
    assert LINE.fullmatch(first.stdout.strip()), first.stderr
    assert first.stdout == second.stdout


def test_a_sweep_does_not_blame_the_last_call(damaged: Damaged) -> None:
    """What a sweep finds is named after the state alone."""
    pair = Lockstep(damaged("add_request", 2, one_more_reference(8))(ROOMY), "incremental")
    serve(pair, "a", [0, 0, 1, 1, 2])
    admit(pair, "b", [0, 0, 1, 1, 3])
    found = divergence(pair.sweep)
    assert found.property == "a_block_is_free_exactly_when_nobody_holds_it"
    assert (found.call.action, found.found.block) == ("sweep", 8)


def test_a_sweep_after_a_reset_names_what_it_finds(damaged: Damaged) -> None:
    """An entry that came with the reset is no matter of the reset."""

    def late(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
        subject.pool.index._first[b"late"] = subject.pool.blocks[2]
        return result

    pair = Lockstep(damaged("reset_prefix_cache", 1, late)(ROOMY), "incremental")
    serve(pair, "a", [0, 0, 1])
    pair.reset_prefix_cache()
    assert divergence(pair.sweep).property == "the_index_and_the_blocks_agree"


def test_two_refusals_under_other_names_let_nothing_pass() -> None:
    """A subject that refuses what must be refused, by another rule, breaks only the refinement."""

    class Own(Reference):
        def allocate_slots(self, rid: str, *_: object, **__: object) -> tuple[int, ...] | None:
            raise Refusal("my_own_rule", f"not for {rid}")

    pair = Lockstep(Own(ROOMY))
    pair.add_request("a", RequestSpec([1, 1, 1]))
    found = divergence(lambda: pair.allocate_slots("a", 1, (4,), 0))
    assert (found.property, found.found.actual) == ("refinement", "refused:my_own_rule")


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), Refusal("own_rule", "why")])
def test_a_crash_is_named_in_a_short_line(damaged: Damaged, error: Exception) -> None:
    """The line holds the name of what went wrong, and not the whole state."""
    pair = Lockstep(damaged("run_step", 1, raising(error))(Config(99, 2)))
    admit(pair, "a", range(150))
    line = str(divergence(lambda: pair.run_step({"a": Outcome()})))
    assert re.search("raised_ZeroDivisionError|own_rule", line)
    assert len(line) < 400


def test_the_text_of_a_crash_is_told(damaged: Damaged) -> None:
    """Below the line stands what the exception said."""
    crash = raising(ZeroDivisionError("why it crashed"))
    pair = Lockstep(damaged("add_request", 1, crash)(ROOMY))
    found = divergence(lambda: pair.add_request("a", RequestSpec([1])))
    assert "why it crashed" in found.details


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_neighbour_that_was_not_relinked_is_seen(
    monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    """Both ways to check see at the same call a queue that is linked in one direction only."""

    def remove_n(self: Any, blocks: Sequence[Any]) -> None:  # noqa: ANN401  # a block's inside
        for block in blocks:
            block.prev_free_block.next_free_block = block.next_free_block
            block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= len(blocks)

    monkeypatch.setattr(FreeKVCacheBlockQueue, "remove_n", remove_n)
    pair = Lockstep(Reference(Config(20, 2)), check, sweep_every=10**9)
    prompts = ([0, 0, 1, 1, 2], [7, 7, 7], [0, 0, 1, 1, 3], *([at + 9] for at in range(30)))

    def go() -> None:
        for at, prompt in enumerate(prompts):
            serve(pair, f"r{at}", prompt)

    found = divergence(go)
    assert (found.call.number, found.call.action) == (13, "allocate_slots")


def test_a_due_sweep_is_not_lost_to_a_broken_promise(damaged: Damaged) -> None:
    """A call that the driver must not make is not counted, so the next one is swept after."""
    kind = damaged("add_request", 1, one_more_reference(8))
    pair = Lockstep(kind(ROOMY), "incremental", sweep_every=2)
    pair.add_request("a", RequestSpec([1]))
    with pytest.raises(Refused):
        pair.add_request("a", RequestSpec([1]))
    assert divergence(lambda: pair.get_computed_blocks("a")).found.block == 8
