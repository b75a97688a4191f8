"""Writes `docs/invariants.md` from the registry, so that the document cannot drift from it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from spec.invariants import REGISTRY
from spec.pool import TRANSITIONS
from spec.registry import Property

DOCUMENT = Path(__file__).parents[1] / "docs" / "invariants.md"

LEVELS = {
    "P": "the pool, whoever uses it",
    "M": "the manager",
    "PM": "the pool and the manager",
}

KEPT_BY: dict[str, tuple[str, ...]] = {
    "a_block_handed_out_is_clean": ("block_pool.BlockPool.get_new_blocks",),
    "a_settled_block_never_changes": ("manager.KVCacheManager.get_computed_blocks",),
    "a_hit_leaves_a_token_to_compute": ("manager.KVCacheManager.get_computed_blocks",),
    "equal_keys_mean_equal_prefixes": ("hashing.HashChain", "hashing.generate_extra_keys"),
    "a_repeated_prompt_hits": (
        "attention.FullAttention.find_longest_cache_hit",
        "attention.SlidingWindow.find_longest_cache_hit",
    ),
    "hits_and_new_blocks_are_disjoint": ("manager.KVCacheManager.allocate_slots",),
    "admission_is_exact": ("manager.KVCacheManager.allocate_slots",),
    "what_cannot_fit_is_refused_at_once": ("manager.KVCacheManager.allocate_slots",),
    "a_refused_call_changes_nothing": ("manager.KVCacheManager.allocate_slots",),
    "the_tail_is_evicted_before_the_head": ("manager.KVCacheManager.free",),
    "the_oldest_release_is_evicted_first": ("free_queue.FreeKVCacheBlockQueue.append_n",),
    "positions_never_move": ("attention.SlidingWindow.remove_skipped_blocks",),
    "reset_only_when_idle": ("block_pool.BlockPool.reset_prefix_cache",),
    "the_null_block_is_inert": (
        "block_pool.BlockPool.touch",
        "block_pool.BlockPool.free_blocks",
        "block_pool.BlockPool.cache_full_blocks",
    ),
    "the_free_queue_is_a_chain": ("free_queue.FreeKVCacheBlockQueue",),
    "a_block_is_free_exactly_when_nobody_holds_it": (
        "block_pool.BlockPool.touch",
        "block_pool.BlockPool.free_blocks",
    ),
    "ref_cnt_counts_the_holders": (
        "block_pool.BlockPool.get_new_blocks",
        "block_pool.BlockPool.touch",
        "block_pool.BlockPool.free_blocks",
    ),
    "free_and_held_and_null_make_the_pool": ("block_pool.BlockPool.check",),
    "the_index_and_the_blocks_agree": ("block_index.BlockIndex", "block_pool.BlockPool.unpublish"),
    "only_sealed_blocks_are_shared": ("block_pool.BlockPool.touch",),
    "every_block_is_in_one_of_five_states": ("block.KVCacheBlock.state",),
    "only_full_blocks_have_a_hash": ("manager.KVCacheManager.allocate_slots",),
    "nothing_unwritten_is_found": ("manager.KVCacheManager.free",),
    "a_key_tells_the_content": ("hashing.HashChain", "manager.KVCacheManager.allocate_slots"),
    "a_writer_owns_its_block": ("block_pool.BlockPool.cache_full_blocks",),
    "a_request_reads_its_own_prefix": ("manager.KVCacheManager.allocate_slots",),
    "unconfirmed_tokens_are_never_sealed": ("manager.KVCacheManager.allocate_slots",),
    "the_cache_is_prefix_closed": ("manager.KVCacheManager.free",),
    "skipped_positions_show_null": ("attention.SlidingWindow.remove_skipped_blocks",),
    "an_idle_pool_is_whole": ("manager.KVCacheManager.free",),
}
"""Where production keeps each property, below `kvcache`."""

TOP = """# The properties

<!-- Written by `make docs` from the registry in `spec/`. Edit the registry, not this file. -->

A paged, prefix-shared, reference-counted, evicting cache is right when no request can tell it from
a private, contiguous one: `a_request_reads_its_own_prefix`. The other properties serve that one, or
say that memory is neither lost nor refused without need.

**How far they are checked.** Each property is a predicate in `spec/`. A test gives every predicate
a hand-made violation that it must flag. Full lockstep (`kvspec check`, `replay --check full`)
evaluates every predicate on the production manager after every call; incremental lockstep compares
production with the specification on every call and evaluates the predicates of a state in a sweep
now and then. All of this is testing: it is bounded by the calls that were made. Nothing in this
document is explored exhaustively or proved yet.

A **P** property holds for any user of a pool, an **M** property when requests are the only users.
*State* properties are true between any two calls, *call* properties of every single call.
"""

STATES = """## The five states

A block's state is derived from its reference count, its key and its place in the free queue; it is
never stored. The null block (id 0) is in none of the five.

| state | `ref_cnt` | key | in the free queue |
|---|---|---|---|
| FREE | 0 | none | yes |
| FREE_CACHED | 0 | set | yes |
| IN_USE | 1 | none | no |
| IN_USE_CACHED | 1 | set | no |
| SHARED | above 1 | set | no |
"""

DIAGRAM_NOTE = """
Three edges differ from the diagram that is often drawn of this machine: the first hit on a
FREE_CACHED block leads to IN_USE_CACHED, not to SHARED, because it makes the count 1; from SHARED
the last release does not lead to FREE_CACHED in one step, because two releases lie between; and
FREE_CACHED leads to IN_USE when the block is taken and its key is evicted.
"""


def document() -> str:
    """Return the whole document."""
    return "\n".join((TOP, STATES, *_diagram(), DIAGRAM_NOTE, *_summary(), *_properties()))


def _diagram() -> Iterator[str]:
    yield "```mermaid\nstateDiagram-v2"
    for effect, moves in TRANSITIONS.items():
        for before, after in sorted(moves, key=lambda move: (move[0].value, move[1].value)):
            yield f"    {before.value} --> {after.value}: {effect}"
    yield "```"


def _summary() -> Iterator[str]:
    yield "## All of them\n"
    yield "| property | holds for | of |\n|---|---|---|"
    for p in REGISTRY.values():
        yield f"| [`{p.name}`](#{p.name}) | {p.levels} | {_kind(p)} |"
    yield ""


def _properties() -> Iterator[str]:
    for p in REGISTRY.values():
        kept = ", ".join(f"`kvcache.{place}`" for place in KEPT_BY[p.name])
        yield (
            f"## {p.name}\n\n{p.statement}\n\n"
            f"- **If it breaks:** {p.why}\n"
            f"- **Holds for:** {LEVELS[p.levels]}; a property of {_kind(p)}.\n"
            f"- **Kept by:** {kept}\n"
            f"- **Predicate:** `{p.check.__module__}.{p.name}`\n"
        )


def _kind(p: Property) -> str:
    return "a state" if p.kind == "state" else "a call"


def main(arguments: list[str] | None = None) -> int:
    """Write the document, or with `--check` say whether it is up to date (exit status 1 if not)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args(arguments).check:
        current = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
        if current != document():
            sys.stderr.write(f"{DOCUMENT.name} differs from the registry; run `make docs`\n")
            return 1
        return 0
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
