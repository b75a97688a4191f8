"""The small worlds in which the twins are compared, each for the twin and for our explorer."""

from __future__ import annotations

from typing import NamedTuple

from spec.scope import Scope, all_prompts
from spec.state import Config

ENDLESS = 1 << 30
UNHASHED = "unhashed_first"


class PoolWorld(NamedTuple):
    """The pool alone (L0): its usable blocks and where a released block enters the queue."""

    blocks: int
    free_rule: str = "append"

    @property
    def name(self) -> str:
        """The name of this configuration."""
        return f"pool-n{self.blocks}" + _suffix(self.free_rule)

    @property
    def scope(self) -> Scope:
        """The same world for our explorer."""
        return Scope(Config(self.blocks + 1, 1, ENDLESS, free_rule=self.free_rule))


class RequestWorld(NamedTuple):
    """Two requests over a pool (L1); a window of 0 is full attention."""

    blocks: int
    block_size: int
    max_prompt: int
    max_tokens: int
    window: int = 0
    num_drafts: int = 0
    caching: bool = True
    free_rule: str = "append"
    num_symbols: int = 2

    @property
    def name(self) -> str:
        """The name of this configuration."""
        name = f"requests-n{self.blocks}-b{self.block_size}-l{self.max_prompt}-m{self.max_tokens}"
        name += f"-w{self.window}" * (self.window > 0) + f"-d{self.num_drafts}" * (
            self.num_drafts > 0
        )
        name += "-nocache" * (not self.caching) + _suffix(self.free_rule)
        return name + "-onesymbol" * (self.num_symbols == 1)

    @property
    def scope(self) -> Scope:
        """The same world for our explorer."""
        alphabet = tuple(range(self.num_symbols))
        config = Config(
            self.blocks + 1,
            self.block_size,
            ENDLESS,
            enable_caching=self.caching,
            sliding_window=self.window or None,
            free_rule=self.free_rule,
        )
        prompts = all_prompts(alphabet, self.max_prompt)
        limits = {"max_tokens": self.max_tokens, "num_drafts": self.num_drafts}
        return Scope(config, ("A", "B"), prompts, alphabet, **limits)

    @property
    def constants(self) -> dict[str, int]:
        """The constants of `requests.m` that make it this world."""
        longest = max(self.max_prompt, self.max_tokens, self.max_tokens - 1 + self.num_drafts)
        return {
            "usable_blocks": self.blocks,
            "block_size": self.block_size,
            "num_symbols": self.num_symbols,
            "max_prompt": self.max_prompt,
            "max_tokens": self.max_tokens,
            "num_drafts": self.num_drafts,
            "window": self.window,
            "caching": int(self.caching),
            "unhashed_first": int(self.free_rule == UNHASHED),
            "longest": longest,
            "last_word": 2 ** (longest + 1) - 1,
        }


World = PoolWorld | RequestWorld


def _suffix(free_rule: str) -> str:
    return "-unhashed" * (free_rule == UNHASHED)


QUICK: tuple[World, ...] = (
    PoolWorld(1),
    PoolWorld(2),
    PoolWorld(3),
    PoolWorld(3, UNHASHED),
    RequestWorld(1, 1, 2, 2),
    RequestWorld(1, 1, 3, 3, window=2),  # a prompt may be larger than the pool
    RequestWorld(2, 1, 2, 2),
    RequestWorld(2, 1, 2, 3, caching=False),
    RequestWorld(2, 1, 2, 3, free_rule=UNHASHED),
    RequestWorld(1, 3, 1, 3, num_drafts=1),
    RequestWorld(2, 2, 1, 4, num_drafts=1, num_symbols=1),  # accepted drafts fill a block
    RequestWorld(2, 2, 2, 5, window=3, num_symbols=1),
)
"""Worlds of a few thousand states: seconds each."""

FULL: tuple[World, ...] = (
    *QUICK,
    PoolWorld(1, UNHASHED),
    PoolWorld(2, UNHASHED),
    PoolWorld(4),
    PoolWorld(4, UNHASHED),
    RequestWorld(2, 1, 2, 3),
    RequestWorld(2, 2, 2, 3),
    RequestWorld(2, 2, 3, 3),
    RequestWorld(3, 1, 2, 3),
    RequestWorld(4, 1, 2, 4, num_symbols=1),
    RequestWorld(2, 1, 2, 3, window=2),
    RequestWorld(2, 1, 1, 4, window=3),
    RequestWorld(3, 1, 3, 4, window=3, num_symbols=1),
    RequestWorld(3, 2, 5, 6, window=3, num_symbols=1),
    RequestWorld(2, 2, 1, 3, num_drafts=1),
    RequestWorld(2, 2, 1, 3, num_drafts=1, caching=False),
    RequestWorld(2, 1, 1, 3, num_drafts=1),  # a draft never fits
    RequestWorld(2, 1, 1, 3, window=2, num_drafts=1, free_rule=UNHASHED),
    RequestWorld(2, 2, 3, 5, window=2, num_drafts=2, num_symbols=1),
    RequestWorld(3, 2, 3, 5, window=3, num_drafts=2, num_symbols=1),
    RequestWorld(2, 2, 2, 4, num_drafts=1, free_rule=UNHASHED),
)
"""Up to some hundred thousand states: a minute each at most."""
