"""The encoder cache manager does what its specification says, and what does not is named."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from types import FunctionType
from typing import Any

import pytest

from conformance.divergence import Divergence
from conformance.documents import recording, results
from conformance.documents.encoder_document import ENCODER_FAULTS
from conformance.encoder_lockstep import (
    EncoderLockstep,
    EncoderRefined,
    MediaRequests,
    load,
    refine_encoder,
    view,
)
from kvcache import EncoderCacheManager
from spec.encoder_cache import Media
from spec.encoder_explore import EncoderScope, calls_of, explore_encoder
from spec.encoder_properties import ENCODER_REGISTRY
from spec.encoder_worlds import ENCODER_WORLDS
from spec.pool import Refused

Fault = Mapping[str, Any]

VERBS = {"": "allocate", "?": "has_cache", "can:": "can_allocate", "of:": "get_cached_input_ids"}


@cache
def states_of(world: str) -> tuple[Any, ...]:
    """Return every state of a named world; it is clean and has its frozen counts."""
    result = explore_encoder(ENCODER_WORLDS[world].scope)
    assert (result.found, result.counts) == (None, ENCODER_WORLDS[world].counts)
    return result.states


def tell(pair: EncoderLockstep, scope: EncoderScope, story: str) -> object:
    """Make the calls of a story and return what the last one answers."""
    named = {media.rid + "'" * media.which: media for media in scope.requests}
    answered: object = None
    for word in story.split():
        told = re.fullmatch(r"(\?|-|can:|of:|)([A-Z]'?)(-?\d)?", word)
        if told is None:
            assert word == "report", f"{word!r} is no call"
            answered = pair("get_freed")
            continue
        verb, name, number = told.groups()
        args: dict[str, object] = {"request": named[name]}
        if number:
            args["input_id"] = int(number)
        release = "free_encoder_input" if number else "free"
        answered = pair(VERBS.get(verb, release), **args)
    return answered


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


@pytest.fixture(params=ENCODER_FAULTS, ids=lambda fault: str(fault["name"]))
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Return a fault of the table, put into the manager for the time of one test."""
    found: Fault = request.param
    for name, old, new in found["edits"]:
        target = f"kvcache.encoder_cache.EncoderCacheManager.{name}"
        monkeypatch.setattr(target, changed(target, [(old, new)]))
    return found


def pair_of(scope: EncoderScope) -> EncoderLockstep:
    """Return a new manager with the budget of a scope, and the specification."""
    return EncoderLockstep(EncoderCacheManager(scope.size))


def test_a_seeded_fault_is_named(fault: Fault) -> None:
    """The last call of its story is a divergence, named after the property that breaks."""
    scope = ENCODER_WORLDS[fault["world"]].scope
    with pytest.raises(Divergence) as seen:
        tell(pair_of(scope), scope, fault["story"])
    assert seen.value.property == fault["named"], f"{seen.value}\n{seen.value.details}"
    assert seen.value.call.number == len(fault["story"].split())


@pytest.mark.slow
def test_a_seeded_fault_is_met_in_a_step(fault: Fault) -> None:
    """Some step from some state of its world is a divergence too."""
    calls = calls_of(ENCODER_WORLDS[fault["world"]].scope)
    assert refine_encoder(states_of(fault["world"]), calls).found is not None


@pytest.mark.parametrize("fault", ENCODER_FAULTS, ids=lambda fault: str(fault["name"]))
def test_the_stories_are_clean_without_a_fault(fault: Fault) -> None:
    """What is seen in a story is the fault's doing."""
    scope = ENCODER_WORLDS[fault["world"]].scope
    tell(pair_of(scope), scope, fault["story"])


def test_the_table_of_faults_is_sound() -> None:
    """No name twice, only names of properties, and the more surprising ones are explained."""
    names = [fault["name"] for fault in ENCODER_FAULTS]
    assert len(set(names)) == len(names)
    named = {fault["named"] for fault in ENCODER_FAULTS if "why" not in fault}
    assert named <= set(ENCODER_REGISTRY)
    assert len(named) >= 8


CHECKS = {
    "encoder-one": EncoderRefined(5, 75, 45),
    "encoder-turns": EncoderRefined(1_063, 45_709, 28_911),
    "encoder-twice": EncoderRefined(867, 35_547, 19_033),
    "encoder-three-holders": EncoderRefined(867, 44_217, 25_969),
    "encoder-strangers": EncoderRefined(513, 28_215, 20_655),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", CHECKS)
def test_every_step_from_every_state_is_as_specified(world: str) -> None:
    """Every call from every reachable state of a small world, refused ones included."""
    done = refine_encoder(states_of(world), calls_of(ENCODER_WORLDS[world].scope))
    assert done == CHECKS[world]


def test_a_manager_is_read_as_it_was_loaded() -> None:
    """`load` and `view` are inverse, and what is loaded is in order."""
    requests = MediaRequests()
    for s in states_of("encoder-strangers"):
        manager = load(s, requests)
        manager.check()
        assert view(manager, requests, s) == s


def test_both_sides_answer_alike() -> None:
    """A call returns what both answer: a value, a report, a refusal with its rule."""
    scope = ENCODER_WORLDS["encoder-strangers"].scope
    pair = pair_of(scope)
    assert tell(pair, scope, "A0 ?A0") is True
    assert tell(pair, scope, "of:A") == frozenset({0})
    refusal = tell(pair, scope, "B1")
    assert isinstance(refusal, Refused)
    assert (refusal.rule, pair.calls) == ("encoder_input_is_too_large", 4)
    assert tell(pair, scope, "-A A'1 report") == ("a",)


def test_a_manager_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no refusal is an answer that the specification does not give."""
    monkeypatch.setattr(EncoderCacheManager, "can_allocate", lambda *_, **__: 1 // 0)
    pair, media = EncoderLockstep(EncoderCacheManager(1)), Media("A", (("a", 1),))
    with pytest.raises(Divergence, match="refused:raised_ZeroDivisionError"):
        pair("can_allocate", request=media, input_id=0)


def test_a_manager_that_cannot_be_read_is_a_finding() -> None:
    """A field that is gone ends in a divergence and not in a crash of the comparison."""
    pair = EncoderLockstep(EncoderCacheManager(1))
    del pair.manager.freeable
    with pytest.raises(Divergence, match="a_view"):
        pair("get_freed")


def test_a_divergence_names_request_and_values() -> None:
    """The line greps well; the details say call and states."""
    scope = ENCODER_WORLDS["encoder-one"].scope
    pair = pair_of(scope)
    pair.manager.num_free_slots = 0
    with pytest.raises(Divergence) as seen:
        tell(pair, scope, "?A0")
    assert str(seen.value) == (
        "kvspec violation: property=an_encoder_call_that_is_refused_or_asks_changes_nothing call=1 "
        "has_cache block=- expected=('num_free',1) actual=('num_free',0) holders=A "
        "found_by=lockstep"
    )
    assert "is not EncoderCache(" in seen.value.details


def test_results_are_recorded_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only this file is written, with its own digest; a count that is not frozen is not clean."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    one = ENCODER_WORLDS["encoder-one"]
    monkeypatch.setattr(recording, "ENCODER_WORLDS", {"encoder-one": one})
    assert recording.main(["encoder"]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["encoder.json"]
    recorded = results.read("encoder")
    assert recorded["spec"] == results.digest_of_spec(results.ENCODER_SPECIFIED)
    assert recorded["worlds"]["encoder-one"]["clean"]
    wrong = one._replace(counts=one.counts._replace(states=6))
    monkeypatch.setattr(recording, "ENCODER_WORLDS", {"encoder-one": wrong})
    assert recording.main(["encoder"]) == 1
    assert not results.read("encoder")["worlds"]["encoder-one"]["clean"]
