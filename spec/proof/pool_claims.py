"""What is claimed of the pool, by the names of the registry, and the faults that must break it."""

from __future__ import annotations

from spec.pool import TRANSITIONS
from spec.proof.logic import Fault, Formula, Invariant, Level, View, every
from spec.proof.pool import (
    FIELDS,
    RELEASE,
    RESET,
    RIGID,
    SEAL,
    TAKE,
    TOUCH,
    UNPUBLISH,
    And,
    Implies,
    Not,
    Or,
    R,
    a,
    axioms,
    b,
    c,
    initial,
    k,
    kind,
    moves,
)
from spec.state import BlockState

REAL = tuple(state for state in BlockState if state is not BlockState.NULL)


def null_is_inert(s: View) -> Formula:
    """Null is not queued, counted, sealed, held or indexed."""
    return And(
        s.ref_cnt(R.null) == 0,
        s.key(R.null) == R.nokey,
        Not(s.queued(R.null)),
        R.card(s.held(R.null)) == 0,
        every([k], Not(s.indexed(k, R.null))),
    )


def queue_is_a_chain(s: View) -> Formula:
    """The queue is a strict total order of the queued blocks."""
    return every(
        [a, b, c],
        Not(s.ahead(a, a)),
        Implies(s.ahead(a, b), And(s.queued(a), s.queued(b))),
        Implies(And(s.queued(a), s.queued(b), a != b), Or(s.ahead(a, b), s.ahead(b, a))),
        Implies(And(s.ahead(a, b), s.ahead(b, c)), s.ahead(a, c)),
    )


def one_of_three(s: View) -> Formula:
    """A block is queued, or held, or null, and never two of these."""
    is_held = R.card(s.held(b)) > 0
    return every(
        [b],
        Or(s.queued(b), is_held, b == R.null),
        Not(And(s.queued(b), is_held)),
        Implies(b == R.null, And(Not(s.queued(b)), Not(is_held))),
    )


def index_agrees(s: View) -> Formula:
    """The index shows exactly what the blocks carry, each entry in one order, none empty."""
    same = And(s.key(a) == s.key(b), s.key(b) != R.nokey, a != b)
    return every(
        [k, a, b, c],
        s.indexed(k, b) == And(s.key(b) == k, k != R.nokey),
        Implies(s.indexed(k, b), s.present(k)),
        Implies(s.present(k), s.indexed(k, s.first(k))),
        Implies(Not(s.present(k)), s.first(k) == R.null),
        Implies(And(s.indexed(k, b), b != s.first(k)), s.older(s.first(k), b)),
        Implies(s.older(a, b), same),
        Implies(same, s.older(a, b) != s.older(b, a)),
        Implies(And(s.older(a, b), s.older(b, c)), s.older(a, c)),
    )


def handed_out_is_clean(_: View, t: View, p: View) -> Formula:
    """A taken block has one holder, no key, no place in the index."""
    return And(
        t.ref_cnt(p.v) == 1,
        R.card(t.held(p.v)) == 1,
        t.key(p.v) == R.nokey,
        every([k], Not(t.indexed(k, p.v))),
    )


def oldest_first(s: View, t: View, _: View) -> Formula:
    """With `append`, what stays keeps its order, who enters is last, and take removes the first."""
    both = And(s.queued(a), s.queued(b), t.queued(a), t.queued(b))
    entered = And(s.queued(a), t.queued(a), Not(s.queued(b)), t.queued(b))
    return Implies(
        R.append,
        every(
            [a, b],
            Implies(both, t.ahead(a, b) == s.ahead(a, b)),
            Implies(entered, t.ahead(a, b)),
        ),
    )


def reset_needs_rest(s: View, t: View, _: View) -> Formula:
    """After a reset that happened nothing was in use, and no key is left."""
    return And(
        every([b], Implies(b != R.null, s.ref_cnt(b) == 0), t.key(b) == R.nokey),
        every([k, b], Not(t.indexed(k, b)), Not(t.present(k))),
    )


def invariants(_: View) -> tuple[Invariant, ...]:
    """Return what is claimed of the pool."""
    return (
        Invariant("the_null_block_is_inert", null_is_inert),
        Invariant("the_free_queue_is_a_chain", queue_is_a_chain),
        Invariant(
            "a_block_is_free_exactly_when_nobody_holds_it",
            lambda s: every([b], Implies(b != R.null, s.queued(b) == (s.ref_cnt(b) == 0))),
        ),
        Invariant(
            "ref_cnt_counts_the_holders",
            lambda s: every([b], s.ref_cnt(b) == R.card(s.held(b))),
        ),
        Invariant("free_and_held_and_null_make_the_pool", one_of_three),
        Invariant("the_index_and_the_blocks_agree", index_agrees),
        Invariant(
            "only_sealed_blocks_are_shared",
            lambda s: every([b], Implies(s.ref_cnt(b) > 1, s.key(b) != R.nokey)),
        ),
        Invariant(
            "every_block_is_in_one_of_five_states",
            lambda s: every([b], Implies(b != R.null, Or(*(kind(s, b, x) for x in REAL)))),
        ),
        Invariant(
            "an_idle_pool_is_whole",
            lambda s: Implies(
                every([b], R.card(s.held(b)) == 0),
                every([b], Implies(b != R.null, s.queued(b))),
            ),
        ),
        Invariant("a_block_handed_out_is_clean", handed_out_is_clean, step=True, actions=("take",)),
        Invariant(
            "the_oldest_release_is_evicted_first",
            oldest_first,
            step=True,
            actions=("seal", "touch", "release", "unpublish", "reset"),
        ),
        Invariant(
            "the_oldest_release_is_evicted_first",
            lambda s, t, p: And(
                oldest_first(s, t, p),
                every([b], Implies(And(s.queued(b), b != p.v), s.ahead(p.v, b))),
            ),
            step=True,
            actions=("take",),
        ),
        Invariant("reset_only_when_idle", reset_needs_rest, step=True, actions=("reset",)),
        *(moves(action) for action in TRANSITIONS),
    )


ASSUMPTIONS = (
    "holders are finite sets: six axioms about their size",
    "the pool is finite: an index entry and the queue have a first element",
    "who releases a reference holds it",
    "a call runs whole, and a call with several blocks is a sequence of these actions",
)

FAULTS = (
    Fault(
        "a taken block keeps its key",
        TAKE._replace(
            change={
                "key": lambda s, t, _: every([b], t.key(b) == s.key(b)),
                "indexed": lambda s, t, _: every([k, b], t.indexed(k, b) == s.indexed(k, b)),
                "older": lambda s, t, _: every([a, b], t.older(a, b) == s.older(a, b)),
                "present": lambda s, t, _: every([k], t.present(k) == s.present(k)),
                "first": lambda s, t, _: every([k], t.first(k) == s.first(k)),
            }
        ),
        "a_block_handed_out_is_clean",
    ),
    Fault(
        "an evicted block stays in the index",
        TAKE._replace(
            change={
                "indexed": lambda s, t, _: every([k, b], t.indexed(k, b) == s.indexed(k, b)),
                "older": lambda s, t, _: every([a, b], t.older(a, b) == s.older(a, b)),
                "present": lambda s, t, _: every([k], t.present(k) == s.present(k)),
                "first": lambda s, t, _: every([k], t.first(k) == s.first(k)),
            }
        ),
        "the_index_and_the_blocks_agree",
    ),
    Fault(
        "any free block is taken, not the oldest",
        TAKE._replace(
            change={"guard: the victim is the head of the queue": lambda s, _, p: s.queued(p.v)}
        ),
        "the_oldest_release_is_evicted_first",
    ),
    Fault(
        "a touched block stays in the queue",
        TOUCH._replace(
            change={
                "queued": lambda s, t, _: every([b], t.queued(b) == s.queued(b)),
                "ahead": lambda s, t, _: every([a, b], t.ahead(a, b) == s.ahead(a, b)),
            }
        ),
        "a_block_is_free_exactly_when_nobody_holds_it",
    ),
    Fault(
        "a block without a key is touched",
        TOUCH._replace(drop=("guard: it is sealed",)),
        "every_block_is_in_one_of_five_states",
    ),
    Fault(
        "a release appends while references are left",
        RELEASE._replace(
            change={
                "queued": lambda s, t, p: every([b], t.queued(b) == Or(s.queued(b), b == p.v)),
                "ahead": lambda s, t, p: every(
                    [a, b], t.ahead(a, b) == Or(s.ahead(a, b), And(b == p.v, s.queued(a)))
                ),
            }
        ),
        "free_and_held_and_null_make_the_pool",
    ),
    Fault(
        "a reference is released by one who does not hold it",
        RELEASE._replace(drop=("guard: who releases it holds it",)),
        "ref_cnt_counts_the_holders",
    ),
    Fault(
        "a block that nobody holds is sealed",
        SEAL._replace(drop=("guard: it has one holder",)),
        "every_move_is_a_named_transition",
    ),
    Fault(
        "a sealed block is sealed again",
        SEAL._replace(drop=("guard: it has no key",)),
        "the_index_and_the_blocks_agree",
    ),
    Fault(
        "a shared block is unpublished",
        UNPUBLISH._replace(drop=("guard: it has one holder",)),
        "only_sealed_blocks_are_shared",
    ),
    Fault(
        "a reset happens while blocks are in use",
        RESET._replace(drop=("guard: nothing is in use",)),
        "reset_only_when_idle",
    ),
)

POOL = Level(
    name="pool",
    fields=FIELDS,
    rigid=RIGID,
    axioms=axioms,
    initial=initial,
    actions=(TAKE, SEAL, TOUCH, RELEASE, UNPUBLISH, RESET),
    invariants=invariants,
    assumptions=ASSUMPTIONS,
    faults=FAULTS,
)
