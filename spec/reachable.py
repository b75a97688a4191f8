"""What must be seen: without these a search, or a random run, is green for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from spec.pool import Refused
from spec.registry import Step
from spec.state import NULL

REACHABLE: dict[str, Callable[[Step], bool]] = {}
BY_CALL: dict[str, list[str]] = defaultdict(list)
"""The names of what can be seen at a call, by the call."""

ENDINGS = ("finish", "preempt", "free")


def sometimes(*calls: str) -> Callable[[Callable[[Step], bool]], Callable[[Step], bool]]:
    """Enter a predicate on some calls into the list of what must be seen, under its own name."""

    def register(sees: Callable[[Step], bool]) -> Callable[[Step], bool]:
        REACHABLE[sees.__name__] = sees
        for call in calls:
            BY_CALL[call].append(sees.__name__)
        return sees

    return register


def seen_in(step: Step) -> list[str]:
    """Return the names of what a call shows."""
    return [name for name in BY_CALL[step.action] if REACHABLE[name](step)]


def _hits(step: Step) -> list[int]:
    return [b for b in step.args.get("hits", ()) if b != NULL]


def _admitted(step: Step) -> bool:
    return isinstance(step.result, tuple)


def _new(step: Step) -> tuple[int, ...]:
    return step.result if isinstance(step.result, tuple) else ()


@sometimes("allocate_slots", "get_new_blocks")
def a_cached_block_is_evicted(step: Step) -> bool:
    """A block that carried a key is handed out."""
    return any(step.before.pool.blocks[b].key is not None for b in _new(step))


@sometimes("allocate_slots")
def an_idle_hit_stands_at_the_head(step: Step) -> bool:
    """A hit is taken from the place where the next victim stands."""
    return _admitted(step) and any(step.before.pool.heads(1) == (b,) for b in _hits(step))


@sometimes("allocate_slots")
def idle_hits_are_refused(step: Step) -> bool:
    """An admission with idle hits gets no room."""
    idle = any(step.before.pool.blocks[b].ref_cnt == 0 for b in _hits(step))
    return step.result is None and idle


@sometimes("allocate_slots", "touch")
def three_hold_one_block(step: Step) -> bool:
    """A block has three references."""
    return any(block.ref_cnt >= 3 for block in step.after.pool.blocks)


@sometimes("allocate_slots", "get_new_blocks")
def one_of_two_copies_is_evicted(step: Step) -> bool:
    """A key loses a copy and can still be found."""
    old = {step.before.pool.blocks[b].key for b in _new(step)}
    return any(key is not None and step.after.pool.copies(key) for key in old)


@sometimes(*ENDINGS)
def a_request_with_nulls_ends(step: Step) -> bool:
    """A request that left blocks behind its window gives back the rest."""
    if isinstance(step.result, Refused):
        return False
    return NULL in (step.before.requests[step.args["rid"]].table or ())


@sometimes("allocate_slots")
def a_preempted_request_hits(step: Step) -> bool:
    """A request that ran before is admitted again, with hits."""
    if not _admitted(step) or not _hits(step):
        return False
    r = step.before.requests[step.args["rid"]]
    return r.table is None and r.num_preemptions > 0


@sometimes("run_step")
def a_draft_is_rejected_after_its_block_filled(step: Step) -> bool:
    """A step filled a block with drafts, and not all of them were right."""
    size = step.before.config.block_size
    for rid in step.args["outcomes"]:
        before, after = step.before.requests[rid], step.after.requests[rid]
        if before.end // size > after.num_computed // size:
            return True
    return False


@sometimes(*ENDINGS)
def unwritten_blocks_are_taken_back(step: Step) -> bool:
    """A request ends before its step ran, and what it published goes."""
    if isinstance(step.result, Refused):
        return False
    rid = step.args["rid"]
    return any(block.pending == rid for block in step.before.pool.blocks)


@sometimes(*ENDINGS)
def a_pending_block_is_shared(step: Step) -> bool:
    """A request may not end, because another one depends on what it has not written."""
    return isinstance(step.result, Refused) and step.result.rule == "pending_block_is_shared"


@sometimes("reset_prefix_cache")
def a_reset_succeeds(step: Step) -> bool:
    """A reset that had something to forget."""
    sealed = any(block.key is not None for block in step.before.pool.blocks)
    return step.result is True and sealed


@sometimes("reset_prefix_cache")
def a_reset_is_refused(step: Step) -> bool:
    """A reset while somebody holds a block."""
    return step.result is False
