"""A script: how a scheduler is set up and what happens to it, as plain data.

The same script gives the same run, in another process too. Events that lost their meaning, because
others were left out, do nothing: that is what makes a script easy to shrink.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

POLICIES: Final = ("priority", "fcfs")
SCHEDULERS: Final = ("sync", "async")


class Setting(NamedTuple):
    """What a scheduler is made with. `num_gpu_blocks` counts the null block."""

    policy: str = "fcfs"
    scheduler: str = "sync"
    """`sync`: `Scheduler`, a step is over before the next is scheduled. `async`: `AsyncScheduler`,
    the next step is scheduled while one is on its way."""
    num_gpu_blocks: int = 9
    block_size: int = 2
    max_model_len: int = 16
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 16
    """Tokens that one step may compute."""
    long_prefill_token_threshold: int = 0
    """Prompt tokens of one request that one step may compute; 0 for no limit."""
    enable_chunked_prefill: bool = True
    enable_caching: bool = True
    reserve_full_isl: bool = False
    """Whether a request is admitted only when all of its prompt fits."""

    @property
    def steps_in_flight(self) -> int:
        """How many steps are handed out before the first of them is over."""
        return 2 if self.scheduler == "async" else 1


class Add(NamedTuple):
    """A request arrives."""

    rid: str
    prompt: tuple[int, ...]
    max_tokens: int = 1
    priority: int = 0
    """Under the policy `priority` the lower number goes first."""


class Step(NamedTuple):
    """The scheduler makes a step; each request that comes to sampling samples `token`."""

    token: int = 0


class Abort(NamedTuple):
    """The client gives a request up."""

    rid: str


class Reset(NamedTuple):
    """The prefix cache is emptied; `running` preempts whatever runs, so that it can be."""

    running: bool = False


Event: TypeAlias = Add | Step | Abort | Reset


class Script(NamedTuple):
    """A setting and the events that follow."""

    setting: Setting
    events: tuple[Event, ...]

    @property
    def num_steps(self) -> int:
        """How many scheduler steps the script makes."""
        return sum(isinstance(event, Step) for event in self.events)
