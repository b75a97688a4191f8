"""A document that is generated: written, or compared with what would be written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def kept(
    path: Path, text: Callable[[], str], source: str, arguments: list[str] | None = None
) -> int:
    """Write a document, or with `--check` say whether it is up to date; return an exit status."""
    parser = argparse.ArgumentParser(description=f"Write {path.name} from {source}.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args(arguments).check:
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current != text():
            sys.stderr.write(f"{path.name} differs from {source}; run `make docs`\n")
            return 1
        return 0
    path.parent.mkdir(exist_ok=True)
    path.write_text(text(), encoding="utf-8")
    return 0
