"""Searches for everything that is wrong with a subject: what is found is known from then on.

The stateful machines and the plain walks take turns, under full checks, so that a failure has the
same name whoever finds it. A failure is shrunk and taken down. Then it is known, and the search
goes on past it: a misuse that passes is not made any more, an observation that is wrong in itself
is masked, and at any other fault an example ends quietly. What is searched follows from the seed;
how far it comes depends on the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from conformance.conforming.known import MASKS, Fault, Known, fault_of, misused
from conformance.exhaustive.coverage import Reached
from conformance.exhaustive.production import quiet
from conformance.fuzzing.campaign import derived
from conformance.fuzzing.fuzz import PROBE, Episode, Job, episodes, made, walked
from conformance.lockstep import Divergence, Lockstep
from conformance.machines.machine import MACHINES, run_machine
from conformance.program import Factory, Program, failure, recording
from conformance.shrinking.shrink import NoFailureError, shrink
from spec.invariants import Step
from spec.registry import relevant
from spec.statemachine import Refused

EXAMPLES: Final = 25
"""Examples of a machine in a turn."""
WALKS: Final = 20
"""Walks in a turn."""
MOST_CALLS: Final = 200
"""Calls of a walk: what is wrong shows early, and long walks are the business of `kvspec fuzz`."""
MOST_BLOCKS: Final = 64
"""Blocks of a pool up to which every call is checked whole."""
SHRINK_SECONDS: Final = 10.0


class Found(NamedTuple):
    """Something wrong with a subject, in the fewest calls."""

    fault: Fault
    program: Program
    divergence: Divergence
    rule: str | None
    """The rule that was broken when misuse passed; None when a careful caller sees the fault."""
    mask: str | None
    """The observation that alone is wrong, a name of `MASKS`; it is masked from then on."""
    masked: tuple[str, ...]
    """What was masked when the program failed."""
    found_by: str
    seconds: float
    calls: int
    examples: int


@dataclass(slots=True)
class Tally:
    """What a search has done and seen so far."""

    examples: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    turns: int = 0
    seconds: float = 0.0
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls that were compared, by the levels of properties that were evaluated and by verb."""
    refusals: Counter[str] = field(default_factory=Counter)
    """How often the subject refused, as the specification does, by rule."""
    met_again: Counter[Fault] = field(default_factory=Counter)
    reached: Reached = field(default_factory=Reached)
    found: list[Found] = field(default_factory=list)

    def evaluated(self) -> Counter[str]:
        """Return how often each property was evaluated."""
        times: Counter[str] = Counter()
        for (levels, verb), n in self.steps.items():
            for p in (*relevant("step", levels, verb), *relevant("state", levels, "")):
                times[p.name] += n
        return times


class Search:
    """A search of one subject. `tally` is right at every moment."""

    def __init__(
        self, name: str, make: Factory, seed: int, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.name = name
        self.seed = seed
        self.known = Known()
        self.tally = Tally()
        self._make: Factory = partial(made, make, name)
        probe = self._make(PROBE)
        self.capabilities, self.release = probe.capabilities, probe.name
        self._tell = tell
        self._begun = time.monotonic()

    def run(self, seconds: float) -> None:
        """Search until the time is over, at least one turn; a search can be gone on with."""
        begun = time.monotonic()
        self._begun = begun - self.tally.seconds
        try:
            with quiet():
                for turn in count(self.tally.turns):
                    for stage in self._stages(turn):
                        stage()
                    self.tally.turns += 1
                    if time.monotonic() > begun + seconds:
                        return
        finally:
            self.tally.seconds = time.monotonic() - self._begun

    def _stages(self, turn: int) -> Iterator[Callable[[], None]]:
        for name in MACHINES:
            if name != "pool" or self.capabilities.pool_calls:
                yield partial(self._machine, name, turn)
        yield partial(self._walks, turn)

    @property
    def _forgiving(self) -> Factory:
        return self.known.forgiving(self._make)

    def _machine(self, name: str, turn: int) -> None:
        who = f"machine of the {name}"
        self._tell(who)
        run = run_machine(
            MACHINES[name],
            self._forgiving,
            max_examples=EXAMPLES,
            seed=derived(self.seed, "conform", name, turn),
            shrink=False,
            on_step=self._saw("P" if name == "pool" else "PM"),
            known=self._is_known,
        )
        self.tally.examples[who] += run.examples
        if run.failure is not None:
            self._take(*run.failure, who)

    def _walks(self, turn: int) -> None:
        self._tell("walks")
        job = Job(derived(self.seed, "conform", "walk", turn), 0, self.name)
        drawn = episodes(job, self.capabilities)
        small = (e for e in drawn if e.config.num_gpu_blocks <= MOST_BLOCKS)
        for _, episode in zip(range(WALKS), small, strict=False):
            self._walk(episode._replace(calls=min(episode.calls, MOST_CALLS), full=True))

    def _walk(self, episode: Episode) -> None:
        subject, operations = recording(self._forgiving(episode.config))
        pair = Lockstep(subject, "full")
        pair.on_step = self._saw("P" if episode.pool else "PM")
        _, divergence = walked(pair, episode)
        self.tally.examples["walks"] += 1
        if divergence is not None and not self._is_known(divergence):
            self._take(Program(pair.config, tuple(operations)), divergence, "walks")

    def _saw(self, levels: str) -> Callable[[Step], None]:
        tally = self.tally

        def saw(step: Step) -> None:
            tally.calls += 1
            tally.steps[levels, step.action] += 1
            if isinstance(step.result, Refused):
                tally.refusals[step.result.rule] += 1
            tally.reached.note(step)

        return saw

    def _is_known(self, divergence: Divergence) -> bool:
        excused = self.known.excuses(divergence)
        if excused:
            self.tally.met_again[fault_of(divergence)] += 1
        return excused

    def _take(self, program: Program, divergence: Divergence, who: str) -> None:
        """Shrink a failure, take it down, and know it from now on."""
        seconds = time.monotonic() - self._begun
        self._tell(f"shrinking a failure of {divergence.property}")
        try:
            program, divergence = shrink(
                program, self._forgiving, max_seconds=SHRINK_SECONDS, same=fault_of, check="full"
            )
        except NoFailureError:
            who += "; the same calls do not fail again"
        known, fault, rule = self.known, fault_of(divergence), misused(divergence)
        mask = None if rule else self._explaining_mask(program)
        self.tally.found.append(
            Found(
                fault,
                program,
                divergence,
                rule,
                mask,
                tuple(sorted(known.masked)),
                who,
                seconds,
                self.tally.calls,
                self.tally.examples.total(),
            )
        )
        if rule is not None:
            self.known = known._replace(misuse=known.misuse | {(rule, fault.action)})
        elif mask is not None:
            self.known = known._replace(masked=known.masked | {mask})
        else:
            self.known = known._replace(faults=known.faults | {fault})

    def _explaining_mask(self, program: Program) -> str | None:
        """Return the observation without which the calls agree, if there is one."""
        for mask in sorted(MASKS.keys() - self.known.masked):
            more = self.known._replace(masked=self.known.masked | {mask})
            if failure(program, more.forgiving(self._make)) is None:
                return mask
        return None
