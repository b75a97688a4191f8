"""What the commands share: consoles, exit statuses, refused numbers, files written after the work.

A file that cannot be written is refused before the work, so that none is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

CLEAN, VIOLATION, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit statuses of every command."""

# Paths and values of a trace are no markup.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def between(least: int, most: int, because: str) -> Callable[[int | None], int | None]:
    """Return a check of an option's number, whose error shows the number and what to give."""

    def checked(value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise typer.BadParameter(f"{value}: {because}; give a number from {least} to {most}")
        return value

    return checked


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


def refuse_bad_folder(path: Path, option: str = "--out") -> None:
    """Raise `typer.BadParameter` for a folder that neither can be written nor can be made."""
    there = path.resolve()
    while not there.exists():
        there = there.parent
    problem = None
    if not there.is_dir():
        problem = f"{str(there)!r} is a file; name a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        problem = f"{str(there)!r} may not be written; name another folder"
    if problem is not None:
        raise typer.BadParameter(f"{str(path)!r}: {problem}", param_hint=option)


def write_output(path: Path, text: str) -> None:
    """Write a file; say why and exit with status 2 where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"kvspec: {path}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def counted() -> Progress:
    """Return a bar of things done out of a known number; silent where nobody looks."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
