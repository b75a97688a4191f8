"""The named worlds: small configurations with their counts, frozen.

A count that changes means that the specification, or the search, became another one. The twins in
`twins/` give the same counts from models that were written apart.
"""

from __future__ import annotations

from typing import NamedTuple

from spec.scope import Scope, all_prompts
from spec.state import Config

BITS = (0, 1)


class Counts(NamedTuple):
    """What a search that runs to its end must count, up to renaming of blocks."""

    states: int
    transitions: int
    depth: int


class Named(NamedTuple):
    """A world with a name, what it is for, and its counts."""

    about: str
    scope: Scope
    counts: Counts


def _config(usable: int, block_size: int = 1, window: int | None = None) -> Config:
    return Config(usable + 1, block_size, sliding_window=window)


def _requests(config: Config, longest: int, max_tokens: int, **more: int) -> Scope:
    prompts = all_prompts(BITS, longest)
    return Scope(config, ("A", "B"), prompts, BITS, max_tokens, **more)


FULL = _config(3)
STEMS = ((0,), (0, 0, 0, 0), (0, 0, 0, 1))

WORLDS: dict[str, Named] = {
    **{
        f"pool-{n}": Named(f"the pool alone, {n} blocks, two keys", Scope(_config(n)), counts)
        for n, counts in enumerate(
            (
                Counts(8, 24, 3),
                Counts(47, 222, 6),
                Counts(264, 1_631, 9),
                Counts(1_569, 11_613, 12),
                Counts(10_320, 87_384, 15),
                Counts(76_267, 720_970, 18),
            ),
            start=1,
        )
    },
    "pool-7": Named(
        "the pool alone, 7 blocks, one key", Scope(_config(7), keys=1), Counts(88_978, 903_973, 21)
    ),
    "pool-8": Named(
        "the pool alone, 8 blocks, one key",
        Scope(_config(8), keys=1),
        Counts(722_305, 8_047_759, 24),
    ),
    "pool-4-unhashed-first": Named(
        "the pool alone, idle blocks without a key go to the head",
        Scope(_config(4)._replace(free_rule="unhashed_first")),
        Counts(1_263, 9_861, 12),
    ),
    "pool-3-three-holders": Named(
        "the pool alone, up to three references",
        Scope(_config(3), max_refs=3),
        Counts(478, 3_085, 12),
    ),
    "full-1": Named(
        "two requests that begin with one token, 2 blocks of 1 token",
        _requests(_config(2), 1, 2),
        Counts(1_787, 11_031, 9),
    ),
    "full-2": Named(
        "two requests, full attention, 2 blocks of 1 token",
        _requests(_config(2), 2, 2),
        Counts(2_291, 16_631, 8),
    ),
    "full": Named(
        "two requests, full attention, 3 blocks of 1 token",
        _requests(FULL, 2, 3),
        Counts(38_109, 282_505, 12),
    ),
    "full-4": Named(
        "the same with 4 blocks", _requests(_config(4), 2, 3), Counts(219_333, 1_623_457, 15)
    ),
    "full-blocks-of-2": Named(
        "two requests, full attention, 3 blocks of 2 tokens",
        _requests(_config(3, 2), 3, 3),
        Counts(168_753, 1_394_541, 12),
    ),
    "window": Named(
        "a window of 2 tokens, 3 blocks of 1 token",
        _requests(_config(3, 1, 2), 2, 3),
        Counts(106_165, 799_433, 14),
    ),
    "window-blocks-of-2": Named(
        "a window of 3 tokens, 3 blocks of 2 tokens, prompts that share a stem",
        Scope(_config(3, 2, 3), ("A", "B"), STEMS, (0,), 6),
        Counts(52_397, 377_841, 26),
    ),
    "drafts": Named(
        "one draft a step, 3 blocks of 1 token",
        _requests(FULL, 1, 3, num_drafts=1),
        Counts(49_777, 371_893, 16),
    ),
    "drafts-blocks-of-2": Named(
        "one draft a step, 3 blocks of 2 tokens",
        _requests(_config(3, 2), 2, 3, num_drafts=1),
        Counts(175_297, 1_385_405, 13),
    ),
    "no-caching": Named(
        "caching off",
        _requests(FULL._replace(enable_caching=False), 2, 3),
        Counts(10_233, 75_365, 10),
    ),
    "unhashed-first": Named(
        "idle blocks without a key go to the head of the queue",
        _requests(FULL._replace(free_rule="unhashed_first"), 2, 3),
        Counts(41_889, 306_861, 15),
    ),
    "three-requests": Named(
        "three requests, 3 blocks of 1 token",
        Scope(FULL, ("A", "B", "C"), all_prompts(BITS, 1), BITS, 2),
        Counts(138_719, 1_182_017, 14),
    ),
}
