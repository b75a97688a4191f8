"""The files of a failure show it, and have the same names when it is found again."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.fuzzing.findings import Damaged, Failing, Failures, Kept, name_of, write_finding
from conformance.logs.oplog import read_log
from conformance.program import Operation, Program, failure
from conformance.subject import RequestSpec
from conformance.subjects import find_subject
from spec.state import Config

LEAKY = "planted_subjects:Leaky"


def program(prompt: tuple[int, ...] = (0,)) -> Program:
    """Return a program that fails on a leaky subject."""
    args = {"rid": "A", "num_tokens": 1, "hits": (), "num_lookahead": 0}
    return Program(
        Config(3, 1),
        (
            Operation("add_request", {"rid": "A", "request": RequestSpec(prompt)}),
            Operation("allocate_slots", args),
            Operation("preempt", {"rid": "A"}),
        ),
    )


@pytest.fixture
def failing(planted: Path) -> Failing:
    """Return a failure."""
    assert planted.exists()
    divergence = failure(program(), find_subject(LEAKY))
    assert divergence is not None
    return Failing(program(), divergence, LEAKY)


def test_a_finding_is_four_files(failing: Failing, tmp_path: Path) -> None:
    """Test, log, table and page are there and each shows the failure."""
    paths = write_finding(tmp_path / "new" / "found", failing, find_subject(LEAKY), 5)
    violated = failing.divergence.property
    assert sorted(tmp_path.joinpath("new/found").iterdir()) == sorted(paths)
    assert paths.test.name == f"test_{name_of(program(), violated)}.py"
    text = paths.test.read_text()
    ast.parse(text)
    assert LEAKY in text
    log = read_log(paths.log)
    assert (log.header.subject, log.header.seed) == (LEAKY, 5)
    assert log.program().operations == program().operations
    assert str(failing.divergence) in paths.table.read_text()
    assert violated in paths.html.read_text()


def test_found_again_it_has_the_same_files(failing: Failing, tmp_path: Path) -> None:
    """Names and contents do not change; another program has another name."""
    first = write_finding(tmp_path, failing, find_subject(LEAKY))
    before = {path: path.read_bytes() for path in first}
    second = write_finding(tmp_path, failing, find_subject(LEAKY))
    assert first == second
    assert before == {path: path.read_bytes() for path in second}
    violated = failing.divergence.property
    assert name_of(program((1,)), violated) != name_of(program(), violated)
    larger = program()._replace(config=Config(4, 1))
    assert name_of(larger, violated) != name_of(program(), violated)


def test_a_folder_that_cannot_be_made_is_an_os_error(failing: Failing, tmp_path: Path) -> None:
    """A file in the way is no folder."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_finding(tmp_path / "file" / "found", failing, find_subject(LEAKY))
    with pytest.raises(OSError, match="file"):
        Failures(tmp_path / "file").keep(failing)


def test_a_failure_is_kept_once_and_forgotten(failing: Failing, tmp_path: Path) -> None:
    """It comes back as it was, for its own subject only; nothing half written is left."""
    failures = Failures(tmp_path / "kept")
    assert list(failures.tried_first([LEAKY])) == []
    path = failures.keep(failing)
    assert failures.keep(failing) == path
    assert [one.name for one in failures.folder.iterdir()] == [path.name]
    assert list(failures.tried_first([LEAKY])) == [Kept(path, LEAKY, program())]
    assert list(failures.tried_first(["reference"])) == []
    other = failures.keep(failing._replace(subject="reference"))
    assert other != path
    assert len(list(failures.tried_first([LEAKY, "reference"]))) == 2
    failures.forget(path)
    failures.forget(path)
    assert list(failures.tried_first([LEAKY])) == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"no log\n",
        b"\xff\xfe\n",
        b'{"kvspec_log": 99}\n',
        b"[1, 2]\n",
    ],
)
def test_a_damaged_file_is_told_apart(failing: Failing, tmp_path: Path, damage: bytes) -> None:
    """Its neighbours are read, and what is said names the file."""
    failures = Failures(tmp_path)
    path = failures.keep(failing)
    bad = path.with_name("0.ndjson")
    bad.write_bytes(damage)
    (tmp_path / "notes.txt").write_text("not ours")
    first, second = failures.tried_first([LEAKY])
    assert isinstance(first, Damaged)
    assert first.path == bad
    assert str(bad) in first.problem
    assert second == Kept(path, LEAKY, program())


def test_a_folder_named_like_a_log_is_damage(failing: Failing, tmp_path: Path) -> None:
    """What cannot be opened is reported too."""
    failures = Failures(tmp_path)
    failures.keep(failing)
    (tmp_path / "0.ndjson").mkdir()
    first, second = failures.tried_first([LEAKY])
    assert isinstance(first, Damaged)
    assert isinstance(second, Kept)


def test_damage_in_the_middle_is_told_apart(failing: Failing, tmp_path: Path) -> None:
    """A log whose second call is spoiled is not performed."""
    failures = Failures(tmp_path)
    path = failures.keep(failing)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"n": 2, "call": "dance", "args": {}}\n'
    path.write_bytes(b"".join(lines))
    (only,) = failures.tried_first([LEAKY])
    assert isinstance(only, Damaged)
    assert ":3: " in only.problem
