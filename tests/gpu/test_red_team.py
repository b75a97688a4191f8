"""Every fault is seen by the layer that must see it, and no layer is decorative.

Here with few seeds; `python -m gpu.ci` takes sixteen of each and 300 clean runs.
"""

from __future__ import annotations

import logging

import pytest

from gpu.faults import (
    FAULTS,
    ablation,
    clean_trials,
    fault_row,
    fault_table,
    make_run,
    make_workload_run,
    run_fault,
    run_once,
)
from gpu.matrix import shared_prefix_work
from gpu.shield import LAYERS
from gpu.violations import Defence

NUM_SEEDS = 2

ONLY_SEEN_BY = {
    "lease": {"F05"},
    "fingerprint": {"F06", "F08", "F10", "F12", "F17", "F20", "F21"},
    "poison": {"F22"},
    "identity": {"F14", "F16", "F24"},
}
"""Faults that escape when a layer is off; some of those that do."""

HARMLESS = {"F03", "F04", "F05", "F22"}
"""Faults that change no token and no live byte while leases are on."""


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> None:
    """Violations are meant here; thousands of lines would hide a failure."""
    caplog.set_level(logging.CRITICAL, logger="kvspec.shield")


def test_the_faults_of_the_design_and_our_own_are_there() -> None:
    """F01 to F18 and six more, each with a sentence and somebody who must see it."""
    assert list(FAULTS) == [f"F{number:02}" for number in range(1, 25)]
    assert all(fault.says and fault.seen_by for fault in FAULTS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen_by_whom_it_must_be(name: str) -> None:
    """It finds its place, is seen, and is never wrong and undetected."""
    (row,) = fault_table(range(NUM_SEEDS), faults=[name])
    assert row.is_good, row
    assert row.num_planted == row.num_trials == NUM_SEEDS
    assert row.example.startswith("kvspec violation: property=")
    assert bool(row.num_tokens_wrong + row.num_kv_wrong + row.num_refused) == (name not in HARMLESS)


@pytest.mark.slow
@pytest.mark.parametrize("without", LAYERS)
def test_without_a_layer_named_faults_escape(without: str) -> None:
    """What is listed escapes when the layer is off, in every trial, so the layer is needed."""
    layer = next(one for one in LAYERS if one == without)
    listed = ONLY_SEEN_BY[layer]
    row = ablation(layer, range(NUM_SEEDS), faults=listed)
    assert row.escaped == dict.fromkeys(listed, NUM_SEEDS)
    assert set(row.escaped_and_wrong) == listed - HARMLESS


@pytest.mark.parametrize(
    ("name", "layers", "broken"),
    [
        ("F03", LAYERS, "a_writer_owns_its_block"),
        ("F03", ("poison",), "the_null_block_is_inert"),
        ("F08", ("fingerprint",), "a_request_reads_its_own_prefix"),
        ("F12", LAYERS, "a_settled_block_never_changes"),
        ("F16", LAYERS, "a_request_reads_its_own_prefix"),
        ("F22", LAYERS, "a_writer_owns_its_block"),
    ],
)
def test_a_fault_is_told_in_the_names_of_the_specification(
    name: str, layers: tuple[Defence, ...], broken: str
) -> None:
    """The line says which property is broken."""
    trial = run_fault(FAULTS[name], 1, layers=layers)
    assert trial.first.startswith(f"kvspec violation: property={broken} call=")


def test_without_any_layer_nothing_is_seen() -> None:
    """The faults are faults by themselves: the oracle sees them, and nobody else."""
    for name in ("F01", "F08", "F12", "F16"):
        trial = run_fault(FAULTS[name], 1, layers=())
        assert trial.kv_wrong or trial.tokens_wrong
        assert trial.fired == {}
    assert fault_row(FAULTS["F08"], [run_fault(FAULTS["F08"], 1, layers=())]).is_good is False


@pytest.mark.slow
def test_clean_runs_raise_no_alarm() -> None:
    """Full attention and window, tight and roomy, with drafts and without, all three dtypes."""
    trials = list(clean_trials(range(24)))
    assert [trial for trial in trials if not trial.is_clean] == []
    assert sum(trial.tally.num_preemptions for trial in trials) > 10
    assert sum(trial.tally.num_hit_tokens for trial in trials) > 500
    assert sum(trial.tally.num_rejected_drafts for trial in trials) > 20
    settings = [make_run(seed, "cpu").setting for seed in range(24)]
    assert len({(s.dtype, s.window) for s in settings}) == 6


def test_a_trial_is_repeatable() -> None:
    """The same seed gives the same trial."""
    assert run_fault(FAULTS["F11"], 3) == run_fault(FAULTS["F11"], 3)


def test_a_workload_is_served_under_the_shield() -> None:
    """Any requests can be served; nothing is refused and nobody is accused."""
    trial = run_once(make_workload_run(shared_prefix_work(12, 7), 1, "cpu"))
    assert trial.is_clean
    assert (trial.tally.num_finished, trial.tally.refused) == (12, {})
