"""An operation log: what was called on a block manager, and what it answered, a line a call.

A line is begun when the call is, with the arguments, and ended when the call is answered. So a
call that never came back, because the manager hung or took the process with it, is what the torn
last line shows: reading gives it without an answer, and says so. Rejected: a line for the beginning
and one for the end, which doubles the lines of a log for the sake of its last call.

Reading and writing hold one line at a time, however long the log is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, Self, cast

from conformance.lockstep import Divergence, Lockstep
from conformance.logs.oplog_format import Answer, Header, Odd, Raising, Refusing, plain_args
from conformance.logs.oplog_reader import (
    MAX_LINE_BYTES,
    UNANSWERED,
    Log,
    LogError,
    LoggedCall,
    is_log,
    read_log,
)
from conformance.program import Factory, Operation, Program, Recorder, perform
from conformance.subject import Refusal, Snapshot, Subject

__all__ = [
    "UNANSWERED",
    "Answer",
    "Header",
    "Log",
    "LogError",
    "LogWriter",
    "LoggedCall",
    "Odd",
    "Raising",
    "Refusing",
    "is_log",
    "logged",
    "read_log",
    "record_program",
    "write_program",
]

SMALL_POOL: Final = 64
"""Up to so many blocks each call's line shows the whole subject."""
SNAPSHOT_EVERY: Final = 1_000
"""In larger pools, each so-manieth."""
MAX_TEXT: Final = 1_000

_encode = json.JSONEncoder(allow_nan=False).encode


class LogWriter:
    """Writes a log. Use it as a context: what is written is on the disk's side at each line.

    Raises `LogError` where the file cannot be written.
    """

    def __init__(self, path: Path, header: Header, snapshot_every: int | None = None) -> None:
        small = header.config.num_gpu_blocks <= SMALL_POOL
        self.path = path
        self.calls = 0
        self._every = snapshot_every or (1 if small else SNAPSHOT_EVERY)
        self._begun = False
        self._names: dict[Hashable, str] = {}
        self._fresh = count(1)
        try:
            self._file = path.open("w", encoding="ascii", newline="\n", buffering=1)
        except OSError as error:
            raise self._unwritable(error) from error
        self._put(_encode(header.model_dump()) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begun(self, operation: Operation) -> None:
        """Write that a call begins."""
        if self._begun:
            self.ended()
        args = _encode(plain_args(operation))
        if len(args) > MAX_LINE_BYTES // 2:
            problem = f"call {self.calls + 1} is longer than {MAX_LINE_BYTES // 2} bytes"
            raise LogError(self.path, None, f"{problem}; shorten its prompt")
        self.calls += 1
        self._begun = True
        self._put(f'{{"n": {self.calls}, "call": "{operation.action}", "args": {args}')
        self._file.flush()

    def ended(self) -> None:
        """End a call's line without an answer."""
        self._begun = False
        self._put("}\n")

    def answered(self, result: object, look: Callable[[], Snapshot]) -> None:
        """Write what the call returned or raised, and now and then the whole subject."""
        seen = ""
        if self.calls % self._every == 0:
            seen = self._seen(look)
        self._begun = False
        self._put(f', "answer": {_encode(_plain_answer(result))}{seen}}}\n')

    def _seen(self, look: Callable[[], Snapshot]) -> str:
        try:
            seen = look()
            shown = _encode(self._plain(seen))
        except Exception as crash:  # noqa: BLE001  # that it cannot be looked at is worth a line
            return f', "unseen": {_encode(_raised(crash))}'
        if len(shown) > MAX_LINE_BYTES // 2:
            problem = f"a snapshot is longer than {MAX_LINE_BYTES // 2} bytes"
            raise LogError(self.path, None, f"{problem}; record without snapshots of such a pool")
        return f', "snapshot": {shown}'

    def _plain(self, seen: Snapshot) -> Mapping[str, Any]:
        """Return a snapshot as JSON has it. A key keeps its name for as long as it is seen."""
        here = dict.fromkeys(key for key in (*seen.keys, *seen.index) if key is not None)
        self._names = {key: self._names.get(key) or f"k{next(self._fresh)}" for key in here}
        names = self._names
        return {
            "ref_cnts": seen.ref_cnts,
            "keys": [None if key is None else names[key] for key in seen.keys],
            "queue": seen.queue,
            "queue_back": seen.queue_back,
            "num_free": seen.num_free,
            "index": {names[key]: copies for key, copies in seen.index.items()},
            "tables": dict(seen.tables),
            **({} if seen.usage is None else {"usage": seen.usage}),
            **({"counters": dict(seen.counters)} if seen.counters else {}),
            **({"stray": seen.stray} if seen.stray else {}),
        }

    def _put(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> LogError:
        problem = f"cannot be written: {error.strerror}; what stands there is kept"
        return LogError(self.path, None, problem)


def _plain_answer(result: object) -> object:
    if result is None or isinstance(result, bool):
        return result
    if isinstance(result, Refusal):
        return {"refused": result.rule, "text": result.text[:MAX_TEXT]}
    if isinstance(result, Exception):
        return _raised(result)
    if isinstance(result, (tuple, list)) and all(type(b) is int for b in result):
        return result
    return {"returned": type(result).__name__, "text": repr(result)[:MAX_TEXT]}


def _raised(crash: Exception) -> Mapping[str, str]:
    return {"raised": type(crash).__name__, "text": str(crash)[:MAX_TEXT]}


def logged(subject: Subject, writer: LogWriter) -> Subject:
    """Return the subject, whose calls and answers go into a log from now on."""
    recorder = Recorder(
        subject, writer.begun, lambda answer: writer.answered(answer, subject.snapshot)
    )
    return cast("Subject", recorder)


def write_program(
    path: Path, program: Program, subject: str, seed: int | None = None, made_by: str = "kvspec"
) -> None:
    """Write a program as a log that knows no answers."""
    with LogWriter(path, Header.of(program.config, subject, seed, made_by)) as writer:
        for operation in program.operations:
            writer.begun(operation)
            writer.ended()


def record_program(
    path: Path,
    program: Program,
    make: Factory,
    subject: str,
    seed: int | None = None,
    made_by: str = "kvspec",
) -> Divergence | None:
    """Perform a program in lockstep and write the log with the answers, to the first divergence."""
    made = make(program.config)
    config = program.config._replace(free_rule=made.capabilities.free_rule)
    with LogWriter(path, Header.of(config, subject, seed, made_by)) as writer:
        try:
            perform(Lockstep(logged(made, writer)), program.operations)
        except Divergence as divergence:
            return divergence
    return None
