"""Our manager and that of vLLM 0.8.5 give the same ids, hits and evictions, call by call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.differential import DifferenceFound, Differential, compared
from conformance.driving.batch import Batch, BatchLimits
from conformance.driving.driver import Tally, serve_sequentially
from conformance.subject import Served, Snapshot, Subject
from conformance.workloads.workload import GeneratedWorkload, open_trace
from spec.state import Config

Make = Callable[..., Subject]

LEAST_CALLS = 100_000
SEEDS = range(14)
NUM_REQUESTS = 40


class Way(NamedTuple):
    """How a generated workload is served."""

    batch: bool
    window: int | None
    block_size: int
    caching: bool
    num_drafts: int


WAYS = [
    Way(batch, window, size, caching, drafts)
    for batch, window, size, caching, drafts in product(
        (False, True), (None, 3, 7), (1, 4), (True, False), (0, 2)
    )
    if batch or not drafts
]


def is_known(way: Way) -> bool:
    """Whether 0.8.5 fails in this way, as docs/refinement.md says: see the tests of that list.

    Caching with a window no larger than a block, or decoding past it in many requests at once.
    """
    return way.batch and way.caching and way.window == 3


def serve(way: Way, seed: int, served: Served) -> None:
    """Serve one generated workload to its end."""
    workload, tally = GeneratedWorkload(seed, NUM_REQUESTS, way.block_size), Tally()
    ends: Iterator[int] = (
        Batch(served, workload, tally, BatchLimits(24, num_drafts=way.num_drafts)).serve()
        if way.batch
        else serve_sequentially(served, workload, tally)
    )
    for _ in ends:
        continue


def pair(way: Way, make: Make) -> Differential:
    """Return both managers side by side."""
    config = Config(26, way.block_size, enable_caching=way.caching, sliding_window=way.window)
    return Differential(Reference(config), make(config))


@pytest.mark.slow
def test_a_hundred_thousand_calls_agree(vllm_0_8_5: Make) -> None:
    """Every answer, count, queue order, index order and table is equal after every call."""
    calls: Counter[Way] = Counter()
    for way, seed in product(WAYS, SEEDS):
        if not is_known(way):
            both = pair(way, vllm_0_8_5)
            serve(way, seed, both)
            calls[way] += both.calls
    assert calls.total() >= LEAST_CALLS, calls
    assert all(calls[way] for way in WAYS if not is_known(way))


@pytest.mark.slow
def test_the_known_ways_to_differ_do_differ(vllm_0_8_5: Make) -> None:
    """What is left out above is left out for a reason: each such way fails at some seed."""
    for way in filter(is_known, WAYS):
        found = set()
        for seed in range(45):
            try:
                serve(way, seed, pair(way, vllm_0_8_5))
            except (DifferenceFound, AssertionError) as difference:
                found.add(type(difference).__name__)
        assert found, f"{way} never differs; the exception is not needed"


class Forward:
    """A manager that calls the blocks of a request in forward order when it ends."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401  # the release has no types
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the manager has
        return getattr(self.inner, name)

    def snapshot(self) -> Snapshot:
        """Return everything, the queue turned round."""
        seen: Snapshot = self.inner.snapshot()
        return Snapshot(
            seen.ref_cnts,
            seen.keys,
            seen.queue[::-1],
            seen.queue_back[::-1],
            seen.num_free,
            seen.index,
            seen.tables,
        )


def test_a_difference_is_seen(vllm_0_8_5: Make, small: Config) -> None:
    """Another order of the queue, and a block that is held once more, are differences."""
    both = Differential(Reference(small), Forward(vllm_0_8_5(small)))
    with pytest.raises(DifferenceFound, match=r"queue: reference \(1, 2.*vllm-0.8.5 \(8, 7"):
        serve(WAYS[0]._replace(block_size=2), 1, both)
    theirs = vllm_0_8_5(small)
    theirs.get_new_blocks(1)
    seen = {what for what, _, _ in compared(Reference(small).snapshot(), theirs.snapshot())}
    assert seen == {"counts", "queue", "queue walked backward"}


GOLDEN = {
    ("conversation", 400_000): 54_063_104,
    ("conversation", 10_001): 31_217_152,
    ("conversation", 1_001): 6_572_544,
    ("synthetic", 400_000): 39_802_880,
    ("synthetic", 10_001): 26_392_576,
    ("synthetic", 1_001): 5_242_368,
}
"""Hit tokens of two public traces, by trace and number of blocks of 512 tokens, null included."""


@pytest.mark.slow
@pytest.mark.parametrize(("trace", "num_blocks"), GOLDEN)
def test_the_release_gives_the_golden_numbers(
    trace: str, num_blocks: int, vllm_0_8_5: Make
) -> None:
    """The hits of the public traces are those of the release itself, to the token."""
    folder = os.environ.get("KVSPEC_TRACES")
    if not folder:
        pytest.skip("KVSPEC_TRACES is not set: it names the folder of the public traces")
    workload = open_trace(Path(folder) / "mooncake" / f"{trace}_trace.jsonl", 1)
    tally = Tally()
    for _ in serve_sequentially(vllm_0_8_5(Config(num_blocks, 1)), workload, tally):
        continue
    assert tally.hit_tokens * workload.tokens_per_id == GOLDEN[trace, num_blocks]
