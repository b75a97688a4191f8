"""What a search found, as a report: what holds, what does not, what is no matter of the subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from conformance.conforming.declarations import Declared, Plain
from conformance.conforming.known import MASKS, Known
from conformance.conforming.search import Found, Search
from conformance.logs.oplog_format import plain_args
from conformance.pictures.explain import explained
from conformance.pictures.explain_text import as_text
from conformance.program import Factory
from conformance.shrinking.paste import as_test
from conformance.subject import Capabilities
from spec.invariants import REGISTRY

Verdict = Literal["clean", "declared violations only", "violation", "interrupted"]


class Held(Plain):
    """A property that no call broke."""

    property: str
    evaluated: int


class NotApplicable(Plain):
    """A property, or a kind of call, that says nothing of the subject."""

    name: str
    why: str


class Finding(Plain):
    """Something wrong, in the fewest calls. `found_after` counts until it was first seen."""

    property: str
    action: str
    answer: str
    statement: str
    line: str
    details: str
    config: dict[str, Any]
    calls: list[dict[str, Any]]
    found_by: str
    found_after_seconds: float
    found_after_calls: int
    found_after_examples: int
    met_again: int
    test: str
    table: str


class Violation(Finding):
    """What a careful caller sees."""

    observation: str | None
    declared: str | None
    page: str | None


class Misuse(Finding):
    """A call that breaks a rule and is not refused for it."""

    rule: str
    silent: bool


class Report(Plain):
    """All that is known of a subject after a search."""

    subject: str
    release: str
    verdict: Verdict
    seed: int
    seconds: float
    calls: int
    examples: dict[str, int]
    held: list[Held]
    not_evaluated: list[str]
    not_applicable: list[NotApplicable]
    violations: list[Violation]
    declared_and_not_found: list[str]
    misuse: list[Misuse]
    rules_enforced: dict[str, int]
    situations_seen: dict[str, int]
    situations_unseen: list[str]


INAPPLICABLE: Final[Sequence[tuple[str, Callable[[Capabilities], bool], str]]] = (
    (
        "the_oldest_release_is_evicted_first",
        lambda can: can.free_rule != "append",
        "the subject frees blocks without a key to the head of the queue",
    ),
    (
        "skipped_positions_show_null",
        lambda can: not can.window,
        "the subject has no sliding window",
    ),
    (
        "unconfirmed_tokens_are_never_sealed",
        lambda can: not can.lookahead,
        "the subject takes no drafts",
    ),
    (
        "the_cache_changes_no_answer",
        lambda _: True,
        "speaks of two runs, which are compared on the specification",
    ),
    (
        "salts_do_not_see_each_other",
        lambda _: True,
        "speaks of two runs, which are compared on the specification",
    ),
    ("calls on the pool", lambda can: not can.pool_calls, "the subject offers none"),
    ("unpublish", lambda can: not can.unpublish, "the subject offers no such call"),
    ("salts", lambda can: not can.salts, "the subject has none"),
    ("generations of adapters", lambda can: not can.generations, "the subject has none"),
)
"""What says nothing of a subject, by its capabilities, and why."""


def inapplicable(can: Capabilities) -> Iterator[NotApplicable]:
    """Yield what is not asked of a subject."""
    for name, applies, why in INAPPLICABLE:
        if applies(can):
            yield NotApplicable(name=name, why=why)


def report_of(
    search: Search,
    make: Factory,
    declared: Sequence[Declared],
    *,
    interrupted: bool = False,
) -> Report:
    """Return what a search found so far. Each program is performed once more, for its table."""
    tally = search.tally
    violations: list[Violation] = []
    misuse: list[Misuse] = []
    met: list[Declared] = []
    can = search.capabilities
    for found in tally.found:
        plain = _finding(found, search, make)
        if found.rule is not None and not can.enforces(found.rule, found.fault.action):
            silent = found.fault.answer == f"not {found.rule}"
            misuse.append(Misuse(**plain, rule=found.rule, silent=silent))
            continue
        one = next((one for one in declared if one.covers(found)), None)
        if one is not None:
            met.append(one)
        violations.append(
            Violation(
                **plain,
                observation=found.mask,
                declared=None if one is None else one.says,
                page=None if one is None else one.page,
            )
        )
    left_out = list(inapplicable(can))
    not_asked = {entry.name for entry in left_out}
    broken = {v.property for v in violations}
    evaluated = tally.evaluated()
    asked = [name for name in REGISTRY if name not in not_asked and name not in broken]
    situations = dict(tally.reached.counts())
    return Report(
        subject=search.name,
        release=search.release,
        verdict=_verdict(violations, interrupted=interrupted),
        seed=search.seed,
        seconds=round(tally.seconds, 3),
        calls=tally.calls,
        examples=dict(sorted(tally.examples.items())),
        held=[Held(property=n, evaluated=evaluated[n]) for n in asked if evaluated[n]],
        not_evaluated=[name for name in asked if not evaluated[name]],
        not_applicable=left_out,
        violations=violations,
        declared_and_not_found=[one.says for one in declared if one not in met],
        misuse=misuse,
        rules_enforced=dict(sorted(tally.refusals.items())),
        situations_seen={name: n for name, n in situations.items() if n},
        situations_unseen=[name for name, n in situations.items() if not n],
    )


def _verdict(violations: Sequence[Violation], *, interrupted: bool) -> Verdict:
    if any(v.declared is None for v in violations):
        return "violation"
    if interrupted:
        return "interrupted"
    return "declared violations only" if violations else "clean"


def known_at(found: Found) -> Known:
    """Return what must be known for a program to fail as it was found."""
    return Known(masked=frozenset(found.masked))


def _finding(found: Found, search: Search, make: Factory) -> dict[str, Any]:
    """Return the fields of a finding."""
    fault, program, divergence = found.fault, found.program, found.divergence
    known = REGISTRY.get(fault.property)
    shown = explained(program, known_at(found).forgiving(make))
    observation = f" What is wrong is {MASKS[found.mask].says}." if found.mask else ""
    return {
        **fault._asdict(),
        "statement": (known.statement if known else "It does what is specified.") + observation,
        "line": str(divergence),
        "details": divergence.details,
        "config": program.config._asdict(),
        "calls": [
            {"call": operation.action, "args": plain_args(operation)}
            for operation in program.operations
        ],
        "found_by": found.found_by,
        "found_after_seconds": round(found.seconds, 3),
        "found_after_calls": found.calls,
        "found_after_examples": found.examples,
        "met_again": search.tally.met_again[fault],
        "test": as_test(program, divergence, search.name, masked=found.masked),
        "table": as_text(shown),
    }
