"""Evaluates the solvers' own formulas on concrete values.

A formula is compiled to a Python function once and then called with an interpretation: the elements
of each sort, a value for each constant, a callable for each function. What is evaluated is the
expression that the solvers are given, node by node; nothing here knows what it says.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import z3

from spec.proof.logic import Formula

Domains: TypeAlias = Mapping[str, Sequence[Any]]
Values: TypeAlias = Mapping[str, Any]
Compiled: TypeAlias = Callable[[Domains, Values], bool]

INFIX: Mapping[int, str] = {
    z3.Z3_OP_AND: " and ",
    z3.Z3_OP_OR: " or ",
    z3.Z3_OP_EQ: " == ",
    z3.Z3_OP_LE: " <= ",
    z3.Z3_OP_LT: " < ",
    z3.Z3_OP_GE: " >= ",
    z3.Z3_OP_GT: " > ",
    z3.Z3_OP_ADD: " + ",
    z3.Z3_OP_SUB: " - ",
}
TEMPLATES: Mapping[tuple[int, int], str] = {
    (z3.Z3_OP_TRUE, 0): "True",
    (z3.Z3_OP_FALSE, 0): "False",
    (z3.Z3_OP_NOT, 1): "(not {0})",
    (z3.Z3_OP_IMPLIES, 2): "(not {0} or {1})",
    (z3.Z3_OP_DISTINCT, 2): "({0} != {1})",
    (z3.Z3_OP_ITE, 3): "({1} if {0} else {2})",
}
"""How an operator with a number of arguments is written."""


class Table:
    """A function given by its values, by tuples of arguments; elsewhere it has a default."""

    __slots__ = ("default", "values")

    def __init__(self, values: Mapping[Any, Any], default: Any) -> None:  # noqa: ANN401  # any value
        self.values = values
        self.default = default

    def __call__(self, *arguments: Hashable) -> Any:  # noqa: ANN401  # any value
        """Return the value for some arguments."""
        return self.values.get(arguments, self.default)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or self.default != other.default:
            return False
        return self._telling() == other._telling()

    __hash__ = None  # type: ignore[assignment]  # its values may be anything

    def _telling(self) -> dict[Any, Any]:
        return {row: value for row, value in self.values.items() if value != self.default}


_COMPILED: dict[int, tuple[Formula, Compiled]] = {}


def compiled(formula: Formula) -> Compiled:
    """Return a Python function that evaluates a closed formula; equal formulas share one."""
    if formula.get_id() not in _COMPILED:
        _COMPILED[formula.get_id()] = formula, _compile(formula)
    return _COMPILED[formula.get_id()][1]


def _compile(formula: Formula) -> Compiled:
    writer = _Writer()
    body = writer.expression(formula, ())
    lines = ["def evaluate(domains, values):"]
    lines += [f"    {local} = values[{name!r}]" for name, local in writer.symbols.items()]
    lines += [f"    {local} = domains[{name!r}]" for name, local in writer.domains.items()]
    lines += [f"    return {body}"]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)  # noqa: S102  # the text comes from the formula and nowhere else
    evaluate: Compiled = made["evaluate"]
    return evaluate


class _Writer:
    """Writes a formula as a Python expression and collects the symbols that it needs."""

    def __init__(self) -> None:
        self.symbols: dict[str, str] = {}
        self.domains: dict[str, str] = {}
        self._fresh = itertools.count()

    def expression(self, term: Formula, bound: tuple[str, ...]) -> str:
        """Return the expression; `bound` names the bound variables, the innermost last."""
        if z3.is_var(term):
            number: int = z3.get_var_index(term)
            return bound[-1 - number]
        if z3.is_quantifier(term):
            return self._quantifier(term, bound)
        kind = term.decl().kind()
        parts = [self.expression(child, bound) for child in term.children()]
        if kind == z3.Z3_OP_UNINTERPRETED:
            name = self.symbols.setdefault(term.decl().name(), f"f{len(self.symbols)}")
            return f"{name}({', '.join(parts)})" if parts else name
        if kind == z3.Z3_OP_ANUM:
            return f"{term.as_long()}"
        if kind in INFIX:
            return f"({INFIX[kind].join(parts)})"
        if (kind, len(parts)) in TEMPLATES:
            return TEMPLATES[kind, len(parts)].format(*parts)
        raise ValueError(f"no rule for {term.decl()} in {term}")

    def _quantifier(self, term: Formula, bound: tuple[str, ...]) -> str:
        if not term.is_forall():
            raise ValueError(f"only universal formulas are evaluated, not {term}")
        names = [f"v{next(self._fresh)}" for _ in range(term.num_vars())]
        loops = []
        for n, name in enumerate(names):
            sort = term.var_sort(n).name()
            local = self.domains.setdefault(sort, f"d{len(self.domains)}")
            loops.append(f"for {name} in {local}")
        body = self.expression(term.body(), (*bound, *names))
        return f"all({body} {' '.join(loops)})"
