"""What is left of a failure: files that show it, and a folder of failures that are tried first.

A finding is four files with one name: a test to paste, the log of the calls, the step table, and
the same as a page to click through. The name is the property that broke and a digest of the
program, so a failure that is found again overwrites its own files and no other's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from conformance.lockstep import Check, Divergence
from conformance.logs.oplog import LogError, read_log, record_program, write_program
from conformance.logs.oplog_format import plain_args
from conformance.pictures.explain import explained
from conformance.pictures.explain_page import explain_page
from conformance.pictures.explain_text import as_text
from conformance.program import Factory, Program
from conformance.shrinking.paste import as_test

DATABASE: Final = Path(".kvspec/failures")
SUFFIX: Final = ".ndjson"


class Paths(NamedTuple):
    """The files of one finding."""

    test: Path
    log: Path
    table: Path
    html: Path


class Kept(NamedTuple):
    """A failing program that was kept, and the name of the subject that it failed on."""

    path: Path
    subject: str
    program: Program


class Damaged(NamedTuple):
    """A file among the kept failures that cannot be used, and why."""

    path: Path
    problem: str


def name_of(program: Program, violated: str) -> str:
    """Return a name for a failure: the property, and eight digits that stand for the program."""
    calls = [(operation.action, plain_args(operation)) for operation in program.operations]
    digest = sha256(json.dumps([program.config, calls]).encode())
    return f"{violated}_{digest.hexdigest()[:8]}"


class Failing(NamedTuple):
    """A program that fails, and how. `check` is how it is seen: in full, or not.

    `masked` is as for `paste.as_test`.
    """

    program: Program
    divergence: Divergence
    subject: str
    check: Check = "full"
    masked: Sequence[str] | None = None

    def as_test(self) -> str:
        """Return the failure as a test to paste."""
        return as_test(self.program, self.divergence, self.subject, self.check, self.masked)


def write_finding(
    folder: Path,
    failing: Failing,
    make: Factory,
    seed: int | None = None,
    made_by: str = "kvspec fuzz",
) -> Paths:
    """Write the files of a failure into a folder, which is made. Raises `OSError`."""
    program, divergence, subject_name, *_ = failing
    folder.mkdir(parents=True, exist_ok=True)
    name = name_of(program, divergence.property)
    paths = Paths(
        test=folder / f"test_{name}.py",
        log=folder / f"{name}{SUFFIX}",
        table=folder / f"{name}.txt",
        html=folder / f"{name}.html",
    )
    paths.test.write_text(failing.as_test(), encoding="utf-8")
    try:
        record_program(paths.log, program, make, subject_name, seed, made_by)
    except LogError as error:
        raise OSError(str(error)) from error
    shown = explained(program, make)
    paths.table.write_text(as_text(shown), encoding="utf-8")
    paths.html.write_text(explain_page(shown), encoding="utf-8")
    return paths


class Failures:
    """A folder of failing programs, as logs. It is made when there is one to keep."""

    def __init__(self, folder: Path = DATABASE) -> None:
        self.folder = folder

    def keep(self, failing: Failing) -> Path:
        """Write a program into the folder, if it is not there; return where. Raises `OSError`."""
        program, divergence, subject_name, *_ = failing
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = sha256(subject_name.encode()).hexdigest()[:4]
        path = self.folder / f"{name_of(program, divergence.property)}_{digest}{SUFFIX}"
        half = path.with_suffix(".half")
        try:
            write_program(half, program, subject_name, made_by="kvspec fuzz")
        except LogError as error:
            raise OSError(str(error)) from error
        # Whoever reads meanwhile sees the whole file or none.
        half.replace(path)
        return path

    def tried_first(self, subjects: Sequence[str]) -> Iterator[Kept | Damaged]:
        """Yield the programs that failed on one of these subjects, and what cannot be read."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                log = read_log(path)
                if log.header.subject in subjects:
                    yield Kept(path, log.header.subject, log.program())
            except LogError as error:
                yield Damaged(path, str(error))
            except OSError as error:
                yield Damaged(path, f"{path}: cannot be read: {error.strerror}; remove it")

    def forget(self, path: Path) -> None:
        """Remove a program that fails no longer. Raises `OSError`."""
        path.unlink(missing_ok=True)
