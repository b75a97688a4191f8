"""What is claimed of the order, and the faults that must break it."""

from __future__ import annotations

from spec.proof.logic import Conditions, Formula, Invariant, View, every
from spec.proof.order import And, If, Implies, Not, Or, R, b, c, d, i, m, q, r, shows


def initial(_: View, s: View) -> Conditions:
    """Every usable block is free and no table exists."""
    return {
        "requests": every([r], s.length(r) == 0, s.cached(r) == 0),
        "tables": every([r, i], s.table(r, i) == R.null),
        "blocks": every(
            [b, c],
            s.key(b) == R.nokey,
            s.pending(b) == R.noone,
            s.queued(b) == (b != R.null),
            Not(s.older(b, c)),
        ),
        "queue": queue_is_a_chain(s),
    }


def queue_is_a_chain(s: View) -> Formula:
    """The queue is a strict total order of the queued blocks."""
    return every(
        [b, c, d],
        Not(s.ahead(b, b)),
        Implies(s.ahead(b, c), And(s.queued(b), s.queued(c))),
        Implies(And(s.queued(b), s.queued(c), b != c), Or(s.ahead(b, c), s.ahead(c, b))),
        Implies(And(s.ahead(b, c), s.ahead(c, d)), s.ahead(b, d)),
    )


def free_when_nobody_holds(s: View) -> Formula:
    """A queued block is in no table, and every other one is in the table that its witness names."""
    return And(
        every(
            [r, i],
            Implies(And(i >= 0, i < s.length(r)), Not(s.queued(s.table(r, i)))),
            on=[s.table(r, i)],
        ),
        every([b], Implies(And(b != R.null, Not(s.queued(b))), shows(s, s.by(b), s.at(b), b))),
    )


def null_is_inert(s: View) -> Formula:
    """Null is not queued, not sealed and in no table."""
    return And(
        Not(s.queued(R.null)),
        s.key(R.null) == R.nokey,
        every([r, i], Implies(And(i >= 0, i < s.length(r)), s.table(r, i) != R.null)),
    )


def only_sealed_are_shared(s: View) -> Formula:
    """What two entries show is sealed."""
    both = And(i >= 0, i < s.length(r), m >= 0, m < s.length(q), s.table(r, i) == s.table(q, m))
    return every(
        [r, i, q, m],
        Implies(And(both, s.key(s.table(r, i)) == R.nokey), And(r == q, i == m)),
    )


def bears_its_positions_key(s: View) -> Formula:
    """The sealed front of a table carries the request's keys, and the rest carries none."""
    key = s.key(s.table(r, i))
    return every(
        [r, i],
        And(s.cached(r) >= 0, s.cached(r) <= s.length(r)),
        Implies(r == R.noone, s.length(r) == 0),
        Implies(And(i >= 0, i < s.cached(r)), key == R.ck(r, i)),
        Implies(And(s.cached(r) <= i, i < s.length(r)), key == R.nokey),
    )


def prefix_closed(s: View) -> Formula:
    """The parent of a cached block is cached: in the block that its witness names."""
    up = R.parent(s.key(b))
    copy = If(s.queued(b), s.above(b), s.table(s.by(b), s.at(b) - 1))
    return every(
        [b],
        Implies(And(s.key(b) != R.nokey, up != R.nokey), s.key(copy) == up),
        on=[s.queued(b)],
    )


def child_goes_first(s: View) -> Formula:
    """An idle block's parent is written, and held or behind it in the queue."""
    p = s.above(b)
    return every(
        [b],
        Implies(
            And(s.queued(b), s.key(b) != R.nokey, R.parent(s.key(b)) != R.nokey),
            And(p != b, s.pending(p) == R.noone, Implies(s.queued(p), s.ahead(b, p))),
        ),
        on=[s.queued(b)],
    )


def pending_is_held(s: View) -> Formula:
    """A pending block is sealed and in the table of its writer."""
    w = s.pending(b)
    return every(
        [b],
        Implies(
            w != R.noone,
            And(shows(s, w, s.place(b), b), s.place(b) < s.cached(w), s.key(b) != R.nokey),
        ),
    )


def written_follows_written(s: View) -> Formula:
    """What stands before a written sealed entry of a table is written."""
    return every(
        [r, i],
        Implies(
            And(i > 0, i < s.cached(r), s.pending(s.table(r, i)) == R.noone),
            s.pending(s.table(r, i - 1)) == R.noone,
        ),
    )


def copies_in_order(s: View) -> Formula:
    """The copies of a key have an order, and the written ones come first."""
    same = And(s.key(b) == s.key(c), s.key(b) != R.nokey, b != c)
    return every(
        [b, c, d],
        Implies(s.older(b, c), same),
        Implies(same, s.older(b, c) != s.older(c, b)),
        Implies(And(s.older(b, c), s.older(c, d)), s.older(b, d)),
        Implies(And(s.older(b, c), s.pending(b) != R.noone), s.pending(c) != R.noone),
    )


def tail_before_head(s: View, t: View, p: View) -> Formula:
    """Of the sealed blocks that became idle, the later in the table stands before the earlier."""
    x = p.r
    idle = And(
        Not(s.queued(s.table(x, i))),
        t.queued(s.table(x, i)),
        Not(s.queued(s.table(x, m))),
        t.queued(s.table(x, m)),
    )
    return every(
        [i, m],
        Implies(
            And(
                i >= 0,
                i < m,
                m < s.length(x),
                idle,
                t.key(s.table(x, i)) != R.nokey,
                t.key(s.table(x, m)) != R.nokey,
            ),
            t.ahead(s.table(x, m), s.table(x, i)),
        ),
    )


def nothing_past_the_end(s: View) -> Formula:
    """A table shows nothing before its first entry and nothing past its last."""
    return every(
        [r, i], Implies(Or(i < 0, i >= s.length(r)), s.table(r, i) == R.null), on=[s.table(r, i)]
    )


STATES = {
    "the_free_queue_is_a_chain": queue_is_a_chain,
    "a_block_is_free_exactly_when_nobody_holds_it": free_when_nobody_holds,
    "the_null_block_is_inert": null_is_inert,
    "only_sealed_blocks_are_shared": only_sealed_are_shared,
    "the_cache_is_prefix_closed": prefix_closed,
    "a_shown_block_bears_its_positions_key": bears_its_positions_key,
    "an_idle_child_is_evicted_before_its_parent": child_goes_first,
    "a_pending_block_is_in_its_writers_table": pending_is_held,
    "a_table_shows_nothing_past_its_end": nothing_past_the_end,
    "a_written_entry_follows_written_entries": written_follows_written,
    "written_copies_come_before_pending_ones": copies_in_order,
}


def invariants(_: View) -> tuple[Invariant, ...]:
    """Return what is claimed of the order."""
    return (
        *(Invariant(name, formula) for name, formula in STATES.items()),
        Invariant(
            "the_tail_is_evicted_before_the_head", tail_before_head, step=True, actions=("free",)
        ),
    )
