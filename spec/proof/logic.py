"""How a machine is written for the solvers: fields, actions, invariants, and what must be shown.

A *level* is a machine over uninterpreted sorts, so it speaks of any number of blocks, requests and
keys. Each field of its state is one function, once before the step (`key`) and once after it
(`key.next`). An action is a set of named conditions over the two; the fields that it does not name
are framed by explicit equations. Where a statement needs "there is", the state or the action
carries a witness, so that every formula is universal.

One obligation is one action and one invariant: all invariants and the action's conditions hold
before, and the one invariant fails after. It is proved when that cannot be satisfied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import z3

Formula: TypeAlias = Any
"""A z3 expression or function. The solver's classes are untyped where its stubs are missing."""

Signature: TypeAlias = tuple[str, ...]
"""The sorts of a function's arguments, then the sort of its value."""

Conditions: TypeAlias = dict[str, Formula]

INT, BOOL, HOLDERS = "Int", "Bool", "Holders"
BLOCK, KEY, REQUEST, HOLDER, SLOT = "Block", "Key", "Request", "Holder", "Slot"

SORTS: Mapping[str, Formula] = {
    INT: z3.IntSort(),
    BOOL: z3.BoolSort(),
    **{name: z3.DeclareSort(name) for name in (BLOCK, KEY, REQUEST, HOLDER, HOLDERS, SLOT)},
}


def declare(name: str, signature: Signature) -> Formula:
    """Return a function symbol, or a constant when there are no arguments."""
    sorts = [SORTS[sort] for sort in signature]
    return z3.Function(name, *sorts) if len(sorts) > 1 else z3.Const(name, sorts[0])


def every(variables: Sequence[Formula], *parts: Formula, on: Sequence[Formula] = ()) -> Formula:
    """Return that each part holds for all values of those variables that it speaks of.

    `on` names the terms whose appearance makes a solver think of an instance.
    """
    made = []
    for part in parts:
        free = [v for v in variables if _speaks_of(part, v)]
        made.append(z3.ForAll(free, part, patterns=list(on)) if free else part)
    return made[0] if len(made) == 1 else z3.And(*made)


def _speaks_of(formula: Formula, variable: Formula) -> bool:
    """Return whether a constant occurs in a formula."""
    todo, seen = [formula], set()
    while todo:
        term = todo.pop()
        if term.get_id() not in seen:
            seen.add(term.get_id())
            if term.eq(variable):
                return True
            todo += [term.body()] if z3.is_quantifier(term) else term.children()
    return False


class View:
    """A group of symbols, by name as attributes: a state before, a state after, an action's."""

    def __init__(self, signatures: Mapping[str, Signature], pattern: str = "{}") -> None:
        self.symbols: dict[str, Formula] = {
            name: declare(pattern.format(name), signature) for name, signature in signatures.items()
        }

    def __getattr__(self, name: str) -> Formula:
        try:
            return self.symbols[name]
        except KeyError:
            raise AttributeError(name) from None


class Action(NamedTuple):
    """What may happen. `body` gives the conditions: guards by a sentence, updates by a field."""

    name: str
    params: Mapping[str, Signature]
    body: Callable[[View, View, View], Conditions]
    assumed: tuple[str, ...] = ()
    """The guards that stand for an assumption: a real step may break them."""
    loose: tuple[str, ...] = ()
    """The fields whose new value the conditions do not fix entirely."""
    still: tuple[str, ...] = ()
    """The fields that the conditions speak of and that never change in a state that satisfies the
    invariants."""
    change: Mapping[str, Callable[[View, View, View], Formula]] = {}
    """Conditions that take the place of those in `body`: how a fault is seeded."""
    drop: tuple[str, ...] = ()
    """Conditions of `body` that are left out."""

    def view(self) -> View:
        """Return the symbols of the parameters."""
        return View(self.params, self.name + ".{}")


class Invariant(NamedTuple):
    """What is claimed of every state (`step` is False) or of every step of some actions."""

    name: str
    formula: Callable[..., Formula]
    """Of a state; or of the states around an action and its parameters."""
    step: bool = False
    actions: tuple[str, ...] = ()
    """The actions that a claim about steps speaks of; empty for all."""


class Fault(NamedTuple):
    """A seeded fault: a changed action or a dropped axiom, and the obligation it must break."""

    name: str
    action: Action
    breaks: str
    without_axiom: str | None = None


class Obligation(NamedTuple):
    """One question to the solvers. Unsatisfiable means proved."""

    level: str
    action: str
    invariant: str
    hypotheses: Mapping[str, Formula]
    refuted: Formula

    @property
    def name(self) -> str:
        """The file name of the obligation, without its ending."""
        return f"{self.level}-{self.action}-{self.invariant}"

    def formulas(self) -> list[Formula]:
        """Return what the solver is given."""
        return [*self.hypotheses.values(), self.refuted]


class Level(NamedTuple):
    """A machine: its symbols, what is assumed of them, what it does and what is claimed."""

    name: str
    fields: Mapping[str, Signature]
    rigid: Mapping[str, Signature]
    """The symbols that no action changes."""
    axioms: Callable[[View], Conditions]
    initial: Callable[[View, View], Conditions]
    actions: tuple[Action, ...]
    invariants: Callable[[View], tuple[Invariant, ...]]
    assumptions: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    ghosts: tuple[str, ...] = ()
    """Witnesses: fields that no real thing stands for."""


class Machine:
    """A level with its symbols declared."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.rigid = View(level.rigid)
        self.before = View(level.fields)
        self.after = View(level.fields, "{}.next")
        self.invariants = level.invariants(self.rigid)
        self.actions = {action.name: action for action in level.actions}

    @cached_property
    def axioms(self) -> Conditions:
        """What is assumed of the symbols that never change."""
        return self.level.axioms(self.rigid)

    def initial(self) -> Conditions:
        """Return what is true of the first state."""
        return self.level.initial(self.rigid, self.before)

    def relation(self, action: Action) -> Conditions:
        """Return all conditions of an action, the frame included."""
        s, t, p = self.before, self.after, action.view()
        made = action.body(s, t, p)
        unknown = (set(action.change) | set(action.drop)) - set(made)
        if unknown:
            raise KeyError(f"{action.name} has no condition {sorted(unknown)} to change")
        made |= {label: change(s, t, p) for label, change in action.change.items()}
        touched = {label.split(":")[0] for label in made}
        conditions = {label: made[label] for label in made if label not in action.drop}
        for name, signature in self.level.fields.items():
            if name not in touched:
                conditions[name] = self._same(name, signature)
        return conditions

    def _same(self, name: str, signature: Signature) -> Formula:
        old, new = self.before.symbols[name], self.after.symbols[name]
        variables = [z3.Const(f"x{i}", SORTS[sort]) for i, sort in enumerate(signature[:-1])]
        if not variables:
            return new == old
        return every(variables, new(*variables) == old(*variables))

    def holds(self, view: View) -> Conditions:
        """Return every claim about states, of one state."""
        return {i.name: i.formula(view) for i in self.invariants if not i.step}

    def obligations(self, actions: Sequence[Action] | None = None) -> Iterator[Obligation]:
        """Yield what must be shown: of the first state, then action by action."""
        axioms, name = self.axioms, self.level.name
        if actions is None:
            actions = self.level.actions
            for claim, formula in self.holds(self.before).items():
                yield Obligation(name, "initial", claim, axioms | self.initial(), z3.Not(formula))
        known = {f"before: {claim}": f for claim, f in self.holds(self.before).items()}
        for action in actions:
            hypotheses = axioms | known | self.relation(action)
            for claimed in self.claims(action):
                refuted = z3.Not(self.after_step(claimed, action))
                yield Obligation(name, action.name, claimed.name, hypotheses, refuted)

    def claims(self, action: Action) -> list[Invariant]:
        """Return the claims that an action could break."""
        return [i for i in self.invariants if not i.actions or action.name in i.actions]

    def after_step(self, claim: Invariant, action: Action) -> Formula:
        """Return what a claim says once the action has happened."""
        if claim.step:
            return claim.formula(self.before, self.after, action.view())
        return claim.formula(self.after)
