"""What is claimed of requests and memory, and the faults that must break it."""

from __future__ import annotations

from spec.proof.content import (
    And,
    If,
    Implies,
    Not,
    Or,
    R,
    at,
    b,
    before,
    flying,
    i,
    j,
    m,
    q,
    r,
    shown,
    taken_back,
    upto,
    writes,
)
from spec.proof.logic import Formula, Invariant, View, every


def settled(s: View) -> Formula:
    """Block `b` is sealed, and nobody is about to write it."""
    return And(s.key(b) != R.nokey, s.pending(b) == R.noone)


def nothing_unwritten_is_found(s: View) -> Formula:
    """A settled block is written; a pending one is shown by a writer whose step fills it."""
    w, at_w = s.pending(b), s.place(b)
    return every(
        [b, j],
        Implies(And(settled(s), j >= 0, j < R.size), s.content(b, j) != R.unwritten),
        Implies(
            w != R.noone,
            And(
                flying(s, w),
                shown(s, w, at_w),
                s.table(w, at_w) == b,
                upto((at_w + 1, 0), at(s, "end", w)),
            ),
        ),
    )


def key_tells_the_content(s: View) -> Formula:
    """Each slot of a settled block holds what its key names."""
    return every(
        [b, j],
        Implies(And(settled(s), j >= 0, j < R.size), s.content(b, j) == R.names(s.key(b), j)),
    )


def writer_owns_its_block(s: View) -> Formula:
    """What a step writes is not null, and shown by it alone without a key, or pending on it."""
    v = s.table(r, i)
    other = And(shown(s, q, m), s.table(q, m) == v)
    return every(
        [r, i, q, m],
        Implies(writes(s, r, i), v != R.null),
        Implies(
            And(writes(s, r, i), s.pending(v) != r),
            s.key(v) == R.nokey,
        ),
        Implies(And(writes(s, r, i), s.pending(v) != r, other), And(q == r, m == i)),
    )


def reads_its_own_prefix(s: View) -> Formula:
    """Each slot before a scheduled step holds the request's own prefix, or is pending on it."""
    v = s.table(r, i)
    return every(
        [r, i, j],
        Implies(
            And(
                flying(s, r), shown(s, r, i), j >= 0, j < R.size, before((i, j), at(s, "start", r))
            ),
            Or(
                s.content(v, j) == R.mine(r, i, j),
                And(s.pending(v) != R.noone, s.key(v) == R.ck(r, i)),
            ),
        ),
    )


def computed_is_own(s: View) -> Formula:
    """Each slot that a request has computed holds its own prefix."""
    done = before((i, j), at(s, "computed", r))
    return every(
        [r, i, j],
        Implies(
            And(shown(s, r, i), j >= 0, j < R.size, done),
            s.content(s.table(r, i), j) == R.mine(r, i, j),
        ),
    )


def bears_its_positions_key(s: View) -> Formula:
    """The sealed front of a table carries the request's keys, and the rest carries none."""
    key = s.key(s.table(r, i))
    return every(
        [r, i],
        Implies(And(shown(s, r, i), i < s.cached(r)), key == R.ck(r, i)),
        Implies(And(shown(s, r, i), i >= s.cached(r)), key == R.nokey),
    )


def pending_is_the_writers(s: View) -> Formula:
    """A pending block carries its writer's key, and the writer sealed it for this step."""
    w, at_w = s.pending(b), s.place(b)
    return every(
        [b],
        Implies(w == R.noone, at_w == 0),
        Implies(
            w != R.noone,
            And(
                s.key(b) == R.ck(w, at_w),
                s.hits(w) <= at_w,
                s.start_i(w) <= at_w,
                at_w < s.cached(w),
                at_w < s.confirmed(w),
            ),
        ),
    )


def numbers_in_order(s: View) -> Formula:
    """The numbers of a request are in range and in order."""
    start, end, computed = (at(s, place, r) for place in ("start", "end", "computed"))
    same = And(start[0] == computed[0], start[1] == computed[1])
    admitted = And(start[0] == s.hits(r), start[1] == 0, computed[0] == 0, computed[1] == 0)
    return every(
        [r],
        And(s.hits(r) >= 0, s.hits(r) <= s.cached(r), s.cached(r) <= s.length(r)),
        And(*(And(j_ >= 0, j_ < R.size, i_ >= 0) for i_, j_ in (start, end, computed))),
        Implies(s.length(r) > 0, And(before(start, end), upto(end, (s.length(r), 0)))),
        Implies(s.length(r) > 0, upto(computed, end)),
        Implies(flying(s, r), And(Or(same, admitted), upto((s.cached(r), 0), end))),
        Implies(And(s.length(r) > 0, Not(flying(s, r))), upto((s.cached(r), 0), computed)),
        Implies(r == R.noone, s.length(r) == 0),
        s.confirmed(r) >= 0,
    )


def no_block_twice(s: View) -> Formula:
    """No table shows a block twice."""
    both = And(shown(s, r, i), shown(s, r, m), s.table(r, i) == s.table(r, m))
    return every([r, i, m], Implies(both, i == m))


def only_sealed_are_shared(s: View) -> Formula:
    """What two entries show is sealed."""
    both = And(shown(s, r, i), shown(s, q, m), s.table(r, i) == s.table(q, m))
    return every(
        [r, i, q, m],
        Implies(And(both, s.key(s.table(r, i)) == R.nokey), And(r == q, i == m)),
    )


def pending_lies_ahead(s: View) -> Formula:
    """What a table shows and is pending is not before what its request has computed."""
    return every(
        [r, i],
        Implies(
            And(shown(s, r, i), s.pending(s.table(r, i)) != R.noone),
            And(
                flying(s, r),
                Implies(i < s.hits(r), And(s.start_i(r) == s.hits(r), s.start_j(r) == 0)),
                Implies(i >= s.hits(r), before(at(s, "start", r), (i + 1, 0))),
            ),
        ),
    )


def nulls_lie_behind(s: View) -> Formula:
    """An entry that shows null lies before the block that the next query is in."""
    return every(
        [r, i],
        Implies(
            And(i >= 0, i < s.length(r), s.table(r, i) == R.null),
            i < If(flying(s, r), s.start_i(r), s.computed_i(r)),
        ),
    )


def settled_never_changes(s: View, t: View, _: View) -> Formula:
    """A settled block that keeps its key keeps every slot."""
    kept = And(t.key(b) == s.key(b), t.pending(b) == R.noone)
    return every(
        [b, j],
        Implies(And(settled(s), kept, j >= 0, j < R.size), t.content(b, j) == s.content(b, j)),
    )


def positions_never_move(s: View, t: View, _: View) -> Formula:
    """A table grows at its end, and an entry only turns into null."""
    lives = And(s.length(r) > 0, t.length(r) > 0)
    stays = Or(t.table(r, i) == s.table(r, i), t.table(r, i) == R.null)
    return every(
        [r, i],
        Implies(lives, t.length(r) >= s.length(r)),
        Implies(And(lives, i >= 0, i < s.length(r)), stays),
    )


def hits_hold_the_prefix(s: View, t: View, p: View) -> Formula:
    """A settled hit holds the request's own prefix, slot by slot."""
    v = t.table(p.r, i)
    return every(
        [i, j],
        Implies(
            And(i >= 0, i < p.hits, v != R.null, s.pending(v) == R.noone, j >= 0, j < R.size),
            s.content(v, j) == R.mine(p.r, i, j),
        ),
    )


def taken_back_is_pending(s: View, _: View, p: View) -> Formula:
    """What `free` takes back is pending on the request, and all that is pending on it."""
    return every(
        [i, b],
        Implies(taken_back(s, p.r, i), s.pending(s.table(p.r, i)) == p.r),
        Implies(And(s.pending(b) == p.r, p.r != R.noone), taken_back(s, p.r, s.place(b))),
    )


def settled_seal_follows_settled(s: View, t: View, p: View) -> Formula:
    """A block that is sealed as written stands behind entries that are written."""
    index = s.cached(p.r)
    v = s.table(p.r, index)
    return Implies(
        And(v != R.null, t.pending(v) == R.noone, index > 0, shown(s, p.r, index - 1)),
        s.pending(s.table(p.r, index - 1)) == R.noone,
    )


def nothing_past_the_end(s: View) -> Formula:
    """A table shows nothing before its first entry and nothing past its last."""
    return every(
        [r, i], Implies(Or(i < 0, i >= s.length(r)), s.table(r, i) == R.null), on=[s.table(r, i)]
    )


STATES = {
    "nothing_unwritten_is_found": nothing_unwritten_is_found,
    "a_key_tells_the_content": key_tells_the_content,
    "a_writer_owns_its_block": writer_owns_its_block,
    "a_request_reads_its_own_prefix": reads_its_own_prefix,
    "unconfirmed_tokens_are_never_sealed": lambda s: every([r], s.cached(r) <= s.confirmed(r)),
    "only_sealed_blocks_are_shared": only_sealed_are_shared,
    "hits_and_new_blocks_are_disjoint": no_block_twice,
    "what_is_computed_is_the_requests_own": computed_is_own,
    "a_shown_block_bears_its_positions_key": bears_its_positions_key,
    "a_pending_block_bears_its_writers_key": pending_is_the_writers,
    "what_is_pending_is_not_yet_computed": pending_lies_ahead,
    "the_numbers_of_a_request_are_in_order": numbers_in_order,
    "a_table_shows_nothing_past_its_end": nothing_past_the_end,
    "a_null_entry_lies_before_the_next_query": nulls_lie_behind,
}


def invariants(_: View) -> tuple[Invariant, ...]:
    """Return what is claimed of requests and memory."""
    return (
        *(Invariant(name, formula) for name, formula in STATES.items()),
        Invariant("a_settled_block_never_changes", settled_never_changes, step=True),
        Invariant("positions_never_move", positions_never_move, step=True),
        Invariant(
            "equal_keys_mean_equal_prefixes", hits_hold_the_prefix, step=True, actions=("schedule",)
        ),
        Invariant(
            "what_is_taken_back_is_pending_on_its_writer",
            taken_back_is_pending,
            step=True,
            actions=("free",),
        ),
        Invariant(
            "a_settled_seal_follows_settled_entries",
            settled_seal_follows_settled,
            step=True,
            actions=("seal",),
        ),
    )
