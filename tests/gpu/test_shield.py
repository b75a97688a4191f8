"""The shield says who, where and why, is silent in clean runs, and never stops without a word."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gpu import ops
from gpu.contents import Contents
from gpu.errors import UnknownShield
from gpu.faults import FAULTS, make_run
from gpu.fingerprint import first_word_index, ms64_of_row
from gpu.planting import Plant
from gpu.pool import KVPool
from gpu.reference import guesses
from gpu.runner import Batch, Runner
from gpu.shield import Shield
from gpu.violations import Violation, ViolationFound

SEED = 4


def shielded(seed: int = SEED, fault: str | None = None, **options: Any) -> tuple[Runner, Shield]:  # noqa: ANN401  # what a shield takes
    """Return a runner that has not served yet, and its shield."""
    run = make_run(seed, "cpu", None if fault is None else FAULTS[fault])
    config = run.model.kv_cache_config(run.setting.num_blocks(run.work), run.setting.block_size)
    pool = KVPool(config)
    shield = Shield(pool, **options)
    limits = run.setting.limits(run.work)
    runner = Runner(run.model, pool, limits, guard=shield, drafter=guesses(run.known))
    shield.watch(runner.manager)
    if fault is not None:
        FAULTS[fault].install(runner, Plant(seed))
    return runner, shield


def serve(runner: Runner, shield: Shield, seed: int = SEED) -> dict[str, list[int]]:
    """Serve the requests of a seed, and look at everything at the end."""
    tokens = runner.serve(make_run(seed, "cpu").work)
    shield.finish()
    return tokens


def flip_after(runner: Runner, step: int) -> list[tuple[int, int]]:
    """Flip a bit of a settled block's first byte, values of layer 1; return where: block, byte."""
    struck: list[tuple[int, int]] = []

    def strike(runner: Runner, batch: Batch) -> None:
        if batch.step == step:
            pool = runner.manager.block_pool
            block = next(b.block_id for b in pool.blocks if b.block_hash is not None)
            data = runner.pool.plane(1, 1)[block].view(torch.uint8)
            struck.append((block, int(data[0, 0, 0])))
            data[0, 0, 0] ^= 1

    runner.hooks.after_step = strike
    return struck


@pytest.mark.slow
def test_a_clean_run_is_silent_and_everything_due_is_checked() -> None:
    """Tokens are right, nobody is accused, and the two counts agree."""
    for seed in range(8):
        runner, shield = shielded(seed, mode="raise")
        run = make_run(seed, "cpu")
        tokens = serve(runner, shield, seed)
        assert tokens == {name: one.tokens for name, one in run.known.items()}
        assert shield.violations == []
        assert shield.checked == shield.due > 1000


def test_a_shield_that_is_off_does_nothing() -> None:
    """No check, no violation, no slot changed, and a fault is not told."""
    runner, shield = shielded(mode="off")
    struck = flip_after(runner, 3)
    serve(runner, shield)
    assert struck
    assert (shield.checked, shield.due, shield.violations) == (0, 0, [])


def test_a_violation_says_all_that_is_known() -> None:
    """Place, both fingerprints, writer, step, holders, and the manager's call behind it."""
    runner, shield = shielded(mode="log")
    struck = flip_after(runner, 3)
    serve(runner, shield)
    ((block, old),) = struck
    (violation,) = shield.violations
    size = runner.block_size
    assert (violation.layer, violation.plane, violation.block) == (1, 1, block)
    assert (violation.slot, violation.defence) == (block * size, "fingerprint")
    row = bytes(runner.pool.plane(1, 1)[block, 0].view(torch.uint8).flatten().tolist())
    meant = bytes([old]) + row[1:]
    index = first_word_index(1, 1, 0, size, len(row) // 8)
    if row[0] == old ^ 1:
        assert violation.found == f"{ms64_of_row(row, seed=0, first_index=index):#018x}"
        assert violation.expected == f"{ms64_of_row(meant, seed=0, first_index=index):#018x}"
    assert violation.step >= 3
    assert violation.writer in {f"r{n}" for n in range(6)}
    assert violation.call.startswith(("allocate_slots(r", "free(r"))
    assert violation.broken == "a_settled_block_never_changes"


def test_the_line_is_stable() -> None:
    """One line with the fields that all reports of this project have, in their order."""
    violation = Violation(
        defence="fingerprint",
        broken="a_settled_block_never_changes",
        what="not what its writer meant",
        step=9,
        expected="0x01",
        found="0x02",
        layer=1,
        plane=0,
        slot=28,
        block=7,
        writer="r1",
        call_number=17,
        call="allocate_slots(r2, 4, hits=[7], lookahead=0)",
        holders={"r1": 1, "r2": 2},
    )
    assert str(violation) == (
        "kvspec violation: property=a_settled_block_never_changes call=17 allocate_slots block=7 "
        "layer=1 plane=K slot=28 expected=0x01 actual=0x02 holders=r1,r2*2 found_by=shield"
    )
    nowhere = replace(violation, layer=None, plane=None, slot=None, block=None, holders={})
    assert "block=- layer=- plane=- slot=- " in str(nowhere)
    assert "holders=- found_by=shield" in str(nowhere)
    assert "step 9, writer r1" in violation.details


def test_a_shield_may_raise() -> None:
    """The first violation ends the run, with the line as text and the rest as a note."""
    runner, shield = shielded(mode="raise")
    flip_after(runner, 3)
    with pytest.raises(ViolationFound, match=r"^kvspec violation: property=a_settled") as raised:
        serve(runner, shield)
    assert raised.value.violation is shield.violations[0]
    assert "seen by: fingerprint" in raised.value.__notes__[0]


def test_a_shield_may_write_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each violation is one record, and the run goes on."""
    runner, shield = shielded(mode="log")
    flip_after(runner, 3)
    with caplog.at_level(logging.WARNING, logger="kvspec.shield"):
        serve(runner, shield)
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        str(violation) for violation in shield.violations
    ]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "options",
    [{"mode": "loud"}, {"layers": ("lease", "luck")}, {"scrub_blocks": 0}, {"poll_every": 0}],
)
def test_a_shield_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """The error shows what was given and what may be."""
    with pytest.raises(UnknownShield, match="give a mode of") as refused:
        shielded(**options)
    assert str(next(iter(options.values()))) in str(refused.value)


def nothing(*_: object) -> None:
    """Check nothing."""


def skip_route(slots: torch.Tensor, *_: object) -> torch.Tensor:
    """Let every slot pass, unchecked."""
    return slots


def say_looked(contents: Contents, slots: torch.Tensor) -> int:
    """Look at nothing, and say that all was looked at."""
    return len(slots) * contents.num_planes


@pytest.mark.parametrize(
    "stop",
    [
        lambda patch, _shield: patch.setattr(ops, "check_identity", nothing),
        lambda patch, _shield: patch.setattr(ops, "route_slots", skip_route),
        lambda patch, shield: patch.setattr(shield, "after_write", nothing),
        lambda patch, shield: patch.setattr(
            shield, "before_step", lambda batch: batch.slot_mapping
        ),
        lambda patch, _shield: patch.setattr(Contents, "look", say_looked),
    ],
)
def test_a_guard_that_stops_is_told(
    stop: Callable[[pytest.MonkeyPatch, Shield], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever check is not made any more, somebody says so."""
    runner, shield = shielded(mode="log")

    def later(_runner: Runner, batch: Batch) -> None:
        if batch.step == 2:
            stop(monkeypatch, shield)

    runner.hooks.after_step = later
    serve(runner, shield)
    assert "guard" in {violation.defence for violation in shield.violations}


def test_a_manager_that_is_not_heard_any_more_is_told() -> None:
    """Without events nobody has a lease, so every new block is written without one."""
    runner, shield = shielded(mode="log")

    def deafen(runner: Runner, batch: Batch) -> None:
        if batch.step == 1:
            runner.manager.block_pool.listener = None

    runner.hooks.after_step = deafen
    serve(runner, shield)
    assert {v.defence for v in shield.violations} >= {"lease", "identity"}


def test_a_bad_row_goes_to_the_trash() -> None:
    """With leases the null block and its neighbours stay as they are, whatever the slot says."""
    for fault in ("F03", "F04"):
        runner, shield = shielded(fault=fault, mode="log")
        tokens = serve(runner, shield)
        assert tokens == {n: one.tokens for n, one in make_run(SEED, "cpu").known.items()}
        assert [violation.defence for violation in shield.violations] == ["lease"]
        assert shield.violations[0].writer == "padding"
        assert runner.pool.strays() == []


def test_padding_that_is_marked_is_no_violation() -> None:
    """Rows beyond those of the requests with slot -1 are counted as padding and nothing else."""
    runner, shield = shielded(mode="raise")

    def padded(_runner: Runner, _batch: Batch, slots: torch.Tensor) -> torch.Tensor:
        return torch.cat([slots, slots.new_full((3,), -1)])

    def source(
        _runner: Runner, _batch: Batch, _layer: int, _plane: int, rows: torch.Tensor
    ) -> torch.Tensor:
        return torch.cat([rows, rows[:1], rows[:1], rows[:1]])

    runner.hooks.slot_mapping, runner.hooks.source = padded, source
    serve(runner, shield)
    assert (shield.violations, runner.pool.strays()) == ([], [])


def test_a_taken_block_is_poison_until_it_is_written() -> None:
    """The slots of a block that is used again hold the pattern until somebody writes them."""
    runner, shield = shielded(2, mode="raise")
    seen: set[int] = set()

    def look(runner: Runner, _batch: Batch) -> None:
        for served in runner.scheduler.running:
            request = served.request
            for cell, block in enumerate(runner.manager.get_block_ids(request.request_id)):
                first = request.num_computed_tokens - cell * runner.block_size
                used_again = shield.ledger.epoch(block) > 1
                if used_again and 0 < first < runner.block_size:
                    rows = runner.pool.plane(0, 0)[block, first:].view(torch.uint8)
                    blank = runner.pool.plane(0, 0)[0, first:].view(torch.uint8)
                    if torch.equal(rows, blank):
                        seen.add(block)

    runner.hooks.after_step = look
    serve(runner, shield, 2)
    assert len(seen) > 3


def test_the_device_may_be_asked_less_often() -> None:
    """With a poll every so many steps the same is found, if later, and nothing is lost."""
    each, shield = shielded(mode="log")
    flip_after(each, 3)
    serve(each, shield)
    rarely, later = shielded(mode="log", poll_every=50)
    flip_after(rarely, 3)
    serve(rarely, later)
    place = [(v.layer, v.plane, v.slot, v.expected, v.found) for v in shield.violations]
    assert place == [(v.layer, v.plane, v.slot, v.expected, v.found) for v in later.violations]
    assert later.checked == later.due == shield.due


def test_a_returning_request_is_another_writer() -> None:
    """After a preemption the tag is new, so an old table is nobody's."""
    runner, shield = shielded(2, mode="raise")
    tags: dict[str, set[int]] = {}

    def note(_runner: Runner, batch: Batch) -> None:
        for part in batch.parts:
            name = part.request.request_id
            tags.setdefault(name, set()).add(shield.ledger.tag_of(name))

    runner.hooks.after_step = note
    serve(runner, shield, 2)
    assert runner.tally.num_preemptions > 0
    assert max(len(of_one) for of_one in tags.values()) > 1
    assert sum(len(of_one) for of_one in tags.values()) == len(set().union(*tags.values()))
