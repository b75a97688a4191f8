"""Holds the machines of the proofs against the Python specification, step by step.

Each step of the specification is taken apart into steps of a machine. The conditions of the
machine's action must be true of the concrete values; and when one value after the step is made
wrong, at least one condition must be false. So the machine allows what the specification does, and
nothing beside it in the fields that an action fixes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from spec.proof.logic import BLOCK, BOOL, HOLDERS, INT, KEY, REQUEST, Action, Machine, Signature
from spec.proof.unfold import Move, RealStep, pool_steps
from spec.proof.unfold_order import order_steps
from spec.proof.unfold_requests import content_steps
from spec.proof.values import Table, Values, compiled

UNFOLD: Mapping[str, Callable[[RealStep], Iterator[Move]]] = {
    "pool": pool_steps,
    "content": content_steps,
    "order": order_steps,
}
WRONG = "a value that no step gives"


@dataclass
class Bridge:
    """What was compared at one level, and what did not agree."""

    level: str
    real_steps: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    """Steps of the machine that its conditions allow, by action."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Steps with one wrong value that the conditions forbid, by action."""
    outside: Counter[str] = field(default_factory=Counter)
    """Steps that break a guard which stands for an assumption, by the guard."""
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when every comparison agreed, and there was one."""
        return not self.faults and self.accepted.total() > 0


class Comparison:
    """A machine with its conditions compiled."""

    def __init__(self, machine: Machine, actions: Iterable[Action] | None = None) -> None:
        self.machine = machine
        self.actions = {action.name: action for action in actions or machine.level.actions}
        self.conditions = {
            name: {label: compiled(f) for label, f in machine.relation(action).items()}
            for name, action in self.actions.items()
        }
        self.claims = {name: compiled(f) for name, f in machine.holds(machine.before).items()}
        if machine.level.name == "order":  # Its witnesses have a history that no state tells.
            self.claims = {}

    def broken(self, move: Move, values: Values | None = None) -> list[str]:
        """Return the conditions that are false of a step."""
        given = move.values if values is None else values
        conditions = self.conditions[move.action]
        return [label for label, holds in conditions.items() if not holds(move.domains, given)]

    def failing(self, move: Move) -> list[str]:
        """Return the claims about states that are false before a step."""
        return [name for name, holds in self.claims.items() if not holds(move.domains, move.values)]

    def compare(self, steps: Iterable[RealStep], seed: int = 0, max_faults: int = 5) -> Bridge:
        """Compare steps of the specification with the machine, and each with one wrong value."""
        rng = Random(seed)  # noqa: S311  # wrong values must be repeatable, not secret
        result = Bridge(self.machine.level.name)
        for step in steps:
            result.real_steps += 1
            for move in UNFOLD[result.level](step):
                self._one(move, result, rng)
            if len(result.faults) >= max_faults:
                break
        return result

    def _one(self, move: Move, result: Bridge, rng: Random) -> None:
        labels, action = self.broken(move), self.actions[move.action]
        if failing := self.failing(move):
            result.faults.append(f"{result.level}: before {move.action} {failing} do not hold")
            return
        if labels and set(labels) <= set(action.assumed):
            result.outside.update(labels)
            return
        if labels:
            result.faults.append(f"{result.level}: {move.action} breaks {labels}")
            return
        result.accepted[move.action] += 1
        name, row, values = self._wrong(move, action, rng)
        if self.broken(move, values):
            result.rejected[move.action] += 1
        else:
            result.faults.append(f"{result.level}: {move.action} allows a wrong {name}{row}")

    def _wrong(self, move: Move, action: Action, rng: Random) -> tuple[str, Any, Values]:
        """Return the values with one of them made wrong, in a field that the action fixes."""
        fields = self.machine.level.fields
        name = rng.choice([name for name in fields if name not in action.loose])
        signature: Signature = fields[name]
        row = tuple(rng.choice(move.domains[sort]) for sort in signature[:-1])
        old = move.values[f"{name}.next"]
        value = old(*row)
        if signature[-1] == BOOL:
            other: object = not value
        elif signature[-1] == INT:
            other = value + rng.choice([-1, 1])
        elif signature[-1] == HOLDERS:
            other = value ^ {WRONG}
        elif signature[-1] in (BLOCK, KEY, REQUEST):
            rest = [v for v in move.domains[signature[-1]] if v != value]
            other = rng.choice(rest) if rest else WRONG
        else:
            other = WRONG
        table = Table({**old.values, row: other}, old.default)
        return name, row, {**move.values, f"{name}.next": table}
