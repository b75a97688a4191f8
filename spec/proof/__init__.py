"""The invariants for any number of blocks, requests and keys: inductive proofs by two solvers.

Three machines: `pool` (who holds a block, what it is called, where it stands), `content` (what a
request reads is its own prefix), `order` (the cache is prefix-closed). `logic.py` says how a
machine is written, `solve.py` how the solvers are asked, `vacuity.py` why the answers
are not green for nothing, `bridge.py` that the machines are the Python specification's.

Only this file and its parts (this folder) import z3 and cvc5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import spec.invariants  # noqa: F401  # enters the properties of a state into the registry
from spec.proof.bridge import Bridge, Comparison
from spec.proof.content_faults import CONTENT
from spec.proof.logic import Level, Machine, Obligation
from spec.proof.order_faults import ORDER
from spec.proof.pool_claims import POOL
from spec.proof.solve import Answer, ask_cvc5, ask_z3, script, versions
from spec.proof.unfold import RealStep
from spec.proof.vacuity import Broken, Possible, broken, possible
from spec.registry import REGISTRY

__all__ = [
    "LEVELS",
    "Question",
    "Verdict",
    "bridge",
    "bridge_data",
    "export",
    "faults",
    "judge",
    "lemmas",
    "possibilities",
    "questions",
    "versions",
]

LEVELS: tuple[Level, ...] = (POOL, CONTENT, ORDER)


class Question(NamedTuple):
    """One obligation as text, as the solvers read it."""

    level: str
    action: str
    invariant: str
    text: str

    @property
    def name(self) -> str:
        """The name of the file that holds it, without the ending."""
        return f"{self.level}-{self.action}-{self.invariant}"


class Verdict(NamedTuple):
    """What both solvers said of one obligation."""

    level: str
    action: str
    invariant: str
    z3: Answer
    cvc5: Answer

    @property
    def registered(self) -> bool:
        """True when the invariant is one of the registry; otherwise it is an auxiliary lemma."""
        return self.invariant in REGISTRY

    @property
    def status(self) -> str:
        """Whether it is proved by both, by one, by none; or refuted, or the solvers disagree."""
        answers = {"z3": self.z3.verdict, "cvc5": self.cvc5.verdict}
        proved = [name for name, verdict in answers.items() if verdict == "unsat"]
        if "sat" in answers.values():
            return "disagreement" if proved else "refuted"
        return {2: "both", 1: f"{proved[0]} only" if proved else "", 0: "unknown"}[len(proved)]

    def data(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "level": self.level,
            "action": self.action,
            "invariant": self.invariant,
            "registered": self.registered,
            "status": self.status,
            "z3": self.z3.verdict,
            "cvc5": self.cvc5.verdict,
            "z3_seconds": round(self.z3.seconds, 3),
            "cvc5_seconds": round(self.cvc5.seconds, 3),
        }


def questions(levels: Iterable[Level] = LEVELS) -> Iterator[Question]:
    """Yield every obligation, in a fixed order."""
    for level in levels:
        for obligation in Machine(level).obligations():
            yield _question(level, obligation)


def _question(level: Level, obligation: Obligation) -> Question:
    text = script(obligation, level.assumptions)
    return Question(level.name, obligation.action, obligation.invariant, text)


def judge(question: Question) -> Verdict:
    """Ask both solvers. Only plain data goes in and comes out, so that a process can do it."""
    level, action, invariant, text = question
    return Verdict(level, action, invariant, ask_z3(text), ask_cvc5(text))


def possibilities(levels: Iterable[Level] = LEVELS) -> Iterator[Possible]:
    """Yield whether the first states and the actions are possible, level by level."""
    for level in levels:
        yield from possible(Machine(level))


def faults(levels: Iterable[Level] = LEVELS) -> Iterator[Broken]:
    """Yield what each seeded fault breaks, level by level."""
    for level in levels:
        yield from broken(Machine(level))


def bridge(steps: Iterable[RealStep], levels: Iterable[Level] = LEVELS) -> Iterator[Bridge]:
    """Yield how the steps of the Python specification compare with each machine."""
    steps = list(steps)
    for level in levels:
        yield Comparison(Machine(level)).compare(steps)


def lemmas(level: Level) -> list[str]:
    """Return the claims of a level that are not in the registry."""
    names = dict.fromkeys(i.name for i in Machine(level).invariants)
    return [name for name in names if name not in REGISTRY]


def export(folder: Path, levels: Iterable[Level] = LEVELS) -> list[Path]:
    """Write every obligation as an SMT-LIB script and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for question in questions(levels):
        path = folder / f"{question.name}.smt2"
        path.write_text(question.text, encoding="utf-8")
        written.append(path)
    return written


def bridge_data(result: Bridge) -> Mapping[str, Any]:
    """Return a comparison as plain data."""
    return {
        "level": result.level,
        "ok": result.ok,
        "real_steps": result.real_steps,
        "accepted": dict(sorted(result.accepted.items())),
        "rejected": dict(sorted(result.rejected.items())),
        "outside_the_assumptions": dict(sorted(result.outside.items())),
        "faults": list(result.faults),
    }
