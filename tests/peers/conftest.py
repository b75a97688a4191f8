"""What the tests against real releases of vLLM share: they skip where a release is not there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError, load
from conformance.adapters.vllm_0_8_5 import VLLM085
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome


class Release(VLLM085):
    """Release 0.8.5, with the steps that most tests begin with."""

    def admit(self, rid: str, prompt: tuple[int, ...], **extras: Any) -> tuple[int, ...] | None:  # noqa: ANN401  # what a RequestSpec takes
        """Let a request arrive, look it up and allocate the rest of its prompt; no step runs."""
        hits = self.found(rid, prompt, **extras)
        left = len(prompt) - len(hits) * self.config.block_size
        return self.allocate_slots(rid, left, hits, 0)

    def served(self, rid: str, prompt: tuple[int, ...], **extras: Any) -> None:  # noqa: ANN401  # the same
        """Admit a request, run its step, and let it end."""
        assert self.admit(rid, prompt, **extras) is not None
        self.run_step({rid: Outcome()})
        self.finish(rid)

    def found(self, rid: str, prompt: tuple[int, ...], **extras: Any) -> tuple[int, ...]:  # noqa: ANN401  # the same
        """Let a request arrive, and return what it is found."""
        self.add_request(rid, RequestSpec(prompt, **extras))
        return self.get_computed_blocks(rid)


Make = Callable[..., Release]


@pytest.fixture
def vllm_0_8_5(caplog: pytest.LogCaptureFixture) -> Iterator[Make]:
    """Return what makes a manager of release 0.8.5; its warnings are kept quiet."""
    try:
        load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    with caplog.at_level(logging.ERROR):
        yield lambda config, algorithm="sha256": Release(config, algorithm)


@pytest.fixture
def small() -> Config:
    """Return a pool of eight usable blocks of two tokens."""
    return Config(9, 2)
