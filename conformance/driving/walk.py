"""A seeded random walk through the calls of a manager: the plain driver of long runs.

Most calls are what a scheduler would do, at random; some are misuse, which subject and
specification must refuse alike. A walk is a function of its seed and the configuration. The seed
also draws the walk's habits: one walk preempts often and never resets, another is full of media.
Walks that differ in kind meet more than walks that all do a little of everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from conformance.lockstep import Lockstep
from conformance.subject import Refusal, RequestSpec
from spec.state import NULL, Request
from spec.statemachine import Outcome

MAX_LIVE = 6
MAX_STEMS = 6
MAX_PROMPT_BLOCKS = 12
TOKENS = (0, 1)
TOKEN_THAT_DOES_NOT_FIT = 1 << 63
HOPELESS = ("request_is_too_large", "tokens_beyond_max_model_len")
"""Rules after which a scheduler ends the request: waiting is in vain."""

Moves = Sequence[tuple[Callable[[], None], int]]
"""What a walk may do next, each with its weight."""


def wander(rng: Random, moves: Moves, num_moves: int, counts: Counter[str]) -> None:
    """Make random moves; a refusal is counted by its rule. Raises `Divergence`."""
    if not num_moves:
        return
    made, weights = zip(*moves, strict=True)
    for move in rng.choices(made, weights, k=num_moves):
        try:
            move()
        except Refusal as refusal:
            counts[f"refused: {refusal.rule}"] += 1


class Walk:
    """Random calls on a pair in lockstep. `counts` tells how often each thing happened."""

    def __init__(self, pair: Lockstep, seed: int) -> None:
        self.pair = pair
        self.rng = rng = Random(seed)  # noqa: S311 (a walk must be repeatable, not secret)
        self.counts: Counter[str] = Counter()
        self._born = 0
        self._gone: list[str] = []
        self._items: list[tuple[str, int, int]] = []
        self._stems: list[tuple[int, ...]] = []
        self._longest = pair.config.block_size * min(pair.config.usable + 1, MAX_PROMPT_BLOCKS) + 1
        self._looked_up: dict[str, tuple[int, ...]] = {}
        self._scheduled: list[str] = []
        rates = (0, 0, 0.1, 0.6)
        self._adapters, self._salted, self._pictured = (rng.choice(rates) for _ in range(3))
        self._logprobs = rng.choice((0, 0.1, 0.3))
        self._equal = rng.choice((0.2, 0.5))
        self._stale = rng.choice((0, 0.1, 0.3))
        self._whole_steps = rng.choice((0.2, 0.6, 0.9))
        can = pair.capabilities
        ahead = can.lookahead
        self._salts = ("x", "y") if can.salts else (None,)
        self._generations = 2 if can.generations else 1
        self._lookaheads = rng.choice(((0,), (0, 0, 0, 1, 3))) if ahead else (0,)
        self._moves = (
            (self._arrive, rng.choice((2, 4, 4))),
            (self._admit, 6),
            (self._follow, rng.choice((0, 0, 1, 2))),
            (self._advance, rng.choice((4, 8))),
            (self._run, rng.choice((2, 8, 8))),
            (self._look, rng.choice((0, 1))),
            (self._propose, rng.choice((0, 2, 4)) if ahead else 0),
            (self._end, rng.choice((1, 3, 3))),
            (self._abandon, rng.choice((0, 0, 1))),
            (self._clear, rng.choice((0, 0, 1))),
            (self._reset, rng.choice((0, 1))),
            (self._misuse, rng.choice((0, 1, 2))),
        )

    def run(self, num_moves: int) -> None:
        """Make some moves. Raises `Divergence` at the first difference."""
        wander(self.rng, self._moves, num_moves, self.counts)

    @property
    def _requests(self) -> dict[str, Request]:
        return self.pair.state.requests

    def _pick(self, *, table: bool | None = None, flying: bool | None = None) -> str | None:
        """Return a request that has or lacks a table, that is or is not in flight."""
        names = [
            rid
            for rid, r in self._requests.items()
            if (table is None or table == (r.table is not None))
            and (flying is None or flying == r.in_flight)
        ]
        return self.rng.choice(names) if names else None

    def _arrive(self) -> None:
        if len(self._requests) >= MAX_LIVE:
            return
        rng = self.rng
        prompt = self._prompt()
        request = RequestSpec(
            prompt=prompt,
            lora=self._adapter() if rng.random() < self._adapters else None,
            media=self._media(len(prompt)) if rng.random() < self._pictured else (),
            salt=rng.choice(self._salts) if rng.random() < self._salted else None,
            prompt_logprobs=rng.random() < self._logprobs,
        )
        self.pair.add_request(self._name(), request)

    def _name(self) -> str:
        """Return a new id, or that of a request which has ended: an engine may use it again."""
        rng, gone = self.rng, self._gone
        if gone and rng.random() < 0.3:
            return gone.pop(rng.randrange(len(gone)))
        self._born += 1
        return f"r{self._born}"

    def _prompt(self) -> tuple[int, ...]:
        """Return a prompt from a small tree: an old one, one cut at a block, or a new branch."""
        rng, size = self.rng, self.pair.config.block_size
        stem = rng.choice(self._stems) if self._stems else ()
        kind = rng.random()
        if stem and kind < self._equal:
            return stem
        kept = stem[: size * rng.randint(0, len(stem) // size)]
        if kept and kind < self._equal + 0.15:
            return kept
        most = max(1, self._longest - len(kept))
        num_new = min(rng.randint(1, most), rng.randint(1, most))
        prompt = (*kept, *rng.choices(TOKENS, k=num_new))
        if len(self._stems) < MAX_STEMS:
            self._stems.append(prompt)
        else:
            self._stems[rng.randrange(MAX_STEMS)] = prompt
        return prompt

    def _adapter(self) -> tuple[int | str, int]:
        adapters: list[int | str] = ["x", 1]
        return self.rng.choice(adapters), self.rng.randrange(self._generations)

    def _media(self, length: int) -> tuple[tuple[str, int, int], ...]:
        """Return one item, or two that may touch and do not overlap.

        Many are like an earlier one but for their name, place or length: keys must tell them apart.
        """
        rng = self.rng
        name = rng.choice(("x", "picture"))
        start, num_tokens = rng.randrange(length), rng.randint(1, 2 * self.pair.config.block_size)
        if self._items and rng.random() < 0.8:
            old_name, start, num_tokens = rng.choice(self._items)
            changed = rng.randrange(4)
            name = name if changed == 0 else old_name
            start = max(0, start + rng.choice((-1, 1))) if changed == 1 else start
            num_tokens = max(1, num_tokens + rng.choice((-1, 1))) if changed == 2 else num_tokens
        self._items = [*self._items[-2:], (name, start, num_tokens)]
        items = [(name, start, num_tokens)]
        if rng.random() < 0.1:
            items.append(("x", start + num_tokens + rng.randrange(2), rng.randint(1, 3)))
        return tuple(items)

    def _look(self) -> None:
        if (rid := self._pick(table=False)) is not None:
            self._looked_up[rid] = self.pair.get_computed_blocks(rid)

    def _admit(self) -> None:
        if (rid := self._pick(table=False)) is None:
            return
        rng, old = self.rng, self._looked_up.get(rid, ())
        hits = self.pair.get_computed_blocks(rid)
        self._looked_up[rid] = hits
        if rng.random() < self._stale:
            # What the request was found before, or what another one was.
            hits = old if rng.random() < 0.5 else rng.choice(list(self._looked_up.values()))
        left = len(self._requests[rid].tokens) - len(hits) * self.pair.config.block_size
        if self._allocate(rid, left, hits) and any(b != NULL for b in hits):
            self.counts["admitted with hits"] += 1

    def _follow(self) -> None:
        """Let a request arrive that needs what another one is about to write; that one may go."""
        if (rid := self._pick(flying=True)) is None or len(self._requests) >= MAX_LIVE:
            return
        r, name = self._requests[rid], self._name()
        self.pair.add_request(name, RequestSpec((*r.tokens, 0), r.lora, r.media, r.salt))
        hits = self.pair.get_computed_blocks(name)
        self._schedule(name, 1, hits, 0)
        if self.rng.random() < 0.5:
            self.rng.choice((self.pair.preempt, self._finish))(rid)

    def _advance(self) -> None:
        if (rid := self._pick(table=True, flying=False)) is not None:
            r = self._requests[rid]
            self._allocate(rid, len(r.tokens) + len(r.drafts) - r.num_computed, ())

    def _allocate(self, rid: str, most: int, hits: tuple[int, ...]) -> bool:
        whole = self.rng.random() < self._whole_steps
        num_tokens = most if whole else self.rng.randint(1, max(1, most))
        return self._schedule(rid, num_tokens, hits, self.rng.choice(self._lookaheads))

    def _schedule(self, rid: str, num_tokens: int, hits: tuple[int, ...], ahead: int) -> bool:
        ahead *= self.pair.capabilities.lookahead
        try:
            new = self.pair.allocate_slots(rid, num_tokens, hits, ahead)
        except Refusal as refusal:
            if refusal.rule in HOPELESS and self.rng.random() < 0.8:
                self._finish(rid)
            raise
        if new is None:
            self.counts["no room"] += 1
            return False
        self._scheduled.append(rid)
        return True

    def _run(self) -> None:
        outcomes, rng = {}, self.rng
        for rid, r in self._requests.items():
            if r.in_flight:
                drafted = r.end - len(r.tokens)
                sampled = (rng.choice(TOKENS),) if drafted >= 0 and rng.random() < 0.97 else ()
                outcomes[rid] = Outcome(rng.randint(0, max(0, drafted)), sampled)
        self._scheduled.clear()
        if outcomes:
            self.pair.run_step(outcomes)

    def _propose(self) -> None:
        if (rid := self._pick(flying=False)) is not None:
            num_drafts = self.rng.randint(0, self.pair.config.block_size + 1)
            self.pair.propose(rid, self.rng.choices(TOKENS, k=num_drafts))

    def _end(self) -> None:
        if (rid := self._pick()) is not None:
            verbs = [self.pair.preempt, self._finish, self.pair.free]
            # A request that is freed and not forgotten can never start again: it is misuse.
            self.rng.choices(verbs, [4, 8, 1])[0](rid)

    def _finish(self, rid: str) -> None:
        self.pair.finish(rid)
        self._looked_up.pop(rid, None)
        self._gone = [*self._gone[-3:], rid]

    def _abandon(self) -> None:
        """Undo a step that never runs, the last scheduled request first."""
        while self._scheduled:
            rid = self._scheduled.pop()
            if rid in self._requests and self._requests[rid].in_flight:
                self.pair.preempt(rid)

    def _clear(self) -> None:
        """End all requests, so that a reset has nothing in its way."""
        self._abandon()
        for rid in list(self._requests):
            self._finish(rid)
        self._reset()

    def _reset(self) -> None:
        self.counts[f"reset {self.pair.reset_prefix_cache()}"] += 1

    def _misuse(self) -> None:
        """Make a call with something wrong about it; by chance it may be right."""
        if (rid := self._pick()) is None:
            return
        rng, num_blocks = self.rng, self.pair.config.num_gpu_blocks
        can_draft = self.pair.capabilities.lookahead
        kind = rng.randrange(6)
        if kind == 0:
            request = RequestSpec(prompt=(0, TOKEN_THAT_DOES_NOT_FIT))
            self.pair.add_request(self._name(), request)
        elif kind == 1 and can_draft and not self._requests[rid].in_flight:
            self.pair.propose(rid, (TOKENS[0], -1))
        elif kind == 2:
            self._schedule(rid, rng.choice((-1, 0, 1, self._longest * 9)), (), rng.choice((0, -1)))
        elif kind == 3:
            hits = self._looked_up.get(rid, ())
            bent = [hits[::-1], (*hits, *hits), (NULL, *hits), hits[1:], (*hits, num_blocks)]
            self._schedule(rid, 1, rng.choice(bent), 0)
        else:
            ids = [rng.randrange(-1, num_blocks + 1) for _ in range(rng.randrange(3))]
            self._schedule(rid, rng.randint(-1, 4), tuple(ids), rng.randint(-1, 2))
