"""Reads an operation log, one line at a time, and refuses every kind of damage by its line.

A line is checked before its call is used, not the whole log beforehand: that would double the time
of a long one. A torn last line is no damage but what a crash leaves. Where its call and arguments
are whole the call was begun and never answered, and is read as such; else it is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import ValidationError

from conformance.logs.oplog_faults import call_problem, header_problem, version_problem
from conformance.logs.oplog_format import LINES, Answer, Header, Line, Raising
from conformance.program import Operation, Program
from conformance.subject import Snapshot
from conformance.workloads.file_error import FileError
from conformance.workloads.trace_format import shorten

MAX_LINE_BYTES: Final = 256 * 2**20
_HEAD_BYTES: Final = 64 * 2**10


class LogError(FileError):
    """A log cannot be used; `str()` is `FILE:LINE: what is wrong: value; what to do`."""


class _Unanswered:
    def __repr__(self) -> str:
        return "UNANSWERED"


UNANSWERED: Final = _Unanswered()
"""Stands where a log has no answer: None is one."""


class LoggedCall(NamedTuple):
    """One call of a log. `line` is where it stands in the file."""

    number: int
    operation: Operation
    answer: Answer | _Unanswered
    snapshot: Snapshot | Raising | None
    """The subject after the call; what looking at it raised; None where it was not looked at."""
    line: int


class Log:
    """A log to be read any number of times. Raises `LogError` at the first line that is damaged.

    `notices` tell, once the end was read, what a user should know about it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[str] = []
        self._version = _version(path)
        self.header = self._header()

    def __iter__(self) -> Iterator[LoggedCall]:
        """Yield the calls in order."""
        if _version(self.path) != self._version:
            raise LogError(self.path, None, "changed after it was opened; open it again")
        self.notices.clear()
        lines = _lines(self.path)
        next(lines)
        for number, (line, raw) in enumerate(lines, 1):
            read = self._read(line, raw, number)
            if read is None:
                return
            args = Operation(read.call, read.args.as_given())
            answer = read.answer if "answer" in read.model_fields_set else UNANSWERED
            seen = read.unseen if read.snapshot is None else read.snapshot.as_snapshot()
            yield LoggedCall(number, args, answer, seen, line)

    def program(self) -> Program:
        """Return the configuration and the calls, all of them."""
        return Program(self.header.settings, tuple(call.operation for call in self))

    def _header(self) -> Header:
        line, raw = next(_lines(self.path), (None, b""))
        if line is None:
            raise LogError(self.path, None, "is empty; record again")
        try:
            return _header(_parse(raw))
        except _DamageError as damage:
            torn = "" if raw.endswith(b"\n") else "the header is torn: "
            raise LogError(self.path, line, f"{torn}{damage}") from damage

    def _read(self, line: int, raw: bytes, number: int) -> Line[str, Any] | None:
        """Return the call on a line; None for a torn last one that holds no whole call."""
        try:
            fields = _parse(raw)
        except _DamageError as damage:
            if raw.endswith(b"\n"):
                raise LogError(self.path, line, str(damage)) from damage
            return self._torn(line, raw, number, str(damage).rpartition(";")[0])
        try:
            return _call(fields, number)
        except _DamageError as damage:
            raise LogError(self.path, line, str(damage)) from damage

    def _torn(self, line: int, raw: bytes, number: int, damage: str) -> Line[str, Any] | None:
        """Return the call of a torn last line as far as it is whole, or None; note which."""
        read = None
        try:
            read = _call(_parse(raw + b"}"), number)
        except _DamageError:
            problem = f"the last line is torn and not used: {damage}"
        else:
            problem = f"the last call, {read.call}, was begun and never answered"
            if "answer" in read.model_fields_set:
                problem = "the last line is torn behind the answer, which is used"
        self.notices.append(f"{self.path}:{line}: {problem}")
        return read


def read_log(path: Path) -> Log:
    """Return the log in a file, of which the header is read and checked."""
    return Log(path)


def is_log(path: Path) -> bool:
    """Return whether the first line of a file speaks of an operation log; False if unreadable."""
    try:
        with path.open("rb") as file:
            return path.is_file() and b'"kvspec_log"' in file.readline(_HEAD_BYTES)
    except (OSError, ValueError):
        return False


class _DamageError(ValueError):
    """What is wrong with a line, as `what: value; what to do`."""


def _header(fields: dict[str, Any]) -> Header:
    if (problem := version_problem(fields)) is not None:
        raise _DamageError(problem)
    try:
        return Header.model_validate(fields)
    except ValidationError as error:
        raise _DamageError(header_problem(error, fields)) from error


def _call(fields: dict[str, Any], number: int) -> Line[str, Any]:
    if "kvspec_log" in fields:
        what = f"is a second header: {shorten(fields)}"
        raise _DamageError(f"{what}; two logs stand in one file, so split them here")
    try:
        read: Line[str, Any] = LINES.validate_python(fields)
    except ValidationError as error:
        raise _DamageError(call_problem(error, fields)) from error
    if read.n != number:
        what = f"n must be {number}, one more than before: {read.n}"
        raise _DamageError(f"{what}; a line was lost, doubled or moved, so record again")
    return read


def _parse(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; raise `_DamageError` where it is none."""
    try:
        fields = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start}"
        raise _DamageError(f"{what}; a log is text, so give another file") from error
    except json.JSONDecodeError as error:
        near = repr(error.doc[max(0, error.pos - 20) : error.pos + 40])
        what = f"not JSON: {error.msg} at column {error.colno}, near {near}"
        raise _DamageError(f"{what}; each line must be one JSON object") from error
    except _DamageError:
        raise
    except (ValueError, RecursionError) as error:
        what = f"not usable JSON: {error}"
        raise _DamageError(f"{what}; each line must be a plain JSON object") from error
    if not isinstance(fields, dict):
        what = f"the line must be a JSON object: {shorten(fields)}"
        raise _DamageError(f"{what}; write one object for each call")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _DamageError(f"{double} stands twice in one object: {shorten(pairs)}; keep one")
    return fields


def _no_number(name: str) -> NoReturn:
    raise _DamageError(f"{name} is no JSON: {name}; a log has integers only")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            lines = iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")
            for line, raw in enumerate(lines, 1):
                if len(raw) > MAX_LINE_BYTES:
                    what = f"is longer than {MAX_LINE_BYTES} bytes"
                    raise LogError(path, line, f"{what}; put each call on a line")
                if not raw.isspace():
                    yield line, raw
    except OSError as error:
        raise _unreadable(path, error) from error


def _version(path: Path) -> tuple[int, int]:
    """Return the file's size and time of change; raise unless it can be read twice."""
    try:
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise LogError(path, None, f"{what}; give the path of an operation log")
        stat = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return stat.st_size, stat.st_mtime_ns


def _unreadable(path: Path, error: Exception) -> LogError:
    reason = getattr(error, "strerror", None) or error
    return LogError(path, None, f"cannot be read: {reason}; check the path and its permissions")
