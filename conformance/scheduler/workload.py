"""Draws scripts: small pools, prompts that repeat one another, and everything that can go wrong.

A script is drawn while it runs, because what a client says next hangs on what it was told: many
prompts are the whole of an earlier conversation, or a cut of it, with something new behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from conformance.scheduler.script import Abort, Add, Event, Reset, Setting, Step

MOST_LIVE: Final = 6
LENGTHS: Final = (8, 12, 20, 40, 70)
"""How many events a script may have."""
REMEMBERED: Final = 24
HURRY: Final = 0.7


def draw_setting(rng: Random, policy: str, scheduler: str, num_blocks: int | None) -> Setting:
    """Draw a setting. The pool holds the longest request, and often not two of them.

    Half of the settings let several long prompts be computed side by side, a piece of each in a
    step: then requests run that hold little of what they will need, and the pool runs dry.
    """
    size = rng.choice((1, 1, 2, 2, 3, 4))
    longest = rng.randint(2, 10) if num_blocks is None else max(1, min(10, num_blocks - 2))
    usable = longest + rng.randint(0, longest // 2) if num_blocks is None else num_blocks - 1
    max_model_len = longest * size
    chunked, side_by_side = rng.random() < 0.8, rng.random() < 0.5
    threshold, budget = 0, rng.randint(1, 3) * max_model_len
    if chunked and side_by_side:
        threshold = rng.randint(1, 3 * size)
        budget = rng.randint(2, 5) * threshold
    elif chunked:
        threshold = rng.choice((0, 0, 1, size))
        budget = rng.randint(2, max_model_len + 4)
    return Setting(
        policy=policy,
        scheduler=scheduler,
        num_gpu_blocks=usable + 1,
        block_size=size,
        max_model_len=max_model_len,
        max_num_seqs=rng.randint(2, MOST_LIVE),
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        reserve_full_isl=rng.random() < 0.2,
    )


class Client:
    """Draws one event after another."""

    def __init__(self, rng: Random, setting: Setting) -> None:
        self._rng = rng
        self._setting = setting
        self._said: list[tuple[int, ...]] = []
        self._num_added = 0
        self._num_tokens = rng.choice((2, 4, 50))
        self._repeats = rng.choice((0.2, 0.4, 0.7))
        # Who comes later is often in more of a hurry: else the last to come would be the victim.
        self._hurry = setting.policy == "priority" and rng.random() < HURRY

    def next(self, live: Mapping[str, tuple[int, ...]]) -> Event:
        """Return what happens next, while these requests live and have these tokens."""
        rng = self._rng
        chance = rng.random()
        if live and chance < 0.04:
            return Abort(rng.choice(list(live)))
        if chance < 0.06:
            return Reset(running=rng.random() < 0.5)
        if not live or (len(live) < MOST_LIVE and chance < 0.4):
            return self._add(live)
        return Step(rng.randrange(self._num_tokens))

    def _add(self, live: Mapping[str, tuple[int, ...]]) -> Add:
        rng, most = self._rng, self._setting.max_model_len - 1
        self._said = [*self._said, *live.values()][-REMEMBERED:]
        if self._said and rng.random() < self._repeats:
            told = rng.choice(self._said)
            kept = told[: rng.randint(1, len(told))] if rng.random() < 0.5 else told
            prompt = kept + self._tokens(
                rng.randint(0, most) if rng.random() < 0.3 else rng.randint(0, 2)
            )
        else:
            prompt = self._tokens(rng.randint(1 + most // 2, most))
        self._num_added += 1
        return Add(
            f"r{self._num_added}",
            prompt[:most],
            max_tokens=rng.randint(1, 12),
            priority=self._priority(),
        )

    def _priority(self) -> int:
        if self._hurry:
            return -self._num_added
        return self._rng.randint(0, 2) if self._setting.policy == "priority" else 0

    def _tokens(self, n: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._num_tokens) for _ in range(n))
