"""The order of the queue and the order of a chain, as a machine: why the cache is prefix-closed.

Full attention, caching on, no explicit eviction. A request is freed in one action, its table from
the end to the front; `goes(b)` tells which blocks thereby become idle. Witnesses: `by(b)`, `at(b)`
name one entry that shows a held block, `place(b)` the entry of a pending block's writer, and
`above(b)` the block that held the parent of an idle block when it became idle.
"""

from __future__ import annotations

import z3

from spec.proof.logic import (
    BLOCK,
    BOOL,
    INT,
    KEY,
    REQUEST,
    SORTS,
    Action,
    Conditions,
    Formula,
    View,
    every,
)

And, Or, Not, Implies, If = z3.And, z3.Or, z3.Not, z3.Implies, z3.If
b, c, d = z3.Consts("b c d", SORTS[BLOCK])
k = z3.Const("k", SORTS[KEY])
q, r = z3.Consts("q r", SORTS[REQUEST])
i, m = z3.Ints("i m")

FIELDS = {
    "length": (REQUEST, INT),
    "table": (REQUEST, INT, BLOCK),
    "cached": (REQUEST, INT),
    "key": (BLOCK, KEY),
    "pending": (BLOCK, REQUEST),
    "queued": (BLOCK, BOOL),
    "ahead": (BLOCK, BLOCK, BOOL),
    "older": (BLOCK, BLOCK, BOOL),
    "by": (BLOCK, REQUEST),
    "at": (BLOCK, INT),
    "place": (BLOCK, INT),
    "above": (BLOCK, BLOCK),
}
GHOSTS = ("by", "at", "place", "above")
RIGID = {
    "null": (BLOCK,),
    "nokey": (KEY,),
    "noone": (REQUEST,),
    "append": (BOOL,),
    "ck": (REQUEST, INT, KEY),
    "depth": (KEY, INT),
    "parent": (KEY, KEY),
}
R = View(RIGID)
SETTLED_ALONE = (
    "a block is sealed as already written only when no copy of its key is pending "
    "(without it the_cache_is_prefix_closed is false)"
)
LOOKED_UP = (
    "hits are what a look-up returns in the same call: the first copy of each key "
    "(without it the_cache_is_prefix_closed is false)"
)


FIRST_COPY = "guard: it is the first copy, and so was the last hit"
NONE_PENDING = "guard: no copy of a written block's key is pending"


def axioms(_: View) -> Conditions:
    """What is assumed of chains of keys."""
    return {
        "a key has one position": every([r, i], Implies(i >= 0, R.depth(R.ck(r, i)) == i)),
        "a request's key is a key": every([r, i], R.ck(r, i) != R.nokey),
        "the first key has no parent": every(
            [r, i], Implies(i == 0, R.parent(R.ck(r, i)) == R.nokey), on=[R.ck(r, i)]
        ),
        "the parent of a key is the key before it": every(
            [r, i], Implies(i > 0, R.parent(R.ck(r, i)) == R.ck(r, i - 1)), on=[R.ck(r, i)]
        ),
    }


def shows(s: View, x: Formula, index: Formula, v: Formula) -> Formula:
    """Return that a table shows block `v` at an index."""
    return And(index >= 0, index < s.length(x), s.table(x, index) == v)


def first_copy(s: View, v: Formula) -> Formula:
    """Return that `v` is the copy of its key that a look-up returns."""
    return every([c], Implies(And(s.key(c) == s.key(v), c != v), s.older(v, c)))


def grown(s: View, t: View, x: Formula, v: Formula) -> Conditions:
    """A table shows one block more."""
    end = s.length(x)
    return {
        "length": every([q], t.length(q) == s.length(q) + If(q == x, 1, 0)),
        "table": every([q, m], t.table(q, m) == If(And(q == x, m == end), v, s.table(q, m))),
    }


def hit(s: View, t: View, p: View) -> Conditions:
    """The next hit of a look-up is touched and shown."""
    x, v, end = p.r, p.v, s.length(p.r)
    idle = s.queued(v)
    last = s.table(x, end - 1)
    return {
        "guard: the table has only hits so far": And(x != R.noone, s.cached(x) == end),
        "guard: the block carries the next key": And(v != R.null, s.key(v) == R.ck(x, end)),
        FIRST_COPY: And(first_copy(s, v), Implies(end > 0, first_copy(s, last))),
        **grown(s, t, x, v),
        "cached": every([q], t.cached(q) == s.cached(q) + If(q == x, 1, 0)),
        "queued": every([b], t.queued(b) == And(s.queued(b), b != v)),
        "ahead": every([b, c], t.ahead(b, c) == And(s.ahead(b, c), b != v, c != v)),
        "by": every([b], t.by(b) == If(And(b == v, idle), x, s.by(b))),
        "at": every([b], t.at(b) == If(And(b == v, idle), end, s.at(b))),
    }


def take(s: View, t: View, p: View) -> Conditions:
    """The head of the queue is handed out to a table and loses its key."""
    x, v, end = p.r, p.v, s.length(p.r)
    return {
        "guard: it is a request": x != R.noone,
        "guard: the victim is the head of the queue": And(
            s.queued(v), every([b], Implies(And(s.queued(b), b != v), s.ahead(v, b)))
        ),
        **grown(s, t, x, v),
        "key": every([b], t.key(b) == If(b == v, R.nokey, s.key(b))),
        "pending": every([b], t.pending(b) == If(b == v, R.noone, s.pending(b))),
        "queued": every([b], t.queued(b) == And(s.queued(b), b != v)),
        "ahead": every([b, c], t.ahead(b, c) == And(s.ahead(b, c), b != v, c != v)),
        "older": every([b, c], t.older(b, c) == And(s.older(b, c), b != v, c != v)),
        "by": every([b], t.by(b) == If(b == v, x, s.by(b))),
        "at": every([b], t.at(b) == If(b == v, end, s.at(b))),
    }


def seal(s: View, t: View, p: View) -> Conditions:
    """The next entry gets its key: pending on its request, or written already."""
    x, index = p.r, s.cached(p.r)
    v, key = s.table(x, index), R.ck(x, index)
    return {
        "guard: the table has an entry without a key": And(x != R.noone, index < s.length(x)),
        "guard: written blocks follow written blocks": Implies(
            And(p.written, index > 0), s.pending(s.table(x, index - 1)) == R.noone
        ),
        NONE_PENDING: Implies(
            p.written, every([c], Implies(s.key(c) == key, s.pending(c) == R.noone))
        ),
        "cached": every([q], t.cached(q) == s.cached(q) + If(q == x, 1, 0)),
        "key": every([b], t.key(b) == If(b == v, key, s.key(b))),
        "pending": every([b], t.pending(b) == If(b == v, If(p.written, R.noone, x), s.pending(b))),
        "place": every([b], t.place(b) == If(b == v, index, s.place(b))),
        "older": every(
            [b, c], t.older(b, c) == Or(s.older(b, c), And(c == v, s.key(b) == key, b != v))
        ),
    }


def run(_: View, t: View, __: View) -> Conditions:
    """All that is pending is written."""
    return {"pending": every([b], t.pending(b) == R.noone)}


def backwards(x: Formula, y: Formula) -> Formula:
    """Return that index `x` is released before index `y`."""
    return x > y


def released(s: View, t: View, p: View, earlier: Formula = backwards) -> Conditions:
    """Return what becomes of the queue when a table is released in an order."""
    goes, pos = p.goes, p.pos
    tail = {v: And(goes(v), Or(R.append, t.key(v) != R.nokey)) for v in (b, c)}
    head = {v: And(goes(v), Not(R.append), t.key(v) == R.nokey) for v in (b, c)}
    return {
        "queued": every([b], t.queued(b) == Or(s.queued(b), goes(b))),
        "ahead": every(
            [b, c],
            t.ahead(b, c)
            == Or(
                And(s.queued(b), s.queued(c), s.ahead(b, c)),
                And(s.queued(b), tail[c]),
                And(head[b], Or(s.queued(c), tail[c])),
                And(tail[b], tail[c], earlier(pos(b), pos(c))),
                And(head[b], head[c], earlier(pos(b), pos(c))),
            ),
        ),
    }


def free(s: View, t: View, p: View) -> Conditions:
    """A table is given up from its end to its front; what is pending on it loses its key."""
    x, pos, goes = p.r, p.pos, p.goes
    mine = shows(s, x, pos(b), b)
    back = And(mine, s.pending(b) == x)
    stays = And(mine, Not(goes(b)))
    return {
        "guard: it has a table": And(x != R.noone, s.length(x) > 0),
        "guard: pos names the entry of each block": every(
            [m], Implies(And(m >= 0, m < s.length(x)), pos(s.table(x, m)) == m)
        ),
        "guard: goes tells which blocks nobody else holds": every(
            [b, q, m],
            Implies(goes(b), mine),
            Implies(And(goes(b), shows(s, q, m, b)), q == x),
            Implies(stays, And(p.other(b) != x, shows(s, p.other(b), p.entry(b), b))),
        ),
        "guard: nobody else holds what is taken back": every([b], Implies(back, goes(b))),
        "length": every([q], t.length(q) == If(q == x, 0, s.length(q))),
        "cached": every([q], t.cached(q) == If(q == x, 0, s.cached(q))),
        "table": every([q, m], t.table(q, m) == If(q == x, R.null, s.table(q, m))),
        "key": every([b], t.key(b) == If(back, R.nokey, s.key(b))),
        "pending": every([b], t.pending(b) == If(back, R.noone, s.pending(b))),
        "older": every(
            [b, c],
            t.older(b, c) == And(s.older(b, c), t.key(b) != R.nokey, t.key(c) != R.nokey),
        ),
        **released(s, t, p),
        "by": every([b], t.by(b) == If(stays, p.other(b), s.by(b))),
        "at": every([b], t.at(b) == If(stays, p.entry(b), s.at(b))),
        "above": every([b], t.above(b) == If(goes(b), s.table(x, pos(b) - 1), s.above(b))),
    }


def reset(s: View, t: View, _: View) -> Conditions:
    """Every key is forgotten."""
    return {
        "guard: nothing is in use": every([b], Implies(b != R.null, s.queued(b))),
        "key": every([b], t.key(b) == R.nokey),
        "pending": every([b], t.pending(b) == R.noone),
        "older": every([b, c], Not(t.older(b, c))),
    }


ENTRY = {"r": (REQUEST,), "v": (BLOCK,)}
HIT = Action("hit", ENTRY, hit, assumed=(FIRST_COPY,))
TAKE = Action("take", ENTRY, take, still=("pending",))
SEAL = Action("seal", {"r": (REQUEST,), "written": (BOOL,)}, seal, assumed=(NONE_PENDING,))
RUN = Action("run", {}, run)
RESET = Action("reset", {}, reset, still=("pending",))
FREE = Action(
    "free",
    {
        "r": (REQUEST,),
        "pos": (BLOCK, INT),
        "goes": (BLOCK, BOOL),
        "other": (BLOCK, REQUEST),
        "entry": (BLOCK, INT),
    },
    free,
    still=("at",),
)
