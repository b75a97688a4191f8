"""How a property is written down: a name that is a sentence, a statement, a reason, a predicate.

A *state* property looks at one `State`; a *step* property looks at one `Step`: a call, its result,
and the states around it. `P` marks what holds for any user of a pool, `M` what holds when only
requests use it. A predicate yields one `Broken` for each place where it fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from spec.state import NULL, Block, State


class Broken(NamedTuple):
    """One instance of a broken property."""

    block: int | None
    expected: object
    actual: object


class Step(NamedTuple):
    """One call: `result` is what it returned, or the `Refused` that it raised or returned."""

    before: State
    action: str
    args: Mapping[str, Any]
    result: object
    after: State


class Property(NamedTuple):
    """One entry of the registry."""

    name: str
    levels: str
    kind: str
    of: tuple[str, ...]
    """Of a state property: what it reads (`pool`; `tables`: also who holds what; `request`: the
    pool and one request at a time; `state`: everything). Of a step property: the calls it speaks
    of, empty for all."""
    statement: str
    why: str
    check: Callable[[Any], Iterator[Broken]]


REGISTRY: dict[str, Property] = {}


def always(
    kind: str, levels: str, why: str, of: tuple[str, ...] = ()
) -> Callable[[Callable[[Any], Iterator[Broken]]], Callable[[Any], Iterator[Broken]]]:
    """Enter a predicate into the registry under its own name; its docstring is the statement."""

    def register(check: Callable[[Any], Iterator[Broken]]) -> Callable[[Any], Iterator[Broken]]:
        text = " ".join((check.__doc__ or "").split())
        REGISTRY[check.__name__] = Property(check.__name__, levels, kind, of, text, why, check)
        return check

    return register


@cache
def relevant(kind: str, levels: str, of: str) -> tuple[Property, ...]:
    """Return the properties of a kind that hold at some of the levels and are about `of`."""
    return tuple(
        p
        for p in REGISTRY.values()
        if p.kind == kind and set(p.levels) & set(levels) and (not p.of or not of or of in p.of)
    )


def block_of(s: State, b: int) -> Block:
    """Return a block, or an empty one for an id that no block has: a subject may show anything."""
    return s.pool.blocks[b] if 0 <= b < len(s.pool.blocks) else Block()


def holders(s: State) -> Counter[int]:
    """Count the positions of live block tables, and the loose references, that show each block."""
    held = Counter(s.loose)
    for r in s.requests.values():
        held.update(b for b in r.table or () if b != NULL)
    return held
