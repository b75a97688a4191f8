"""A trace file is checked whole before its first request is used, and read lazily after that.

A replay therefore never stops half way at a bad line. What is held of a Mooncake trace is one line
at a time. A kv-cache-tester trace is parsed as a whole for as long as it is read; its size is
bounded for that reason.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from conformance.workloads.file_error import FileError
from conformance.workloads.trace_format import (
    EXPECTED,
    KV_CACHE_TESTER,
    MOONCAKE,
    SubAgent,
    TraceEntry,
    TraceFormat,
    find_problem,
    shorten,
)

_MAX_LINE_BYTES: Final = 16 * 2**20
_MAX_OBJECT_BYTES: Final = 256 * 2**20
_MAX_AGENT_DEPTH: Final = 8
_HEAD_BYTES: Final = 64 * 2**10


class TraceError(FileError):
    """A trace file cannot be replayed; `str()` is `FILE:LINE: what is wrong: value; what to do`."""


class TraceRequest(NamedTuple):
    """One request as its trace states it, the same for both formats."""

    place: str
    """The line's number, or the position in `requests`, `16.3` for one of a sub-agent."""
    input_length: int
    output_length: int
    time_s: float
    hash_ids: list[int]


class TraceFile:
    """A checked trace file: its requests can be read any number of times."""

    def __init__(self, path: Path, form: TraceFormat, limit: int | None) -> None:
        self.path = path
        self.form = form
        self._torn: list[str] = []
        self._version = _version(path)
        self.num_requests = self._check(limit)
        self.notices = [f"{t}; {self.num_requests} complete requests are used" for t in self._torn]

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests; those after the limit and a torn last line are not among them."""
        if _version(self.path) != self._version:
            raise TraceError(self.path, None, "changed after it was checked; open it again")
        form = self.form
        for entry in islice(self._read(), self.num_requests):
            fields = entry.fields
            time_s = entry.start_s + fields[form.time] / form.per_second
            length, output = fields[form.input], fields[form.output]
            yield TraceRequest(entry.place, length, output, time_s, fields["hash_ids"])

    def _read(self) -> Iterator[TraceEntry]:
        if self.form is MOONCAKE:
            return _read_lines(self.path, self._torn)
        return _read_object(self.path)

    def _check(self, limit: int | None) -> int:
        """Check every request up to the limit and return how many there are."""
        count = 0
        for entry in islice(self._read(), limit):
            problem = find_problem(entry, self.form)
            if problem is not None:
                raise TraceError(self.path, entry.line, problem)
            count += 1
        if count == 0:
            why = "".join(f" ({torn})" for torn in self._torn)
            raise TraceError(self.path, None, f"holds no request{why}; give a complete trace")
        return count


def detect_format(path: Path) -> TraceFormat:
    """Return the format that the first bytes show; what is neither reads as Mooncake's."""
    _version(path)  # A folder, a pipe and a missing file are refused before anything is opened.
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    return KV_CACHE_TESTER if re.search(rb'"requests"\s*:', head) else MOONCAKE


def _version(path: Path) -> tuple[int, int]:
    """Return the file's size and time of change; raise unless it can be read twice."""
    try:
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise TraceError(path, None, f"{what}; give the path of a trace file")
        stat = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return stat.st_size, stat.st_mtime_ns


def _unreadable(path: Path, error: Exception) -> TraceError:
    reason = getattr(error, "strerror", None) or error
    return TraceError(path, None, f"cannot be read: {reason}; check the path and its permissions")


def _parse(path: Path, line: int, raw: bytes, what: str) -> Any:  # noqa: ANN401 (JSON is any value)
    """Return the JSON value in the bytes, which begin at the given line of the file."""
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        bad = f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}"
        raise TraceError(path, line, f"{bad}; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        near = repr(error.doc[max(0, error.pos - 20) : error.pos + 40])
        bad = f"not JSON: {error.msg} at column {error.colno}, near {near}"
        raise TraceError(path, line, f"{bad}; {what} must be one JSON object") from error
    except (ValueError, RecursionError) as error:
        bad = f"not usable JSON: {error}"
        raise TraceError(path, line, f"{bad}; {what} must be a plain JSON object") from error


def _read_lines(path: Path, torn: list[str]) -> Iterator[TraceEntry]:
    """Yield the requests of a Mooncake trace; a torn last line is only noted."""
    try:
        with path.open("rb") as file:
            lines = iter(partial(file.readline, _MAX_LINE_BYTES + 1), b"")
            for line, raw in enumerate(lines, 1):
                if raw.isspace():
                    continue
                if len(raw) > _MAX_LINE_BYTES:
                    problem = f"is longer than {_MAX_LINE_BYTES} bytes; put each request on a line"
                    raise TraceError(path, line, problem)
                try:
                    fields = _parse(path, line, raw.rstrip(), "each line")
                except TraceError as error:
                    if raw.endswith(b"\n"):
                        raise
                    problem = error.problem.rpartition(";")[0]
                    torn.append(f"{path}:{line}: the last line is torn and not used: {problem}")
                    return
                yield TraceEntry(str(line), line, "", 0.0, fields)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_object(path: Path) -> Iterator[TraceEntry]:
    """Yield the requests of a kv-cache-tester trace, a sub-agent's where the sub-agent stands."""
    try:
        size = path.stat().st_size
        if size > _MAX_OBJECT_BYTES:
            problem = f"is larger than {_MAX_OBJECT_BYTES} bytes: {size}; split the conversation"
            raise TraceError(path, None, problem)
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    trace = _parse(path, 1, raw, "the file")
    if not isinstance(trace, dict):
        problem = f"the file must be a JSON object: {shorten(trace)}; give one trace"
        raise TraceError(path, None, problem)
    if trace.get("block_size") != KV_CACHE_TESTER.unit:
        problem = f"block_size must be 64: {shorten(trace.get('block_size'))}; convert the trace"
        raise TraceError(path, None, problem)
    yield from _walk(path, trace.get("requests"), "", "", 0.0)


def _walk(
    path: Path, requests: object, place: str, prefix: str, start_s: float
) -> Iterator[TraceEntry]:
    """Yield the requests of a list, in the order in which the conversation waits for them."""
    if not isinstance(requests, list):
        problem = f"{prefix}requests must be a list: {shorten(requests)}; add the requests"
        raise TraceError(path, None, problem)
    if place.count(".") > _MAX_AGENT_DEPTH:
        problem = f"{prefix}requests are nested more than {_MAX_AGENT_DEPTH} deep; flatten them"
        raise TraceError(path, None, problem)
    for index, fields in enumerate(requests):
        here = f"{place}{index}"
        where = f"{prefix}requests[{index}]."
        if isinstance(fields, dict) and fields.get("type") == "subagent":
            try:
                agent = SubAgent.model_validate(fields)
            except ValidationError as error:
                value = shorten(error.errors()[0]["input"])
                problem = f"{where}t must be {EXPECTED['t']}: {value}; correct the value"
                raise TraceError(path, None, problem) from error
            yield from _walk(path, fields.get("requests"), f"{here}.", where, start_s + agent.t)
        else:
            yield TraceEntry(here, None, where, start_s, fields)
