"""Shows a sequence of moves as a table: one row a move, one column a block."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

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


def step_table(path: Iterable[tuple[Move, State]], title: str = "") -> Table:
    """Return the table of a path: a cell shows the count and the key, bold where it changed.

    The queue's head, the next victim, stands first. A key is shown as the tokens of its prefix; a
    star marks a block whose content is still to be written by a scheduled step.
    """
    rows = list(path)
    num_blocks = rows[0][1].config.num_gpu_blocks if rows else 0
    table = Table("step", "move", title=title, title_justify="left")
    for b in range(1, num_blocks):
        table.add_column(f"block {b}", justify="center")
    table.add_column("free queue")
    table.add_column("tables")
    before: list[str] = []
    for number, (move, s) in enumerate(rows, 1):
        cells = [cell(s, b) for b in range(1, num_blocks)]
        shown = []
        for at, text in enumerate(cells):
            changed = not before or before[at] != text
            style = STYLES[block_state(s, at + 1)] + (" bold" if changed else "")
            shown.append(Text(text, style=style))
        before = cells
        tables = "  ".join(
            f"{rid}{list(r.table)}" for rid, r in s.requests.items() if r.table is not None
        )
        queue = " ".join(map(str, s.pool.queue))
        table.add_row(str(number), short(move), *shown, queue, tables)
    return table


def short(move: Move) -> str:
    """Return a move in the fewest words that say it."""
    skipped = {"num_lookahead": 0, "hits": ()}
    parts = []
    for name, value in move.args:
        if skipped.get(name, value is None) == value:
            continue
        if name == "rid":
            parts.append(str(value))
        elif name == "outcomes":
            parts += [f"{rid}: {_outcome(outcome)}" for rid, outcome in value.items()]
        elif name in ("prompt", "drafts"):
            parts.append(f"{name} {_tokens(value)}")
        elif name == "keys":
            parts.append(f"key {_prefix(value[0])}")
        else:
            parts.append(f"{name}={value}".replace(" ", ""))
    return f"{move.action}({', '.join(parts)})"


def _outcome(outcome: tuple[int, tuple[int, ...]]) -> str:
    accepted, sampled = outcome
    words = [f"{accepted} accepted"] if accepted else []
    words += [f"samples {_tokens(sampled)}"] if sampled else []
    return " ".join(words) or "runs"


def cell(s: State, b: int) -> str:
    """Return a block in a few characters: count, key as tokens, a star while it is pending."""
    block = s.pool.blocks[b]
    name = "" if block.key is None else " " + _prefix(block.key)
    return f"{block.ref_cnt}{name}{'*' if block.pending else ''}"


def _prefix(key: Key) -> str:
    parts = []
    node: Key | None = key
    while node is not None:
        parts.append(_tokens(node.tokens))
        node = node.parent
    return ".".join(reversed(parts))


def _tokens(tokens: Iterable[int]) -> str:
    return "".join(map(str, tokens))
