"""One line at a time is made wrong in production; the layers that see it are named."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.production import Names, PoolCall, refine
from conformance.tour import Graph, replay
from spec.scope import Scope
from spec.state import Config, State

Graphs = Callable[[str], Graph]
Plant = Callable[[str, str, str], None]
THREE = Scope(Config(4, 1))


class Fault(NamedTuple):
    """A line of a method, what stands there instead, and who sees it.

    `steps` compares every call from loaded states, `tour` walks from the initial state.
    """

    place: str
    line: str
    other: str
    seen_by: str


POOL_FAULTS = {
    "an appended block does not link back": Fault(
        "free_queue.FreeKVCacheBlockQueue.append_n",
        "block.prev_free_block = last",
        "pass",
        "steps tour",
    ),
    "the new head does not link back to the ring": Fault(
        "free_queue.FreeKVCacheBlockQueue.popleft_n",
        "block.prev_free_block = ring",
        "pass",
        "steps tour",
    ),
    "a removed block keeps a link": Fault(
        "free_queue.FreeKVCacheBlockQueue.remove_n",
        "block.prev_free_block = block.next_free_block = None",
        "block.prev_free_block = None",
        "steps",
    ),
    "removed blocks are counted as one": Fault(
        "free_queue.FreeKVCacheBlockQueue.remove_n", "-= len(blocks)", "-= 1", "steps tour"
    ),
    "a block taken is still found": Fault(
        "block_pool.BlockPool.get_new_blocks",
        "self.index.discard(block)",
        "pass",
        "steps tour",
    ),
    "a block taken keeps its key": Fault(
        "block_pool.BlockPool.get_new_blocks", "block.block_hash = None", "pass", "steps tour"
    ),
    "an eviction is counted twice": Fault(
        "block_pool.BlockPool.get_new_blocks", "+= 1", "+= 2", "steps"
    ),
    "an unsealed block is shared": Fault(
        "block_pool.BlockPool.touch", "block.block_hash is None and", "False and", "steps"
    ),
    "blocks are released in reverse": Fault(
        "block_pool.BlockPool.free_blocks", "append_n(idle)", "append_n(idle[::-1])", "steps"
    ),
    "one release too many is let pass": Fault(
        "block_pool.BlockPool.free_blocks", "> block.ref_cnt", "> block.ref_cnt + 1", "steps"
    ),
    "a shared block is freed": Fault(
        "block_pool.BlockPool.free_blocks", "if not ref_cnt:", "if ref_cnt < 2:", "steps tour"
    ),
    "a free block is sealed": Fault(
        "block_pool.BlockPool._refuse_seal", "block.ref_cnt != 1", "block.ref_cnt > 1", "steps"
    ),
    "a reset leaves the keys": Fault(
        "block_pool.BlockPool.reset_prefix_cache", "block.block_hash = None", "pass", "steps tour"
    ),
    "a reset while one block is held": Fault(
        "block_pool.BlockPool.reset_prefix_cache", "if held:", "if held > 1:", "steps tour"
    ),
    "an evicted copy is found first": Fault(
        "block_index.BlockIndex.discard",
        "self._first[key] = next(iter(copies.values()))",
        "pass",
        "steps tour",
    ),
    "a list of copies stays for one": Fault(
        "block_index.BlockIndex.discard", "len(copies) == 1", "len(copies) == 0", "steps tour"
    ),
    "the newest copy is found first": Fault(
        "block_index.BlockIndex.add_n",
        "first = setdefault(key, block)",
        "first = setdefault(key, block); self._first[key] = block",
        "steps",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POOL_FAULTS)
def test_a_faulty_pool_is_seen(
    name: str,
    plant: Plant,
    graph_of: Graphs,
    pool_states: Callable[[Scope], Iterator[State]],
    pool_calls: Callable[..., list[PoolCall]],
) -> None:
    """The step is compared from every state of three blocks, and the tour takes every move."""
    fault, graph = POOL_FAULTS[name], graph_of("pool-3")
    plant(*fault[:3])
    calls = [*pool_calls(THREE, single=True), *pool_calls(THREE, single=False)]
    steps = refine(pool_states(THREE), calls, Names(THREE.config))
    tour = replay(graph, Reference)
    seen = {"steps": steps.found, "tour": tour.found}
    assert [layer for layer, found in seen.items() if found] == fault.seen_by.split()


MANAGER_FAULTS = {
    "idle hits are not counted": (
        Fault(
            "manager.KVCacheManager.allocate_slots",
            "if not (block.ref_cnt or block.is_null)",
            "if block.ref_cnt < 0",
            "steps tour",
        ),
        "tight",
    ),
    "the start of a step is not kept": (
        Fault(
            "manager.KVCacheManager.allocate_slots",
            "admission.last_start = start",
            "pass",
            "steps",
        ),
        "window-leaves-two",
    ),
    "a step may be scheduled before the last one ran": (
        Fault(
            "manager.KVCacheManager.allocate_slots",
            "refuse_progress(request, admission, start)",
            "pass",
            "steps",
        ),
        "window-leaves-two",
    ),
    "a hit may be stale": (
        Fault(
            "manager.KVCacheManager._refuse_hits",
            "refuse_stale_hits(name, hits, self._chain_of(request).keys, first_readable)",
            "pass",
            "steps",
        ),
        "window-leaves-two",
    ),
    "the last token is found too": (
        Fault(
            "manager.KVCacheManager.get_computed_blocks",
            "(request.num_tokens - 1) // block_size",
            "request.num_tokens // block_size",
            "steps tour",
        ),
        "tight",
    ),
    "the head is evicted before the tail": (
        Fault("manager.KVCacheManager.free", "table[::-1]", "table", "steps tour"),
        "tight",
    ),
    "unwritten blocks stay published": (
        Fault("manager.KVCacheManager.free", "if unwritten:", "if False:", "steps tour"),
        "tight",
    ),
    "hits are taken back": (
        Fault(
            "manager.KVCacheManager.free",
            "max(admission.num_hit_blocks, written)",
            "written",
            "steps tour",
        ),
        "tight",
    ),
    "a pending block that is shared is let go": (
        Fault(
            "manager.KVCacheManager.free", "block.ref_cnt > 1", "block.ref_cnt > 2", "steps tour"
        ),
        "tight",
    ),
    "hits are not touched": (
        Fault(
            "manager.KVCacheManager._admit",
            "self.block_pool.touch(hits)",
            "pass",
            "steps tour",
        ),
        "tight",
    ),
    "drafts are sealed": (
        Fault("manager.KVCacheManager._seal", "min(end, request.num_tokens)", "end", "steps tour"),
        "drafts",
    ),
    "a large request waits for ever": (
        Fault(
            "manager.KVCacheManager._refuse_too_large",
            "required_blocks > self._num_usable_blocks",
            "required_blocks > self._num_usable_blocks + 1",
            "steps tour",
        ),
        "tight",
    ),
    "the window is one token too wide": (
        Fault(
            "attention.SlidingWindow.num_skipped_blocks",
            "self.window + 1",
            "self.window",
            "steps tour",
        ),
        "window",
    ),
    "the window is one token too narrow": (
        Fault(
            "attention.SlidingWindow.num_skipped_blocks",
            "self.window + 1",
            "self.window + 2",
            "steps tour",
        ),
        "window",
    ),
    "a window hit is one block too short": (
        Fault(
            "attention.SlidingWindow.find_longest_cache_hit",
            "-(-(self.window - 1) // block_size)",
            "self.window // (2 * block_size)",
            "steps tour",
        ),
        "window-blocks-of-2",
    ),
    "the window is left head first": (
        Fault(
            "attention.SlidingWindow.remove_skipped_blocks",
            "removed.append(block)",
            "removed.insert(0, block)",
            "steps tour",
        ),
        "window-leaves-two",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MANAGER_FAULTS)
def test_a_faulty_manager_is_seen(
    name: str, plant: Plant, graph_of: Graphs, steps_of: Callable[[Graph], Any]
) -> None:
    """Moves and misuse are compared from the states of a small world, and a tour takes its moves.

    A fault that a tour sees is shown by a shortest path, of a dozen moves or fewer.
    """
    fault, world = MANAGER_FAULTS[name]
    graph = graph_of(world)
    plant(*fault[:3])
    steps = steps_of(graph)
    found = replay(graph, Reference).found
    seen = {"steps": steps.moves() or steps.misuse(20), "tour": found}
    assert [layer for layer, shown in seen.items() if shown] == fault.seen_by.split()
    assert found is None or (found.shortest and len(found.path) <= 12)
