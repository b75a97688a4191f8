"""The faults that must break what is claimed of requests and memory, and the whole level."""

from __future__ import annotations

from collections.abc import Callable

from spec.proof.content import FIELDS, INJECTIVE, RIGID, And, If, R, axioms, b, initial, j, q, shown
from spec.proof.content_actions import FREE, LEAVE, RENEW, RESET, RUN, SCHEDULE, SEAL
from spec.proof.content_claims import invariants
from spec.proof.logic import Fault, Formula, Level, View, every


def frozen(name: str) -> Callable[[View, View, View], Formula]:
    """Return that a field of blocks stays as it is."""
    return lambda s, t, _: every([b], t.symbols[name](b) == s.symbols[name](b))


FAULTS = (
    Fault(
        "a block is published as written before it is",
        SEAL._replace(
            change={
                "pending": lambda s, t, _: every([b], t.pending(b) == s.pending(b)),
                "place": lambda s, t, _: every([b], t.place(b) == s.place(b)),
            }
        ),
        "nothing_unwritten_is_found",
    ),
    Fault(
        "drafts are sealed",
        SEAL._replace(drop=("guard: its tokens are confirmed",)),
        "unconfirmed_tokens_are_never_sealed",
    ),
    Fault(
        "a block is sealed that its step does not reach",
        SEAL._replace(drop=("guard: its step is scheduled and covers the block",)),
        "nothing_unwritten_is_found",
    ),
    Fault(
        "a hit is another prefix's block",
        SCHEDULE._replace(drop=("guard: a hit carries the key of its position",)),
        "a_request_reads_its_own_prefix",
    ),
    Fault(
        "hits cover the last token, which is computed again",
        SCHEDULE._replace(
            change={
                "start_i": lambda s, t, p: every(
                    [q],
                    t.start_i(q) == If(And(q == p.r, p.hits > 0), p.hits - 1, s.start_i(q)),
                ),
                "start_j": lambda s, t, p: every(
                    [q],
                    t.start_j(q) == If(And(q == p.r, p.hits > 0), R.size - 1, s.start_j(q)),
                ),
            }
        ),
        "a_writer_owns_its_block",
    ),
    Fault(
        "a new block is one that somebody holds",
        SCHEDULE._replace(drop=("guard: nobody holds it",)),
        "a_writer_owns_its_block",
    ),
    Fault(
        "blocks are taken before hits are touched",
        SCHEDULE._replace(drop=("guard: hits are touched before blocks are taken",)),
        "hits_and_new_blocks_are_disjoint",
    ),
    Fault(
        "a taken block keeps its key",
        SCHEDULE._replace(change={"key": lambda s, t, _: every([b], t.key(b) == s.key(b))}),
        "a_writer_owns_its_block",
    ),
    Fault(
        "two prefixes have one key",
        SCHEDULE,
        "a_request_reads_its_own_prefix",
        without_axiom=INJECTIVE,
    ),
    Fault(
        "a step settles what it has not written",
        RUN._replace(
            change={"content": lambda s, t, _: every([b, j], t.content(b, j) == s.content(b, j))}
        ),
        "a_key_tells_the_content",
    ),
    Fault(
        "a freed request leaves its unwritten blocks in the index",
        FREE._replace(change={name: frozen(name) for name in ("key", "pending", "place")}),
        "nothing_unwritten_is_found",
    ),
    Fault(
        "an unwritten block is taken back while another request holds it",
        FREE._replace(drop=("guard: nobody else holds what is taken back",)),
        "a_request_reads_its_own_prefix",
    ),
    Fault(
        "a reset forgets the keys of scheduled steps",
        RESET._replace(drop=("guard: nothing is in use",)),
        "a_request_reads_its_own_prefix",
    ),
    Fault(
        "the window takes blocks that the next step writes",
        LEAVE._replace(
            change={"guard: what leaves is written": lambda s, _, p: shown(s, p.r, p.i)}
        ),
        "a_null_entry_lies_before_the_next_query",
    ),
)


CONTENT = Level(
    name="content",
    fields=FIELDS,
    rigid=RIGID,
    axioms=axioms,
    initial=initial,
    actions=(RENEW, LEAVE, SCHEDULE, SEAL, RUN, FREE, RESET),
    invariants=invariants,
    assumptions=(
        INJECTIVE,
        "a name that is used again is another request",
        "a step runs whole: all that is scheduled runs at once",
        "reference counts 0 and 1 mean shown by no table and shown once: the pool level proves it",
        "blocks move through requests only, not through direct calls of the pool",
    ),
    faults=FAULTS,
    ghosts=("place",),
)
