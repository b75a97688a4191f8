"""The document is what the registry and the recorded results say, and they are of today."""

from __future__ import annotations

import importlib
import json
from functools import reduce
from pathlib import Path

import pytest

from conformance.documents import document as documents
from conformance.documents import encoder_document, workers_document
from conformance.documents.document import DOCUMENT, KEPT_BY, document, main
from conformance.documents.encoder_document import ENCODER_KEPT_BY
from conformance.documents.recording import PEER_RECORDS, RECORDS
from conformance.documents.results import (
    ENCODER_SPECIFIED,
    RESULTS,
    SPECIFIED,
    digest_of_spec,
    read,
    specified,
)
from conformance.documents.workers_document import WORKERS_KEPT_BY
from spec.encoder_properties import ENCODER_REGISTRY
from spec.encoder_worlds import ENCODER_WORLDS
from spec.invariants import REGISTRY
from spec.workers import WORKERS_REGISTRY, WORKERS_WORLDS, WorkersCounts

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


def test_a_property_of_the_encoder_cache_that_goes_or_comes_changes_the_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its section, too, is what its registry says, and nothing else."""
    name = "one_content_is_charged_once"
    changed = ENCODER_REGISTRY[name]._replace(statement="A content is charged by the hour.")
    monkeypatch.setitem(ENCODER_REGISTRY, name, changed)
    assert "A content is charged by the hour." in document()
    assert main(["--check"]) == 1
    without = {other: p for other, p in ENCODER_REGISTRY.items() if other != name}
    monkeypatch.setattr(encoder_document, "ENCODER_REGISTRY", without)
    assert f"\n### {name}\n" not in document()
    assert main(["--check"]) == 1
    more = ENCODER_REGISTRY | {"one_more": changed._replace(name="one_more")}
    monkeypatch.setattr(encoder_document, "ENCODER_REGISTRY", more)
    monkeypatch.setitem(ENCODER_KEPT_BY, "one_more", ["encoder_cache.EncoderCacheManager"])
    assert "\n### one_more\n" in document()
    assert main(["--check"]) == 1


def test_the_section_of_the_encoder_cache_has_its_registry_and_its_worlds() -> None:
    """Headings, statements and reasons are the registry's, and the counts are the frozen ones."""
    text = DOCUMENT.read_text(encoding="utf-8")
    headings = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert headings == [*ENCODER_REGISTRY, *WORKERS_REGISTRY]
    for p in ENCODER_REGISTRY.values():
        assert p.statement in text
        assert p.why in text
    recorded = read("encoder")["worlds"]
    assert sorted(recorded) == sorted(ENCODER_WORLDS)
    for name, world in ENCODER_WORLDS.items():
        counts = world.counts._asdict()
        assert counts == {count: recorded[name][count] for count in counts}
        assert recorded[name]["clean"]
        assert recorded[name]["steps_compared"] == counts["transitions"] + counts["refused"]
        assert f"| `{name}` | {world.about} | {counts['states']:,} |" in text


def test_the_section_of_the_workers_is_their_registry_and_their_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A statement, a world's counts, a property that goes: each changes the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for p in WORKERS_REGISTRY.values():
        assert f"### {p.name}\n\n{p.statement}\n\n- **If it breaks:** {p.why}" in text
    for name, world in WORKERS_WORLDS.items():
        assert f"| `{name}` | {world.about} | {world.counts.states:,} |" in text
    name = "ids_are_valid_on_every_worker"
    without = {other: p for other, p in WORKERS_REGISTRY.items() if other != name}
    monkeypatch.setattr(workers_document, "WORKERS_REGISTRY", without)
    assert f"\n### {name}\n" not in document()
    monkeypatch.undo()
    odd = WORKERS_WORLDS["workers-1"]._replace(counts=WorkersCounts(1, 1, 1, 1))
    monkeypatch.setitem(WORKERS_WORLDS, "workers-1", odd)
    assert "| `workers-1` **not clean** |" in document()
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
    assert sorted(ENCODER_REGISTRY) == sorted(ENCODER_KEPT_BY)
    assert sorted(WORKERS_REGISTRY) == sorted(WORKERS_KEPT_BY)
    assert all([*KEPT_BY.values(), *ENCODER_KEPT_BY.values(), *WORKERS_KEPT_BY.values()])


PLACES = {
    f"kvcache.{place}"
    for table in (KEPT_BY, ENCODER_KEPT_BY)
    for places in table.values()
    for place in places
} | {place for places in WORKERS_KEPT_BY.values() for place in places}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_place_exists(place: str) -> None:
    """Each place is an object of a package: a module, then its names."""
    package, module, *names = place.split(".")
    assert names
    found = reduce(getattr, names, importlib.import_module(f"{package}.{module}"))
    assert found.__doc__


def test_all_results_are_recorded() -> None:
    """There is one file for each kind of result, and no other."""
    assert sorted(RECORDS | PEER_RECORDS) == [file.stem for file in RECORDED]


@pytest.mark.parametrize("name", RECORDS | PEER_RECORDS)
def test_a_recorded_result_is_of_the_specification_of_today(name: str) -> None:
    """It carries the digest of the modules as they are, and says what it was made with."""
    data = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert digest_of_spec(specified(name)) == data["spec"], (
        f"run `python -m conformance.documents.recording {name}`"
    )
    assert all(data[made] for made in ("python", "kvspec", "machine"))


def test_the_digest_follows_the_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another byte in a module that says what is specified is another digest."""
    (tmp_path / "spec").mkdir()
    for name in SPECIFIED:
        (tmp_path / "spec" / f"{name}.py").write_text("x = 1\n")
    monkeypatch.setattr("conformance.documents.results.ROOT", tmp_path)
    before = digest_of_spec()
    assert before == digest_of_spec()
    for name in SPECIFIED:
        (tmp_path / "spec" / f"{name}.py").write_text("x = 2\n")
        assert before != (before := digest_of_spec())
    assert not set(SPECIFIED) & set(ENCODER_SPECIFIED)
    assert specified("encoder") == ENCODER_SPECIFIED
    assert specified("explore") == SPECIFIED
