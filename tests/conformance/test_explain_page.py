"""The page of a log is one file that fetches nothing, and shows every call as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.pictures.explain import Explained, explained
from conformance.pictures.explain_page import KINDS, explain_page
from conformance.program import FOUND, Operation, Program, recording
from conformance.subject import RequestSpec
from spec.state import Config, block_state
from spec.statemachine import Outcome

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}\u2028\n"
DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


def walked(config: Config, seed: int, num_moves: int) -> Program:
    """Return the program of a random walk."""
    subject, operations = recording(Reference(config))
    Walk(Lockstep(subject, "incremental"), seed).run(num_moves)
    return Program(config, tuple(operations))


def story(rid: str) -> Program:
    """Return a request that arrives, runs and ends; its strings come from a user."""
    request = RequestSpec((0, 1, 0), lora=(rid, 0), media=((rid, 0, 1),), salt=rid)
    allocation = {"rid": rid, "num_tokens": 3, "hits": FOUND, "num_lookahead": 0}
    operations = (
        Operation("add_request", {"rid": rid, "request": request}),
        Operation("get_computed_blocks", {"rid": rid}),
        Operation("allocate_slots", allocation),
        Operation("run_step", {"outcomes": {rid: Outcome(0, (1,))}}),
        Operation("finish", {"rid": rid}),
    )
    return Program(Config(4, 2), operations)


class Parsed(HTMLParser):
    """The elements of a page: tag, attributes and own text of each, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        """Note a text under the element that was opened last."""
        if self.elements:
            self.elements[-1][2].append(data)

    def of(self, **wanted: str) -> list[tuple[str, dict[str, str | None], list[str]]]:
        """Return the elements with these attributes; an underscore in a name is a hyphen."""
        return [
            element
            for element in self.elements
            if all(element[1].get(name.replace("_", "-")) == v for name, v in wanted.items())
        ]


def data_of(page: str) -> dict[str, Any]:
    """Return what the page's script reads."""
    (found,) = DATA.findall(page)
    data: dict[str, Any] = json.loads(found)
    return data


def replayed(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the state after each call, made as the page's script makes it."""
    cells: dict[int, Any] = {}
    index: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    queue: list[int] = []
    loose: list[int] = []
    states = []
    for call in calls:
        cells = cells | {b: own for b, *own in call["cells"]}
        match call.get("queue"):
            case [whole]:
                queue = whole
            case [gone, head, tail]:
                queue = [*head, *(b for b in queue if b not in gone), *tail]
        index, requests = (
            {k: v for k, v in (old | call.get(name, {})).items() if v is not None}
            for name, old in (("index", index), ("requests", requests))
        )
        loose = call.get("loose", loose)
        states.append(
            {"cells": cells, "queue": queue, "index": index, "requests": requests, "loose": loose}
        )
    return states


CONFIGS: Mapping[str, Config] = {
    "full attention": Config(9, 2),
    "window": Config(12, 2, sliding_window=4),
    "many blocks": Config(200, 1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_data_hold_every_state(name: str) -> None:
    """What each call changed, put together, is the specification's state after every call."""
    film = explained(walked(CONFIGS[name], 5, 250), Reference)
    data = data_of(explain_page(film))
    assert len(film.frames) == len(data["calls"]) > 100
    for frame, shown in zip(film.frames, replayed(data["calls"]), strict=True):
        pool = frame.after.pool
        assert tuple(shown["queue"]) == pool.queue
        assert sorted(map(tuple, shown["index"].values())) == sorted(pool.by_key.values())
        assert tuple(shown["loose"]) == frame.after.loose
        tables = {rid: r[0] and tuple(r[0]) for rid, r in shown["requests"].items()}
        assert tables == {rid: r.table for rid, r in frame.after.requests.items()}
        assert sorted(shown["cells"]) == film.blocks()
        for b, (kind, count, letter, pending) in shown["cells"].items():
            block = pool.blocks[b]
            assert KINDS[kind] == block_state(frame.after, b).value
            assert (count, pending) == (block.ref_cnt, block.pending or "")
            assert b in shown["index"][letter] if block.key else not letter


def test_two_hundred_calls_are_less_than_a_megabyte() -> None:
    """A log of 200 calls stays far below, on a small pool and on a large one."""
    for config in (Config(17, 2), Config(400, 16)):
        program = walked(config, 2, 300)
        page = explain_page(explained(program._replace(operations=program[1][:200]), Reference))
        assert len(page.encode()) < 400_000


@pytest.fixture
def leaking(damaged: Callable[..., type[Reference]]) -> type[Reference]:
    """Return a subject that keeps a reference at the end of the first request."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[1].ref_cnt += 1
        return result

    return damaged("finish", 1, damage)


def test_the_last_state_stands_there_without_scripts(leaking: type[Reference]) -> None:
    """The cells, the queue, the calls, what broke and the block's history are plain HTML."""
    film = explained(story("r1"), leaking)
    parsed = Parsed(explain_page(film))
    (block,) = parsed.of(data_b="1")
    assert block[1]["class"] == "block FREE_CACHED changed differs"
    texts = [part.strip() for _, _, text in parsed.elements for part in text if part.strip()]
    for said in (
        str(film.divergence),
        *film.meaning,
        "\u2715 expected 0a, is 1a",
        "3 next victim",
        "finish(r1)",
        "The guilty block: block 1",
    ):
        assert any(said in text for text in texts), said
    assert [attrs["href"] for tag, attrs, _ in parsed.elements if tag == "a"] == [
        *(f"#call={n}" for n in (3, 4, 5)),
        *(f"#call={n}" for n in range(6)),
    ]
    assert [len(parsed.of(id=f"call={n}")) for n in range(6)] == [1] * 6
    assert data_of(explain_page(film))["guilty"] == 1


def test_what_a_user_named_is_no_code(leaking: type[Reference]) -> None:
    """Ids, salts, adapters, items and the subject's name may hold tags, quotes and templates."""
    hostile = type("Hostile", (leaking,), {"name": HOSTILE})
    page = explain_page(explained(story(HOSTILE), hostile))
    parsed = Parsed(page)
    assert [tag for tag, _, _ in parsed.elements if tag in ("img", "script")] == ["script"] * 2
    assert not [attrs for _, attrs, _ in parsed.elements if any(a.startswith("on") for a in attrs)]
    assert page.count("</script>") == 2
    assert "49" not in data_of(page)["calls"][1]["label"]
    assert HOSTILE in data_of(page)["calls"][1]["requests"]


def test_nothing_is_fetched(leaking: type[Reference]) -> None:
    """No address, no style sheet, no font, no picture; the page's own policy forbids them."""
    page = explain_page(explained(story("r1"), leaking))
    parsed = Parsed(page)
    assert not re.search(r"https?:|url\(|@import|@font-face", page)
    assert not [attrs for _, attrs, _ in parsed.elements if "src" in attrs]
    assert not [tag for tag, _, _ in parsed.elements if tag == "link"]
    (policy,) = parsed.of(http_equiv="Content-Security-Policy")
    assert str(policy[1]["content"]).startswith("default-src 'none'")


def test_the_page_is_labelled() -> None:
    """Language, width, a name for each control and region, and a region that speaks up."""
    parsed = Parsed(explain_page(explained(story("r1"), Reference)))
    assert parsed.of(lang="en")
    assert parsed.of(name="viewport", content="width=device-width, initial-scale=1")
    assert parsed.of(id="now", aria_live="polite")
    ids = {attrs.get("id") for _, attrs, _ in parsed.elements}
    named = {
        attrs["aria-labelledby"] for _, attrs, _ in parsed.elements if "aria-labelledby" in attrs
    }
    assert named <= ids
    for tag, attrs, text in parsed.elements:
        if tag in ("button", "input", "nav") and "data-b" not in attrs:
            assert attrs.get("aria-label") or "".join(text).strip(), attrs


def film_of(number: int) -> Explained:
    """Return a film of which the last calls are kept."""
    return explained(walked(Config(9, 2), 5, 250), Reference, keep=number)


def test_a_page_that_begins_late_says_so() -> None:
    """What was cut is counted, and what makes the log small is named; a whole one is silent."""
    film = film_of(20)
    page = explain_page(film)
    assert f"Calls 1 to {film.total - 21} are not on this page" in page
    assert "kvspec shrink" in page
    assert len(data_of(page)["calls"]) == 21
    assert "not on this page" not in explain_page(explained(story("r1"), Reference))


def test_a_clean_and_an_interrupted_film_accuse_nobody() -> None:
    """The page says that nothing broke, and until when."""
    film = explained(story("r1"), Reference)
    assert "Nothing broke." in explain_page(film)
    assert data_of(explain_page(film))["theirs"] is None
    assert "until it was interrupted" in explain_page(film._replace(interrupted=True))
