"""A search finds by itself what is wrong with vLLM 0.8.5, and nothing that is not declared."""

from __future__ import annotations

import pytest

from conformance.adapters.sources_0_8_5 import PeerMissingError, load
from conformance.conforming.conform import report_of
from conformance.conforming.declarations import Declared, declared_of
from conformance.conforming.search import Found, Search
from conformance.program import Program
from conformance.subjects import find_subject
from spec.state import Config

NAME = "vllm-0.8.5"
MOST_SECONDS = 240.0
"""After so long the search is taken to have missed something; it needs 10 to 40 seconds."""

SEALED = "raised_AssertionError in block_pool.cache_full_blocks: assert "
KNOWN = {
    "window hits count null as idle": ("admission_is_exact", "no room though there is", None),
    "the null block's count drifts": ("the_null_block_is_inert", "as specified", "null_count"),
    "the count of sealed blocks goes down": (
        "admission_is_exact",
        f"{SEALED}blk.block_hash is None",
        None,
    ),
    "sealing after null dies": (
        "admission_is_exact",
        f"{SEALED}prev_block.block_hash is not None",
        None,
    ),
    "the usage of an idle pool": ("an_idle_pool_is_whole", "as specified", "usage"),
}
"""What the search must find: property, answer, and the observation that alone is wrong."""


def shown(found: Found) -> tuple[str, str, str | None]:
    """Return a finding as `KNOWN` names it."""
    return found.fault.property, found.fault.answer, found.mask


@pytest.fixture(scope="module")
def search() -> Search:
    """Return a search that went on until it had found what it must, or for as long as it may."""
    try:
        load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    search = Search(NAME, find_subject(NAME), 0)
    while search.tally.seconds < MOST_SECONDS:
        search.run(2)
        if set(KNOWN.values()) <= set(map(shown, search.tally.found)):
            break
    return search


@pytest.mark.slow
@pytest.mark.parametrize("what", KNOWN)
def test_a_known_fault_is_found(search: Search, what: str) -> None:
    """Each is a named violation, in a few calls."""
    found = [f for f in search.tally.found if shown(f) == KNOWN[what]]
    assert len(found) == 1, f"{what}: {sorted(map(shown, search.tally.found), key=str)}"
    assert len(found[0].program.operations) <= 9


@pytest.mark.slow
def test_nothing_is_found_that_is_not_declared(search: Search) -> None:
    """The violations are those of the declaration, each with a sentence about it."""
    report = report_of(search, find_subject(NAME), declared_of(NAME))
    new = [v.line for v in report.violations if v.declared is None]
    assert not new, "\n".join(new)
    assert report.verdict == "declared violations only"
    assert {"released_more_often_than_held", "hit_is_stale"} <= {m.rule for m in report.misuse}


@pytest.mark.slow
def test_what_is_not_declared_is_a_violation(search: Search) -> None:
    """Without one of the declarations the verdict is another one."""
    declared = [one for one in declared_of(NAME) if one.observation != "usage"]
    report = report_of(search, find_subject(NAME), declared)
    assert report.verdict == "violation"
    assert [v.property for v in report.violations if v.declared is None] == [
        "an_idle_pool_is_whole"
    ]


def test_each_known_fault_is_declared() -> None:
    """The declaration covers what must be found."""

    class Shown:
        def __init__(self, violated: str, answer: str, mask: str | None) -> None:
            action = "add_request" if mask else "allocate_slots"
            self.fault = type("Shown", (), {})()
            self.fault.property, self.fault.action, self.fault.answer = violated, action, answer
            self.mask = mask
            self.program = Program(Config(3, 1), ())

    def covered(one: Declared, what: str) -> bool:
        return one.covers(Shown(*KNOWN[what]))  # type: ignore[arg-type]  # what `covers` reads

    for what in KNOWN:
        assert any(covered(one, what) for one in declared_of(NAME)), what
