"""The page in headless Chromium: it opens at the failure, and a hand can walk through the calls."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.pictures.explain import explained
from conformance.pictures.explain_page import explain_page
from conformance.program import FOUND, Operation, Program
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--dump-dom",
)
HOSTILE = "</script><img src=x onerror=alert(1)>\"'"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


class Shown(NamedTuple):
    """A page after its scripts have run, and what it wrote to the console."""

    dom: str
    console: list[str]

    def text(self, element: str) -> str:
        """Return the inside of the element with an id, without tags."""
        found = re.search(rf'<(\w+)[^>]* id="{element}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        assert found, f"there is no {element}"
        return re.sub(r"<[^>]+>", "", found[2]).strip()

    def block(self, b: int) -> str:
        """Return a block's button, tags and all."""
        found = re.search(rf'<button[^>]*data-b="{b}".*?</button>', self.dom, re.DOTALL)
        assert found
        return found[0]

    @property
    def call(self) -> int:
        """The number of the call that is shown."""
        found = re.search(r'<body data-call="(\d+)"', self.dom)
        assert found
        return int(found[1])


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., Shown]:
    """Return a way to open a page at a place, and to do something there by a script."""

    def open_page(page: str, place: str = "", then: str = "") -> Shown:
        path, user = tmp_path / "page.html", tmp_path / "user"
        path.write_text(page.replace("</body>", f"<script>{then}</script></body>"))
        done = subprocess.run(  # noqa: S603  # a browser that the machine has
            [
                str(CHROMIUM),
                *OPTIONS,
                f"--user-data-dir={user}",
                f"{path.as_uri()}{place}",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Shown(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])

    return open_page


@pytest.fixture
def page(damaged: Callable[..., type[Reference]]) -> str:
    """Return the page of two requests, of which the second leaves a reference behind."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[1].ref_cnt += 1
        return result

    calls: list[Operation] = []
    for rid, num_tokens in (("r1", 3), (HOSTILE, 1)):
        allocation = {"rid": rid, "num_tokens": num_tokens, "hits": FOUND, "num_lookahead": 0}
        calls += [
            Operation("add_request", {"rid": rid, "request": RequestSpec((0, 1, 0), salt=HOSTILE)}),
            Operation("get_computed_blocks", {"rid": rid}),
            Operation("allocate_slots", allocation),
            Operation("run_step", {"outcomes": {rid: Outcome(0, (1,))}}),
        ]
    program = Program(Config(6, 2), (*calls, Operation("finish", {"rid": HOSTILE})))
    return explain_page(explained(program, damaged("finish", 1, damage)))


def test_it_opens_at_the_failure(page: str, browse: Callable[..., Shown]) -> None:
    """The last call, the guilty block with both counts, no message on the console."""
    shown = browse(page)
    assert (shown.call, shown.console) == (9, [])
    assert shown.text("where") == "Call 9 of 9: here the two sides part"
    assert "\u2715 expected 1a, is 2a" in shown.block(1)
    assert "differs" in shown.block(1)
    assert shown.text("h-history") == "The guilty block: block 1"
    assert shown.text("queue") == "4 next victim53"
    assert "<img" not in shown.dom


def test_a_call_can_be_linked_to(page: str, browse: Callable[..., Shown]) -> None:
    """The address chooses the call; what is no call opens the failure."""
    first, third = browse(page, "#call=0"), browse(page, "#call=3")
    assert (first.call, first.text("queue")) == (0, "1 next victim2345")
    assert "0 references, no key, free" in first.block(1)
    assert (third.call, third.text("queue")) == (3, "3 next victim45")
    assert "1 reference, key a, in use, cached, yet to be written by r1, changed" in third.block(1)
    assert third.text("index") == "a: 1"
    assert "0112" in third.text("requests"), "position 0 is block 1, position 1 is block 2"
    assert first.console == third.console == []
    assert [browse(page, f"#call={odd}").call for odd in ("10", "-1", "x")] == [9, 9, 9]


PRESS = """
for (const key of [%s])
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
"""

MOVES = {
    "keys": (PRESS % "'Home', 'ArrowRight', 'ArrowRight', 'ArrowLeft', 'End', 'ArrowUp'", 8),
    "first and next": ("for (const id of ['first', 'on', 'on']) $(id).click()", 2),
    "last and back": ("for (const id of ['first', 'last', 'back']) $(id).click()", 8),
    "beyond the ends": ("for (const id of ['first', 'back', 'back']) $(id).click()", 0),
    "slider": ("$('slider').value = 4; $('slider').dispatchEvent(new Event('input'))", 4),
    "space plays": (PRESS % "' '", 0),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_hand_walks_through_the_calls(page: str, browse: Callable[..., Shown], name: str) -> None:
    """Keys, buttons and the slider choose the call; no way leads beyond the ends."""
    then, call = MOVES[name]
    shown = browse(page, then=then)
    assert (shown.call, shown.console) == (call, [])
    assert shown.text("at") == f"{call} / 9"
    (current,) = re.findall(r'id="list".*aria-current="step"><span>(\d+)<', shown.dom, re.DOTALL)
    assert int(current) == call


def test_any_block_has_a_history(page: str, browse: Callable[..., Shown]) -> None:
    """A click on a block shows the calls that touched it, and who holds it."""
    shown = browse(page, then="document.querySelector('[data-b=\"2\"]').click()")
    assert shown.text("h-history") == "History: block 2"
    assert shown.text("holders") == "After call 9 it is held by r1; no key."
    assert re.findall(r">(\d+)<", shown.dom.partition('id="touches"')[2].partition("</ol>")[0]) == [
        "3",
        "4",
    ]


def test_an_error_on_the_page_would_be_seen(page: str, browse: Callable[..., Shown]) -> None:
    """A script that fails, and an address that is fetched, leave lines that the tests look for."""
    assert browse(page, then="absent()").console
    assert browse(page.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">')).console
