"""The step table reads without colour, at 80 columns, on a terminal that knows ASCII only."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.pictures.explain import explained
from conformance.pictures.explain_text import as_text, show
from conformance.program import FOUND, Operation, Program, recording
from conformance.subject import RequestSpec
from spec.state import Config
from spec.statemachine import Outcome

HOSTILE = "r\n\x1b[31m[bold]\u00e4"


def story(rid: str) -> Program:
    """Return a request that arrives, runs and ends."""
    allocation = {"rid": rid, "num_tokens": 3, "hits": FOUND, "num_lookahead": 0}
    operations = (
        Operation("add_request", {"rid": rid, "request": RequestSpec((0, 1, 0), salt=rid)}),
        Operation("get_computed_blocks", {"rid": rid}),
        Operation("allocate_slots", allocation),
        Operation("run_step", {"outcomes": {rid: Outcome(0, (1,))}}),
        Operation("finish", {"rid": rid}),
    )
    return Program(Config(4, 2), operations)


@pytest.fixture
def leaking(damaged: Callable[..., type[Reference]]) -> type[Reference]:
    """Return a subject that keeps a reference at the end of the first request."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[1].ref_cnt += 1
        return result

    return damaged("finish", 1, damage)


def walked(config: Config, num_moves: int) -> Program:
    """Return the program of a random walk."""
    subject, operations = recording(Reference(config))
    Walk(Lockstep(subject, "incremental"), 7).run(num_moves)
    return Program(config, tuple(operations))


EXPECTED = """\
reference: 3 blocks of 2 tokens and null, full attention; 5 calls
  call                                          1  2 3 free queue   index
0 start                                         0  0 0 1 2 3
1 add_request(r1, prompt 010, salt r1)          0  0 0 1 2 3
2 get_computed_blocks(r1) = []                  0  0 0 1 2 3
3 allocate_slots(r1, num_tokens=3) = [1, 2]  1a*' 1' 0 3            a:1
4 run_step(r1: samples 1)                     1a' 1' 0 3            a:1
5 finish(r1)                                0a!1a' 0' 0 3 2 1        a:1

cell: count and key  ' changed or written by the call  * yet to be written
x!y  specification x, subject y  free queue: the next victim first
a = 01 (salt r1)
"""


def words(text: str) -> list[str]:
    """Return a text's words, whatever the widths of its columns."""
    return text.split()


def test_the_table_of_a_failure(leaking: type[Reference]) -> None:
    """Calls, cells, queue, index, legend; then the line, the block's history and the rule."""
    film = explained(story("r1"), leaking)
    table, _, ending = as_text(film, width=100).partition("\n\nkvspec")
    assert words(table) == words(EXPECTED)
    assert f"kvspec{ending}".splitlines() == [
        str(film.divergence),
        "  what differs: ref_cnt: expected 0, is 1",
        "  block 1: held by nobody; touched by calls 3, 4, 5",
        f"  the rule: {film.meaning[0]}",
        f"  if it breaks: {film.meaning[1]}",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("num_blocks", [4, 13, 40, 300])
def test_the_table_fits_the_terminal(num_blocks: int, width: int) -> None:
    """No line of a clean log is wider; blocks without room are counted, and it is ASCII."""
    text = as_text(explained(walked(Config(num_blocks, 2), 60), Reference), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    head = next(line for line in text.splitlines() if line.strip().startswith("call "))
    shown = len(head.split()) - len(["call", "free", "queue", "index"])
    counted = re.search(r"^([\d,]+) blocks are not shown", text, re.MULTILINE)
    left = int(counted[1].replace(",", "")) if counted else 0
    assert shown > 0
    assert shown + left == num_blocks - 1


def test_the_guilty_block_is_never_left_out(damaged: Callable[..., type[Reference]]) -> None:
    """However narrow the terminal, the cell where the two sides differ is there."""

    def damage(subject: Any, _args: object, result: object) -> object:  # noqa: ANN401  # a fault
        subject.pool.blocks[50].ref_cnt += 1
        return result

    program = story("r1")._replace(config=Config(60, 2))
    text = as_text(explained(program, damaged("finish", 1, damage)), width=60)
    assert "0!1'" in text
    assert re.search(r"call .*\b50\b.*free queue", text)


def test_only_the_last_calls_are_shown() -> None:
    """The table begins later and says so; with room for all it begins at the start."""
    film = explained(story("r1"), Reference)
    assert "calls 1 to 3 are not shown" in as_text(film, last=2)
    assert "\n3 allocate" not in as_text(film, last=2)
    assert "\n4 run_step" in as_text(film, last=2)
    assert "call 1 is not shown" in as_text(film, last=4)
    assert "\n0 start" in as_text(film, last=5)
    assert "not shown" not in as_text(film, last=5)


def test_a_name_is_no_order_to_the_terminal(leaking: type[Reference]) -> None:
    """Escape sequences, markup and line breaks in a request's id are spelled out."""
    text = as_text(explained(story(HOSTILE), leaking), width=200)
    assert "\x1b" not in text
    assert r"finish(r\n\x1b[31m[bold]\xe4)" in text


def test_colours_say_the_same(leaking: type[Reference]) -> None:
    """On a terminal the changed cells are bold and the differing one is red."""
    screen = StringIO()
    console = Console(
        file=screen, width=100, force_terminal=True, color_system="standard", highlight=False
    )
    show(explained(story("r1"), leaking), console)
    assert re.search(r"\x1b\[1;31m *0a!1a'", screen.getvalue())
    assert re.search(r"\x1b\[1;32m *1a\*'", screen.getvalue())
