"""A seeded random walk through the calls of a manager: the plain driver of long runs.

Most calls are what a scheduler would do, at random; some are misuse, which subject and
specification must refuse alike. A walk is a function of its seed and the configuration.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from conformance.lockstep import Lockstep
from conformance.subject import Refusal, RequestSpec
from spec.state import NULL, Request
from spec.statemachine import Outcome

MAX_LIVE = 6
ALPHABET = 2


class Walk:
    """Random calls on a pair in lockstep. `counts` tells how often each thing happened."""

    def __init__(self, pair: Lockstep, seed: int) -> None:
        self.pair = pair
        self.rng = Random(seed)  # noqa: S311 (a walk must be repeatable, not secret)
        self.counts: Counter[str] = Counter()
        self._born = 0
        self._old_hits: dict[str, tuple[int, ...]] = {}
        self._moves = (
            (self._arrive, 4),
            (self._admit, 6),
            (self._advance, 8),
            (self._run, 8),
            (self._propose, 2),
            (self._end, 3),
            (self._reset, 1),
            (self._misuse, 1),
        )

    def run(self, num_moves: int) -> None:
        """Make some moves. Raises `Divergence` at the first difference."""
        moves, weights = zip(*self._moves, strict=True)
        for move in self.rng.choices(moves, weights, k=num_moves):
            try:
                move()
            except Refusal as refusal:
                self.counts[f"refused: {refusal.rule}"] += 1

    @property
    def _requests(self) -> dict[str, Request]:
        return self.pair.state.requests

    def _pick(self, **wanted: bool) -> str | None:
        """Return a request that has or lacks a table, that is or is not in flight."""
        names = [
            rid
            for rid, r in self._requests.items()
            if wanted.get("table", r.table is not None) == (r.table is not None)
            and wanted.get("flying", r.in_flight) == r.in_flight
        ]
        return self.rng.choice(names) if names else None

    def _arrive(self) -> None:
        if len(self._requests) >= MAX_LIVE:
            return
        rng, size = self.rng, self.pair.config.block_size
        length = rng.randint(1, 4 * size + 1)
        start = rng.randrange(length)
        media = (("picture", start, rng.randint(1, 2 * size)),)
        adapters: list[int | str] = ["x", 1]
        request = RequestSpec(
            prompt=[rng.randrange(ALPHABET) for _ in range(length)],
            lora=(rng.choice(adapters), rng.randrange(2)) if rng.random() < 0.1 else None,
            media=media if rng.random() < 0.1 else (),
            salt=rng.choice(["x", "y"]) if rng.random() < 0.1 else None,
            prompt_logprobs=rng.random() < 0.1,
        )
        self._born += 1
        self.pair.add_request(f"r{self._born}", request)

    def _admit(self) -> None:
        if (rid := self._pick(table=False)) is None:
            return
        hits = self.pair.get_computed_blocks(rid)
        if self.rng.random() < 0.1:
            hits = self._old_hits.get(rid, hits)
        self._old_hits[rid] = hits
        r = self._requests[rid]
        left = len(r.tokens) - len(hits) * self.pair.config.block_size
        if self._allocate(rid, left, hits) and any(b != NULL for b in hits):
            self.counts["admitted with hits"] += 1

    def _advance(self) -> None:
        if (rid := self._pick(table=True, flying=False)) is not None:
            r = self._requests[rid]
            self._allocate(rid, len(r.tokens) + len(r.drafts) - r.num_computed, ())

    def _allocate(self, rid: str, most: int, hits: tuple[int, ...]) -> bool:
        num_tokens = most if self.rng.random() < 0.6 else self.rng.randint(1, max(1, most))
        lookahead = self.rng.choice([0, 0, 0, 1, 3])
        new = self.pair.allocate_slots(rid, num_tokens, hits, lookahead)
        self.counts["no room"] += new is None
        return new is not None

    def _run(self) -> None:
        outcomes = {}
        for rid, r in self._requests.items():
            if r.in_flight:
                drafted = r.end - len(r.tokens)
                sampled = (self.rng.randrange(ALPHABET),) if drafted >= 0 else ()
                outcomes[rid] = Outcome(self.rng.randint(0, max(0, drafted)), sampled)
        if outcomes:
            self.pair.run_step(outcomes)

    def _propose(self) -> None:
        if (rid := self._pick(flying=False)) is not None:
            self.pair.propose(rid, [self.rng.randrange(ALPHABET) for _ in range(3)])

    def _end(self) -> None:
        if (rid := self._pick()) is not None:
            verbs = [self.pair.preempt, self.pair.finish, self.pair.free]
            # A request that is freed and not forgotten can never start again: it is misuse.
            self.rng.choices(verbs, [4, 8, 1])[0](rid)

    def _reset(self) -> None:
        self.counts[f"reset {self.pair.reset_prefix_cache()}"] += 1

    def _misuse(self) -> None:
        if (rid := self._pick()) is not None:
            rng = self.rng
            ids = [rng.randrange(self.pair.config.num_gpu_blocks) for _ in range(rng.randrange(3))]
            self.pair.allocate_slots(rid, rng.randint(-1, 4), tuple(ids), rng.randint(-1, 2))
