"""The catalogue of seeded faults: `mutants.toml`, and how a fault is planted.

A check that cannot fail proves nothing, so every check is held against our manager with one place
changed. A fault is planted by giving functions of `kvcache` other code, in memory and for a time:
the function object stays, so whoever holds it, under whatever name, runs the changed code.

`python -m conformance.faults.mutants --planted NAME -- MODULE ARGUMENTS` runs a module with a fault
in it.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from conformance.faults.workers import IDS_ARE_VALID
from spec.invariants import REGISTRY

CATALOGUE: Final = Path(__file__).with_name("mutants.toml")


def _frozen(value: object) -> object:
    """Return what TOML writes as arrays as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


class Strict(BaseModel):
    """Data of the catalogue; what it does not know is an error."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Story(Strict):
    """A sequence of calls in the notation of `tests/cases`, and the name that lockstep gives.

    `incremental` is the name under incremental checks, where it is another one.
    """

    told: str
    named: str
    incremental: str | None = None


Edit = tuple[str, str, str]
"""A function below `kvcache` as `module:name`, the old text, which stands in it once, the new."""


class Mutant(Strict):
    """A seeded fault; the fields are explained at the head of `mutants.toml`."""

    name: Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)*$")]
    number: Annotated[str, Field(pattern=r"^(M[1-9]|M1[0-9]|M20|more)$")] | None = None
    says: str
    edits: Annotated[tuple[Edit, ...], BeforeValidator(_frozen), Field(min_length=1)]
    caught_by: str
    stories: Annotated[tuple[Story, ...], BeforeValidator(_frozen)] = ()
    also: Mapping[str, str] = {}
    subject: Literal["reference", "reference-builtin"] = "reference"
    machine: Literal["pool", "manager", "workers"] = "manager"
    steps: Annotated[tuple[str, str] | None, BeforeValidator(_frozen)] = None
    driver: bool = True
    contracts: Annotated[tuple[str, ...], BeforeValidator(_frozen)] = ()

    def explains(self, found: str) -> bool:
        """Return whether the fault may be met under this name of a property."""
        return found == self.caught_by or found in self.also


class MovedTextError(Exception):
    """The code is no longer what an edit of the catalogue was written for."""


def catalogue(path: Path = CATALOGUE) -> dict[str, Mutant]:
    """Return the faults of a file by name. Raises `ValueError` for one that makes no sense."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    mutants: dict[str, Mutant] = {}
    for mutant in TypeAdapter(tuple[Mutant, ...]).validate_python(tuple(listed)):
        if mutant.name in mutants:
            raise ValueError(f"{mutant.name!r} stands twice in {path.name}; rename one")
        told = [name for s in mutant.stories for name in (s.named, s.incremental) if name]
        for name in (mutant.caught_by, *mutant.also):
            if name not in NAMES:
                raise ValueError(f"{mutant.name}: {name!r} is no property of the registry")
        for name in told:
            if not mutant.explains(name):
                raise ValueError(f"{mutant.name}: say below `also` why a story is named {name!r}")
        mutants[mutant.name] = mutant
    return mutants


NAMES: Final = frozenset({*REGISTRY, IDS_ARE_VALID, "refinement"})
"""The names under which a fault may be met."""

MUTANTS: Final[Mapping[str, Mutant]] = catalogue()


def _function(target: str) -> FunctionType:
    """Return the function behind `module:Class.name`, that of a property included."""
    try:
        found: object = resolve_name(f"kvcache.{target}")
    except (AttributeError, ImportError) as error:
        raise MovedTextError(f"kvcache.{target} is no more: {error}; mend the catalogue") from error
    function = found.fget if isinstance(found, property) else found
    if not isinstance(function, FunctionType):
        raise MovedTextError(f"kvcache.{target} is {found!r}, not a function; mend the catalogue")
    return function


def _changed(function: FunctionType, target: str, edits: Iterable[tuple[str, str]]) -> CodeType:
    """Return the code of a function with places of its text changed."""
    try:
        source = dedent(inspect.getsource(function))
    except OSError as error:
        raise MovedTextError(f"kvcache.{target} is changed already; take the fault out") from error
    for old, new in edits:
        if (times := source.count(old)) != 1:
            raise MovedTextError(
                f"kvcache.{target} shows {old!r} {times} times, not once; mend the catalogue"
            )
        source = source.replace(old, new)
    made: dict[str, FunctionType] = {}
    code = compile(f"from __future__ import annotations\n{source}", f"<mutant {target}>", "exec")
    exec(code, dict(function.__globals__), made)  # noqa: S102  # the repository's own text
    return made[function.__name__].__code__


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Plant a fault for a time; the code is as before at the end, whatever happens.

    Raises `MovedTextError`, and plants nothing, when the text of an edit does not stand once in its
    function. Faults of different functions can be planted together.
    """
    edits: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for target, old, new in mutant.edits:
        edits[target].append((old, new))
    functions = {target: _function(target) for target in edits}
    changed = {target: _changed(functions[target], target, edits[target]) for target in edits}
    with ExitStack() as restored:
        for target, function in functions.items():
            restored.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = changed[target]
            assert _function(target).__code__ is changed[target], f"{target} runs other code"
        yield


def select(words: Iterable[str], among: Mapping[str, Mutant] = MUTANTS) -> list[Mutant]:
    """Return the faults that words name, by name or number; all of them for no word.

    Raises `KeyError` with the first word that names none.
    """
    chosen: dict[str, Mutant] = {}
    for word in words:
        found = {n: m for n, m in among.items() if word in (n, m.number)}
        if not found:
            raise KeyError(word)
        chosen |= found
    return list(chosen.values()) or list(among.values())


def main(arguments: list[str]) -> int:
    """Run a module with a fault planted: `--planted NAME -- MODULE ARGUMENTS`."""
    if len(arguments) < 4 or arguments[0] != "--planted" or arguments[2] != "--":
        sys.stderr.write(
            "usage: python -m conformance.faults.mutants --planted NAME -- MODULE ARGS...\n"
        )
        return 2
    if arguments[1] not in MUTANTS:
        sys.stderr.write(f"{arguments[1]!r} is no fault; one of: {', '.join(MUTANTS)}\n")
        return 2
    module, sys.argv = arguments[3], arguments[3:]
    with planted(MUTANTS[arguments[1]]):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
