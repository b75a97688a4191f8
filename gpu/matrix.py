"""The exact matrix: every way to serve the same requests gives the same tokens and the same bytes.

A *setting* is one choice per factor: what the cache is kept in, the window, caching, chunk and
batch, block size, room, drafts. Each is run on the exact decoder and held against requests that
were served alone (`reference.py`), with no tolerance. Settings come in an order in which the first
few contain every pair of choices and the next every triple, so a run may end early.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random
from typing import Final, Literal

import torch

from gpu.exact_model import PRIMES, ExactDType, ExactModel
from gpu.pool import KVPool
from gpu.reference import LiveSlots, Reference, guesses, references
from gpu.runner import Hooks, Model, Runner
from gpu.scheduling import Limits, Tally, Work

Verdict = Literal["equal", "tokens differ", "KV differs", "requests refused", "not run"]


@dataclass(frozen=True)
class Setting:
    """A way to serve requests; sizes in tokens, `max_num_seqs` in requests.

    `chunk` is the most of a prompt that a step computes, None for all of it. `tight` is a pool that
    holds the largest request and no more, so that requests that run together preempt one another
    and cached blocks are evicted.
    """

    dtype: ExactDType
    window: int | None
    enable_caching: bool
    chunk: int | None
    max_num_seqs: int
    block_size: int
    tight: bool
    num_drafts: int

    def num_blocks(self, work: Sequence[Work]) -> int:
        """The size of its pool in blocks, the null block included."""
        per_request = -(-self.max_model_len(work) // self.block_size)
        return 1 + per_request * (1 if self.tight else self.max_num_seqs + 2)

    def max_model_len(self, work: Sequence[Work]) -> int:
        """The tokens of the longest request and its drafts."""
        longest = max(len(one.prompt_token_ids) + one.num_output_tokens for one in work)
        return longest + self.num_drafts

    def limits(self, work: Sequence[Work]) -> Limits:
        """What a step may hold; all requests that run together fit into one."""
        longest = self.max_model_len(work)
        return Limits(
            max_model_len=longest,
            enable_caching=self.enable_caching,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=longest * self.max_num_seqs,
            long_prefill_token_threshold=self.chunk or longest,
            num_speculative_tokens=self.num_drafts,
        )


FACTORS: Final[Mapping[str, Sequence[object]]] = {
    "dtype": tuple(PRIMES),
    "window": (None, 11),
    "enable_caching": (True, False),
    "chunk": (None, 7),
    "max_num_seqs": (6, 1),
    "block_size": (4, 16, 1),
    "tight": (True, False),
    "num_drafts": (0, 3),
}
"""The choices of each factor, by the field of `Setting`."""


@dataclass(frozen=True)
class MatrixRow:
    """What a setting gave; `seconds` is the time of serving, `num_compared` counts slots."""

    setting: Setting
    verdict: Verdict
    num_requests: int
    seconds: float
    num_compared: int
    tally: Tally


def all_settings() -> list[Setting]:
    """Every setting once; those that contain every pair and every triple of choices come first."""
    first = cover(3)
    return first + [setting for setting in _product() if setting not in set(first)]


def cover(strength: int) -> list[Setting]:
    """Few settings that contain every combination of `strength` choices, one per factor.

    They begin with those of every smaller strength, so the list can be cut short anywhere. Each
    next one is the first that contains the most combinations that are still missing.
    """
    if strength == 0:
        return []
    first = cover(strength - 1)
    combinations_of = {setting: _combinations(setting, strength) for setting in _product()}
    missing = set().union(*combinations_of.values())
    missing = missing.difference(*(combinations_of[setting] for setting in first))
    while missing:
        best = max(combinations_of, key=lambda setting: len(combinations_of[setting] & missing))
        first.append(best)
        missing -= combinations_of[best]
    return first


def shared_prefix_work(num_requests: int, seed: int) -> list[Work]:
    """Small requests of which many begin alike, the same for the same seed.

    Some prompts are equal, some end with a block, a few want no token.
    """
    random = Random(seed)  # noqa: S311 # a reproducible sample, no secret
    systems = [[random.randrange(2**40) for _ in range(n)] for n in (16, 21, 32)]
    prompts: list[list[int]] = []
    for _ in range(num_requests):
        if prompts and random.random() < 0.2:
            prompts.append(list(random.choice(prompts)))
            continue
        own = [random.randrange(2**40) for _ in range(random.choice((1, 3, 8, 11, 16)))]
        prompts.append(random.choice(systems) + own)
    return [
        Work(f"r{number}", prompt, random.choice((0, 1, 4, 7, 9)))
        for number, prompt in enumerate(prompts)
    ]


@dataclass(frozen=True)
class Outcome:
    """What serving gave: the tokens by request, what was done, and the time it took."""

    tokens: dict[str, list[int]]
    tally: Tally
    seconds: float


def serve(
    setting: Setting,
    model: Model,
    work: Sequence[Work],
    known: Mapping[str, Reference],
    hooks: Hooks,
) -> Outcome:
    """Serve the requests in one way; `known` gives the drafts, `hooks` look on or interfere."""
    config = model.kv_cache_config(setting.num_blocks(work), setting.block_size)
    pool = KVPool(config, model.device)
    runner = Runner(model, pool, setting.limits(work), drafter=guesses(known), hooks=hooks)
    begun = time.perf_counter()
    tokens = runner.serve(work)
    return Outcome(tokens, runner.tally, time.perf_counter() - begun)


def run_setting(
    setting: Setting,
    model: ExactModel,
    work: Sequence[Work],
    known: Mapping[str, Reference],
) -> MatrixRow:
    """Serve the requests in one way and hold tokens and live slots against what is known."""
    live = LiveSlots(known)
    outcome = serve(setting, model, work, known, Hooks(after_step=live))
    verdict: Verdict = "equal"
    if outcome.tally.refused:
        verdict = "requests refused"
    elif any(outcome.tokens[request_id] != one.tokens for request_id, one in known.items()):
        verdict = "tokens differ"
    elif live.num_different:
        verdict = "KV differs"
    return MatrixRow(setting, verdict, len(work), outcome.seconds, live.num_compared, outcome.tally)


def exact_matrix(
    work: Sequence[Work],
    settings: Sequence[Setting],
    *,
    device: torch.device | str = "cpu",
    seconds: float = float("inf"),
    seed: int = 0,
) -> list[MatrixRow]:
    """A row for each setting, in order; those that did not begin within `seconds` are "not run"."""
    begun = time.monotonic()
    models: dict[tuple[ExactDType, int | None], tuple[ExactModel, dict[str, Reference]]] = {}
    rows: list[MatrixRow] = []
    for setting in settings:
        if time.monotonic() - begun >= seconds:
            rows.append(MatrixRow(setting, "not run", 0, 0.0, 0, Tally()))
            continue
        kind = (setting.dtype, setting.window)
        if kind not in models:
            model = ExactModel(setting.dtype, seed=seed, window=setting.window, device=device)
            models[kind] = (model, references(model, work))
        rows.append(run_setting(setting, models[kind][0], work, models[kind][1]))
    return rows


def _product() -> list[Setting]:
    return [Setting(*values) for values in product(*FACTORS.values())]  # type: ignore[arg-type] # the factors are in the order of the fields


def _combinations(setting: Setting, strength: int) -> set[tuple[tuple[str, object], ...]]:
    """The combinations of so many choices that a setting contains."""
    return set(combinations(((name, getattr(setting, name)) for name in FACTORS), strength))
