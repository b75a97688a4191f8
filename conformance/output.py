"""Files that a command writes: refused before the work if they cannot be, written after it."""

from __future__ import annotations

import os
from pathlib import Path

import typer

BAD_INPUT = 2


def refuse_bad_output(path: Path, *inputs: Path, option: str = "--json") -> None:
    """Raise `typer.BadParameter` for a path that cannot be written, or that is an input."""
    problem = None
    if not path.name or path.is_dir():
        problem = "is a folder; name a file"
    elif not path.resolve().parent.is_dir():
        problem = f"the folder {path.resolve().parent} does not exist; make it first"
    elif any(path.exists() and one.exists() and path.samefile(one) for one in inputs):
        problem = "is the input; name another file"
    elif not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        problem = "may not be written; name another file"
    if problem is not None:
        raise typer.BadParameter(f"{str(path)!r}: {problem}", param_hint=option)


def write_output(path: Path, text: str) -> None:
    """Write a file; say why and exit with status 2 where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"kvspec: {path}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(BAD_INPUT) from error
