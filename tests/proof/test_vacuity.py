"""The proofs are not green for nothing: actions are possible and seeded faults are found."""

from functools import cache
from typing import Any

import pytest

z3 = pytest.importorskip("z3", reason="z3-solver is not installed: pip install '.[proof]'")
pytest.importorskip("cvc5", reason="cvc5 is not installed: pip install '.[proof]'")

from spec import proof  # noqa: E402  # it needs the solvers
from spec.proof.finite import Instance, Scope  # noqa: E402  # it needs the solvers
from spec.proof.logic import SORTS, Level, Machine, View, every  # noqa: E402  # the same
from spec.proof.pool_claims import POOL  # noqa: E402  # it needs the solvers
from spec.proof.vacuity import Broken, broken, possible, symbols_of  # noqa: E402  # the same
from spec.proof.values import Table, compiled  # noqa: E402  # it needs the solvers

FAULTS = [(level.name, n) for level in proof.LEVELS for n in range(len(level.faults))]


@cache
def found(level: str) -> tuple[Broken, ...]:
    """Return what the faults of a level break."""
    (chosen,) = [x for x in proof.LEVELS if x.name == level]
    return tuple(broken(Machine(chosen)))


@pytest.mark.slow
@pytest.mark.parametrize("level", proof.LEVELS, ids=lambda level: level.name)
def test_every_action_is_possible_and_changes_what_it_speaks_of(level: Level) -> None:
    """Some state that satisfies all invariants has such a step, for each field that changes."""
    results = list(possible(Machine(level)))
    assert [p.action for p in results] == ["initial", *(a.name for a in level.actions)]
    assert [p for p in results if not p.ok] == []


@pytest.mark.slow
@pytest.mark.parametrize(("level", "index"), FAULTS)
def test_a_seeded_fault_breaks_its_obligation(level: str, index: int) -> None:
    """A small instance shows the fault; the same instance without it shows none."""
    fault = found(level)[index]
    assert (fault.verdict, fault.control) == ("sat", "unsat"), fault
    assert fault.picture[0].startswith(f"call    {fault.action}(")
    assert any(line.startswith("before") for line in fault.picture)
    assert any(line.startswith("after") for line in fault.picture)


@pytest.mark.slow
def test_an_action_that_cannot_happen_is_seen() -> None:
    """A guard that contradicts the invariants makes every obligation provable, and is noticed."""
    action = POOL.actions[0]
    never = {"ref_cnt": lambda *_: z3.BoolVal(False)}  # noqa: FBT003  # the formula `false`
    level = POOL._replace(actions=(action._replace(change=never),))
    verdicts = [proof.judge(q) for q in proof.questions([level]) if q.action == "take"]
    assert {v.status for v in verdicts} == {"both"}
    assert [p.ok for p in possible(Machine(level))] == [True, False]


@pytest.mark.slow
def test_an_invariant_that_is_false_from_the_start_is_seen() -> None:
    """When no state satisfies the invariants, not even the first state is possible."""
    (first, *rest) = POOL.invariants(View(POOL.rigid))
    level = POOL._replace(invariants=lambda _: (first._replace(formula=refuse), *rest))
    assert next(possible(Machine(level))).verdict == "unsat"


def refuse(_: View) -> Any:  # noqa: ANN401  # a formula
    """Return a claim that no state satisfies."""
    return z3.BoolVal(False)  # noqa: FBT003  # the formula `false`


def test_a_fault_must_change_something_that_is_there() -> None:
    """A misspelt condition is an error, not a fault that is never seen."""
    action = POOL.actions[0]._replace(drop=("guard: no such guard",))
    with pytest.raises(KeyError, match="no such guard"):
        Machine(POOL).relation(action)


@pytest.mark.slow
@pytest.mark.parametrize("level", proof.LEVELS, ids=lambda level: level.name)
def test_the_evaluator_agrees_with_the_solver(level: Level) -> None:
    """In models of faulty steps both give every condition and claim the same value."""
    machine = Machine(level)
    seen = set()
    for fault in level.faults[:3]:
        instance = Instance(Scope(), symbols_of(machine, fault.action))
        kept = [f for label, f in machine.axioms.items() if label != fault.without_axiom]
        kept += [*machine.holds(machine.before).values(), *machine.relation(fault.action).values()]
        (claim,) = [c for c in machine.claims(fault.action) if c.name == fault.breaks]
        after = machine.after_step(claim, fault.action)
        model = instance.search([*kept, z3.Not(after)])
        asked = [*kept, *machine.holds(machine.after).values(), after]
        asked += machine.relation(machine.actions[fault.action.name]).values()
        for formula in asked:
            value = instance.solver.model().eval(instance.ground(formula), model_completion=True)
            assert z3.is_true(value) == compiled(formula)(model.domains, model.values), formula
            seen.add(z3.is_true(value))
    assert seen == {True, False}


def test_the_evaluator_reads_every_kind_of_node() -> None:
    """Quantifiers, choices, arithmetic and equality mean what they mean in Python."""
    f = z3.Function("f", z3.IntSort(), z3.IntSort())
    p = z3.Function("p", SORTS["Block"], z3.IntSort(), z3.BoolSort())
    b, x, y = z3.Const("b", SORTS["Block"]), z3.Int("x"), z3.Int("y")
    formula = every(
        [b, x, y],
        z3.Implies(z3.And(p(b, x), x != y), z3.If(x < y, f(x) + 1 <= f(y), f(x) - 1 >= f(y))),
        z3.Or(p(b, x), z3.Not(p(b, x))),
    )
    domains = {"Block": ["a", "b"], "Int": range(3)}
    rising = {"f": Table({(n,): n for n in range(3)}, 0), "p": lambda *_: True}
    level = rising | {"f": Table({}, 5)}
    assert compiled(formula)(domains, rising)
    assert not compiled(formula)(domains, level)
    assert compiled(formula)(domains, level | {"p": lambda *_: False})


def test_the_evaluator_refuses_what_it_has_no_rule_for() -> None:
    """Nothing is evaluated by guessing."""
    x = z3.Int("x")
    for formula in (z3.Exists([x], x > 0), x * x > 0):
        with pytest.raises(ValueError, match=r"universal|no rule"):
            compiled(formula)
