"""What a block manager must offer to be held against the specification.

A `Subject` wraps one manager and speaks plain data: request ids, block ids, tuples. Its verbs have
the names and arguments of the specification's actions, so that a driver can drive a subject alone,
or a subject and the specification in lockstep, without knowing which. `reference.py` beside the
other adapters is the shortest complete example.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from spec.state import Config
from spec.statemachine import Outcome


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request arrives with, apart from its id.

    `media` items are (content identifier, offset, length) in tokens; `lora` is the adapter's id and
    the generation of its weights.
    """

    prompt: Sequence[int]
    lora: tuple[int | str, int] | None = None
    media: tuple[tuple[str, int, int], ...] = ()
    salt: str | None = None
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a subject can do; what it cannot is not asked of it.

    `rules` are the rules that the subject enforces itself, by the specification's names; None means
    all of them. A rule that only one verb enforces stands behind that verb's name and a blank. A
    call that breaks another rule is misuse that the subject never promised to notice.
    """

    window: bool = True
    lookahead: bool = True
    pool_calls: bool = True
    unpublish: bool = True
    salts: bool = True
    generations: bool = True
    free_rule: str = "append"
    rules: frozenset[str] | None = None

    def enforces(self, rule: str, verb: str) -> bool:
        """Return True when a call of `verb` that breaks a rule is refused."""
        return self.rules is None or not self.rules.isdisjoint((rule, f"{verb} {rule}"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the specification can compare, as plain data.

    A key is opaque: only whether two blocks carry equal ones is looked at. `queue` is walked from
    the head and `queue_back` from the tail, both cut after more steps than there are blocks.
    """

    ref_cnts: tuple[int, ...]
    keys: tuple[Hashable | None, ...]
    queue: tuple[int, ...]
    queue_back: tuple[int, ...]
    num_free: int
    index: Mapping[Hashable, tuple[int, ...]]
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    usage: float | None = None
    """The share of the usable blocks that is held; None where the subject does not say."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What the subject counted since it was made, by the names of `counters.counted`; it may say
    any of them."""
    stray: tuple[int, ...] = ()
    """Blocks outside the queue that have a neighbour in it, where the subject keeps such links."""


BlockView: TypeAlias = tuple[int, tuple[int, ...] | None, int | None, int | None]
"""One block as an incremental check sees it: (ref_cnt, copies, before, after).

`copies` are the blocks that the index lists under the block's key, in order, and None when it has
no key. `before` and `after` are its neighbours in the queue: None outside it, `NULL` (0) at an end.
A plain tuple, because millions are made.
"""


class Refusal(Exception):  # noqa: N818  # it carries an answer, not an error of the subject
    """What an adapter raises when its manager refused a call: the name of the rule, and the text.

    `rule` is one of the specification's names; a manager with rules of its own maps them.
    """

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(rule, text)
        self.rule = rule
        self.text = text


class Served(Protocol):
    """What a driver uses. Every verb refuses by raising `Refusal` and changing nothing."""

    config: Config

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""

    def propose(self, rid: str, drafts: Sequence[int]) -> None:
        """The drafter proposes tokens for the request's next step."""

    def get_computed_blocks(self, rid: str) -> tuple[int, ...]:
        """Return the longest hit, null included."""

    def allocate_slots(
        self, rid: str, num_tokens: int, hits: Sequence[int], num_lookahead: int
    ) -> tuple[int, ...] | None:
        """Return the new blocks, or None when there is no room now."""

    def run_step(self, outcomes: Mapping[str, Outcome]) -> None:
        """The step ran: raise each request's computed tokens, then append what was sampled."""

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks; it will start again."""

    def finish(self, rid: str) -> None:
        """Give back a request's blocks and forget it."""

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""


class Subject(Served, Protocol):
    """A block manager under test: a driver's verbs, the rarer calls, and what can be looked at."""

    name: str
    capabilities: Capabilities

    def free(self, rid: str) -> None:
        """Give back a request's blocks."""

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""

    def get_new_blocks(self, n: int) -> tuple[int, ...]:
        """Hand out `n` blocks to a direct caller of the pool."""

    def touch(self, ids: Sequence[int]) -> None:
        """Add a reference to sealed blocks for a direct caller of the pool."""

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""

    def cache_full_blocks(
        self, table: Sequence[int], keys: Sequence[Hashable], num_cached: int, num_full: int
    ) -> None:
        """Seal a direct caller's blocks."""

    def unpublish(self, ids: Sequence[int]) -> None:
        """Take the keys from a direct caller's blocks."""

    def snapshot(self) -> Snapshot:
        """Return everything. Costs O(pool)."""

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks, then the queue's head, tail (0 if none) and length."""

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table; empty when it has none."""

    def num_evictions(self) -> int:
        """Return how many cached blocks were handed out since the beginning."""
