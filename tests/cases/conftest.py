"""Scenes: the cases in their own notation, told to our manager and the specification in lockstep.

`pool(u)` is a scene with `u` usable blocks and blocks of 2 tokens. Its verbs are those of the case
collection: `new(A, abc)` looks up and allocates the whole prompt and the step runs, `adm` is the
same before the step has run, `gen(A)` is one decode step, `free(A)` is the end of the request,
`pre(A)` preempts it. Each letter is a token. A step that `says` a letter has sampled that token.
Every verb is one or more calls on the pair, checked in full; a difference is a `Divergence`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Self, TypedDict, Unpack, cast

import pytest

from conformance.adapters.reference import Reference
from conformance.lockstep import Check, Lockstep
from conformance.subject import Refusal, RequestSpec, Snapshot
from kvcache import KVCacheManager
from spec.state import Config, Key, Request
from spec.statemachine import Outcome

Ids = tuple[int, ...]


class Extras(TypedDict, total=False):
    """What determines content besides tokens.

    `lora` reads `name` or `name:generation`, `media` reads `item@offset+length item@...`.
    """

    lora: str | tuple[int | str, int]
    media: str
    salt: str
    logprobs: bool


class Plan(Extras, total=False):
    """How much is asked for at an admission."""

    tokens: int
    drafts: str
    lookahead: int
    hits: Ids | int


class Options(TypedDict, total=False):
    """What is fixed for a scene; see `Scene`. `longest` is the longest model length."""

    bs: int
    window: int | None
    algo: str
    caching: bool
    longest: int
    check: Check


class Answer(NamedTuple):
    """What a look-up found and what the allocation handed out; None when there was no room."""

    hits: Ids
    new: Ids | None


class Meters(NamedTuple):
    """Where the usable blocks are: held, idle with a key, idle without one."""

    live: int
    cached: int
    plain: int


def letters(text: str) -> Ids:
    """Return one token for each letter."""
    return tuple(map(ord, text))


def as_spec(text: str, **extras: Unpack[Extras]) -> RequestSpec:
    """Return what a request with this prompt arrives with."""
    lora = extras.get("lora")
    if isinstance(lora, str):
        name, _, generation = lora.partition(":")
        lora = (name, int(generation or 0))
    items = re.findall(r"(\S+)@(\d+)\+(\d+)", extras.get("media", ""))
    return RequestSpec(
        letters(text),
        lora=lora,
        media=tuple((item, int(offset), int(length)) for item, offset, length in items),
        salt=extras.get("salt"),
        prompt_logprobs=bool(extras.get("logprobs")),
    )


class Scene:
    """One pool with its requests, by name."""

    def __init__(self, usable: int, **options: Unpack[Options]) -> None:
        limits = options.get("longest", 64), bool(options.get("caching", True))
        size, window = options.get("bs", 2), options.get("window")
        self.config = Config(usable + 1, size, *limits, window)
        self.subject = Reference(self.config, options.get("algo", "sha256"))
        self.pair = Lockstep(self.subject, options.get("check", "full"))

    # What happens.

    def look(self, rid: str, text: str = "", **extras: Unpack[Extras]) -> Ids:
        """Look up a request's prefix; it arrives if it is not known."""
        if rid not in self.pair.state.requests:
            self.pair.add_request(rid, as_spec(text, **extras))
        return self.pair.get_computed_blocks(rid)

    def adm(
        self,
        rid: str,
        text: str = "",
        *,
        tokens: int | None = None,
        drafts: str = "",
        lookahead: int = 0,
        hits: Ids | int | None = None,
        **extras: Unpack[Extras],
    ) -> Answer:
        """Look up and allocate the next `tokens` tokens, all by default; `hits` may be others'."""
        hits = (hits,) if isinstance(hits, int) else hits
        running = rid in self.pair.state.requests and self.request(rid).table is not None
        found = () if running else self.look(rid, text, **extras)
        if drafts:
            self.pair.propose(rid, letters(drafts))
        hits, r = found if hits is None else hits, self.request(rid)
        left = len(r.tokens) + len(r.drafts) - r.num_computed - len(hits) * self.config.block_size
        num_tokens = left if tokens is None else tokens
        return Answer(hits, self.pair.allocate_slots(rid, num_tokens, hits, lookahead))

    def run(self, accepted: int = 0, /, **says: str) -> None:
        """Run what is scheduled; requests that say something have `accepted` drafts accepted."""
        flying = [rid for rid, r in self.pair.state.requests.items() if r.in_flight]
        outcomes = {rid: Outcome() for rid in flying}
        outcomes |= {rid: Outcome(accepted, letters(text)) for rid, text in says.items()}
        self.pair.run_step(outcomes)

    def new(self, rid: str, text: str = "", *, says: str = "", **plan: Unpack[Plan]) -> Answer:
        """Admit a request and run the step, in which it says something; no room, no step."""
        answer = self.adm(rid, text, **plan)
        if answer.new is not None:
            self.run(**({rid: says} if says else {}))
        return answer

    def gen(self, rid: str, says: str = "") -> Answer:
        """Make one decode step: the last token that was said gets its slot and is computed."""
        return self.new(rid, says=says)

    def free(self, *rids: str) -> None:
        """End requests, in the order given."""
        for rid in rids:
            self.pair.finish(rid)

    def release(self, rid: str) -> None:
        """Give back a request's blocks and do not forget it."""
        self.pair.free(rid)

    def pre(self, rid: str) -> None:
        """Preempt a request."""
        self.pair.preempt(rid)

    def reset(self) -> bool:
        """Reset the prefix cache."""
        return self.pair.reset_prefix_cache()

    def play(self, script: str) -> Self:
        """Tell a story in the notation of the cases: `new(A,abc,says=d); gen(A); free(A)`."""
        for told in script.split(";"):
            verb, args, named = _parsed(told)
            getattr(self, verb)(*args, **named)
        return self

    @classmethod
    def told(cls, story: str, check: Check) -> Self:
        """Make the scene of a story that begins with `pool(u)`, and play the story."""
        opening, script = story.split(";", 1)
        _, (usable,), named = _parsed(opening)
        options = cast("Options", named | {"check": check})
        return cls(int(usable), **options).play(script)

    # What a direct caller of the pool does.

    def take(self, n: int) -> Ids:
        """Take blocks."""
        return self.pair.get_new_blocks(n)

    def touch(self, *ids: int) -> None:
        """Add references."""
        self.pair.touch(ids)

    def drop(self, *ids: int) -> None:
        """Drop references, in one call."""
        self.pair.free_blocks(ids)

    def seal(self, b: int, text: str) -> None:
        """Seal one block whose content is `text`, at the beginning of a prompt."""
        self.pair.cache_full_blocks((b,), (Key(None, letters(text)),), 0, 1)

    def unpublish(self, *ids: int) -> None:
        """Take keys back."""
        self.pair.unpublish(ids)

    # What is seen.

    @property
    def manager(self) -> KVCacheManager:
        """The manager under test."""
        return self.subject.manager

    def request(self, rid: str) -> Request:
        """Return the specification's record of a request."""
        return self.pair.state.requests[rid]

    def table(self, rid: str) -> list[int]:
        """Return a request's block table."""
        return list(self.subject.table(rid))

    @property
    def seen(self) -> Snapshot:
        """Everything that the manager shows."""
        return self.subject.snapshot()

    @property
    def queue(self) -> list[int]:
        """The free queue, the next victim first."""
        return list(self.seen.queue)

    @property
    def held(self) -> dict[int, int]:
        """The reference count of each block that has one."""
        return {b: count for b, count in enumerate(self.seen.ref_cnts) if count}

    @property
    def sealed(self) -> list[int]:
        """The blocks that carry a key."""
        return [b for b, key in enumerate(self.seen.keys) if key is not None]

    @property
    def meters(self) -> Meters:
        """The three meters, counted block by block."""
        queue, sealed = self.queue, self.sealed
        cached = [b for b in queue if b in sealed]
        return Meters(len(self.held), len(cached), len(queue) - len(cached))

    def refusal(self, call: Callable[..., object], *args: object, **named: object) -> str:
        """Return the rule by which a call is refused; nothing but a refusal will do."""
        with pytest.raises(Refusal) as refused:
            call(*args, **named)
        return refused.value.rule


def _parsed(told: str) -> tuple[str, list[str | int], dict[str, str | int]]:
    """Return verb, arguments and named arguments of a call."""
    verb, inside = told.strip().removesuffix(")").split("(")
    words = [word.strip() for word in inside.split(",") if word.strip()]
    pairs = [word.rpartition("=") for word in words]
    read = [(name, int(value) if value.isdigit() else value) for name, _, value in pairs]
    return verb, [v for name, v in read if not name], {name: v for name, v in read if name}


@pytest.fixture
def unchecked_pool() -> type[Scene]:
    """Return the way to make a scene whose manager may end up broken."""
    return Scene


@pytest.fixture
def pool() -> Iterator[Callable[..., Scene]]:
    """Return the way to make a scene; its manager checks itself at the end of the test."""
    scenes: list[Scene] = []

    def make(usable: int, **options: Unpack[Options]) -> Scene:
        scenes.append(Scene(usable, **options))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.pair.sweep()
        if scene.pair.levels == "PM":
            scene.manager.check()


KINDS: dict[str, Options] = {
    f"{algo}-{kind}": {"algo": algo, "window": window}
    for algo in ("sha256", "builtin")
    for kind, window in (("full", None), ("window", 16))
}


@pytest.fixture(params=list(KINDS))
def any_pool(request: pytest.FixtureRequest, pool: Callable[..., Scene]) -> Callable[..., Scene]:
    """Return `pool` for each way to make keys, with full attention and with a wide window."""
    return partial(pool, **KINDS[request.param])
