"""`assert_quiescent`: one line at the end of somebody's test, after which no block may be held."""

from __future__ import annotations

from typing import Final

from conformance.monitoring.monitor import monitor_of
from conformance.monitoring.profiles import Manager, Pool, Profile, profile_of
from conformance.monitoring.violation import named
from spec.state import NULL

MOST_SHOWN: Final = 8
"""Blocks of which a message tells everything."""


class NotQuiescentError(AssertionError):
    """Blocks are held when nobody should hold any; the text names them and who holds them."""


def assert_quiescent(pool_or_manager: object) -> None:
    """Raise `NotQuiescentError` unless every usable block is free, counted 0, and in no table.

    The message names each block, who should hold it (whose table shows it), who is recorded to hold
    it (what the pool counts and, while a monitor is attached, whose calls that were), and with a
    monitor the call after which it was not given back. Costs O(pool + tables).
    """
    profile, pool, manager = profile_of(pool_or_manager)
    queued = _queued(profile, pool)
    shown = _shown(profile, manager)
    left = [
        b
        for b, block in enumerate(pool.blocks)
        if b != NULL and (block.ref_cnt or b not in queued or b in shown)
    ]
    counted = pool.free_block_queue.num_free_blocks
    usable = len(pool.blocks) - 1
    if not left and counted == usable == len(queued):
        return
    first = (
        f"kvspec violation: property=an_idle_pool_is_whole {len(left)} of {usable} usable blocks "
        f"are not free; the queue links {len(queued)} and counts {counted}"
    )
    lines = [first]
    lines += [_told(pool, b, shown.get(b, {}), queued=b in queued) for b in left[:MOST_SHOWN]]
    if len(left) > MOST_SHOWN:
        lines.append(f"  and {len(left) - MOST_SHOWN} more: {left[MOST_SHOWN:]}")
    raise NotQuiescentError("\n".join(lines))


def _told(pool: Pool, b: int, shown: dict[str, int], *, queued: bool) -> str:
    monitor = monitor_of(pool)
    line = (
        f"  block={b} expected_holders={named(shown)} ref_cnt={pool.blocks[b].ref_cnt} "
        f"in_queue={queued}"
    )
    if monitor is None:
        return f"{line} recorded_holders=? (attach a monitor to know)"
    return f"{line} recorded_holders={named(monitor.holders(b))} since={monitor.last_call(b)}"


def _queued(profile: Profile, pool: Pool) -> set[int]:
    before, end = profile.ends(pool)
    block, queued = before.next_free_block, set[int]()
    while block is not None and block is not end and block.block_id not in queued:
        queued.add(block.block_id)
        block = block.next_free_block
    return queued


def _shown(profile: Profile, manager: Manager | None) -> dict[int, dict[str, int]]:
    """Return whose tables show each block, and how often; a bare pool has no tables."""
    shown: dict[int, dict[str, int]] = {}
    for rid, table in () if manager is None else profile.tables(manager):
        for block in table:
            if block.block_id != NULL:
                who = shown.setdefault(block.block_id, {})
                who[rid] = who.get(rid, 0) + 1
    return shown
