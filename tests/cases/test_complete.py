"""Which of the collected cases are tested here, and why the others are not."""

import re
from collections.abc import Iterator
from pathlib import Path

COVERED = (
    frozenset((3, 4, 6, 7, 9, 10, 11, 13, 15, 16, 17, 19, 21, 22, 23, 25, 26, 31, 32, 33, 35, 37))
    | frozenset((39, 40, 42, 43, 46, 47, 48, 49, 50, 52, 54, 56, 57, 58, 60, 61, 64, 68, 69))
    | frozenset((83, 84))
)
"""The numbers that a single pool can express."""

FORKS = "it needs two requests that share a table by a fork"
TIERS = "it needs a second tier of memory"
TRANSFER = "it needs blocks that are loaded from outside, or sent there"
TENSORS = "it is about bytes in slots, which need tensors"
BUDGET = "it is about memory budgets, which are no part of a pool"
EVENTS = "it needs a log of what was stored and removed"
LATER = "it needs steps that are launched before the last one has ended"
LAYERS = "it needs layers with other rules of reuse beside attention"

LEFT_OUT = {
    1: FORKS,
    8: TIERS,
    12: "it needs pins beside reference counts, in a second tier",
    14: TRANSFER,
    20: FORKS,
    28: LAYERS,
    29: TIERS,
    38: TIERS,
    44: "it needs blocks that are invalidated while they are shared",
    62: LATER,
    66: "it needs a window cache that keeps only some of its blocks",
    67: TENSORS,
    70: TRANSFER,
    71: LAYERS,
    72: TENSORS,
    73: TENSORS,
    74: TENSORS,
    76: "it needs a null block with another id than 0",
    77: TENSORS,
    78: TENSORS,
    79: LATER,
    80: TRANSFER,
    81: TRANSFER,
    85: LATER,
    87: BUDGET,
    88: BUDGET,
    89: BUDGET,
    91: EVENTS,
    92: EVENTS,
    93: EVENTS,
}
"""The numbers that are not tested, each with its reason."""


def names_of_tests() -> Iterator[str]:
    """Yield the name of every test of this folder that is about a case."""
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name not in ("test_complete.py", "test_seeded.py"):
            yield from re.findall(
                r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
            )


def test_every_case_that_applies_has_a_test() -> None:
    """The numbers in the names of the tests are those of the list."""
    found = {int(name.split("_")[2]) for name in names_of_tests() if name.startswith("test_case_")}
    assert found == COVERED


def test_a_case_is_covered_or_left_out() -> None:
    """No number is both, and every reason says what is missing."""
    assert COVERED.isdisjoint(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_every_test_is_named_after_its_case_and_a_fact() -> None:
    """A case is found by its number of two digits, and its outcome by words."""
    assert [
        name for name in names_of_tests() if not re.match(r"test_case_\d\d_\w+_\w+", name)
    ] == []
