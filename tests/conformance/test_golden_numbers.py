"""The public traces give the hits that two independent programs agree on.

The figures stand in the README beside the traces: an independent simulator and release 0.8.5 of
vLLM computed them, one prompt to its end before the next, full blocks only, the last token always
computed again.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from conformance.driving.replay import ReplayPlan, replay
from conformance.lockstep import Check
from conformance.workloads.workload import open_trace


class Golden(NamedTuple):
    """One row: a trace, the usable blocks, and the tokens that were found."""

    name: str
    usable: int
    hit_tokens: int
    check: Check = "incremental"


# An infinite pool is replayed without the specification: a sweep of it costs seconds.
ROWS = (
    Golden("conversation", 399_999, 54_063_104, "off"),
    Golden("conversation", 10_000, 31_217_152),
    Golden("conversation", 1_000, 6_572_544),
    Golden("synthetic", 399_999, 39_802_880, "off"),
    Golden("synthetic", 10_000, 26_392_576),
    Golden("synthetic", 1_000, 5_242_368),
)
TOTALS = {"conversation": (12_031, 144_793_823), "synthetic": (3_993, 61_194_628)}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.usable}")
def test_the_golden_numbers(traces_dir: Path, row: Golden) -> None:
    """Hit tokens, requests and input tokens are exactly those of the README."""
    workload = open_trace(traces_dir / "mooncake" / f"{row.name}_trace.jsonl", block_size=1)
    report = replay(workload, ReplayPlan(num_blocks=row.usable + 1, check=row.check))
    assert report.verdict == ("not checked" if row.check == "off" else "clean")
    assert row.hit_tokens == report.hit_tokens
    assert TOTALS[row.name] == (report.requests, report.input_tokens)
    assert report.requests == report.served + report.num_refused
    assert (report.starved, report.no_room, report.preemptions) == (0, 0, 0)
    assert (report.evictions > 0) == (row.usable < 399_999)
    if row.usable >= 10_000:
        assert report.num_refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
@pytest.mark.parametrize("usable", [399_999, 5_000, 1_000])
def test_expanded_blocks_hit_as_compressed_ones(traces_dir: Path, name: str, usable: int) -> None:
    """Blocks of 512 tokens are found, taken and refused exactly as blocks of one id are."""
    path = traces_dir / "mooncake" / f"{name}_trace.jsonl"
    compressed, expanded = (
        replay(
            open_trace(path, block_size, limit=500),
            ReplayPlan(num_blocks=usable + 1, block_size=block_size, check="off"),
        )
        for block_size in (1, 512)
    )
    assert compressed.hit_tokens == expanded.hit_tokens > 0
    assert compressed.blocks == expanded.blocks
    assert list(compressed.refused) == list(expanded.refused)
    assert compressed.input_tokens == expanded.input_tokens
    assert compressed.peak_usage == expanded.peak_usage


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 2_501), (64, 2_501), (16, 20_001)])
def test_a_conversation_is_replayed_in_lockstep(
    traces_dir: Path,
    batch: bool,  # noqa: FBT001
    block_size: int,
    num_blocks: int,
) -> None:
    """Both drivers replay a kv-cache-tester file clean, in either form."""
    path = min((traces_dir / "kv-cache-tester").glob("trace_*.json"))
    workload = open_trace(path, block_size, limit=15)
    items = list(workload)
    plan = ReplayPlan(num_blocks, block_size, batch=batch)
    report = replay(workload, plan)
    assert report.verdict == "clean"
    assert report.requests == workload.num_requests == report.served
    assert report.calls == report.calls_checked
    assert report.input_tokens == sum(item.num_input_tokens for item in items)
    scale = report.tokens_per_id
    output = sum(item.output_length for item in items) * scale
    assert report.output_tokens == (output if batch else 0)
    assert 0 < report.hit_tokens < report.input_tokens


@pytest.mark.slow
def test_a_trace_of_many_is_replayed_in_batches(traces_dir: Path) -> None:
    """The batch driver serves Mooncake requests in lockstep, with preemption and drafts."""
    path = traces_dir / "mooncake" / "synthetic_trace.jsonl"
    workload = open_trace(path, 512, limit=30)
    plan = ReplayPlan(num_blocks=101, block_size=512, batch=True, num_drafts=1)
    report = replay(workload, plan)
    assert report.verdict == "clean"
    assert report.requests == report.served + report.num_refused == 30
    assert report.num_refused > 0
    assert report.preemptions > 0
    assert report.calls == report.calls_checked
