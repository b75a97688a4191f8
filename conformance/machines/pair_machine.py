"""What the stateful machines share: a pair in lockstep, and the program that it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from hypothesis import reject
from hypothesis.stateful import RuleBasedStateMachine

from conformance.lockstep import Divergence, Lockstep
from conformance.machines.strategies import Ids, Kind
from conformance.program import Factory, Operation, Program, recording
from conformance.subject import Refusal
from spec.registry import Step

T = TypeVar("T")


class Failure(NamedTuple):
    """A program and the divergence that it ends in."""

    program: Program
    divergence: Divergence


@dataclass
class Tally:
    """What the examples of one run did, as far as they have come."""

    on_step: Callable[[Step], None] | None = None
    known: Callable[[Divergence], bool] = lambda _: False
    examples: int = 0
    calls: int = 0
    failure: Failure | None = None


class Machine(RuleBasedStateMachine):
    """What the two machines share: a pair in lockstep, and the program that it was given."""

    pair: Lockstep
    operations: list[Operation]

    def __init__(self, make: Factory, tally: Tally) -> None:
        super().__init__()
        self.make = make
        self.tally = tally
        tally.examples += tally.failure is None

    def start(self, size: Ids, kind: Kind) -> None:
        """Make the pair; a subject without a window gets none."""
        subject = self.make(kind.config(size))
        if not subject.capabilities.window:
            subject = self.make(kind._replace(window=None).config(size))
        subject, self.operations = recording(subject)
        self.pair = Lockstep(subject, "full")
        self.pair.on_step = self.tally.on_step

    def ask(self, verb: str, *args: Any) -> Any:  # noqa: ANN401  # as the verb's
        """Make a call and return its answer, None when it is refused."""
        self.tally.calls += self.tally.failure is None
        try:
            return getattr(self.pair, verb)(*args)
        except Refusal:
            return None
        except Divergence as divergence:
            if self.tally.known(divergence):
                reject()
            program = Program(self.pair.config, tuple(self.operations))
            self.tally.failure = Failure(program, divergence)
            raise


def chosen(things: Sequence[T], picks: Ids) -> tuple[T, ...]:
    """Return what the picks mean among the things that there are."""
    return tuple(things[n % len(things)] for n in picks)
