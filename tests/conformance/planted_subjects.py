"""Subjects with something wrong about them, to be named as `planted_subjects:Class`."""

from __future__ import annotations

import os
import time
from typing import NoReturn

from conformance.adapters.reference import Reference
from conformance.subject import Capabilities, RequestSpec
from spec.state import Config


class Sound(Reference):
    """Our manager by another name."""


class Leaky(Reference):
    """A preempted request leaves a reference behind."""

    def preempt(self, rid: str) -> None:
        """Give back a running request's blocks, with the fault."""
        table = self.table(rid)
        super().preempt(rid)
        if table and table[0]:
            self.pool.blocks[table[0]].ref_cnt += 1


class Late(Reference):
    """The fortieth reset says the opposite."""

    resets = 0

    def reset_prefix_cache(self) -> bool:
        """Forget every key, if nothing is in use."""
        self.resets += 1
        return super().reset_prefix_cache() != (self.resets == 40)


class Fickle(Reference):
    """Is wrong once, when the twelfth has been made, and never again."""

    capabilities = Capabilities(pool_calls=False)
    made = 0
    wrong = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        Fickle.made += 1

    def add_request(self, rid: str, request: RequestSpec) -> None:
        """A request arrives."""
        super().add_request(rid, request)
        if Fickle.made >= 12 and not Fickle.wrong:
            Fickle.wrong = True
            raise RuntimeError("once")


class Fatal(Reference):
    """Takes its process with it."""

    def reset_prefix_cache(self) -> NoReturn:
        """End everything."""
        os._exit(3)


class Stuck(Reference):
    """Never comes back from a reset."""

    def reset_prefix_cache(self) -> bool:
        """Wait."""
        time.sleep(1000)
        return False


class Unmakeable(Reference):
    """Takes blocks of two tokens only."""

    def __init__(self, config: Config) -> None:
        if config.block_size != 2:
            raise ValueError("two tokens only")
        super().__init__(config)


class Never(Reference):
    """Cannot be made."""

    def __init__(self, config: Config) -> None:
        raise ValueError(f"not today, and not with {config.block_size} tokens")
