"""Seeded faults: our manager with one place changed, and the property that lockstep names.

A check that cannot fail proves nothing. The table is `seeded.toml`. Each fault is driven by a story
in the notation of the cases, under full checks and under incremental ones; a sweep ends it.
"""

from __future__ import annotations

import inspect
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from types import FunctionType
from typing import Any

import pytest

from conformance.lockstep import Divergence
from conformance.subject import Refusal

Scene = Any
Fault = Mapping[str, Any]

FAULTS: list[Fault] = tomllib.loads(
    Path(__file__).with_name("seeded.toml").read_text(encoding="utf-8")
)["fault"]
NAMES = [fault["name"] for fault in FAULTS]


def changed(target: str, edits: Iterable[tuple[str, str]]) -> FunctionType:
    """Return a function with places of its text changed, each of which stands in it once."""
    function: FunctionType = resolve_name(target)
    source = dedent(inspect.getsource(function))
    for old, new in edits:
        assert source.count(old) == 1, f"{target} shows {old!r} {source.count(old)} times"
        source = source.replace(old, new)
    made: dict[str, FunctionType] = {}
    code = compile(f"from __future__ import annotations\n{source}", target, "exec")
    exec(code, function.__globals__, made)  # noqa: S102  # the text is our own
    return made[function.__name__]


def seed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fault into the manager for the time of one test."""
    edits = defaultdict(list)
    for where, old, new in fault["edits"]:
        edits[f"kvcache.{where}"].append((old, new))
    for target, places in edits.items():
        monkeypatch.setattr(target.replace(":", "."), changed(target, places))


@pytest.mark.parametrize("check", ["full", "incremental"])
@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_seeded_fault_is_named(
    fault: Fault, check: str, unchecked_pool: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is seen, under the name in the table; `why` tells why that is not the obvious one.

    Where an incremental check cannot look, a later call or the sweep sees it.
    """
    seed(fault, monkeypatch)
    with pytest.raises(Divergence) as seen:
        unchecked_pool.told(fault["story"], check).pair.sweep()
    named = fault["named"]
    expected = fault.get("incremental", named) if check == "incremental" else named
    assert seen.value.property == expected, fault.get("why")


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_the_stories_are_clean_without_a_fault(check: str, unchecked_pool: Scene) -> None:
    """What is seen in a story is the fault's doing; a refusal is an answer, the last of a story."""
    for fault in FAULTS:
        with suppress(Refusal):
            unchecked_pool.told(fault["story"], check).pair.sweep()


def test_every_collected_fault_is_in_the_table() -> None:
    """The numbers M1 to M20 occur, each at least once, and no name occurs twice."""
    assert {f"M{number}" for number in range(1, 21)} <= {name.split()[0] for name in NAMES}
    assert len(set(NAMES)) == len(NAMES)
