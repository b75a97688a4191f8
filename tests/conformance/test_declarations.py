"""What is declared of a subject covers what it names, and a bad declaration is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.conforming.declarations import Declared, DeclaredError, declared_in, declared_of
from conformance.conforming.known import Fault
from conformance.program import Program
from spec.state import Config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[violation]", "is no TOML"),
        ("[[violation]]\nproperty = 'reset_only_when_idle'", "violation.0.says: Field required"),
        ("[[violation]]\nproperty = 3\nsays = 'x'", "violation.0.property: .*, not 3"),
        ("[[violation]]\nproperty = 'no_such'\nsays = 'x'", "'no_such' is no property"),
        ("[[fault]]", "fault: Extra inputs"),
        ("[[violation]]\nproperty = 'refinement'\nsays = 'x'\nobservation = 'colour'", "'colour'"),
    ],
)
def test_a_bad_declaration_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """The text says what is wrong and where."""
    path = tmp_path / "declared.toml"
    path.write_text(text)
    with pytest.raises(DeclaredError, match=says):
        declared_in(path)


def test_what_comes_with_a_subject_can_be_read() -> None:
    """The releases have declarations, ours has none, and every page that is named is there."""
    assert declared_of("reference") == ()
    root = Path(__file__).parents[2]
    for name in ("vllm-0.8.5", "vllm"):
        declared = declared_of(name)
        assert declared
        for one in declared:
            file, _, row = (one.page or "docs/refinement.md, ").partition(", ")
            assert row.lower() in (root / file).read_text().replace("`", "").lower(), one


def test_a_declaration_covers_what_it_names() -> None:
    """What is left out may be anything; an observation is covered only where it is named."""

    class Seen:
        fault = Fault("admission_is_exact", "allocate_slots", "another answer")
        mask: str | None = None
        program = Program(Config(3, 1, enable_caching=False), ())

    seen: Any = Seen()
    by: dict[str, Any] = {"property": "admission_is_exact", "says": "x"}
    assert Declared(**by).covers(seen)
    assert Declared(**by, actions=["allocate_slots"], answers=["another answer"]).covers(seen)
    assert not Declared(**by, actions=["free"]).covers(seen)
    assert not Declared(**by, answers=["as specified"]).covers(seen)
    assert not Declared(**by, observation="usage").covers(seen)
    assert Declared(**by, caching=False).covers(seen)
    assert not Declared(**by, caching=True).covers(seen)
    assert not Declared(property="refinement", says="x").covers(seen)
    seen.mask = "usage"
    assert not Declared(**by).covers(seen)
