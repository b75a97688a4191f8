"""`docs/results.md` says what was recorded, and what was recorded is of the catalogue of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.documents import results_document as documents
from conformance.documents.recording import MUTANT_SEEDS
from conformance.documents.results import read
from conformance.documents.results_document import DOCUMENT, document, main, seen_by
from conformance.faults.kills import MAX_EXAMPLES
from conformance.faults.mutants import MUTANTS

SEVERAL = 2
"""So many independent layers kill a fault, if there are."""

ALONE: dict[str, str] = {}
"""Faults that one layer alone sees, each with the reason."""


@pytest.fixture
def recorded() -> Any:  # noqa: ANN401  # plain data
    """Return what was recorded of the seeded faults."""
    return read("mutants")


def test_the_document_is_of_the_results() -> None:
    """Neither has what the other lacks, to the letter."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()
    assert main(["--check"]) == 0


def test_a_document_that_differs_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit by hand, or a missing file, ends the check with status 1."""
    copy = tmp_path / "docs" / "results.md"
    monkeypatch.setattr(documents, "DOCUMENT", copy)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    copy.write_text(document() + "One more line.\n", encoding="utf-8")
    assert main(["--check"]) == 1
    assert "run `make docs`" in capsys.readouterr().err


def test_a_survivor_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded is what the document says, a fault that survived included."""
    row = {
        "fault": "forward-release",
        "layer": "machine",
        "seeds": 2,
        "survived": [2],
        "names": {"refinement": 1},
        "examples": [7, 2_000],
        "seconds": [0.5, 60.0],
    }
    data = {
        "layers": {},
        "rows": [row],
        "kvspec": "1",
        "python": "3",
        "machine": "m",
    }
    monkeypatch.setattr(documents, "read", lambda name: data if name == "mutants" else {})
    monkeypatch.setattr(documents, "tensor_section", lambda: iter(()))
    monkeypatch.setattr(documents, "peers_section", lambda: iter(()))
    text = document()
    assert "`refinement`, **survived 1 of 2 seeds** | 7 / 1003.5 / 2000 | 0.5 / 30.2 / 60.0" in text
    assert "machine" not in seen_by(
        MUTANTS["forward-release"], {("forward-release", "machine"): row}
    )


def test_every_fault_of_the_catalogue_was_recorded(recorded: Any) -> None:  # noqa: ANN401
    """No fault was added, renamed or taken out since."""
    for layer in ("machine", "driver"):
        named = [row["fault"] for row in recorded["rows"] if row["layer"] == layer]
        assert named == [m.name for m in MUTANTS.values() if layer == "machine" or m.driver]


def test_every_recorded_name_is_the_fault_s_or_explained(recorded: Any) -> None:  # noqa: ANN401
    """No fault was met under a name that the catalogue neither gives nor explains."""
    for row in recorded["rows"]:
        mutant = MUTANTS[row["fault"]]
        assert not row["survived"]
        if row["layer"] != "contract":
            assert [name for name in row["names"] if not mutant.explains(name)] == [], row["fault"]


def test_the_recorded_kills_keep_the_bounds(recorded: Any) -> None:  # noqa: ANN401
    """The machine kills each fault with every seed in time, half of all trials within 200."""
    machine = recorded["layers"]["machine"]
    assert (machine["seeds"], machine["max_examples"]) == (MUTANT_SEEDS, MAX_EXAMPLES)
    assert machine["killed"] == machine["trials"] == MUTANT_SEEDS * len(MUTANTS)
    assert machine["most_examples"] <= MAX_EXAMPLES
    assert machine["median_examples"] <= MAX_EXAMPLES / 10


def test_every_fault_is_killed_by_several_layers(recorded: Any) -> None:  # noqa: ANN401
    """One layer that is blind leaves no fault unseen; the exceptions have their reason."""
    rows = {(row["fault"], row["layer"]): row for row in recorded["rows"]}
    few = {name for name, mutant in MUTANTS.items() if len(seen_by(mutant, rows)) < SEVERAL}
    assert few == set(ALONE)
