"""A pair in lockstep notices a fault of the subject at the call that made it, or in the sweep."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

CONFIG = Config(6, 2)

LINE = re.compile(
    r"kvspec violation: property=[a-z_]+ call=[1-9]\d* [a-z_]+ block=(?:\d+|-) "
    r"expected=\S+ actual=\S+ holders=\S+ found_by=lockstep"
)

Damage = Callable[[Any, tuple[Any, ...], Any], Any]
Damaged = Callable[[str, int, Damage], type[Reference]]


def serve(pair: Lockstep, rid: str, prompt: Sequence[int]) -> None:
    """Let a request arrive, look it up, admit all of it, and run its step: four calls."""
    pair.add_request(rid, RequestSpec(prompt))
    hits = pair.get_computed_blocks(rid)
    pair.allocate_slots(rid, len(prompt) - 2 * len(hits), hits, 0)
    pair.run_step({rid: Outcome()})


def script(pair: Lockstep) -> None:
    """Make 17 calls: hits at call 8, a second holder at 12, evictions at 16."""
    serve(pair, "a", [0, 0, 1, 1, 2])  # Takes 1, 2 and 3.
    pair.finish("a")  # Call 5. The queue is 4, 5, 3, 2, 1.
    serve(pair, "b", [0, 0, 1, 1, 3])  # Hits 1 and 2 and takes 4.
    pair.propose("b", [7])  # Call 10.
    pair.finish("b")  # The queue is 5, 3, 4, 2, 1.
    pair.add_request("c", RequestSpec([9] * 7))
    pair.allocate_slots("c", 7, (), 0)  # Call 13. Takes 5, 3, 4 and 2, which is evicted.
    pair.run_step({"c": Outcome()})
    pair.reset_prefix_cache()
    pair.finish("c")
    pair.reset_prefix_cache()  # Call 17.


def noticed(kind: type[Reference], check: Check, sweep_every: int = 1_000) -> Divergence:
    """Return the divergence that the script and a sweep after it come to."""
    pair = Lockstep(kind(CONFIG), check, sweep_every)

    def all_of_it() -> None:
        script(pair)
        pair.sweep()

    with pytest.raises(Divergence) as caught:
        all_of_it()
    return caught.value


def one_more_reference(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """Count a holder of block 1 that does not exist."""
    subject.pool.blocks[1].ref_cnt += 1
    return result


def the_last_two_swapped(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """Let the last two blocks of the queue change places."""
    queue = subject.pool.free_block_queue
    last = queue.tail
    before = last.prev_free_block
    queue.remove(before)
    queue.append(before)
    return result


def another_block_in_the_table(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """Show another block at the end of a table."""
    (admission,) = subject.manager._admissions.values()
    admission.table[-1] = subject.pool.blocks[5]
    return result


def one_hit_less(_: object, __: object, result: tuple[int, ...]) -> tuple[int, ...]:
    """Forget the last block of a hit."""
    return result[:-1]


def other_order(_: object, __: object, result: tuple[int, ...]) -> tuple[int, ...]:
    """Show the new blocks backward."""
    return result[::-1]


def no_blocks(_: object, __: object, ___: object) -> None:
    """Say that there is no room, though the blocks were taken."""


def yes(_: object, __: object, ___: object) -> bool:
    """Say that the cache is forgotten."""
    return True


AT_ONCE: dict[str, tuple[str, int, Damage, int, str]] = {
    "ref_cnt": ("allocate_slots", 2, one_more_reference, 8, "ref_cnt_counts_the_holders"),
    "order": ("finish", 1, the_last_two_swapped, 5, "the_tail_is_evicted_before_the_head"),
    "table": ("allocate_slots", 1, another_block_in_the_table, 3, "ref_cnt_counts_the_holders"),
    "hits": ("get_computed_blocks", 2, one_hit_less, 7, "a_repeated_prompt_hits"),
    "new blocks": ("allocate_slots", 1, other_order, 3, "refinement"),
    "no room": ("allocate_slots", 3, no_blocks, 13, "admission_is_exact"),
    "reset": ("reset_prefix_cache", 1, yes, 15, "reset_only_when_idle"),
}
"""Verb, which of its calls does damage, the damage, at which call it shows, and as what."""


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("name", AT_ONCE)
def test_what_a_call_spoils_is_noticed_at_once(damaged: Damaged, name: str, check: Check) -> None:
    """Both ways to check name the call, and the property that it broke."""
    verb, at, damage, number, violated = AT_ONCE[name]
    found = noticed(damaged(verb, at, damage), check)
    assert (number, violated) == (found.call.number, found.property)
    assert found.call.action == verb
    assert LINE.fullmatch(str(found))


@pytest.mark.parametrize("name", AT_ONCE)
def test_both_ways_to_check_tell_the_same(damaged: Damaged, name: str) -> None:
    """The report of a fault does not depend on how it was found."""
    verb, at, damage, _, _ = AT_ONCE[name]
    kind = damaged(verb, at, damage)
    full, incremental = noticed(kind, "full"), noticed(kind, "incremental")
    assert str(full) == str(incremental)
    assert full.details == incremental.details


def a_stale_entry(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """List block 2 under the key that it lost."""
    subject.pool.index._first[b"lost"] = subject.pool.blocks[2]
    return result


def a_second_entry(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """List block 3 as a second copy of the key of block 1."""
    block = subject.pool.blocks[1]
    copies = {1: block, 3: subject.pool.blocks[3]}
    subject.pool.index._copies[block.block_hash] = copies
    return result


def a_reference_elsewhere(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """Count a holder of block 5, which the call has nothing to do with."""
    subject.pool.blocks[5].ref_cnt += 1
    return result


def the_table_of_another(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """Swap two entries of a table while its request runs."""
    for admission in subject.manager._admissions.values():
        admission.table.reverse()
    return result


HELD = "a_block_is_free_exactly_when_nobody_holds_it"
UNTOUCHED: dict[str, tuple[str, int, Damage, int, str]] = {
    "stale entry": ("allocate_slots", 3, a_stale_entry, 13, "the_index_and_the_blocks_agree"),
    "copies": ("add_request", 2, a_second_entry, 6, "the_index_and_the_blocks_agree"),
    "ref_cnt": ("add_request", 1, a_reference_elsewhere, 1, HELD),
    "table": ("propose", 1, the_table_of_another, 10, "positions_never_move"),
}
"""As above, for what the call had no business with."""


@pytest.mark.parametrize("name", UNTOUCHED)
def test_full_notices_at_once_what_a_call_did_not_touch(damaged: Damaged, name: str) -> None:
    """A whole snapshot shows damage wherever it is."""
    verb, at, damage, number, violated = UNTOUCHED[name]
    found = noticed(damaged(verb, at, damage), "full")
    assert (number, verb) == (found.call.number, found.call.action)
    assert violated == found.property


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("name", UNTOUCHED)
def test_the_sweep_notices_what_a_call_did_not_touch(
    damaged: Damaged, name: str, every: int
) -> None:
    """Incremental checks find damage elsewhere at the next sweep, if nothing met it before."""
    verb, at, damage, number, _ = UNTOUCHED[name]
    found = noticed(damaged(verb, at, damage), "incremental", every)
    assert number <= found.call.number <= -(-number // every) * every
    assert LINE.fullmatch(str(found))


def an_entry_at_the_end(subject: Any, _: object, result: object) -> object:  # noqa: ANN401
    """List a block under an unknown key when nothing follows any more."""
    subject.pool.index._first[b"late"] = subject.pool.blocks[2]
    return result


def test_a_sweep_that_is_asked_for_notices_the_rest(damaged: Damaged) -> None:
    """After the last call a sweep looks at everything once more, whatever the mode was."""
    found = noticed(damaged("reset_prefix_cache", 2, an_entry_at_the_end), "incremental")
    assert (found.call.number, found.call.action) == (17, "sweep")
    assert LINE.fullmatch(str(found))


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_sound_subject_is_never_reported(check: Check) -> None:
    """The script is clean on the subject that is not damaged."""
    pair = Lockstep(Reference(CONFIG), check, sweep_every=1)
    script(pair)
    pair.sweep()
    assert pair.calls == 17


PROGRAM = """
from conformance.adapters.reference import Reference
from conformance.lockstep import Divergence, Lockstep
from conformance.driving.walk import Walk
from spec.state import Config

class Faulty(Reference):
    def finish(self, rid):
        super().finish(rid)
        blocks = [b for b in self.pool.blocks[1:] if b.block_hash is not None]
        if len(blocks) > 2:
            {fault}

for algorithm in ("sha256", "builtin"):
    for check in ("full", "incremental"):
        pair = Lockstep(Faulty(Config(9, 2), algorithm), check, sweep_every=1)
        try:
            Walk(pair, {seed}).run(500)
        except Divergence as found:
            print(found)
"""
FAULTS = {
    "count": "blocks[0].ref_cnt += 1",
    "key": "blocks[0].block_hash = blocks[1].block_hash",
    "index": "self.pool.index.discard(blocks[1])",
    "queue": "self.pool.free_block_queue.num_free_blocks += 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_line_is_the_same_in_every_process(python: Callable[..., Any], fault: str) -> None:
    """A violation is one stable line: in each run, and whatever the hash seed is."""
    program = PROGRAM.format(fault=FAULTS[fault], seed=3)
    runs = [python("-c", program, hash_seed=seed) for seed in ("0", "0", "1", "4711")]
    first = runs[0].stdout.splitlines()
    assert len(first) == 4, runs[0].stderr
    assert all(LINE.fullmatch(line) for line in first)
    assert [run.stdout for run in runs] == [runs[0].stdout] * 4
