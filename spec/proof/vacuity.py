"""Why a proof could be green for nothing, and the checks that it is not.

The first state and each action must have a model that satisfies every invariant, and each field
that an action speaks of must be able to change. Each seeded fault must break its obligation in a
small instance, where the unchanged action keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import z3

from spec.proof.finite import Found, Instance, Scope
from spec.proof.logic import BOOL, INT, Action, Fault, Formula, Machine, Signature


class Possible(NamedTuple):
    """Whether an action can happen in a state that satisfies every invariant, and what changes."""

    level: str
    action: str
    verdict: str
    changes: Mapping[str, str]
    """For each field that the action speaks of: `sat` if it can change."""
    still: tuple[str, ...]
    """The fields of which it is said that the action never changes them."""
    seconds: float

    @property
    def ok(self) -> bool:
        """True when the action can happen and changes the fields that it is said to change."""
        return self.verdict == "sat" and all(
            verdict == ("unsat" if field in self.still else "sat")
            for field, verdict in self.changes.items()
        )


class Broken(NamedTuple):
    """What a seeded fault does to its obligation in a small instance."""

    level: str
    fault: str
    action: str
    breaks: str
    verdict: str
    """`sat`: the fault breaks the obligation."""
    control: str
    """`unsat`: the action without the fault keeps it, in the same instance."""
    picture: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True when the fault, and only the fault, breaks the obligation."""
        return (self.verdict, self.control) == ("sat", "unsat")


def symbols_of(machine: Machine, action: Action | None) -> dict[str, tuple[Formula, Signature]]:
    """Return every symbol that a step of the action has, by name."""
    level = machine.level
    found = {name: (machine.rigid.symbols[name], level.rigid[name]) for name in level.rigid}
    for name, signature in level.fields.items():
        found[name] = machine.before.symbols[name], signature
        found[f"{name}.next"] = machine.after.symbols[name], signature
    if action is not None:
        params = action.view()
        for name, signature in action.params.items():
            found[f"{action.name}.{name}"] = params.symbols[name], signature
    return found


def possible(machine: Machine, scope: Scope | None = None) -> Iterator[Possible]:
    """Yield that the first state and each action are possible."""
    scope, name = scope or Scope(), machine.level.name
    started = time.perf_counter()
    known = [*machine.axioms.values(), *machine.holds(machine.before).values()]
    shared: dict[int, tuple[Formula, Formula]] = {}
    first = Instance(scope, symbols_of(machine, None), shared).search(
        [*known, *machine.initial().values()]
    )
    yield Possible(name, "initial", first.verdict, {}, (), time.perf_counter() - started)
    for action in machine.level.actions:
        started = time.perf_counter()
        instance = Instance(scope, symbols_of(machine, action), shared)
        relation = machine.relation(action)
        found = instance.search([*known, *relation.values()])
        spoken = action.body(machine.before, machine.after, action.view())
        fields = [field for field in machine.level.fields if field in spoken]
        changes = instance.each([(field, _differs(machine, instance, field)) for field in fields])
        yield Possible(
            name, action.name, found.verdict, changes, action.still, time.perf_counter() - started
        )


def _differs(machine: Machine, instance: Instance, field: str) -> Formula:
    """Return that a field has another value somewhere afterwards."""
    old, new = machine.before.symbols[field], machine.after.symbols[field]
    rows = instance.rows(machine.level.fields[field])
    return z3.Or(*(new(*row) != old(*row) for row in rows))


def broken(machine: Machine, scope: Scope | None = None) -> Iterator[Broken]:
    """Yield what each seeded fault breaks."""
    scope = scope or Scope()
    shared: dict[int, tuple[Formula, Formula]] = {}

    def attempt(fault: Fault, action: Action, without: str | None) -> Found:
        known = [f for label, f in machine.axioms.items() if label != without]
        known += [*machine.holds(machine.before).values(), *machine.relation(action).values()]
        (claim,) = (c for c in machine.claims(action) if c.name == fault.breaks)
        refuted = z3.Not(machine.after_step(claim, action))
        return Instance(scope, symbols_of(machine, action), shared).search([*known, refuted])

    for fault in machine.level.faults:
        started = time.perf_counter()
        found = attempt(fault, fault.action, fault.without_axiom)
        control = attempt(fault, machine.actions[fault.action.name], None)
        yield Broken(
            machine.level.name,
            fault.name,
            fault.action.name,
            fault.breaks,
            found.verdict,
            control.verdict,
            picture(machine, fault.action, found) if found.verdict == "sat" else (),
            time.perf_counter() - started,
        )


def picture(machine: Machine, action: Action, found: Found) -> tuple[str, ...]:
    """Return a model as lines: the call, the state before it, and what is different after it."""
    fields, values = machine.level.fields, found.values
    call = []
    for name, signature in action.params.items():
        shown = _entries(values[f"{action.name}.{name}"], signature, found)
        call.append(
            f"{name}={shown.get((), None)}" if len(signature) == 1 else f"{name}: {_text(shown)}"
        )
    lines = [f"call    {action.name}({', '.join(call)})"]
    fields = {name: fields[name] for name in fields if name not in machine.level.ghosts}
    for name, signature in fields.items():
        if text := _text(_entries(values[name], signature, found)):
            lines.append(f"before  {name}: {text}")
    for name, signature in fields.items():
        old = _entries(values[name], signature, found, full=True)
        new = _entries(values[f"{name}.next"], signature, found, full=True)
        if text := _text({row: value for row, value in new.items() if old[row] != value}):
            lines.append(f"after   {name}: {text}")
    if not lines[-1].startswith("after"):
        # A model may show a fault that is what did not happen.
        lines.append("after   nothing is different")
    return tuple(lines)


def _entries(
    value: Any,  # noqa: ANN401  # a value of any sort
    signature: Signature,
    found: Found,
    *,
    full: bool = False,
) -> dict[tuple[Any, ...], Any]:
    """Return what a function gives, without the values that mean nothing."""
    if len(signature) == 1:
        return {(): value}
    rows: list[tuple[Any, ...]] = [()]
    for sort in signature[:-1]:
        domain = [v for v in found.domains[sort] if sort != INT or v >= 0]
        rows = [(*row, v) for row in rows for v in domain]
    nothing = {INT: 0, BOOL: False}.get(signature[-1], found.domains[signature[-1]][0])
    return {row: value(*row) for row in rows if full or value(*row) != nothing}


def _text(entries: Mapping[tuple[Any, ...], Any]) -> str:
    return ", ".join(
        f"{','.join(map(str, row))}" if value is True else f"{','.join(map(str, row))}={value}"
        for row, value in entries.items()
    )
