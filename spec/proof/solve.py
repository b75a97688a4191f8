"""Two solvers, asked the same text: z3, and cvc5 as a second opinion.

An obligation is written as SMT-LIB once; z3 and cvc5 read that text. Each answers `unsat`, `sat` or
`unknown` (a time limit included), and only two times `unsat` counts as proved by both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import cvc5
import z3

from spec.proof.logic import Formula, Obligation

TIME_LIMIT_S = 10.0


class Answer(NamedTuple):
    """What a solver said, and how many seconds of a processor it took."""

    verdict: str
    seconds: float


def versions() -> dict[str, str]:
    """Return the versions of the solvers."""
    return {"z3": z3.get_version_string(), "cvc5": cvc5.__version__}


def smt_lib(formulas: Iterable[Formula], comments: Iterable[str] = ()) -> str:
    """Return a script that asks whether the formulas can hold together.

    z3 shares terms as its context happens to share them, and names them by a running number. A
    context of its own and new numbers give equal questions equal texts.
    """
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.add(*(formula.translate(context) for formula in formulas))
    names: dict[str, str] = {}
    text = re.sub(
        r"[?$]x\d+",
        lambda found: names.setdefault(found[0], f"{found[0][:2]}{len(names)}"),
        solver.to_smt2(),
    )
    lines = [line for line in text.splitlines() if not line.startswith(("; bench", "(set-info"))]
    head = [f"; {line}" for comment in comments for line in comment.splitlines()]
    return "\n".join([*head, "(set-logic ALL)", *lines]).strip() + "\n"


def script(obligation: Obligation, assumptions: Iterable[str]) -> str:
    """Return an obligation as a commented script."""
    return smt_lib(
        obligation.formulas(),
        (
            f"level: {obligation.level}",
            f"action: {obligation.action}",
            f"invariant: {obligation.invariant}",
            *(f"assumption: {text}" for text in assumptions),
            *(f"hypothesis {i}: {label}" for i, label in enumerate(obligation.hypotheses, 1)),
            "last assertion: the invariant fails afterwards. unsat means proved.",
        ),
    )


def ask_z3(text: str, limit_s: float = TIME_LIMIT_S) -> Answer:
    """Ask z3: first with triggers alone, then, if that is not enough, with its model finder too."""
    return _until_known(_z3_once, ({"mbqi": False}, {"mbqi": True}), text, limit_s)


def ask_cvc5(text: str, limit_s: float = TIME_LIMIT_S) -> Answer:
    """Ask cvc5: first with its own choice of triggers added, then with enumeration."""
    attempts = ({"user-pat": "trust", "multi-trigger-priority": "true"}, {"enum-inst": "true"})
    return _until_known(_cvc5_once, attempts, text, limit_s)


def _until_known(
    ask: Callable[[str, Mapping[str, Any], float], str],
    attempts: Iterable[Mapping[str, Any]],
    text: str,
    limit_s: float,
) -> Answer:
    started = time.process_time()
    verdict = "unknown"
    for options in attempts:
        verdict = ask(text, options, limit_s)
        if verdict in ("sat", "unsat"):
            break
    return Answer(verdict, time.process_time() - started)


def _z3_once(text: str, options: Mapping[str, Any], limit_s: float) -> str:
    solver = z3.Solver()
    solver.set(timeout=int(limit_s * 1000), auto_config=False, **options)
    solver.from_string(text)
    return str(solver.check())


def _cvc5_once(text: str, options: Mapping[str, Any], limit_s: float) -> str:
    solver = cvc5.Solver(cvc5.TermManager())
    for name, value in ({"tlimit-per": str(int(limit_s * 1000))} | dict(options)).items():
        solver.setOption(name, value)
    parser: Any = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligation")
    symbols = parser.getSymbolManager()
    verdict = ""
    while not (command := parser.nextCommand()).isNull():
        answer = str(command.invoke(solver, symbols)).strip()
        if answer.startswith("(error"):
            raise ValueError(f"cvc5 cannot read the script: {answer}")
        verdict = answer.split()[0] if answer else verdict
    return verdict or "unknown"
