"""A workload is a stream of requests that can be read again and again.

Three sources offer it: Mooncake traces, kv-cache-tester traces and a seeded generator. A trace
names blocks, not tokens, and there are two ways to make tokens of them:

- *expanded* (block size above 1): id `i` becomes the tokens `i * unit ... i * unit + unit - 1`,
  where a unit is what one id of the trace stands for (512 or 64 tokens). Every length is the
  trace's own.
- *compressed* (block size 1): each full unit becomes one token, and an incomplete last unit one
  token that no other request has. Hits are those of the expanded form at a block size of one
  unit, for one `tokens_per_id`-th of the work. An incomplete last unit is a full block here, so
  its eviction counts as one; decoded tokens are rounded up to units.

Rejected: to keep parsed requests between two iterations. Parsing a line again costs about 3
microseconds; keeping the ids of a day of requests costs gigabytes.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from conformance.workloads.trace_files import TraceError, TraceFile, TraceRequest, detect_format
from conformance.workloads.trace_format import KV_CACHE_TESTER, MOONCAKE, TraceFormat

__all__ = [
    "FRESH_TOKEN",
    "GeneratedParams",
    "GeneratedWorkload",
    "KvCacheTesterTrace",
    "MooncakeTrace",
    "TraceError",
    "WorkItem",
    "Workload",
    "open_trace",
]

FRESH_TOKEN: Final = 2**62
"""Tokens from here on occur in one request only: no id, compressed or expanded, reaches it."""

_TOKEN_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request of a workload, in tokens of the replay.

    `output_length` is the number of tokens to decode, 0 or more. `num_input_tokens` is the
    prompt's length as the trace states it. `timestamp` is the arrival, in seconds since the
    workload's beginning.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    output_length: int
    num_input_tokens: int
    timestamp: float


class Workload(Protocol):
    """What a driver needs of a source: a count that is known beforehand, and its requests."""

    @property
    def name(self) -> str:
        """The name that reports show."""

    @property
    def tokens_per_id(self) -> int:
        """The tokens of the trace that one token of the replay stands for; 1 unless compressed."""

    @property
    def num_requests(self) -> int:
        """The number of requests that one iteration yields."""

    @property
    def notices(self) -> list[str]:
        """What a user should know about the source, a line each; usually none."""

    def __iter__(self) -> Iterator[WorkItem]:
        """Yield the requests from the first one on, each time the same ones."""


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1: {value}; give a positive number")
    return value


def _pack(tokens: Sequence[int]) -> int:
    """Return one integer that holds the tokens side by side, 64 bits each."""
    return int.from_bytes(array("q", tokens).tobytes(), sys.byteorder)


class _Trace:
    """A checked trace file as a workload; the two formats differ in their description only."""

    def __init__(
        self, path: str | Path, form: TraceFormat, block_size: int, limit: int | None
    ) -> None:
        _at_least_one("block_size", block_size)
        if limit is not None:
            _at_least_one("limit", limit)
        self._form = form
        self._file = TraceFile(Path(path), form, limit)
        self._ones = _pack([1] * form.unit)
        self._ramp = _pack(range(form.unit))
        self.name = Path(path).name
        self.tokens_per_id = form.unit if block_size == 1 else 1
        self.num_requests = self._file.num_requests
        self.notices = self._file.notices

    def __iter__(self) -> Iterator[WorkItem]:
        """Yield the requests in file order; raise `TraceError` when the file has changed."""
        compressed = self.tokens_per_id > 1
        for ordinal, request in enumerate(self._file):
            place, length, output, time_s, _ = request
            if compressed:
                prompt = self._compress(request, ordinal)
                output = -(-output // self.tokens_per_id)
            else:
                prompt = self._expand(request, ordinal)
            yield WorkItem(f"r{place}", prompt, output, length, time_s)

    def _compress(self, request: TraceRequest, ordinal: int) -> "array[int]":
        num_full, rest = divmod(request.input_length, self._form.unit)
        tokens = array("q", request.hash_ids[:num_full])
        if rest:
            tokens.append(FRESH_TOKEN + ordinal)
        return tokens

    def _expand(self, request: TraceRequest, ordinal: int) -> "array[int]":
        """Return every token of the prompt.

        One addition and one multiplication of big integers make the tokens of a unit: no lane
        overflows, because an id has 48 bits. That takes a third of the time of an array made
        from a range.
        """
        unit, ids = self._form.unit, request.hash_ids
        num_full, rest = divmod(request.input_length, unit)
        tokens = array("q")
        for i in ids[:num_full]:
            packed = self._ramp + i * unit * self._ones
            tokens.frombytes(packed.to_bytes(unit * _TOKEN_BYTES, sys.byteorder))
        start = (
            ids[num_full] * unit
            if rest and self._form.tail_has_an_id
            else FRESH_TOKEN + ordinal * unit
        )
        tokens.extend(range(start, start + rest))
        return tokens


class MooncakeTrace(_Trace):
    """A trace of the Mooncake release: JSON lines, an id for each 512 tokens of the prompt.

    A request's id is `r` and its line number. Raises `TraceError` for a file that cannot be
    replayed, and `ValueError` for a block size or a limit below 1.
    """

    def __init__(self, path: str | Path, block_size: int, limit: int | None = None) -> None:
        super().__init__(path, MOONCAKE, block_size, limit)


class KvCacheTesterTrace(_Trace):
    """A conversation of kv-cache-tester: one JSON object, an id for each 64 full tokens.

    A request's id is `r` and its position in `requests`; the requests of a sub-agent stand at
    the sub-agent's place and are called `r16.0`, `r16.1`. Tokens after the last full unit are the
    request's own. Raises as `MooncakeTrace` does.
    """

    def __init__(self, path: str | Path, block_size: int, limit: int | None = None) -> None:
        super().__init__(path, KV_CACHE_TESTER, block_size, limit)


def open_trace(path: str | Path, block_size: int, limit: int | None = None) -> Workload:
    """Return the trace in a file, whose content tells its format, after checking all of it."""
    _at_least_one("block_size", block_size)
    kinds = {MOONCAKE.unit: MooncakeTrace, KV_CACHE_TESTER.unit: KvCacheTesterTrace}
    return kinds[detect_format(Path(path)).unit](path, block_size, limit)


class GeneratedParams(BaseModel):
    """The shape of a generated workload.

    Prompts are paths through a tree of blocks. What a block holds depends on which child it is,
    not on its parents, so the same tokens come back after different prefixes.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    branching: int = Field(default=3, ge=1, le=1_000)
    """Children of a node."""
    depth: int = Field(default=4, ge=1, le=1_000)
    """Longest path, in blocks."""
    share: float = Field(default=0.6, ge=0, le=1)
    """Probability that a path goes on to the first child, not to any."""
    max_tail: int = Field(default=2, ge=0, le=1_000)
    """Most tokens of its own that a prompt ends with, in blocks."""
    max_output_length: int = Field(default=6, ge=0, le=1_000_000)
    arrival_interval_s: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """Mean time between two arrivals."""


DEFAULT_PARAMS: Final = GeneratedParams()


class GeneratedWorkload:
    """Requests that a seed determines, in every process and on every machine.

    A third of the prompts ends with a block of the tree, so that many are equal and as long as a
    multiple of the block size; a third stops inside a block; a third goes on with tokens of its
    own, from a place on or off a block boundary. Raises `ValueError` for a count or a block size
    below 1.
    """

    def __init__(
        self,
        seed: int,
        num_requests: int,
        block_size: int,
        params: GeneratedParams = DEFAULT_PARAMS,
    ) -> None:
        self.seed = seed
        self.num_requests = _at_least_one("num_requests", num_requests)
        self.block_size = _at_least_one("block_size", block_size)
        self.params = params
        self.name = f"generated-{seed}"
        self.tokens_per_id = 1
        self.notices: list[str] = []

    def __iter__(self) -> Iterator[WorkItem]:
        """Yield the requests, drawn again from the seed."""
        rng = Random(self.seed)  # noqa: S311 (a workload must be repeatable, not secret)
        time_s = 0.0
        for ordinal in range(self.num_requests):
            time_s += 2 * self.params.arrival_interval_s * rng.random()
            prompt = self._prompt(rng, ordinal)
            output_length = rng.randrange(self.params.max_output_length + 1)
            yield WorkItem(f"r{ordinal}", prompt, output_length, len(prompt), time_s)

    def _prompt(self, rng: Random, ordinal: int) -> "array[int]":
        size, params = self.block_size, self.params
        tokens = array("q")
        for _ in range(1 + rng.randrange(params.depth)):
            child = 0 if rng.random() < params.share else rng.randrange(params.branching)
            tokens.extend(range(child * size, (child + 1) * size))
        ending = rng.randrange(3)
        if ending > 0:
            del tokens[len(tokens) - rng.randrange(size) :]
        if ending > 1 and params.max_tail:
            start = FRESH_TOKEN + ordinal * params.max_tail * size
            tokens.extend(range(start, start + 1 + rng.randrange(params.max_tail * size)))
        return tokens
