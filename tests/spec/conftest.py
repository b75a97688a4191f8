"""A world that moves by calls of the specification and keeps each of them as a `Step`.

A letter is a token, so prompts are words; the block size is 2 unless a test says otherwise.
Actions are looked up by name at the call, so a test may put a wrong one in their place.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import pytest

from spec import statemachine as sm
from spec.invariants import Broken, Step, broken
from spec.state import NULL, Config, Key, Request, State, block_state, initial
from spec.statemachine import Outcome, Refused

Call: TypeAlias = Callable[[State], tuple[str, Mapping[str, Any]]]
"""From a state to an action and its arguments, which may depend on it."""


def word(letters: str) -> tuple[int, ...]:
    """Return the tokens of a word."""
    return tuple(map(ord, letters))


def perform(before: State, action: str, args: Mapping[str, Any]) -> Step:
    """Make one call; a refusal is its result, and then the state stays."""
    try:
        answer = getattr(sm, action)(before, **args)
    except Refused as refused:
        return Step(before, action, args, refused, before)
    if action == "get_computed_blocks":
        return Step(before, action, args, answer, before)
    after, result = (answer, None) if isinstance(answer, State) else answer
    return Step(before, action, args, result, after)


class World:
    """One state, and the verbs of a test that is told in words."""

    def __init__(self, config: Config) -> None:
        self.state = initial(config)
        self.steps: list[Step] = []

    def __call__(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the action's
        """Make one call and return its result."""
        self.steps.append(perform(self.state, action, args))
        self.state = self.steps[-1].after
        return self.steps[-1].result

    def refused(self, action: str, **args: Any) -> tuple[str, dict[str, object]]:  # noqa: ANN401
        """Return the rule by which a call is refused, and the values; it must change nothing."""
        before, shown = self.state, repr(self.state)
        refusal = self(action, **args)
        assert isinstance(refusal, Refused), refusal
        assert (before, shown) == (self.state, repr(self.state))
        return refusal.rule, refusal.values

    def add(self, rid: str, letters: str, **options: Any) -> None:  # noqa: ANN401
        """A request arrives."""
        assert self("add_request", rid=rid, request=Request(word(letters), **options)) is None

    def look(self, rid: str) -> Any:  # noqa: ANN401  # ids
        """Look a request up."""
        return self("get_computed_blocks", rid=rid)

    def allocate(self, rid: str, n: int, hits: Iterable[int] = (), ahead: int = 0) -> Any:  # noqa: ANN401
        """Reserve the slots of a step."""
        args = {"rid": rid, "num_tokens": n, "hits": tuple(hits), "num_lookahead": ahead}
        return self("allocate_slots", **args)

    def admit(self, rid: str, n: int | None = None) -> Any:  # noqa: ANN401  # ids, or why not
        """Look a request up and schedule the rest of its tokens, or `n`."""
        hits, r = self.look(rid), self.state.requests[rid]
        rest = len(r.tokens) - len(hits) * self.state.config.block_size
        return self.allocate(rid, rest if n is None else n, hits)

    def run(self, **outcomes: str | tuple[int, str]) -> None:
        """Run what is scheduled; a request samples a word, or accepts drafts and samples one."""
        flying = [rid for rid, r in self.state.requests.items() if r.in_flight]
        made = {}
        for rid in flying:
            found = outcomes.pop(rid, "")
            accepted, sampled = (0, found) if isinstance(found, str) else found
            made[rid] = Outcome(accepted, word(sampled))
        assert not outcomes, f"{outcomes} is for requests that are not scheduled"
        assert self("run_step", outcomes=made) is None

    def new(self, rid: str, letters: str, **options: Any) -> tuple[int, ...]:  # noqa: ANN401
        """A request arrives, is admitted whole, and runs. Return its table."""
        self.add(rid, letters, **options)
        assert isinstance(self.admit(rid), tuple), self.steps[-1]
        self.run()
        return self.table(rid)

    def end(self, rid: str) -> None:
        """A request ends."""
        assert self("finish", rid=rid) is None

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a block table."""
        return self.state.requests[rid].table or ()

    def key(self, b: int) -> Key | None:
        """Return the key of a block."""
        return self.state.pool.blocks[b].key

    def with_pool(self, **facts: Any) -> State:  # noqa: ANN401  # any fact of the pool
        """Return the state with facts of the pool overwritten, and nothing that must agree."""
        return self.state._replace(pool=self.state.pool._replace(**facts))

    def with_block(self, b: int, **facts: Any) -> State:  # noqa: ANN401  # any fact of a block
        """Return the state with facts of one block overwritten."""
        block = self.state.pool.blocks[b]._replace(**facts)
        return self.state._replace(pool=self.state.pool.update({b: block}))

    def with_request(self, rid: str, **facts: Any) -> State:  # noqa: ANN401  # any fact of one
        """Return the state with facts of one request overwritten."""
        r = self.state.requests[rid]._replace(**facts)
        return self.state._replace(requests=self.state.requests.set(rid, r))

    def broken(self) -> list[tuple[str, Broken]]:
        """Return every property that any step or state so far breaks."""
        subjects = [subject for step in self.steps for subject in (step, step.after)]
        return [found for subject in subjects for found in broken(subject)]


class Scope(NamedTuple):
    """How far a search looks: two requests over a few prompts, which grow by the letter a."""

    config: Config
    prompts: tuple[str, ...]
    longest: int
    drafts: str = ""

    def moves(self, s: State) -> Iterator[tuple[str, tuple[Call, ...]]]:
        """Yield what a scheduler may do now, each with a label."""
        fresh = [rid for rid in "AB" if rid not in s.requests][:1]
        for rid, letters in product(fresh, self.prompts):
            arrive = partial(_fixed, "add_request", rid=rid, request=Request(word(letters)))
            for n in {len(letters), 1}:
                yield f"admit {rid} {letters} {n}", (arrive, *_goes_on(rid, n, None))
        for rid, r in s.requests.items():
            if not r.in_flight and r.num_computed < len(r.tokens):
                for n in {len(r.tokens) + len(r.drafts), 1}:
                    yield f"allocate {rid} {n}", _goes_on(rid, n, r.table)
                if self.drafts and not r.drafts and len(r.tokens) < self.longest:
                    drafts = word(self.drafts)
                    yield f"propose {rid}", (partial(_fixed, "propose", rid=rid, drafts=drafts),)
            if r.table is not None and not r.num_preemptions:
                yield f"preempt {rid}", (partial(_fixed, "preempt", rid=rid),)
            yield f"finish {rid}", (partial(_fixed, "finish", rid=rid),)
        flying = {rid: r for rid, r in s.requests.items() if r.in_flight}
        for most in range(len(self.drafts) + 1) if flying else ():
            outcomes = {rid: self._outcome(r, most) for rid, r in flying.items()}
            yield f"run {most}", (partial(_fixed, "run_step", outcomes=outcomes),)
        yield "reset", (partial(_fixed, "reset_prefix_cache"),)

    def _outcome(self, r: Request, most: int) -> Outcome:
        drafted = r.end - len(r.tokens)
        accepted = min(most, max(0, drafted))
        grows = drafted >= 0 and len(r.tokens) + accepted < self.longest
        return Outcome(accepted, word("a") if grows else ())


def _fixed(action: str, _: State, **args: Any) -> tuple[str, Mapping[str, Any]]:  # noqa: ANN401
    return action, args


def _goes_on(rid: str, most: int, table: tuple[int, ...] | None) -> tuple[Call, ...]:
    """Return the calls that schedule up to so many tokens: who has no table looks up first."""

    def allocate(s: State) -> tuple[str, Mapping[str, Any]]:
        r = s.requests[rid]
        hits = sm.get_computed_blocks(s, rid) if table is None else ()
        rest = len(r.tokens) + len(r.drafts) - r.num_computed - len(hits) * s.config.block_size
        args = {"rid": rid, "num_tokens": min(most, rest), "hits": hits, "num_lookahead": 0}
        return "allocate_slots", args

    look = (partial(_fixed, "get_computed_blocks", rid=rid),) if table is None else ()
    return *look, allocate


class Found(NamedTuple):
    """What a search found: its size, what it saw, and the first broken properties with a path."""

    states: int
    seen: Counter[str]
    complete: bool
    broken: AbstractSet[str] = frozenset()
    path: tuple[str, ...] = ()


def search(scope: Scope, limit: int = 20_000, sought: str = "") -> Found:
    """Search breadth first until something is broken (only the property `sought`, if named)."""
    start = initial(scope.config)
    came: dict[State, tuple[State, str] | None] = {start: None}
    todo, seen = deque([start]), Counter[str]()
    while todo:
        s = todo.popleft()
        for label, calls in scope.moves(s):
            end, found = s, set[str]()
            for call in calls:
                step = perform(end, *call(end))
                seen.update(_kinds(step))
                end = step.after
                found.update(name for name, _ in broken(step))
            if end not in came:
                found.update(name for name, _ in broken(end))
            if sought in found or (found and not sought):
                path = (*_path(came, s), label)
                return Found(len(came), seen, complete=False, broken=found, path=path)
            if end not in came:
                if len(came) == limit:
                    return Found(limit, seen, complete=False)
                came[end] = (s, label)
                todo.append(end)
                seen.update(block_state(end, b).value for b in range(1, end.config.num_gpu_blocks))
    return Found(len(came), seen, complete=True)


def _path(came: Mapping[State, tuple[State, str] | None], s: State) -> tuple[str, ...]:
    """Return the labels of the moves that lead to a state."""
    back = came[s]
    return () if back is None else (*_path(came, back[0]), back[1])


def _kinds(step: Step) -> Iterator[str]:
    """Yield what happened in a call, in a word or two."""
    if isinstance(step.result, Refused):
        yield step.result.rule
    elif isinstance(step.result, bool):
        yield f"reset {step.result}"
    elif step.action == "allocate_slots":
        old, rid = step.before.pool.blocks, step.args["rid"]
        yield "no room" if step.result is None else "room"
        if isinstance(step.result, tuple) and any(old[b].key for b in step.result):
            yield "an eviction"
        if any(old[b].ref_cnt == 0 for b in step.args["hits"] if b != NULL):
            yield "no room for an idle hit" if step.result is None else "an idle hit"
        if NULL in (step.after.requests[rid].table or ()):
            yield "a null in a table"
        if step.args["hits"] and step.before.requests[rid].num_preemptions:
            yield "a preempted request hits"


@pytest.fixture
def world() -> Callable[..., World]:
    """Return a maker of worlds with a number of usable blocks, the null block not counted."""

    def make(usable: int = 4, block_size: int = 2, **options: Any) -> World:  # noqa: ANN401
        return World(Config(usable + 1, block_size, **options))

    return make


@pytest.fixture(scope="session")
def perform_call() -> Callable[[State, str, Mapping[str, Any]], Step]:
    """Return the function that makes one call of a state."""
    return perform


@pytest.fixture
def chain() -> Callable[..., tuple[Key, ...]]:
    """Return a function from a word to the keys of its full blocks."""

    def keys(letters: str, block_size: int = 2) -> tuple[Key, ...]:
        found: list[Key] = []
        for i in range(len(letters) // block_size):
            own = word(letters[i * block_size : (i + 1) * block_size])
            found.append(Key(found[-1] if found else None, own))
        return tuple(found)

    return keys


@pytest.fixture
def explore() -> Callable[..., Found]:
    """Return a search: the number of usable blocks, prompts, longest length, and its options."""

    def run(
        usable: int,
        prompts: str,
        longest: int,
        *,
        drafts: str = "",
        limit: int = 20_000,
        sought: str = "",
        **options: Any,  # noqa: ANN401  # any option of a Config
    ) -> Found:
        config = Config(usable + 1, **{"block_size": 1} | options)
        return search(Scope(config, tuple(prompts.split()), longest, drafts), limit, sought)

    return run
