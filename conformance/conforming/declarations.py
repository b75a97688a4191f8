"""Violations that are declared beforehand, each with a sentence about it.

So a test can say of a subject: these are wrong, and no others. The declarations of the releases
stand in the folder `declared`.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from conformance.conforming.known import MASKS
from conformance.conforming.search import Found
from spec.invariants import REGISTRY


class Plain(BaseModel):
    """Checked when it is made, unchangeable, exact about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Declared(Plain):
    """A violation that is known of a subject. What is left out may be anything."""

    property: str
    actions: list[str] = []
    answers: list[str] = []
    observation: str | None = None
    caching: bool | None = None
    """With caching on only, or off only."""
    says: str
    page: str | None = None
    """Where it is written about."""

    def covers(self, found: Found) -> bool:
        """Return True when a violation is this one."""
        fault = found.fault
        return (
            fault.property == self.property
            and (not self.actions or fault.action in self.actions)
            and (not self.answers or fault.answer in self.answers)
            and self.observation == found.mask
            and self.caching in (None, found.program.config.enable_caching)
        )


class _Declarations(Plain):
    violation: list[Declared] = []


class DeclaredError(Exception):
    """A file of declared violations that cannot be used; the text says what is wrong where."""


def declared_in(path: Path) -> tuple[Declared, ...]:
    """Return the violations that a file declares. Raises `DeclaredError`."""
    try:
        return _declared(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeclaredError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DeclaredError(f"{path}: is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        value = f", not {first['input']!r}" if first["type"] != "missing" else ""
        raise DeclaredError(f"{path}: {where}: {first['msg']}{value}") from error


def declared_of(subject: str) -> tuple[Declared, ...]:
    """Return what is declared of a subject that comes with this package."""
    file = files("conformance.conforming") / "declared" / f"{subject}.toml"
    return _declared(file.read_text(encoding="utf-8")) if file.is_file() else ()


def _declared(text: str) -> tuple[Declared, ...]:
    declared = tuple(_Declarations.model_validate(tomllib.loads(text)).violation)
    for one in declared:
        if one.property not in REGISTRY and one.property != "refinement":
            raise DeclaredError(f"{one.property!r} is no property; docs/invariants.md has them all")
        if one.observation is not None and one.observation not in MASKS:
            known = ", ".join(MASKS)
            raise DeclaredError(f"{one.observation!r} is no observation; give one of {known}")
    return declared
