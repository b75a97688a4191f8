"""Looks for a concrete step in a small instance: a few blocks, requests, keys, indexes.

On the unbounded encoding a solver can refute but seldom build a model. Here each sort has a few
named elements, every quantifier is written out over them, and what is left has no quantifier. A
model that is found is read back and evaluated again with the original, quantified formulas.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import z3

from spec.proof.logic import (
    BLOCK,
    BOOL,
    HOLDER,
    HOLDERS,
    INT,
    KEY,
    REQUEST,
    SLOT,
    SORTS,
    Formula,
    Signature,
)
from spec.proof.values import Table, compiled

LIMIT_S = 20.0


class Scope(NamedTuple):
    """How many elements each sort has; the first ones are null, no key, no request, unwritten."""

    blocks: int = 4
    keys: int = 4
    requests: int = 3
    slots: int = 4
    holders: int = 2
    numbers: tuple[int, ...] = (-1, 0, 1, 2)

    def universe(self) -> dict[str, list[Formula]]:
        """Return the elements of each sort as terms."""
        sizes = {BLOCK: self.blocks, KEY: self.keys, REQUEST: self.requests, SLOT: self.slots}
        sizes |= {HOLDER: self.holders, HOLDERS: 2**self.holders}
        named = {
            sort: [z3.Const(f"{sort.lower()}{n}", SORTS[sort]) for n in range(size)]
            for sort, size in sizes.items()
        }
        return named | {
            INT: [z3.IntVal(n) for n in self.numbers],
            BOOL: [z3.BoolVal(False), z3.BoolVal(True)],  # noqa: FBT003  # the two truth values
        }


class Found(NamedTuple):
    """What the search answered: a verdict, and the values of a model that was evaluated again."""

    verdict: str
    values: Mapping[str, Any]
    domains: Mapping[str, Sequence[Any]]


class Instance:
    """A small instance of some symbols."""

    def __init__(
        self,
        scope: Scope,
        symbols: Mapping[str, tuple[Formula, Signature]],
        written_out: dict[int, tuple[Formula, Formula]] | None = None,
    ) -> None:
        self.scope = scope
        self.symbols = symbols
        self.universe = scope.universe()
        self.written_out = {} if written_out is None else written_out
        self.solver: Any = None

    def search(self, formulas: Iterable[Formula]) -> Found:
        """Return a model of all the formulas, or say that there is none in this scope."""
        formulas = list(formulas)
        self.solver = z3.Solver()
        self.solver.set("timeout", int(LIMIT_S * 1000))
        for sort in (BLOCK, KEY, REQUEST, SLOT, HOLDER, HOLDERS):
            self.solver.add(z3.Distinct(*self.universe[sort]))
        self.solver.add(*self._ranges(), *self._standard())
        self.solver.add(*map(self._remembered, formulas))
        verdict = str(self.solver.check())
        if verdict != "sat":
            return Found(verdict, {}, {})
        model = self.solver.model()
        domains = {
            sort: [self._value(model, term) for term in terms]
            for sort, terms in self.universe.items()
        }
        values = {name: self._read(model, *symbol) for name, symbol in self.symbols.items()}
        for formula in formulas:
            if not compiled(formula)(domains, values):
                raise AssertionError(f"the model does not satisfy {formula}")
        return Found(verdict, values, domains)

    def each(self, named: Iterable[tuple[str, Formula]]) -> dict[str, str]:
        """Return for each formula if it can be added to what was searched last."""
        return {name: str(self.solver.check(formula)) for name, formula in named}

    def rows(self, signature: Signature) -> Iterator[tuple[Formula, ...]]:
        """Yield every tuple of arguments."""
        return itertools.product(*(self.universe[sort] for sort in signature[:-1]))

    def _remembered(self, formula: Formula) -> Formula:
        """Return the formula written out; instances of one scope may share what they wrote."""
        if formula.get_id() not in self.written_out:
            self.written_out[formula.get_id()] = formula, self.ground(formula)
        return self.written_out[formula.get_id()][1]

    def ground(self, formula: Formula) -> Formula:
        """Return the formula with each quantifier written out over the universe."""
        if z3.is_quantifier(formula):
            domains = [self.universe[formula.var_sort(n).name()] for n in range(formula.num_vars())]
            rows = itertools.product(*domains)
            body = formula.body()
            parts = [z3.simplify(z3.substitute_vars(body, *reversed(row))) for row in rows]
            return z3.And(*(self.ground(part) for part in parts if not z3.is_true(part)))
        if not any(map(_quantified, formula.children())):
            return formula
        children = [self.ground(child) for child in formula.children()]
        if z3.is_and(formula):
            return z3.And(*children)
        if z3.is_or(formula):
            return z3.Or(*children)
        return formula.decl()(*children)

    def _ranges(self) -> Iterator[Formula]:
        """Yield that each function's values lie in the universe, a little beyond it too."""
        low, high = self.scope.numbers[0], self.scope.numbers[-1]
        for symbol, signature in self.symbols.values():
            for row in self._wide_rows(signature):
                term = symbol(*row) if row else symbol
                if signature[-1] == INT:
                    yield z3.And(low <= term, term <= high)
                elif signature[-1] != BOOL:
                    yield z3.Or(*(term == value for value in self.universe[signature[-1]]))

    def _standard(self) -> Iterator[Formula]:
        """Yield what the elements are: the distinguished ones first, and sets as sets."""
        first = {
            "null": BLOCK,
            "nokey": KEY,
            "noone": REQUEST,
            "unwritten": SLOT,
            "nobody": HOLDERS,
        }
        for name, sort in first.items():
            if name in self.symbols:
                yield self.symbols[name][0] == self.universe[sort][0]
        if "member" in self.symbols:
            member, card = self.symbols["member"][0], self.symbols["card"][0]
            for bits, one in enumerate(self.universe[HOLDERS]):
                yield card(one) == bits.bit_count()
                for n, who in enumerate(self.universe[HOLDER]):
                    yield member(who, one) == bool(bits >> n & 1)

    def _value(self, model: Formula, term: Formula) -> Any:  # noqa: ANN401  # a number or a name
        value = model.eval(term, model_completion=True)
        if z3.is_int_value(value):
            return value.as_long()
        if z3.is_bool(value):
            return z3.is_true(value)
        sort = value.sort().name()
        for element in self.universe[sort]:
            if value.eq(model.eval(element, model_completion=True)):
                return str(element)
        raise AssertionError(f"{value} is no element of {sort}")

    def _read(self, model: Formula, symbol: Formula, signature: Signature) -> Any:  # noqa: ANN401
        if len(signature) == 1:
            return self._value(model, symbol)
        rows = {
            tuple(self._value(model, t) for t in row): self._value(model, symbol(*row))
            for row in self._wide_rows(signature)
        }
        return Table(rows, next(iter(rows.values())))

    def _wide_rows(self, signature: Signature) -> Iterator[tuple[Formula, ...]]:
        low, high = self.scope.numbers[0], self.scope.numbers[-1]
        wide = [z3.IntVal(n) for n in range(low - 1, high + 2)]
        return itertools.product(*(wide if s == INT else self.universe[s] for s in signature[:-1]))


def _quantified(formula: Formula) -> bool:
    """Return whether there is a quantifier in a formula."""
    todo, seen = [formula], set()
    while todo:
        term = todo.pop()
        if z3.is_quantifier(term):
            return True
        if term.get_id() not in seen:
            seen.add(term.get_id())
            todo += term.children()
    return False
