"""The words and cells that every picture of calls is made of."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.pictures.steptable import (
    Cell,
    Letters,
    cell,
    ids_text,
    label,
    letter,
    prefix,
    printable,
    tokens_text,
)
from conformance.subject import RequestSpec
from spec.state import Block, BlockState, Config, Key, State, initial
from spec.statemachine import Outcome

AB = Key(None, (0, 1))
ABC = Key(AB, (1, 1), (("salt", "x"), ("lora", "y", 1)))

LABELS: dict[str, tuple[str, dict[str, Any]]] = {
    "free(r1)": ("free", {"rid": "r1"}),
    "get_new_blocks(n=0)": ("get_new_blocks", {"n": 0}),
    "touch(ids=[1,2])": ("touch", {"ids": (1, 2)}),
    "allocate_slots(r1, num_tokens=3)": (
        "allocate_slots",
        {"rid": "r1", "num_tokens": 3, "hits": [], "num_lookahead": 0},
    ),
    "allocate_slots(r1, num_tokens=0, hits=[0,4], num_lookahead=2)": (
        "allocate_slots",
        {"rid": "r1", "num_tokens": 0, "hits": (0, 4), "num_lookahead": 2},
    ),
    "run_step(r1: runs, r2: 1 accepted samples 7)": (
        "run_step",
        {"outcomes": {"r1": Outcome(), "r2": Outcome(1, (7,))}},
    ),
    "propose(r1, drafts 000)": ("propose", {"rid": "r1", "drafts": [0, 0, 0]}),
    "add_request(r1, prompt 97 98, lora y:1, media cat@0+2, salt x, prompt_logprobs)": (
        "add_request",
        {
            "rid": "r1",
            "request": RequestSpec((97, 98), ("y", 1), (("cat", 0, 2),), "x", prompt_logprobs=True),
        },
    ),
    "cache_full_blocks(table=[1], key a, num_cached=0, num_full=1)": (
        "cache_full_blocks",
        {"table": (1,), "keys": (AB,), "num_cached": 0, "num_full": 1},
    ),
}


@pytest.mark.parametrize("text", LABELS)
def test_a_call_is_said_in_few_words(text: str) -> None:
    """What goes without saying is left out, and a count of 0 does not."""
    action, args = LABELS[text]
    assert label(action, args.items(), Letters()) == text


def test_letters_never_run_out() -> None:
    """After z come two letters, and no two numbers have one name."""
    assert [letter(n) for n in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == (
        ["a", "b", "z", "aa", "ab", "az", "ba", "zz", "aaa"]
    )
    assert len({letter(n) for n in range(20_000)}) == 20_000


def test_a_key_keeps_its_letter() -> None:
    """The first key met is a, and the legend says what it stands for."""
    letters = Letters()
    assert (letters(ABC), letters(AB), letters(ABC)) == ("a", "b", "a")
    assert letters.legend() == {"a": "01 | 11 (salt x, lora y 1)", "b": "01"}


def test_a_prefix_is_cut_at_its_beginning() -> None:
    """A long one shows its last blocks, and what is no key at all is shown as it is."""
    key = None
    for token in range(9):
        key = Key(key, (token,))
    assert key is not None
    assert prefix(key) == "0.1.2.3.4.5.6.7.8"
    assert prefix(key, most=2) == "...7.8"
    assert prefix("any value") == "any value"  # type: ignore[arg-type]  # as a direct caller may


def test_tokens_and_ids_are_cut() -> None:
    """Digits stand side by side; longer numbers do not run into each other."""
    assert tokens_text((1, 0, 1)) == "101"
    assert tokens_text((1, 10)) == "1 10"
    assert tokens_text(range(20)) == "01234567 .. 12 more"
    assert ids_text((3, 1, 2)) == "3 1 2"
    assert ids_text(range(5), most=2) == "0 1 .. 3 more"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    """Neither colours nor line breaks come in by a name."""
    assert printable("r1 \u00e4") == "r1 \u00e4"
    assert printable("a\nb\x1b[31m") == "a\\nb\\x1b[31m"


def test_a_cell_reads_without_colour() -> None:
    """A star is pending, a prime changed; what the subject shows stands behind the mark."""
    s: State = initial(Config(3, 2))
    s = s._replace(pool=s.pool.update({1: Block(1, AB, None, "r1")}))
    assert cell(s, 1) == "1 01*"
    assert cell(s, 1, Letters()) == "1a*"
    assert cell(s, 2) == "0"
    assert str(Cell("1a*", BlockState.IN_USE_CACHED, changed=True)) == "1a*'"
    assert str(Cell("1", BlockState.IN_USE, changed=True, actual="0a")) == "1!0a'"


def test_a_cell_is_coloured_by_its_state() -> None:
    """Bold where it changed, red where the two sides differ."""
    assert Cell("1", BlockState.IN_USE).styled().style == "yellow"
    assert Cell("1", BlockState.IN_USE, changed=True).styled().style == "yellow bold"
    assert Cell("1", BlockState.IN_USE, actual="2").styled().style == "red"
