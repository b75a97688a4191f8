"""The faults that must break what is claimed of the order, and the whole level."""

from __future__ import annotations

from collections.abc import Callable

from spec.proof.logic import Fault, Formula, Level, View, every
from spec.proof.order import (
    FIELDS,
    FREE,
    GHOSTS,
    HIT,
    LOOKED_UP,
    RESET,
    RIGID,
    RUN,
    SEAL,
    SETTLED_ALONE,
    TAKE,
    And,
    Or,
    axioms,
    b,
    c,
    released,
)
from spec.proof.order_claims import initial, invariants


def forwards(x: Formula, y: Formula) -> Formula:
    """Return that index `x` is released before index `y`, from the front of the table."""
    return x < y


def forward(name: str) -> Callable[[View, View, View], Formula]:
    """Return what becomes of the queue when a table is released from its front."""
    return lambda s, t, p: released(s, t, p, forwards)[name]


FAULTS = (
    Fault(
        "a table is released from its front",
        FREE._replace(change={name: forward(name) for name in ("queued", "ahead")}),
        "the_tail_is_evicted_before_the_head",
    ),
    Fault(
        "any free block is taken, not the oldest",
        TAKE._replace(
            change={"guard: the victim is the head of the queue": lambda s, _, p: s.queued(p.v)}
        ),
        "the_cache_is_prefix_closed",
    ),
    Fault(
        "a released block enters the queue at its head",
        FREE._replace(
            change={
                "ahead": lambda s, t, p: every(
                    [b, c],
                    t.ahead(b, c)
                    == Or(
                        And(s.queued(b), s.queued(c), s.ahead(b, c)),
                        And(p.goes(b), s.queued(c)),
                        And(p.goes(b), p.goes(c), p.pos(b) > p.pos(c)),
                    ),
                )
            }
        ),
        "an_idle_child_is_evicted_before_its_parent",
    ),
    Fault(
        "a freed request leaves its unwritten blocks in the index",
        FREE._replace(
            change={
                "key": lambda s, t, _: every([b], t.key(b) == s.key(b)),
                "pending": lambda s, t, _: every([b], t.pending(b) == s.pending(b)),
            }
        ),
        "a_pending_block_is_in_its_writers_table",
    ),
    Fault(
        "a hit is a later copy of its key",
        HIT._replace(drop=("guard: it is the first copy, and so was the last hit",)),
        "a_written_entry_follows_written_entries",
    ),
    Fault(
        "a block is sealed as written while a copy of its key is pending",
        SEAL._replace(drop=("guard: no copy of a written block's key is pending",)),
        "written_copies_come_before_pending_ones",
    ),
)


ORDER = Level(
    name="order",
    fields=FIELDS,
    rigid=RIGID,
    axioms=axioms,
    initial=initial,
    actions=(HIT, TAKE, SEAL, RUN, FREE, RESET),
    invariants=invariants,
    assumptions=(
        "full attention, caching on, no explicit eviction",
        LOOKED_UP,
        SETTLED_ALONE,
        "a name that is used again is another request",
        "a step runs whole: all that is scheduled runs at once",
        "blocks move through requests only, not through direct calls of the pool",
        (
            "a block is sealed as written only behind written entries: the content level proves it "
            "(a_settled_seal_follows_settled_entries)"
        ),
        (
            "what `free` takes back is what is pending on the request: the content level proves it "
            "(what_is_taken_back_is_pending_on_its_writer)"
        ),
    ),
    faults=FAULTS,
    ghosts=GHOSTS,
)
