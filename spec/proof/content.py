"""Requests and what memory holds, as a machine: tables, steps, and the content of every slot.

Positions are pairs (index of the table entry, offset in the block), so that any block size is
covered without arithmetic on products. `mine(r, i, j)` is a request's own prefix up to and with
position (i, j): what an entry's slot must hold. `ck(r, i)` is the key of its block `i`, and
`names(k, j)` what a key says about slot `j`. Reference counts are not needed here: the pool's
proof says that a count of 0 means shown by no table, and 1 shown once.
"""

from __future__ import annotations

import z3

from spec.proof.logic import (
    BLOCK,
    INT,
    KEY,
    REQUEST,
    SLOT,
    SORTS,
    Conditions,
    Formula,
    View,
    every,
)

And, Or, Not, Implies, If = z3.And, z3.Or, z3.Not, z3.Implies, z3.If
b = z3.Const("b", SORTS[BLOCK])
q, r = z3.Consts("q r", SORTS[REQUEST])
i, j, m, n = z3.Ints("i j m n")

NUMBER = (REQUEST, INT)
FIELDS = {
    "length": NUMBER,
    "table": (REQUEST, INT, BLOCK),
    "hits": NUMBER,
    "cached": NUMBER,
    "confirmed": NUMBER,
    **{f"{place}_{part}": NUMBER for place in ("computed", "start", "end") for part in "ij"},
    "key": (BLOCK, KEY),
    "content": (BLOCK, INT, SLOT),
    "pending": (BLOCK, REQUEST),
    "place": (BLOCK, INT),
}
RIGID = {
    "null": (BLOCK,),
    "nokey": (KEY,),
    "noone": (REQUEST,),
    "unwritten": (SLOT,),
    "size": (INT,),
    "ck": (REQUEST, INT, KEY),
    "depth": (KEY, INT),
    "mine": (REQUEST, INT, INT, SLOT),
    "names": (KEY, INT, SLOT),
}
R = View(RIGID)
INJECTIVE = "keys are injective: a key determines what every slot of its block holds"


def axioms(_: View) -> Conditions:
    """What is assumed of keys and prefixes."""
    return {
        "a block holds at least one token": R.size >= 1,
        INJECTIVE: every(
            [r, i, j],
            Implies(And(i >= 0, j >= 0, j < R.size), R.names(R.ck(r, i), j) == R.mine(r, i, j)),
        ),
        "a key has one position": every([r, i], Implies(i >= 0, R.depth(R.ck(r, i)) == i)),
        "a request's key is a key": every([r, i], R.ck(r, i) != R.nokey),
        "a request's prefix is written text": every([r, i, j], R.mine(r, i, j) != R.unwritten),
    }


def before(x: tuple[Formula, Formula], y: tuple[Formula, Formula]) -> Formula:
    """Return that position `x` comes before `y`."""
    return Or(x[0] < y[0], And(x[0] == y[0], x[1] < y[1]))


def upto(x: tuple[Formula, Formula], y: tuple[Formula, Formula]) -> Formula:
    """Return that position `x` comes before `y` or is `y`."""
    return Or(x[0] < y[0], And(x[0] == y[0], x[1] <= y[1]))


def at(s: View, place: str, x: Formula) -> tuple[Formula, Formula]:
    """Return where a request has computed to, or where its step starts or ends."""
    return s.symbols[f"{place}_i"](x), s.symbols[f"{place}_j"](x)


def flying(s: View, x: Formula) -> Formula:
    """Return that a request is scheduled and has not run."""
    return And(s.length(x) > 0, upto(at(s, "computed", x), at(s, "start", x)))


def shown(s: View, x: Formula, index: Formula) -> Formula:
    """Return that a table has a block at an index."""
    return And(index >= 0, index < s.length(x), s.table(x, index) != R.null)


def shows(s: View, x: Formula, index: Formula, v: Formula) -> Formula:
    """Return that a table shows block `v` at an index."""
    return And(shown(s, x, index), s.table(x, index) == v)


def nobody(s: View, v: Formula) -> Formula:
    """Return that no table shows `v`: its reference count is 0."""
    return every([q, m], Not(shows(s, q, m, v)))


def alone(s: View, x: Formula, index: Formula) -> Formula:
    """Return that only this entry shows its block: its reference count is 1."""
    return every([q, m], Implies(shows(s, q, m, s.table(x, index)), And(q == x, m == index)))


def writes(s: View, x: Formula, index: Formula) -> Formula:
    """Return that a request's step writes into the block at an index of its table."""
    return And(
        flying(s, x),
        s.start_i(x) <= index,
        before((index, 0), at(s, "end", x)),
        index >= 0,
        index < s.length(x),
    )


def taken_back(s: View, x: Formula, index: Formula) -> Formula:
    """Return that `free` takes back the key of an entry: sealed by this admission, not written."""
    return And(
        shown(s, x, index),
        s.hits(x) <= index,
        s.computed_i(x) <= index,
        index < s.cached(x),
    )


def number(s: View, t: View, name: str, x: Formula, value: Formula) -> Formula:
    """Return that one number of request `x` becomes `value` and all others stay."""
    old, new = s.symbols[name], t.symbols[name]
    return every([q], new(q) == If(q == x, value, old(q)))


def numbers(s: View, t: View, x: Formula, **values: Formula) -> Conditions:
    """Return what becomes of several numbers of request `x`."""
    return {name: number(s, t, name, x, value) for name, value in values.items()}


def initial(_: View, s: View) -> Conditions:
    """Nobody has a table and no block has a key."""
    numbers = [name for name in FIELDS if FIELDS[name] == FIELDS["length"] and name != "confirmed"]
    return {
        "requests": every([r], *(s.symbols[name](r) == 0 for name in numbers), s.confirmed(r) >= 0),
        "tables": every([r, i], s.table(r, i) == R.null),
        "blocks": every(
            [b, j],
            s.key(b) == R.nokey,
            s.pending(b) == R.noone,
            s.place(b) == 0,
            s.content(b, j) == R.unwritten,
        ),
    }
