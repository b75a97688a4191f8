"""What is wrong with a file, and in which line: the form of every such error."""

from __future__ import annotations

from pathlib import Path


class FileError(Exception):
    """A file cannot be used; `str()` is `FILE:LINE: what is wrong: value; what to do`."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.problem}"
