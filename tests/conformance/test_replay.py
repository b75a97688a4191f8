"""A replay ends with a report, whatever happened on the way."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.replay import ReplayPlan, Report, replay
from conformance.workloads.workload import GeneratedParams, GeneratedWorkload, WorkItem
from kvcache import FreeKVCacheBlockQueue, KVCacheBlock
from spec.state import Config

ByHand = Callable[..., Any]

PLANS = {
    "sequential": ReplayPlan(num_blocks=20, block_size=4, check="full"),
    "incremental": ReplayPlan(num_blocks=20, block_size=4, sweep_every=7),
    "off": ReplayPlan(num_blocks=20, block_size=4, check="off"),
    "batch": ReplayPlan(num_blocks=26, block_size=4, batch=True, num_drafts=2),
    "batch, off": ReplayPlan(num_blocks=26, block_size=4, batch=True, num_drafts=2, check="off"),
    "window": ReplayPlan(num_blocks=20, block_size=4, batch=True, window=6),
    "builtin": ReplayPlan(num_blocks=20, block_size=4, caching_hash_algo="builtin"),
    "no caching": ReplayPlan(num_blocks=20, block_size=4, caching=False),
}


def stable(report: Report) -> dict[str, Any]:
    """Return what of a report does not depend on the clock or on the way to check."""
    timed = {"seconds", "calls_per_second", "blocks_per_second"}
    return report.model_dump(exclude=timed | {"check", "calls_checked", "verdict"})


@pytest.mark.parametrize("name", PLANS)
def test_the_figures_of_a_report_agree(name: str) -> None:
    """Every request ended, each figure follows from the others, and all is given back."""
    plan = PLANS[name]
    workload = GeneratedWorkload(3, 60, 4)
    items = list(workload)
    subject = Reference(plan.config(), plan.caching_hash_algo)
    report = replay(workload, plan, subject=subject)
    assert report.verdict == ("not checked" if plan.check == "off" else "clean")
    assert (report.violation, report.details, report.notices) == (None, None, [])
    assert report.requests == report.served + report.num_refused + report.starved == 60
    assert report.input_tokens == sum(item.num_input_tokens for item in items)
    output = sum(item.output_length for item in items)
    assert report.output_tokens == (output if plan.batch else 0)
    assert report.hit_rate == report.hit_tokens / report.input_tokens
    assert (report.hit_rate > 0) == plan.caching
    assert report.calls_checked == (0 if plan.check == "off" else report.calls)
    assert report.calls_per_second == pytest.approx(report.calls / report.seconds)
    assert report.blocks_per_second == pytest.approx(report.blocks / report.seconds)
    assert (report.evictions > 0) == plan.caching
    assert 0 < report.peak_usage <= 1
    assert (report.mode == "batch") == plan.batch
    assert (report.subject, report.workload, report.check) == (
        "reference",
        workload.name,
        plan.check,
    )
    assert (report.num_gpu_blocks, report.block_size) == (plan.num_blocks, plan.block_size)
    assert (report.window, report.caching, report.tokens_per_id) == (plan.window, plan.caching, 1)
    assert subject.num_free() == plan.num_blocks - 1
    assert subject.manager.usage == 0
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_a_check_does_not_change_the_figures() -> None:
    """What a run comes to is the same in full, in incremental lockstep, and alone."""
    for batch in (False, True):
        reports = [
            replay(
                GeneratedWorkload(4, 80, 4),
                ReplayPlan(num_blocks=22, block_size=4, batch=batch, check=check, num_drafts=1),
            )
            for check in ("full", "incremental", "off")
        ]
        assert stable(reports[0]) == stable(reports[1]) == stable(reports[2])


def test_a_peak_of_everything_is_one(by_hand: ByHand) -> None:
    """Usage is counted in usable blocks, and nothing is used where nothing was admitted."""
    full = replay(by_hand(([1] * 6, 0)), ReplayPlan(num_blocks=4, block_size=2))
    assert full.peak_usage == 1.0
    half = replay(by_hand(([1] * 2, 0)), ReplayPlan(num_blocks=3, block_size=2))
    assert half.peak_usage == 0.5
    none = replay(by_hand(([1] * 9, 0)), ReplayPlan(num_blocks=4, block_size=2))
    assert (none.peak_usage, none.num_refused, none.hit_rate) == (0.0, 1, 0.0)


@pytest.mark.parametrize("check", ["full", "incremental", "off"])
@pytest.mark.parametrize("after", [0, 64, 128])
def test_an_interrupt_leaves_the_figures_so_far(check: Any, after: int) -> None:  # noqa: ANN401
    """Ctrl-C ends the replay with a report of the requests that ended."""

    def stop(requests: int) -> None:
        if requests > after:
            raise KeyboardInterrupt

    workload = GeneratedWorkload(3, 1_000, 4)
    report = replay(workload, ReplayPlan(num_blocks=20, block_size=4, check=check), stop)
    assert report.verdict == "interrupted"
    assert report.violation is None
    ended = after + 1
    assert report.requests == report.served == ended
    first = [item.num_input_tokens for item, _ in zip(workload, range(ended), strict=False)]
    assert report.input_tokens == sum(first)
    assert report.calls == 5 * ended
    whole = replay(GeneratedWorkload(3, ended, 4), ReplayPlan(num_blocks=20, block_size=4))
    assert (whole.hit_tokens, whole.blocks) == (report.hit_tokens, report.blocks)


def test_the_collector_is_left_as_it_was(by_hand: ByHand) -> None:
    """A replay that ends in any way thaws what it froze."""

    def stop(_: int) -> None:
        raise ZeroDivisionError

    replay(by_hand(([1], 0)), ReplayPlan(num_blocks=3))
    assert gc.get_freeze_count() == 0
    with pytest.raises(ZeroDivisionError):
        replay(by_hand(([1], 0)), ReplayPlan(num_blocks=3), stop)
    assert gc.get_freeze_count() == 0


def reverse_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks join the free queue in the wrong order."""
    sound = FreeKVCacheBlockQueue.append_n

    def append_n(self: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]) -> None:
        sound(self, blocks[::-1])

    monkeypatch.setattr(FreeKVCacheBlockQueue, "append_n", append_n)


LINE = r"kvspec violation: property=\w+ call=\d+ \w+ block=\S+ expected=\S+ actual=\S+ holders=\S+ "


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_faulty_manager_ends_in_a_violation(
    monkeypatch: pytest.MonkeyPatch,
    check: Any,  # noqa: ANN401
    batch: bool,  # noqa: FBT001
) -> None:
    """The line says what broke, the details what was called, and the figures end there."""
    plan = ReplayPlan(num_blocks=20, block_size=4, check=check, batch=batch)
    subject = Reference(plan.config())
    reverse_order(monkeypatch)
    report = replay(GeneratedWorkload(3, 100, 4), plan, subject=subject)
    assert report.verdict == "violation"
    assert report.violation is not None
    assert re.fullmatch(LINE + "found_by=lockstep", report.violation)
    assert "property=the_tail_is_evicted_before_the_head" in report.violation
    verb = "preempt" if batch else "finish"
    assert f"call={report.calls_checked} {verb} " in report.violation
    assert report.details is not None
    assert f"call {report.calls_checked}: {verb}(rid=r" in report.details
    assert report.requests < 100


def test_a_fault_that_no_check_looks_for_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check the verdict does not say that anything is clean."""
    plan = ReplayPlan(num_blocks=20, block_size=4, check="off")
    subject = Reference(plan.config())
    reverse_order(monkeypatch)
    report = replay(GeneratedWorkload(3, 100, 4), plan, subject=subject)
    assert (report.verdict, report.violation, report.requests) == ("not checked", None, 100)


def test_progress_is_told_now_and_then(by_hand: ByHand) -> None:
    """The first step tells it, and then every 64th."""
    told: list[int] = []
    replay(by_hand(*[([1], 0)] * 200), ReplayPlan(num_blocks=3), told.append)
    assert told == [1, 65, 129, 193]


def test_the_plan_gives_the_configuration() -> None:
    """Every option of a plan reaches the pool."""
    plan = ReplayPlan(num_blocks=7, block_size=3, window=5, caching=False)
    expected = Config(7, 3, enable_caching=False, sliding_window=5)
    assert expected == plan.config()


class Streamed:
    """A generated workload; the peak of memory is counted from some request on."""

    def __init__(self, num_requests: int, num_warm: int) -> None:
        params = GeneratedParams(branching=8, depth=8, max_tail=4)
        self.inner = GeneratedWorkload(9, num_requests, 4, params)
        self.num_warm = num_warm
        self.name, self.tokens_per_id, self.num_requests = "streamed", 1, num_requests
        self.notices: list[str] = []

    def __iter__(self) -> Iterator[WorkItem]:
        """Yield the requests."""
        for at, item in enumerate(self.inner):
            if at == self.num_warm:
                gc.collect()
                tracemalloc.reset_peak()
            yield item


def peak(num_requests: int, num_warm: int, plan: ReplayPlan) -> int:
    """Return the most memory, in bytes, that a replay uses once it is warm."""
    tracemalloc.start()
    try:
        report = replay(Streamed(num_requests, num_warm), plan)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.requests == num_requests
    assert report.evictions > 0
    return used


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_memory_stays_flat(batch: bool) -> None:  # noqa: FBT001
    """Once the pool is warm, three times the requests take no more memory."""
    plan = ReplayPlan(num_blocks=200, block_size=4, batch=batch, check="off")
    short, long = peak(2_000, 500, plan), peak(6_000, 500, plan)
    assert long < 1.1 * short + 20_000


@pytest.mark.slow
def test_memory_stays_flat_in_lockstep_too() -> None:
    """The specification forgets what the pool forgets."""
    plan = ReplayPlan(num_blocks=60, block_size=4)
    short, long = peak(600, 200, plan), peak(1_800, 200, plan)
    assert long < 1.1 * short + 20_000
