"""What a manager's statistics must have counted, call by call, from the states around each call."""

from __future__ import annotations

from collections import Counter

from spec.registry import Step
from spec.state import NULL


def counted(step: Step) -> Counter[str]:
    """Return what one accepted call adds to each counter.

    `evictions` counts cached blocks that were taken. The others count admissions, with the blocks
    that were asked for and found: null is not counted, and requests that resume after preemption
    are counted apart.
    """
    before, after = step.before, step.after
    if step.action not in ("get_new_blocks", "allocate_slots") or step.result is None:
        return Counter()
    taken = step.result if isinstance(step.result, tuple) else ()
    counts = Counter(evictions=sum(before.pool.blocks[b].key is not None for b in taken))
    rid = step.args.get("rid")
    if rid is None or not before.config.enable_caching:
        return counts
    old, new = before.requests[rid], after.requests[rid]
    if old.table is None and new.table is not None:
        asked = 0 if old.prompt_logprobs else (len(old.tokens) - 1) // before.config.block_size
        prefix = "preempted_" if old.num_preemptions else ""
        counts[f"{prefix}requests"] += 1
        counts[f"{prefix}queries"] += asked
        counts[f"{prefix}hits"] += sum(b != NULL for b in new.table[: new.num_hits])
    return counts
