"""Performs a program and keeps what happened, call by call, so that a failure can be seen.

Both sides start fresh and every call is compared in full, so the two agree in every frame but the
last, and only there the subject's snapshot says something that the specification's state does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple, cast

from conformance.lockstep import ACTIONS, Divergence, Lockstep
from conformance.program import VERBS, Factory, Operation, Program, failure, perform
from conformance.subject import Refusal, Snapshot, Subject
from conformance.view import Difference, differences, holders_of
from spec.invariants import REGISTRY
from spec.state import NULL, Config, State
from spec.statemachine import Refused

MOST_CALLS: Final = 2_000
"""Frames that are kept, the last ones; fewer where blocks are many."""

FEW_BLOCKS: Final = 64
"""A pool of so many blocks is shown whole."""

MOST_BLOCKS: Final = 4_000_000
"""Blocks of all kept frames together: what fits in a few hundred megabytes."""

NO_PROPERTY = (
    "The subject answers and looks as the specification says.",
    "No named property is broken, but who takes the one for the other gets other blocks or hits.",
)


class Frame(NamedTuple):
    """One call and the states around it.

    `expected` and `actual` are answers: what was returned, or the `Refused` that says by which
    rule. `seen` is the subject's snapshot and stands only where the two sides part; `trouble` says
    why there is none.
    """

    number: int
    action: str
    args: Mapping[str, Any]
    expected: object
    actual: object
    before: State
    after: State
    seen: Snapshot | None = None
    trouble: str = ""

    @property
    def bad(self) -> bool:
        """True where the two sides part."""
        return self.seen is not None or bool(self.trouble)

    def changed(self) -> set[int]:
        """Return the blocks that the call changed, on either side."""
        pairs = enumerate(zip(self.before.pool.blocks, self.after.pool.blocks, strict=True))
        return {b for b, (old, new) in pairs if old is not new and old != new} | self.differing()

    def differences(self) -> list[Difference]:
        """Return what the two sides see differently after the call."""
        return [] if self.seen is None else list(differences(self.after, self.seen))

    def differing(self) -> set[int]:
        """Return the blocks about which the two sides differ."""
        num_blocks = len(self.after.pool.blocks)
        ids = {d.block for d in self.differences()}
        return {b for b in ids if b is not None and 0 <= b < num_blocks}

    def touched(self) -> set[int]:
        """Return the blocks that the call changed, was given, or answered with."""
        named = [self.args.get("ids"), self.args.get("hits"), self.args.get("table")]
        ids = {b for value in (*named, self.expected, self.actual) for b in _ids(value)}
        return self.changed() | ids

    def holders(self, b: int) -> str:
        """Return who holds a block after the call, by the specification's ledger."""
        return holders_of(self.after, b)


class Explained(NamedTuple):
    """A program as it went: the last frames, how many calls there were, and how it ended.

    The first frame is the start, with number 0, unless it was cut. `divergence` is None where the
    two sides agreed to the end.
    """

    subject: str
    config: Config
    frames: tuple[Frame, ...]
    total: int
    divergence: Divergence | None
    interrupted: bool = False

    @property
    def guilty(self) -> int | None:
        """The block that the violation is about, if it is about one that there is."""
        if self.divergence is None:
            return None
        named = self.divergence.found.block
        if named is not None and NULL <= named < self.config.num_gpu_blocks:
            return named
        return min(self.frames[-1].differing(), default=None)

    @property
    def meaning(self) -> tuple[str, str]:
        """What the broken property says, and why it matters to a user."""
        known = self.divergence and REGISTRY.get(self.divergence.property)
        return (known.statement, known.why) if known else NO_PROPERTY

    def blocks(self) -> list[int]:
        """Return the blocks worth showing: all of a small pool, of a large one those touched.

        Null is among them only where the two sides differ about it.
        """
        usable = range(1, self.config.num_gpu_blocks)
        differing = set(self.frames[-1].differing())
        if self.guilty is not None:
            differing.add(self.guilty)
        if len(usable) <= FEW_BLOCKS:
            return sorted({*usable, *differing})
        seen = set().union(*(frame.touched() for frame in self.frames))
        return sorted((seen & set(usable)) | differing) or [1]

    def history(self, b: int) -> list[Frame]:
        """Return the frames that touched a block, of those that were kept."""
        return [frame for frame in self.frames if b in frame.touched()]


def explained(
    program: Program,
    make: Factory,
    keep: int | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Explained:
    """Perform a program on a fresh subject beside the specification, and keep what happened.

    The last `keep` calls are kept, `MOST_CALLS` by default and fewer for a large pool; the calls
    before them are made and checked all the same. Ctrl-C ends the work and keeps what there is.
    """
    most = keep or max(50, min(MOST_CALLS, MOST_BLOCKS // program.config.num_gpu_blocks))
    film = _film(program, make, most, on_call or (lambda _: None))
    if film.divergence is None and not film.interrupted:
        # A wrong look at single blocks is seen by incremental checks only.
        found = failure(program, make, "incremental")
        if found is not None:
            film = _film(program, make, most, lambda _: None, found)
    return film


def _film(
    program: Program,
    make: Factory,
    most: int,
    on_call: Callable[[int], None],
    divergence: Divergence | None = None,
) -> Explained:
    """Return what full checks see, or the calls up to a divergence that other checks saw."""
    watched = _Watched(make(program.config), most, on_call)
    pair = Lockstep(cast("Subject", watched))
    watched.begin(lambda: pair.state)
    interrupted = False
    operations: Iterable[Operation] = program.operations
    if divergence is not None:
        last = divergence.call.number
        operations = takewhile(lambda _: pair.calls < last, operations)
    try:
        perform(pair, operations)
        pair.sweep()
    except Divergence as found:
        divergence = found
    except KeyboardInterrupt:
        interrupted = True
    if divergence is not None:
        watched.part()
    frames = tuple(watched.frames)
    return Explained(pair.name, pair.config, frames, pair.calls, divergence, interrupted)


class _Watched:
    """A subject that keeps a frame of each call that it is asked."""

    def __init__(self, subject: Subject, most: int, on_call: Callable[[int], None]) -> None:
        self.subject = subject
        self.frames: deque[Frame] = deque(maxlen=most + 1)
        self._on_call = on_call
        self._state: Callable[[], State] = lambda: self.frames[-1].after

    def begin(self, state: Callable[[], State]) -> None:
        """Learn where the specification's state is, and keep the first frame."""
        self._state = state
        self.frames.append(Frame(0, "start", {}, None, None, state(), state()))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the subject has
        inner = getattr(self.subject, name)
        if name not in VERBS:
            return inner

        def call(**args: object) -> object:
            try:
                answered = inner(**args)
            except Refusal as refusal:
                self._keep(name, args, Refused(refusal.rule, text=refusal.text))
                raise
            except Exception as crash:
                self._keep(name, args, Refused(f"raised_{type(crash).__name__}", text=str(crash)))
                raise
            self._keep(name, args, tuple(answered) if isinstance(answered, list) else answered)
            return answered

        return call

    def _keep(self, action: str, args: Mapping[str, object], answered: object) -> None:
        last, after = self.frames[-1], self._state()
        number = last.number + 1
        self.frames.append(Frame(number, action, args, answered, answered, last.after, after))
        self._on_call(number)

    def part(self) -> None:
        """Put what the specification answers, and what the subject shows, into the last frame."""
        frame = self.frames.pop()
        expected = frame.expected
        if frame.action in ACTIONS:
            try:
                _, expected = ACTIONS[frame.action](frame.before, **frame.args)
            except Refused as refused:
                expected = refused
        try:
            seen, trouble = self.subject.snapshot(), ""
        except Exception as crash:  # noqa: BLE001  # that it cannot be looked at is what is shown
            seen, trouble = None, f"{type(crash).__name__}: {crash}"
        self.frames.append(frame._replace(expected=expected, seen=seen, trouble=trouble))


def _ids(value: object) -> Iterator[int]:
    if isinstance(value, Iterable) and not isinstance(value, str):
        yield from (b for b in value if isinstance(b, int))
