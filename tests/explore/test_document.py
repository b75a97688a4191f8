"""The document is what the registry and the recorded results say, and they are of today."""

from __future__ import annotations

import importlib
import json
from functools import reduce
from pathlib import Path

import pytest

from conformance import document as documents
from conformance.document import DOCUMENT, KEPT_BY, document, main
from conformance.results import RECORDS, RESULTS, SPECIFIED, digest_of_spec
from spec.invariants import REGISTRY

RECORDED = sorted(RESULTS.glob("*.json")) if RESULTS.is_dir() else []


def test_the_document_is_the_registry() -> None:
    """Neither has what the other lacks, to the letter."""
    assert DOCUMENT.read_text(encoding="utf-8") == document()
    assert main(["--check"]) == 0


def test_a_document_that_differs_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit by hand, or a missing file, ends the check with status 1."""
    copy = tmp_path / "docs" / "invariants.md"
    monkeypatch.setattr(documents, "DOCUMENT", copy)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    copy.write_text(document() + "One more line.\n", encoding="utf-8")
    assert main(["--check"]) == 1
    assert "run `make docs`" in capsys.readouterr().err


def test_a_property_that_goes_or_comes_changes_the_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A statement that changed in the registry is not what the file says."""
    name = "the_free_queue_is_a_chain"
    changed = REGISTRY[name]._replace(statement="The free queue is something else.")
    monkeypatch.setitem(REGISTRY, name, changed)
    assert DOCUMENT.read_text(encoding="utf-8") != document()
    # Another mapping in its place: what is put back into a mapping stands at its end.
    without = {other: p for other, p in REGISTRY.items() if other != name}
    monkeypatch.setattr(documents, "REGISTRY", without)
    assert f"\n## {name}\n" not in document()
    assert main(["--check"]) == 1


def test_every_property_has_one_heading_and_every_heading_a_property() -> None:
    """The headings below `All of them` are the names of the registry, in its order."""
    text = DOCUMENT.read_text(encoding="utf-8")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert [heading for heading in headings if heading in REGISTRY] == list(REGISTRY)
    assert [heading for heading in headings if " " not in heading] == list(REGISTRY)
    for p in REGISTRY.values():
        assert p.statement in text
        assert p.why in text


def test_every_property_is_kept_somewhere() -> None:
    """The table of places has exactly the registry's names, and no empty entry."""
    assert sorted(REGISTRY) == sorted(KEPT_BY)
    assert all(KEPT_BY.values())


@pytest.mark.parametrize(
    "place", sorted({place for places in KEPT_BY.values() for place in places})
)
def test_a_place_exists(place: str) -> None:
    """Each place is an object of `kvcache`: a module, then its names."""
    module, *names = place.split(".")
    assert names
    found = reduce(getattr, names, importlib.import_module(f"kvcache.{module}"))
    assert found.__doc__


def test_all_results_are_recorded() -> None:
    """There is one file for each kind of result, and no other."""
    assert sorted(RECORDS) == [file.stem for file in RECORDED]


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_result_is_of_the_specification_of_today(name: str) -> None:
    """It carries the digest of the modules as they are, and says what it was made with."""
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert digest_of_spec() == data["spec"], "run `python -m conformance.results`"
    assert all(data[made] for made in ("python", "kvspec", "machine"))


def test_the_digest_follows_the_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another byte in a module that says what is specified is another digest."""
    (tmp_path / "spec").mkdir()
    for name in SPECIFIED:
        (tmp_path / "spec" / f"{name}.py").write_text("x = 1\n")
    monkeypatch.setattr("conformance.results.ROOT", tmp_path)
    before = digest_of_spec()
    assert before == digest_of_spec()
    for name in SPECIFIED:
        (tmp_path / "spec" / f"{name}.py").write_text("x = 2\n")
        assert before != (before := digest_of_spec())
