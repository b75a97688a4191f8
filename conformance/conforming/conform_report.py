"""Says what a search for faults found, for people: a summary in tables, then each new violation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.conforming.conform import Finding, Misuse, Report, Violation


def summary(report: Report) -> RenderableType:
    """Return the whole report but for the programs."""
    parts: list[RenderableType] = [Text(figures(report))]
    if report.violations:
        parts.append(_violations(report.violations))
    if report.misuse:
        parts.append(_misuse(report.misuse))
    parts.append(_properties(report))
    parts += [Text(line) for line in _rest(report)]
    return Group(*parts)


def figures(report: Report) -> str:
    """Return the counts of a search."""
    examples = ", ".join(f"{n:,} by {who}" for who, n in report.examples.items())
    return (
        f"{report.release}: {report.calls:,} calls in {report.seconds:.1f} s, examples: "
        f"{examples or 'none'}; seed {report.seed}"
    )


def _violations(violations: Sequence[Violation]) -> Table:
    table = Table(title="violations", title_justify="left", show_lines=True)
    for column in ("property", "call", "answer", "calls", "found after", "declared"):
        table.add_column(column, overflow="fold")
    for v in violations:
        answer = v.answer if v.observation is None else f"{v.answer}; wrong is {v.observation}"
        table.add_row(
            v.property, v.action, answer, str(len(v.calls)), _after(v), Text(v.declared or "no")
        )
    return table


def _misuse(misuse: Sequence[Misuse]) -> Table:
    title = "misuse that is not refused (no fault of a careful caller)"
    table = Table(title=title, title_justify="left")
    for column in ("rule", "call", "what happens", "what breaks", "calls"):
        table.add_column(column, overflow="fold")
    for m in misuse:
        happens = "nothing: it passes" if m.silent else m.answer
        breaks = "-" if m.property == "refinement" else m.property
        table.add_row(m.rule, m.action, Text(happens), breaks, str(len(m.calls)))
    return table


def _properties(report: Report) -> Table:
    table = Table(title="properties", title_justify="left")
    table.add_column("property", overflow="fold")
    table.add_column("verdict")
    table.add_column("evaluated, or why not", overflow="fold")
    for held in report.held:
        table.add_row(held.property, Text("held", "green"), f"{held.evaluated:,} times")
    for name in dict.fromkeys(v.property for v in report.violations):
        new = any(v.declared is None for v in report.violations if v.property == name)
        times = sum(v.property == name for v in report.violations)
        faults = f"{times} fault{'s' * (times > 1)}"
        table.add_row(name, Text("violated", "red" if new else "yellow"), faults)
    for left in report.not_applicable:
        table.add_row(left.name, "not applicable", left.why)
    for name in report.not_evaluated:
        table.add_row(name, Text("not evaluated", "yellow"), "no call came to it")
    return table


def _rest(report: Report) -> Iterator[str]:
    seen, unseen = report.situations_seen, report.situations_unseen
    missing = f"; not seen: {', '.join(unseen)}" if unseen else ""
    yield f"{len(seen)} of {len(seen) + len(unseen)} situations were seen{missing}"
    enforced = ", ".join(f"{rule} ({n:,})" for rule, n in report.rules_enforced.items())
    yield f"rules enforced: {enforced or 'none'}"
    for says in report.declared_and_not_found:
        yield f"declared and not found: {says}"


def _after(finding: Finding) -> str:
    return f"{finding.found_after_seconds:.1f} s, {finding.found_after_calls:,} calls"


def in_full(violation: Violation) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of a violation, each with the style that it is printed in."""
    yield violation.line, "red"
    yield violation.details, None
    met = f"; met {violation.met_again:,} times more" if violation.met_again else ""
    yield f"found by {violation.found_by} after {_after(violation)}{met}", None
    yield violation.table, None
    yield violation.test, "dim"
