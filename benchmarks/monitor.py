"""Measures what a live monitor costs vLLM 0.33.0's scheduler, as a share of the step's own time.

    .venv-peers/bin/python benchmarks/monitor.py [--rounds N] [--sweep N]

A step is `schedule` and `update_from_output`; the model's part is made up and not counted. The same
requests are served bare and watched, in turns, in one process, and the time is that of the
processor. `sweep` is how many calls of the pool are between two looks at all of it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from random import Random
from statistics import median
from typing import Any

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.monitoring.monitor import SWEEP_EVERY, Monitor, attach
from conformance.scheduler import stand_in
from conformance.scheduler.script import Add, Setting

BLOCK_SIZE = 16
BOUND = 0.15
SIZES = {1_000: 1_500, 20_000: 200}
"""Blocks of each pool, and steps, so that both pools are swept a few times."""
STEMS, STEM_BLOCKS, REPEATS = 8, 16, 0.5
NUM_TOKENS, WAITING = 32_000, 4


class Serving:
    """One scheduler and the requests that come to it, step by step."""

    def __init__(self, num_blocks: int, sweep_every: int | None) -> None:
        """Make a scheduler; it is watched unless `sweep_every` is None."""
        self._setting = setting_of(num_blocks)
        self._scheduler = stand_in.make_scheduler(self._setting)
        self._arriving, self._number, self.num_tokens = prompts(num_blocks), 0, 0
        self.monitor: Monitor | None = None
        if sweep_every is not None:
            self.monitor = attach(self._scheduler.kv_cache_manager, sweep_every=sweep_every)

    def _arrive(self) -> None:
        """Let requests arrive until there are a few more than can run."""
        while len(self._scheduler.requests) < self._setting.max_num_seqs + WAITING:
            prompt, length = next(self._arriving)
            self._number += 1
            event = Add(f"r{self._number}", prompt, max_tokens=length)
            request = stand_in.make_request(event, BLOCK_SIZE, self._number)
            self._scheduler.add_request(request)

    def step(self) -> float:
        """Make one step, before which requests arrive; return the scheduler's seconds."""
        self._arrive()
        started = time.process_time()
        output = self._scheduler.schedule()
        seconds = time.process_time() - started
        told = self._made_up(output)
        started = time.process_time()
        self._scheduler.update_from_output(output, told)
        seconds += time.process_time() - started
        self.num_tokens += sum(output.num_scheduled_tokens.values())
        return seconds

    def _made_up(self, output: Any) -> Any:  # noqa: ANN401  # the release has types, we have not
        """Return what a model would answer: a token for each request whose last one ran."""
        rids, sampled = tuple(output.num_scheduled_tokens), {}
        for rid in rids:
            request = self._scheduler.requests[rid]
            # The scheduler has counted the tokens as computed already.
            if request.num_computed_tokens >= request.num_tokens:
                sampled[rid] = request.num_tokens % NUM_TOKENS
        return stand_in.make_output(rids, sampled)


def setting_of(num_blocks: int) -> Setting:
    """Return a server that is full: as many requests run as the pool holds, up to 256."""
    return Setting(
        num_gpu_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=4_096,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
    )


def prompts(seed: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield prompts of 100 to 1,500 tokens, half behind a common stem, and output lengths."""
    rng = Random(seed)  # noqa: S311  # a run must be repeatable, not secret
    stems = [
        tuple(rng.randrange(NUM_TOKENS) for _ in range(STEM_BLOCKS * BLOCK_SIZE))
        for _ in range(STEMS)
    ]
    while True:
        stem = rng.choice(stems) if rng.random() < REPEATS else ()
        rest = tuple(rng.randrange(NUM_TOKENS) for _ in range(rng.randint(100, 1_500 - len(stem))))
        yield stem + rest, rng.randint(16, 256)


def measure(num_blocks: int, num_steps: int, rounds: int, sweep_every: int) -> float:
    """Print the figures of one size; return the share of the step that watching costs.

    Every round is the same, so each step has a median over the rounds; the share is that of the
    sums of these medians. Beside it stands the share by the quickest time of each step.
    """
    seconds: dict[int | None, list[list[float]]] = {None: [], sweep_every: []}
    scheduled: set[int] = set()
    num_calls = 0
    for at in range(rounds):
        # Who goes first changes from round to round.
        for kind in list(seconds)[:: 1 if at % 2 else -1]:
            gc.collect()
            serving = Serving(num_blocks, kind)
            seconds[kind].append([serving.step() for _ in range(num_steps)])
            scheduled.add(serving.num_tokens)
            num_calls = serving.monitor.num_calls if serving.monitor else num_calls
    assert len(scheduled) == 1, f"the monitor changed what is scheduled: {scheduled}"
    bare, watched = (list(zip(*s, strict=True)) for s in seconds.values())
    middle = [sum(map(median, seconds)) / num_steps for seconds in (bare, watched)]
    best = [sum(map(min, seconds)) for seconds in (bare, watched)]
    share: float = middle[1] / middle[0] - 1
    print(
        f"{num_blocks:>6,} blocks: {num_steps} steps of {middle[0] * 1e6:,.0f} us bare and "
        f"{middle[1] * 1e6:,.0f} us watched (medians of {rounds} rounds): share {share:.3f}, "
        f"{best[1] / best[0] - 1:.3f} by the quickest; "
        f"{num_calls / num_steps:.1f} calls of the pool a step, {num_calls // sweep_every} sweeps"
    )
    return share


def main() -> int:
    """Measure the sizes; return 1 when one of them is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sweep", type=int, default=SWEEP_EVERY)
    chosen = parser.parse_args()
    try:
        stand_in.load()
    except PeerMissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    # As the release's engine does, once all is loaded: else its modules are searched for garbage
    # again and again, which costs more than what is measured.
    gc.collect()
    gc.freeze()
    shares = [measure(*size, chosen.rounds, chosen.sweep) for size in SIZES.items()]
    print(f"bound {BOUND}: {'held' if max(shares) <= BOUND else 'NOT held'}")
    return int(max(shares) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
