"""What is known to be wrong with a subject, as data, so that a search can go on past it.

Three things can be known. Rules whose misuse the subject does not notice: calls that break them are
not made. Observations that are wrong whatever the calls: they are masked. And faults: where one of
them shows, an example ends, and nobody is told.

Rejected: to repair the subject's state and go on with the same example. What a fault leaves behind
differs from release to release, and what follows from it would be reported as another fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final, NamedTuple, cast

from conformance.divergence import Divergence
from conformance.program import VERBS, Factory
from conformance.subject import BlockView, Capabilities, Snapshot, Subject
from kvcache.errors import KVCacheError
from spec.state import NULL, Config
from spec.statemachine import Refused

ANSWERS: Final = frozenset({"request_is_too_large"})
"""Rules whose refusal is an answer to a careful caller; to break any other one is misuse."""


class Fault(NamedTuple):
    """What tells one fault from another: the property, the call, and what was answered."""

    property: str
    action: str
    answer: str


def fault_of(divergence: Divergence) -> Fault:
    """Return the fault that a divergence shows.

    Of an exception it also says where it was raised: one assertion is not another.
    """
    expected, actual = divergence.results
    return Fault(divergence.property, divergence.call.action, _answer(expected, actual))


def _answer(expected: object, actual: object) -> str:
    if isinstance(actual, Refused):
        return f"{actual.rule} in {actual.values['where']}" if _raised(actual) else actual.rule
    if isinstance(expected, Refused):
        return f"not {expected.rule}"
    if expected == actual:
        return "as specified"
    if expected is None:
        return "taken without room"
    return "no room though there is" if actual is None else "another answer"


def _raised(answer: Refused) -> bool:
    return "where" in answer.values


def misused(divergence: Divergence) -> str | None:
    """Return the rule of a misuse that the subject did not refuse as misuse, None for the rest."""
    expected, _ = divergence.results
    if isinstance(expected, Refused) and expected.rule not in ANSWERS:
        return expected.rule
    return None


def all_rules() -> frozenset[str]:
    """Return the rules of the specification that a caller can break."""

    def rules(kind: type[KVCacheError]) -> Iterable[str]:
        yield kind.rule
        for below in kind.__subclasses__():
            yield from rules(below)

    return frozenset(rules(KVCacheError))


def _enforced(misuse: frozenset[tuple[str, str]]) -> Iterable[str]:
    """Yield every rule, by verb where one of the verbs is known not to enforce it."""
    partly = {rule for rule, _ in misuse}
    yield from all_rules() - partly
    yield from (f"{v} {rule}" for v, rule in product(VERBS, partly) if (rule, v) not in misuse)


class Mask(NamedTuple):
    """How an observation that is wrong in itself is kept out of the comparison."""

    says: str
    of_snapshot: Callable[[Snapshot], Snapshot]
    of_null: Callable[[BlockView], BlockView]


MASKS: Final[Mapping[str, Mask]] = {
    "usage": Mask(
        "the share of the pool that is held",
        lambda seen: replace(seen, usage=None),
        lambda view: view,
    ),
    "null_count": Mask(
        "the reference count of the null block",
        lambda seen: replace(seen, ref_cnts=(0, *seen.ref_cnts[1:])),
        lambda view: (0, *view[1:]),
    ),
}
"""Observations that no later call depends on, by name."""


class Known(NamedTuple):
    """What is known to be wrong with a subject. The empty one knows nothing."""

    misuse: frozenset[tuple[str, str]] = frozenset()
    """Rules whose breach is not noticed, each with the verb that does not notice it."""
    masked: frozenset[str] = frozenset()
    """Names of `MASKS`."""
    faults: frozenset[Fault] = frozenset()

    def excuses(self, divergence: Divergence) -> bool:
        """Return True for a divergence that shows a known fault."""
        return fault_of(divergence) in self.faults

    def forgiving(self, make: Factory) -> Factory:
        """Return what makes subjects of which nothing is asked and seen that is known."""

        def forgiven(config: Config) -> Subject:
            return cast("Subject", Forgiving(make(config), self))

        return forgiven


class Forgiving:
    """A subject without what is known of it. It answers as the subject does in everything else.

    Every rule is asked for that is not known to be passed over, whatever the subject says of
    itself.
    """

    def __init__(self, subject: Subject, known: Known) -> None:
        self.subject = subject
        self.capabilities: Capabilities = replace(
            subject.capabilities, rules=frozenset(_enforced(known.misuse))
        )
        self._masks = [MASKS[name] for name in sorted(known.masked)]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the subject has
        return getattr(self.subject, name)

    def snapshot(self) -> Snapshot:
        """Return everything that is not masked."""
        seen = self.subject.snapshot()
        for mask in self._masks:
            seen = mask.of_snapshot(seen)
        return seen

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks and the ends and length of the queue."""
        views, head, tail, num_free = self.subject.look(ids)
        for mask in self._masks:
            views = [
                mask.of_null(view) if b == NULL else view
                for b, view in zip(ids, views, strict=True)
            ]
        return views, head, tail, num_free
