"""Shows calls as a table, one row a call, one column a block; the words and cells of every picture.

A cell is a block in a few characters: its count, the name of its key, a star while a scheduled step
has still to write it, a prime where the call changed it, and after an exclamation mark what the
subject shows where it differs. So it reads without colour too. Everything is ASCII: a log of CI has
no better. Keys are named by their prefix where worlds are tiny, by a letter and a legend elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from rich.table import Table
from rich.text import Text

from conformance.subject import RequestSpec
from spec.scope import Move
from spec.state import BlockState, Key, State, block_state

STYLES = {
    BlockState.FREE: "dim",
    BlockState.FREE_CACHED: "blue",
    BlockState.IN_USE: "yellow",
    BlockState.IN_USE_CACHED: "green",
    BlockState.SHARED: "magenta",
    BlockState.NULL: "dim",
}

SIGNS: Final = "' changed or written by the call  * yet to be written"

MOST_TOKENS = 8
"""More tokens than this in a row are cut."""

DEFAULTS: Final[dict[str, object]] = {"num_lookahead": 0, "hits": []}
"""Arguments that go without saying."""

Name: TypeAlias = Callable[[Key], str]


class Cell(NamedTuple):
    """A block after a call: what the specification says, and what the subject shows if not that."""

    text: str
    kind: BlockState
    changed: bool = False
    actual: str | None = None

    def __str__(self) -> str:
        seen = "" if self.actual is None else f"!{self.actual}"
        return f"{self.text}{seen}{chr(39) if self.changed else ''}"

    def styled(self) -> Text:
        """Return the cell in the colour of its state, bold if changed, red if it differs."""
        style = STYLES[self.kind] if self.actual is None else "red"
        return Text(str(self), style=style + (" bold" if self.changed else ""))


class Letters:
    """Names keys by letters, in the order in which it meets them: a to z, then aa, ab and so on."""

    def __init__(self) -> None:
        self._names: dict[Key, str] = {}

    def __call__(self, key: Key) -> str:
        """Return the letter of a key."""
        if key not in self._names:
            self._names[key] = letter(len(self._names))
        return self._names[key]

    def legend(self) -> dict[str, str]:
        """Return what each letter stands for: a prefix, block by block."""
        return {name: prefix(key) for key, name in self._names.items()}


def letter(number: int) -> str:
    """Return the name of the key met after `number` others."""
    name = ""
    number += 1
    while number:
        number, at = divmod(number - 1, 26)
        name = chr(ord("a") + at) + name
    return name


def step_table(path: Iterable[tuple[Move, State]], title: str = "") -> Table:
    """Return the table of a path through a small world.

    The queue's head, the next victim, stands first. A key is shown as the tokens of its prefix.
    """
    rows = list(path)
    num_blocks = rows[0][1].config.num_gpu_blocks if rows else 0
    table = Table("step", "move", title=title, title_justify="left", caption=SIGNS)
    for b in range(1, num_blocks):
        table.add_column(f"block {b}", justify="center")
    table.add_column("free queue")
    table.add_column("tables")
    before: list[str] = []
    for number, (move, s) in enumerate(rows, 1):
        texts = [cell(s, b) for b in range(1, num_blocks)]
        cells = [
            Cell(text, block_state(s, b), not before or before[b - 1] != text)
            for b, text in enumerate(texts, 1)
        ]
        before = texts
        shown = [one.styled() for one in cells]
        table.add_row(str(number), short(move), *shown, ids_text(s.pool.queue), tables_text(s))
    return table


def tables_text(s: State) -> str:
    """Return the block table of each request that has one."""
    return "  ".join(
        f"{printable(rid)}{list(r.table)}" for rid, r in s.requests.items() if r.table is not None
    )


def ids_text(ids: Sequence[int], most: int = 64) -> str:
    """Return block ids in order, cut after so many."""
    left = len(ids) - most
    return " ".join(map(str, ids[:most])) + (f" .. {left:,} more" if left > 0 else "")


def short(move: Move) -> str:
    """Return a move in the fewest words that say it."""
    return label(move.action, move.args)


def label(action: str, args: Iterable[tuple[str, Any]], name: Name | None = None) -> str:
    """Return a call in the fewest words that say it; keys by the name that is given for them."""
    parts = []
    for argument, value in args:
        if argument in DEFAULTS and _plain(value) == DEFAULTS[argument]:
            continue
        if argument == "rid":
            parts.append(printable(value))
        elif argument == "request":
            parts += _request(value)
        elif argument == "outcomes":
            parts += [f"{printable(rid)}: {_outcome(outcome)}" for rid, outcome in value.items()]
        elif argument in ("prompt", "drafts"):
            parts.append(f"{argument} {tokens_text(value)}")
        elif argument == "keys":
            parts += [f"key {(name or prefix)(key)}" for key in value]
        else:
            parts.append(f"{argument}={printable(_plain(value))}".replace(" ", ""))
    return f"{action}({', '.join(parts)})"


def _plain(value: object) -> object:
    """Return a sequence as a list of its elements, so that it reads the same whatever it was."""
    return list(value) if isinstance(value, (tuple, list, range)) else value


def _request(request: RequestSpec) -> list[str]:
    parts = [f"prompt {tokens_text(request.prompt)}"]
    if request.lora is not None:
        parts.append(f"lora {printable(request.lora[0])}:{request.lora[1]}")
    parts += [
        f"media {printable(item)}@{offset}+{length}" for item, offset, length in request.media
    ]
    if request.salt is not None:
        parts.append(f"salt {printable(request.salt)}")
    return [*parts, "prompt_logprobs"] if request.prompt_logprobs else parts


def _outcome(outcome: tuple[int, tuple[int, ...]]) -> str:
    accepted, sampled = outcome
    words = [f"{accepted} accepted"] if accepted else []
    words += [f"samples {tokens_text(sampled)}"] if sampled else []
    return " ".join(words) or "runs"


def cell(s: State, b: int, name: Name | None = None) -> str:
    """Return a block in a few characters: count, key by its name or prefix, star while pending."""
    block = s.pool.blocks[b]
    called = name or (lambda key: f" {prefix(key)}")
    key = "" if block.key is None else called(block.key)
    return f"{block.ref_cnt}{key}{'*' if block.pending else ''}"


def prefix(key: Key, most: int = 12) -> str:
    """Return the tokens that a key stands for, block by block, cut before the last `most` blocks.

    What else determines the content stands behind the tokens of its block.
    """
    parts: list[str] = []
    node: Key | None = key
    while isinstance(node, Key):
        if len(parts) == most:
            parts.append("..")
            break
        extra = ", ".join(" ".join(map(printable, field)) for field in node.extra)
        parts.append(tokens_text(node.tokens) + (f" ({extra})" if extra else ""))
        node = node.parent
    # A direct caller of the pool may give any value as a key.
    between = " | " if any(" " in part for part in parts) else "."
    return between.join(reversed(parts)) or printable(key)


def tokens_text(tokens: Sequence[int]) -> str:
    """Return tokens in a row: digits side by side, longer ones with spaces, the rest counted."""
    short_ones = all(0 <= token <= 9 for token in tokens[:MOST_TOKENS])
    text = ("" if short_ones else " ").join(map(str, tokens[:MOST_TOKENS]))
    left = len(tokens) - MOST_TOKENS
    return f"{text} .. {left:,} more" if left > 0 else text


def printable(value: object) -> str:
    """Return a value as one line of text: what a terminal would obey or break at is spelled out."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]
