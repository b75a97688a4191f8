"""docs/adapters.md says what is so: its code is the example's, and its commands do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "adapters.md"
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    """Return the texts of the guide's blocks of one kind."""
    return [text for given, text in BLOCK.findall(GUIDE.read_text()) if given == kind]


COMMANDS = "".join(blocks("sh")).splitlines()
"""What the guide runs on the sound toy."""
FAILING = "".join(blocks("sh fails")).splitlines()
"""What it runs to show a failure."""


def ran(command: str, folder: Path) -> tuple[int, str]:
    """Run a command of the guide in an empty folder; return its status and what it said."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(  # noqa: S603  # a command that stands in the guide
        command.split(),
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_block_of_the_guide_is_of_a_kind_that_is_checked() -> None:
    """There is no code, command or output that could drift unseen."""
    kinds = [kind for kind, _ in BLOCK.findall(GUIDE.read_text())]
    assert sorted(set(kinds)) == ["python", "sh", "sh fails", "text"]
    assert GUIDE.read_text().count("```") == 2 * len(kinds)


@pytest.mark.parametrize("text", blocks("python"))
def test_the_code_of_the_guide_is_the_examples(text: str) -> None:
    """Each piece stands in the adapter, as it is."""
    assert text in (ROOT / "examples" / "toy.py").read_text()


def test_the_files_that_the_guide_names_are_there() -> None:
    """Each link leads somewhere."""
    links = re.findall(r"\]\(([\w./]+)\)", GUIDE.read_text())
    assert links
    assert [link for link in links if not (GUIDE.parent / link).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_toy_passes_all_that_the_guide_runs(command: str, tmp_path: Path) -> None:
    """The sound toy is clean by every command."""
    status, said = ran(command, tmp_path)
    assert status == 0, said
    assert not list(tmp_path.rglob("*.ndjson"))


@pytest.mark.slow
def test_the_failure_of_the_guide_is_what_is_shown(tmp_path: Path) -> None:
    """The line and the table come out as they are printed there."""
    (command,) = FAILING
    status, said = ran(command, tmp_path)
    assert status == 1, said
    for text in blocks("text"):
        assert text in said
    assert len(list(tmp_path.glob(".kvspec/failures/*.ndjson"))) == 1
