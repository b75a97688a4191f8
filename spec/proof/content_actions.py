"""What happens to requests and memory: seven actions, each with its guards and its updates."""

from __future__ import annotations

import z3

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
    n,
    number,
    numbers,
    q,
    r,
    shown,
    shows,
    taken_back,
    upto,
    writes,
)
from spec.proof.logic import (
    BLOCK,
    INT,
    REQUEST,
    Action,
    Conditions,
    Formula,
    Signature,
    View,
    every,
)


def renew(s: View, t: View, p: View) -> Conditions:
    """A request without a table starts over: it arrives, is preempted, or is forgotten."""
    return {
        "guard: it is a request without a table": And(p.r != R.noone, s.length(p.r) == 0),
        "guard: the text has a length": p.n >= 0,
        **numbers(s, t, p.r, computed_i=0, computed_j=0, confirmed=p.n),
    }


def leave(s: View, t: View, p: View) -> Conditions:
    """An entry that the window has left becomes null."""
    return {
        "guard: no step is in flight": Not(flying(s, p.r)),
        "guard: what leaves is written": And(shown(s, p.r, p.i), p.i < s.computed_i(p.r)),
        "table": every(
            [q, m],
            t.table(q, m) == If(And(q == p.r, m == p.i), R.null, s.table(q, m)),
        ),
    }


def taken(s: View, t: View, p: View, v: Formula) -> Formula:
    """Return that `v` is a block that `schedule` takes."""
    index = p.at(v)
    base = If(s.length(p.r) == 0, p.hits, s.length(p.r))
    inside = And(base <= index, index < t.length(p.r))
    return And(inside, t.table(p.r, index) == v, v != R.null)


def may_schedule(s: View, t: View, p: View) -> Conditions:
    """Return the guards of `schedule`."""
    x, length = p.r, t.length(p.r)
    first = s.length(x) == 0
    base = If(first, p.hits, s.length(x))
    return {
        "guard: it is a request with nothing in flight": And(x != R.noone, Not(flying(s, x))),
        "guard: without a table nothing is computed": Implies(
            first, And(s.computed_i(x) == 0, s.computed_j(x) == 0)
        ),
        "guard: hits come at the admission": And(p.hits >= 0, Implies(Not(first), p.hits == 0)),
        "guard: hits are confirmed": p.hits <= s.confirmed(x),
        "guard: a hit carries the key of its position": every(
            [m],
            Implies(
                And(m >= 0, m < p.hits, t.table(x, m) != R.null),
                s.key(t.table(x, m)) == R.ck(x, m),
            ),
        ),
        "guard: at names the entry of each new block": every(
            [m],
            Implies(
                And(base <= m, m < length),
                And(t.table(x, m) != R.null, p.at(t.table(x, m)) == m),
            ),
        ),
        "guard: nobody holds it": every(
            [b, q, m], Implies(taken(s, t, p, b), Not(shows(s, q, m, b)))
        ),
        "guard: hits are touched before blocks are taken": every(
            [m], Implies(And(m >= 0, m < p.hits), Not(taken(s, t, p, t.table(x, m))))
        ),
        "guard: a step has tokens and slots for them": And(
            before(at(t, "start", x), at(t, "end", x)),
            upto(at(t, "end", x), (length, 0)),
            t.end_j(x) >= 0,
            t.end_j(x) < R.size,
        ),
    }


def schedule(s: View, t: View, p: View) -> Conditions:
    """A table grows by hits, then by new blocks, and a step of some tokens is scheduled."""
    x, old, length = p.r, s.length(p.r), t.length(p.r)
    first = old == 0
    base = If(first, p.hits, old)
    new = taken(s, t, p, b)
    start = If(first, p.hits, s.computed_i(x)), If(first, 0, s.computed_j(x))
    return {
        **may_schedule(s, t, p),
        "length": every(
            [q],
            t.length(q) >= If(q == x, base, s.length(q)),
            Implies(q != x, t.length(q) == s.length(q)),
        ),
        "table": every(
            [q, m],
            Implies(Or(q != x, m < old, m >= length), t.table(q, m) == s.table(q, m)),
        ),
        "start_i": number(s, t, "start_i", x, start[0]),
        "start_j": number(s, t, "start_j", x, start[1]),
        "end_i": every([q], Implies(q != x, t.end_i(q) == s.end_i(q))),
        "end_j": every([q], Implies(q != x, t.end_j(q) == s.end_j(q))),
        "hits": number(s, t, "hits", x, If(first, p.hits, s.hits(x))),
        "cached": number(s, t, "cached", x, If(first, p.hits, s.cached(x))),
        "key": every([b], t.key(b) == If(new, R.nokey, s.key(b))),
        "pending": every([b], t.pending(b) == If(new, R.noone, s.pending(b))),
        "place": every([b], t.place(b) == If(new, 0, s.place(b))),
        "content": every([b, j], t.content(b, j) == If(new, R.unwritten, s.content(b, j))),
    }


def seal(s: View, t: View, p: View) -> Conditions:
    """The next entry of a scheduled table is full of confirmed tokens: it gets its key."""
    x, index = p.r, s.cached(p.r)
    v = s.table(x, index)
    real = v != R.null
    late = before(at(s, "start", x), (index + 1, 0))
    return {
        "guard: its step is scheduled and covers the block": And(
            x != R.noone, flying(s, x), index < s.length(x), upto((index + 1, 0), at(s, "end", x))
        ),
        "guard: its tokens are confirmed": index < s.confirmed(x),
        "cached": number(s, t, "cached", x, index + 1),
        "key": every([b], t.key(b) == If(And(b == v, real), R.ck(x, index), s.key(b))),
        "pending": every(
            [b], t.pending(b) == If(And(b == v, real), If(late, x, R.noone), s.pending(b))
        ),
        "place": every([b], t.place(b) == If(And(b == v, real), If(late, index, 0), s.place(b))),
    }


def may_run(s: View, t: View, p: View) -> Conditions:
    """Return the guards of `run`."""
    ends = at(t, "computed", r)
    w, at_w = p.who(s.table(r, i)), p.where(s.table(r, i))
    return {
        "guard: a step computes some of its tokens": every(
            [r],
            Implies(
                flying(s, r),
                And(before(at(s, "start", r), ends), upto(ends, at(s, "end", r))),
            ),
            Implies(
                Not(flying(s, r)),
                And(*(x == y for x, y in zip(ends, at(s, "computed", r), strict=True))),
            ),
            Implies(flying(s, r), And(ends[1] >= 0, ends[1] < R.size)),
        ),
        "guard: confirmed tokens are computed": every(
            [r],
            Implies(flying(s, r), Or(upto((s.confirmed(r), 0), ends), upto(at(s, "end", r), ends))),
        ),
        "guard: who writes a block is one of its writers": every(
            [r, i],
            Implies(writes(s, r, i), And(writes(s, w, at_w), s.table(w, at_w) == s.table(r, i))),
        ),
    }


def run(s: View, t: View, p: View) -> Conditions:
    """All that is scheduled runs at once: slots are written, what was pending is settled.

    Slots past the last accepted token may hold anything. Where two requests wrote one block, `who`
    and `where` name either of them.
    """
    who, where = p.who(b), p.where(b)
    wrote = And(writes(s, who, where), s.table(who, where) == b)
    settled = And(
        s.pending(b) != R.noone,
        writes(s, s.pending(b), s.place(b)),
        before((s.place(b), 0), at(t, "computed", s.pending(b))),
    )
    return {
        **may_run(s, t, p),
        "computed_i": z3.BoolVal(True),  # noqa: FBT003  # the guard above fixes it
        "computed_j": z3.BoolVal(True),  # noqa: FBT003  # the guard above fixes it
        "confirmed": every(
            [r],
            t.confirmed(r) >= s.confirmed(r),
            Implies(Not(flying(s, r)), t.confirmed(r) == s.confirmed(r)),
        ),
        "content": every(
            [b, j],
            Implies(
                Or(Not(wrote), before((where, j), at(s, "start", who))),
                t.content(b, j) == s.content(b, j),
            ),
            Implies(
                And(
                    wrote,
                    j >= 0,
                    j < R.size,
                    upto(at(s, "start", who), (where, j)),
                    before((where, j), at(t, "computed", who)),
                ),
                t.content(b, j) == R.mine(who, where, j),
            ),
        ),
        "pending": every([b], t.pending(b) == If(settled, R.noone, s.pending(b))),
        "place": every([b], t.place(b) == If(settled, 0, s.place(b))),
    }


def free(s: View, t: View, p: View) -> Conditions:
    """A request gives up its table; what it published and never wrote loses its key."""
    x = p.r

    def back(v: Formula) -> Formula:
        return And(taken_back(s, x, p.at(v)), s.table(x, p.at(v)) == v)

    return {
        "guard: it has a table": s.length(x) > 0,
        "guard: the witness names all that is taken back": every(
            [m], Implies(taken_back(s, x, m), back(s.table(x, m)))
        ),
        "guard: nobody else holds what is taken back": every(
            [m, q, n],
            Implies(And(taken_back(s, x, m), shows(s, q, n, s.table(x, m))), And(q == x, n == m)),
        ),
        "table": every([q, m], t.table(q, m) == If(q == x, R.null, s.table(q, m))),
        "key": every([b], t.key(b) == If(back(b), R.nokey, s.key(b))),
        "pending": every([b], t.pending(b) == If(back(b), R.noone, s.pending(b))),
        "place": every([b], t.place(b) == If(back(b), 0, s.place(b))),
        **numbers(s, t, x, length=0, hits=0, cached=0, start_i=0, start_j=0, end_i=0, end_j=0),
    }


def reset(s: View, t: View, _: View) -> Conditions:
    """Every key is forgotten."""
    return {
        "guard: nothing is in use": every([q], s.length(q) == 0),
        "key": every([b], t.key(b) == R.nokey),
        "pending": every([b], t.pending(b) == R.noone),
        "place": every([b], t.place(b) == 0),
    }


ONE: dict[str, Signature] = {"r": (REQUEST,)}
WHERE: dict[str, Signature] = {"at": (BLOCK, INT)}
RENEW = Action("renew", ONE | {"n": (INT,)}, renew)
LEAVE = Action("leave", ONE | {"i": (INT,)}, leave)
SCHEDULE = Action(
    "schedule",
    ONE | WHERE | {"hits": (INT,)},
    schedule,
    loose=("length", "table", "end_i", "end_j"),
    still=("pending", "place"),
)
SEAL = Action("seal", ONE, seal)
RUN = Action(
    "run",
    {"who": (BLOCK, REQUEST), "where": (BLOCK, INT)},
    run,
    loose=("content", "computed_i", "computed_j", "confirmed"),
)
FREE = Action("free", ONE | WHERE, free)
RESET = Action("reset", {}, reset, still=("pending", "place"))
