"""The adapter of vLLM 0.33.0 speaks for the release, and a search says what it does not keep."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.adapters import sources_0_33_0
from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.adapters.sources_0_33_0 import RELEASE, ReleaseWarning, differences, load
from conformance.conforming.conform import report_of
from conformance.conforming.declarations import declared_of
from conformance.conforming.search import Search
from conformance.lockstep import Lockstep
from conformance.subject import RequestSpec
from conformance.subjects import find_subject
from spec.state import Config, Key
from spec.statemachine import Outcome

SILENT = {
    ("released_more_often_than_held", "free_blocks"),
    ("block_count_is_negative", "get_new_blocks"),
    ("touched_block_is_not_sealed", "touch"),
    ("block_is_not_of_this_pool", "free_blocks"),
    ("hit_is_stale", "allocate_slots"),
}
"""Misuse that the release does not notice at the call, by rule and verb."""


@pytest.fixture(scope="module")
def vllm() -> Any:  # noqa: ANN401  # it has no type here
    """Return what makes a manager of the installed release."""
    try:
        load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    return find_subject("vllm")


@pytest.mark.slow
def test_the_release_is_the_one_that_the_adapter_was_written_for(vllm: Any) -> None:  # noqa: ANN401  # it has no type here
    """Its calls take what the adapter gives, and nobody is warned."""
    assert vllm(Config(4, 2)).name == f"vllm-{RELEASE}"
    assert list(differences(load())) == []


def test_another_release_is_tried_with_a_warning(
    vllm: Any,  # noqa: ANN401  # it has no type here
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The warning names both releases and what differs."""
    assert vllm
    monkeypatch.setattr(sources_0_33_0, "version", lambda _: "0.34.1")
    with pytest.warns(ReleaseWarning, match=r"0\.33\.0 and 0\.34\.1 .*: none in what is called"):
        sources_0_33_0.load.__wrapped__()
    given = {**sources_0_33_0.GIVEN, "request.Request": ("request_id", "colour")}
    monkeypatch.setattr(sources_0_33_0, "GIVEN", given)
    with pytest.warns(ReleaseWarning, match=r"request\.Request takes no colour; .* needs "):
        sources_0_33_0.load.__wrapped__()


def test_keys_tell_apart_what_the_release_tells_apart(vllm: Any) -> None:  # noqa: ANN401  # it has no type here
    """Adapter, weights, salt and media make other keys; equal requests have equal ones."""
    subject = vllm(Config(40, 2))
    kinds: list[dict[str, Any]] = [
        {},
        {"lora": ("x", 0)},
        {"lora": ("x", 1)},
        {"lora": ("y", 0)},
        {"salt": "x"},
        {"media": (("x", 0, 2),)},
        {"media": (("x", 1, 2),)},
    ]
    for turn in range(2):
        for number, kind in enumerate(kinds):
            rid = f"r{turn}{number}"
            subject.add_request(rid, RequestSpec([0, 0, 1], **kind))
            hits = subject.get_computed_blocks(rid)
            assert len(hits) == turn, kind
            assert subject.allocate_slots(rid, 3 - 2 * len(hits), hits, 0) is not None
            subject.run_step({rid: Outcome()})
    assert len({key for key in subject.snapshot().keys if key}) == len(kinds)


def test_a_block_with_several_keys_has_one_identity(vllm: Any) -> None:  # noqa: ANN401  # it has no type here
    """The block and the index tell the same; another block with one of the keys is another."""
    subject = vllm(Config(5, 2))
    ids = subject.get_new_blocks(2)
    first, second = Key(None, (0, 0)), Key(None, (1, 1))
    subject.cache_full_blocks(ids, (first, second), 0, 2)
    pool = subject.pool
    own, other = (pool.blocks[b] for b in ids)
    pool._insert_block_hash(b"more" * 9, own, num_tokens=2)
    seen = subject.snapshot()
    assert seen.keys[ids[0]] == {own.block_hash, b"more" * 9}
    assert seen.keys[ids[1]] == other.block_hash
    assert set(seen.index) == {seen.keys[ids[0]], seen.keys[ids[1]]}
    assert sorted(seen.index.values()) == [(ids[0],), (ids[1],)]


def test_a_window_moves_as_specified(vllm: Any) -> None:  # noqa: ANN401  # it has no type here
    """Blocks before the window are null in the table, and null hits cost nothing."""
    pair = Lockstep(vllm(Config(9, 2, sliding_window=3)))
    for rid in ("a", "b"):
        pair.add_request(rid, RequestSpec([0, 0, 1, 1, 0, 0, 1]))
        hits = pair.get_computed_blocks(rid)
        assert hits == (() if rid == "a" else (0, 0, 3))
        assert pair.allocate_slots(rid, 7 - 2 * len(hits), hits, 0) is not None
        pair.run_step({rid: Outcome(0, (1,))})
        assert pair.allocate_slots(rid, 1, (), 0) is not None
        pair.run_step({rid: Outcome(0, (1,))})
    assert pair.subject.table("b")[:2] == (0, 0)


@pytest.mark.slow
def test_what_is_found_is_declared(vllm: Any) -> None:  # noqa: ANN401  # it has no type here
    """A short search finds violations that are declared, no others, and the misuse that passes."""
    search = Search("vllm", vllm, 0)
    while search.tally.seconds < 120:
        search.run(2)
        silent = {(f.rule, f.fault.action) for f in search.tally.found if f.rule}
        properties = {f.fault.property for f in search.tally.found if not f.rule}
        if silent >= SILENT and "nothing_unwritten_is_found" in properties:
            break
    report = report_of(search, vllm, declared_of("vllm"))
    new = [v.line for v in report.violations if v.declared is None]
    assert not new, "\n".join(new)
    assert "nothing_unwritten_is_found" in {v.property for v in report.violations}
    assert {(m.rule, m.action) for m in report.misuse if m.silent} >= SILENT
    assert {h.property for h in report.held} >= {"admission_is_exact", "the_null_block_is_inert"}


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    """The adapter can be imported where vLLM is not installed."""
    from conformance.adapters import vllm as adapter  # noqa: PLC0415  # the import is the test

    assert isinstance(adapter, ModuleType)
    text = Path(adapter.__file__ or "").read_text(encoding="utf-8")
    assert "import vllm" not in text
    assert "from vllm" not in text


@pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed, so nothing is missing"
)
def test_a_release_that_is_missing_is_said_to_be() -> None:
    """The text says how to get it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PeerMissingError, match="run `make peers`"):
            load.__wrapped__()
