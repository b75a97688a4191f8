"""The pool as a machine: who holds a block, what it is called, where it stands in the queue.

One action moves one block. `held(b)` is the set of a block's holders (positions of tables, loose
references), and `card` is axiomatised as the size of a finite set. `ahead(a, b)` is the order of
the free queue, `older(a, b)` the order of the copies of a key in the index, `first(k)` the copy
that a look-up returns.
"""

from __future__ import annotations

import z3

from spec.pool import TRANSITIONS
from spec.proof.logic import (
    BLOCK,
    BOOL,
    HOLDER,
    HOLDERS,
    INT,
    KEY,
    SORTS,
    Action,
    Conditions,
    Formula,
    Invariant,
    View,
    every,
)
from spec.state import BlockState

And, Or, Not, Implies, If = z3.And, z3.Or, z3.Not, z3.Implies, z3.If
a, b, c = z3.Consts("a b c", SORTS[BLOCK])
k = z3.Const("k", SORTS[KEY])
g, h = z3.Consts("g h", SORTS[HOLDER])
held = z3.Const("held_by", SORTS[HOLDERS])

FIELDS = {
    "ref_cnt": (BLOCK, INT),
    "key": (BLOCK, KEY),
    "held": (BLOCK, HOLDERS),
    "queued": (BLOCK, BOOL),
    "ahead": (BLOCK, BLOCK, BOOL),
    "indexed": (KEY, BLOCK, BOOL),
    "older": (BLOCK, BLOCK, BOOL),
    "present": (KEY, BOOL),
    "first": (KEY, BLOCK),
}
RIGID = {
    "null": (BLOCK,),
    "nokey": (KEY,),
    "append": (BOOL,),
    "nobody": (HOLDERS,),
    "member": (HOLDER, HOLDERS, BOOL),
    "plus": (HOLDERS, HOLDER, HOLDERS),
    "minus": (HOLDERS, HOLDER, HOLDERS),
    "card": (HOLDERS, INT),
    "some": (HOLDERS, HOLDER),
}
R = View(RIGID)


def axioms(r: View) -> Conditions:
    """Sets of holders are finite: six facts about their size, with `some(S)` as a witness."""
    return {
        "card is 0 of the empty set, and it has no member": And(
            r.card(r.nobody) == 0, every([h], Not(r.member(h, r.nobody)))
        ),
        "card is never negative": every([held], r.card(held) >= 0),
        "a set of card above 0 has a member": every(
            [held], Implies(r.card(held) > 0, r.member(r.some(held), held)), on=[r.card(held)]
        ),
        "a set with a member has a card above 0": every(
            [held, h], Implies(r.member(h, held), r.card(held) > 0)
        ),
        "a set of card 1 has one member": every(
            [held, h],
            Implies(And(r.member(h, held), r.card(held) == 1), h == r.some(held)),
            on=[r.member(h, held)],
        ),
        "plus adds one to the size": every(
            [held, h],
            r.card(r.plus(held, h)) == r.card(held) + If(r.member(h, held), 0, 1),
            on=[r.plus(held, h)],
        ),
        "plus adds the member": every(
            [held, h, g],
            r.member(g, r.plus(held, h)) == Or(r.member(g, held), g == h),
            on=[r.member(g, r.plus(held, h))],
        ),
        "minus takes one from the size": every(
            [held, h],
            r.card(r.minus(held, h)) == r.card(held) - If(r.member(h, held), 1, 0),
            on=[r.minus(held, h)],
        ),
        "minus takes the member": every(
            [held, h, g],
            r.member(g, r.minus(held, h)) == And(r.member(g, held), g != h),
            on=[r.member(g, r.minus(held, h))],
        ),
    }


def initial(r: View, s: View) -> Conditions:
    """Every usable block is free and nothing is known."""
    return {
        "blocks": every(
            [b],
            s.ref_cnt(b) == 0,
            s.key(b) == r.nokey,
            s.held(b) == r.nobody,
            s.queued(b) == (b != r.null),
        ),
        "queue": every(
            [a, b, c],
            Not(s.ahead(a, a)),
            Implies(s.ahead(a, b), And(s.queued(a), s.queued(b))),
            Implies(And(s.queued(a), s.queued(b), a != b), Or(s.ahead(a, b), s.ahead(b, a))),
            Implies(And(s.ahead(a, b), s.ahead(b, c)), s.ahead(a, c)),
        ),
        "index": every(
            [k, a, b],
            Not(s.indexed(k, b)),
            Not(s.older(a, b)),
            Not(s.present(k)),
            s.first(k) == r.null,
        ),
    }


def withdrawn(s: View, t: View, v: Formula, old: Formula) -> Conditions:
    """Block `v` leaves the index entry of its key `old`; the entry goes with its last copy."""
    had = s.key(v) != R.nokey
    return {
        "indexed": every(
            [k, b], t.indexed(k, b) == And(s.indexed(k, b), Not(And(b == v, k == old, had)))
        ),
        "older": every(
            [a, b], t.older(a, b) == And(s.older(a, b), Not(And(had, Or(a == v, b == v))))
        ),
        "present": every(
            [k, b],
            Implies(Or(k != old, Not(had)), t.present(k) == s.present(k)),
            Implies(And(k == old, had, t.indexed(k, b)), t.present(k)),
            Implies(And(k == old, had, t.present(k)), t.indexed(k, t.first(k))),
        ),
        "first": every(
            [k, b],
            Implies(Or(k != old, Not(had)), t.first(k) == s.first(k)),
            Implies(And(k == old, had, Not(t.present(k))), t.first(k) == R.null),
            Implies(And(k == old, had, t.indexed(k, b), b != t.first(k)), t.older(t.first(k), b)),
        ),
    }


def take(s: View, t: View, p: View) -> Conditions:
    """The head of the queue is handed out to one holder; a sealed one is evicted."""
    v = p.v
    return {
        "guard: the victim is the head of the queue": And(
            s.queued(v), every([b], Implies(And(s.queued(b), b != v), s.ahead(v, b)))
        ),
        "ref_cnt": every([b], t.ref_cnt(b) == If(b == v, 1, s.ref_cnt(b))),
        "key": every([b], t.key(b) == If(b == v, R.nokey, s.key(b))),
        "held": every([b], t.held(b) == If(b == v, R.plus(s.held(b), p.h), s.held(b))),
        "queued": every([b], t.queued(b) == And(s.queued(b), b != v)),
        "ahead": every([a, b], t.ahead(a, b) == And(s.ahead(a, b), a != v, b != v)),
        **withdrawn(s, t, v, s.key(v)),
    }


def seal(s: View, t: View, p: View) -> Conditions:
    """A block gets a key and becomes the last copy of it."""
    v = p.v
    return {
        "guard: it is a block that can be sealed": And(v != R.null, p.k != R.nokey),
        "guard: it has no key": s.key(v) == R.nokey,
        "guard: it has one holder": s.ref_cnt(v) == 1,
        "key": every([b], t.key(b) == If(b == v, p.k, s.key(b))),
        "indexed": every([k, b], t.indexed(k, b) == Or(s.indexed(k, b), And(k == p.k, b == v))),
        "older": every([a, b], t.older(a, b) == Or(s.older(a, b), And(b == v, s.indexed(p.k, a)))),
        "present": every([k], t.present(k) == Or(s.present(k), k == p.k)),
        "first": every([k], t.first(k) == If(And(k == p.k, Not(s.present(k))), v, s.first(k))),
    }


def touch(s: View, t: View, p: View) -> Conditions:
    """A sealed block gets one more holder; an idle one leaves the queue."""
    v = p.v
    idle = s.ref_cnt(v) == 0
    return {
        "guard: it is not null": v != R.null,
        "guard: it is sealed": s.key(v) != R.nokey,
        "guard: the holder is new": Not(R.member(p.h, s.held(v))),
        "ref_cnt": every([b], t.ref_cnt(b) == s.ref_cnt(b) + If(b == v, 1, 0)),
        "held": every([b], t.held(b) == If(b == v, R.plus(s.held(b), p.h), s.held(b))),
        "queued": every([b], t.queued(b) == And(s.queued(b), Not(And(b == v, idle)))),
        "ahead": every(
            [a, b], t.ahead(a, b) == And(s.ahead(a, b), Not(And(idle, Or(a == v, b == v))))
        ),
    }


def release(s: View, t: View, p: View) -> Conditions:
    """A block loses a holder; when it was the last, it enters the queue at one of its ends."""
    v = p.v
    idle, tail = s.ref_cnt(v) == 1, Or(R.append, s.key(v) != R.nokey)
    entered = If(tail, And(b == v, s.queued(a)), And(a == v, s.queued(b)))
    return {
        "guard: it is not null": v != R.null,
        "guard: who releases it holds it": R.member(p.h, s.held(v)),
        "ref_cnt": every([b], t.ref_cnt(b) == s.ref_cnt(b) - If(b == v, 1, 0)),
        "held": every([b], t.held(b) == If(b == v, R.minus(s.held(b), p.h), s.held(b))),
        "queued": every([b], t.queued(b) == Or(s.queued(b), And(b == v, idle))),
        "ahead": every([a, b], t.ahead(a, b) == Or(s.ahead(a, b), And(idle, entered))),
    }


def unpublish(s: View, t: View, p: View) -> Conditions:
    """A block that one holder has loses its key."""
    v = p.v
    return {
        "guard: it is sealed": s.key(v) != R.nokey,
        "guard: it has one holder": s.ref_cnt(v) == 1,
        "key": every([b], t.key(b) == If(b == v, R.nokey, s.key(b))),
        **withdrawn(s, t, v, s.key(v)),
    }


def reset(s: View, t: View, _: View) -> Conditions:
    """Every key is forgotten; the queue keeps its order."""
    return {
        "guard: nothing is in use": every([b], Implies(b != R.null, s.queued(b))),
        "key": every([b], t.key(b) == R.nokey),
        "indexed": every([k, b], Not(t.indexed(k, b))),
        "older": every([a, b], Not(t.older(a, b))),
        "present": every([k], Not(t.present(k))),
        "first": every([k], t.first(k) == R.null),
    }


ONE, HELD = {"v": (BLOCK,)}, {"v": (BLOCK,), "h": (HOLDER,)}
TAKE, SEAL = Action("take", HELD, take), Action("seal", {"v": (BLOCK,), "k": (KEY,)}, seal)
TOUCH, RELEASE = Action("touch", HELD, touch), Action("release", HELD, release)
UNPUBLISH, RESET = Action("unpublish", ONE, unpublish), Action("reset", {}, reset)


def kind(s: View, v: Formula, state: BlockState) -> Formula:
    """Return that a block other than null is in one of the five states."""
    sealed, count = s.key(v) != R.nokey, s.ref_cnt(v)
    return {
        BlockState.FREE: And(count == 0, Not(sealed), s.queued(v)),
        BlockState.FREE_CACHED: And(count == 0, sealed, s.queued(v)),
        BlockState.IN_USE: And(count == 1, Not(sealed), Not(s.queued(v))),
        BlockState.IN_USE_CACHED: And(count == 1, sealed, Not(s.queued(v))),
        BlockState.SHARED: And(count > 1, sealed, Not(s.queued(v))),
        BlockState.NULL: v == R.null,
    }[state]


def moves(action: str) -> Invariant:
    """Return that an action moves a block only along the transitions of `spec.pool`."""

    def formula(s: View, t: View, p: View) -> Formula:
        v = p.symbols.get("v", b)
        edges = [And(kind(s, v, x), kind(t, v, y)) for x, y in sorted_edges(action)]
        still = And(t.key(b) == s.key(b), t.ref_cnt(b) == s.ref_cnt(b), t.queued(b) == s.queued(b))
        if action == "reset":
            return every([b], Implies(b != R.null, Or(still, *edges)))
        return And(Or(*edges), every([b], Implies(b != v, still)))

    return Invariant("every_move_is_a_named_transition", formula, step=True, actions=(action,))


def sorted_edges(action: str) -> list[tuple[BlockState, BlockState]]:
    """Return the transitions of an action in a fixed order."""
    return sorted(TRANSITIONS[action], key=lambda edge: (edge[0].value, edge[1].value))
