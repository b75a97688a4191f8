"""Shows what happened as text: a step table for a terminal of any width, and for the logs of CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.pictures.explain import Explained
from conformance.pictures.picture import (
    Ids,
    Index,
    Picture,
    answers_differ,
    calls_text,
    config_text,
    full_answer,
    holders_text,
    pictures,
    said,
)
from conformance.pictures.steptable import SIGNS, Letters, ids_text, printable

T = TypeVar("T")

LEAST_WIDTH: Final = 58
"""Columns of a terminal that calls, queue and index keep, however many blocks there are."""

MOST_ENTRIES: Final = 12
"""Entries of the queue and of the index that a row shows."""

MOST_LETTERS: Final = 40
"""Keys that the legend explains."""

BAD: Final = "red"


def show(explained: Explained, console: Console, last: int = 40) -> None:
    """Print the last calls as a table, what its signs mean, and what broke.

    Blocks for which the console has no room are left out, first those that did not change.
    """
    letters = Letters()
    # The start is a row too, and is no call.
    drawn = pictures(explained, letters)[-(last + (explained.total <= last)) :]
    blocks = _blocks_that_fit(explained, drawn, console.width)
    console.print(config_text(explained))
    for line in _left_out(explained, drawn, blocks):
        console.print(line, style="yellow")
    console.print(_table(drawn, blocks, letters))
    console.print()
    for line in _legend(drawn, letters):
        console.print(line)
    if explained.divergence is not None:
        console.print()
        for line, style in _ending(explained, drawn[-1]):
            console.print(line, style=style, soft_wrap=True)


def as_text(explained: Explained, last: int = 40, width: int = 100) -> str:
    """Return the same as plain ASCII text, for a file."""
    screen = StringIO()
    console = Console(
        file=screen, width=width, no_color=True, highlight=False, markup=False, emoji=False
    )
    show(explained, console, last)
    text = "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _table(drawn: Sequence[Picture], blocks: Sequence[int], letters: Letters) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("call", overflow="fold", min_width=24, ratio=5)
    for b in blocks:
        table.add_column(str(b), justify="right", no_wrap=True)
    table.add_column("free queue", overflow="fold", min_width=12, ratio=2)
    table.add_column("index", overflow="fold", min_width=12, ratio=2)
    for one in drawn:
        call = Text(said(one.frame, letters), style=BAD if one.frame.bad else "")
        cells = [one.cells[b].styled() for b in blocks]
        strips = (_strip(one.queue, _queue_text), _strip(one.listed, _index_text))
        table.add_row(str(one.frame.number), call, *cells, *strips)
    return table


def _strip(sides: tuple[T, T | None], text: Callable[[T], str]) -> Text:
    """Return what both sides show, or each of them where they differ."""
    ours, theirs = sides
    if theirs is None:
        return Text(text(ours))
    return Text(f"{text(ours) or 'empty'} ! {text(theirs) or 'empty'}", style=BAD)


def _queue_text(queue: Ids) -> str:
    return ids_text(queue, MOST_ENTRIES)


def _index_text(index: Index) -> str:
    entries = [f"{name}:{','.join(map(str, copies))}" for name, copies in index.items()]
    left = len(entries) - MOST_ENTRIES
    return " ".join(entries[:MOST_ENTRIES]) + (f" .. {left:,} more" if left > 0 else "")


def _blocks_that_fit(explained: Explained, drawn: Sequence[Picture], width: int) -> list[int]:
    """Return the blocks to show: the guilty one, those that differ, then the last changed."""
    changed = [b for one in reversed(drawn) for b, cell in one.cells.items() if cell.changed]
    differing = [b for b, cell in drawn[-1].cells.items() if cell.actual is not None]
    guilty = [] if explained.guilty is None else [explained.guilty]
    room, chosen = width - LEAST_WIDTH, list[int]()
    for b in dict.fromkeys((*guilty, *differing, *changed, *drawn[-1].cells)):
        room -= 1 + max(len(str(b)), *(len(str(one.cells[b])) for one in drawn))
        if room < 0 and chosen:
            break
        chosen.append(b)
    return sorted(chosen)


def _left_out(
    explained: Explained, drawn: Sequence[Picture], blocks: Sequence[int]
) -> Iterator[str]:
    first = drawn[0].frame.number
    if first > 1:
        said_so = f"{calls_text(1, first - 1)} not shown"
        yield f"{said_so}; --last N shows more, `kvspec shrink` makes a log short"
    left = explained.config.usable - len([b for b in blocks if b])
    if left:
        yield f"{left:,} blocks are not shown for want of room; --html shows what was touched"


def _legend(drawn: Sequence[Picture], letters: Letters) -> Iterator[str]:
    yield f"cell: count and key  {SIGNS}"
    yield "x!y  specification x, subject y  free queue: the next victim first"
    used = {name for one in drawn for side in one.listed if side for name in side}
    used |= {letters(key) for one in drawn for key in one.frame.args.get("keys", ())}
    known = {name: text for name, text in letters.legend().items() if name in used}
    for name, text in list(known.items())[:MOST_LETTERS]:
        yield f"{name} = {text}"
    if len(known) > MOST_LETTERS:
        yield f".. and {len(known) - MOST_LETTERS:,} more keys"


def _ending(explained: Explained, last: Picture) -> Iterator[tuple[str, str]]:
    """Yield the lines that say what broke, each with its style."""
    divergence, frame = explained.divergence, last.frame
    assert divergence is not None
    yield printable(divergence), BAD
    if answers_differ(frame):
        yield f"  the specification answers: {full_answer(frame, frame.expected)}", ""
        yield f"  the subject answers:       {full_answer(frame, frame.actual)}", ""
    yield f"  what differs: {printable(divergence.found.what)}", ""
    for rid, (ours, theirs) in last.tables.items():
        if theirs is not None:
            yield f"  table of {printable(rid)}: expected {list(ours)}, is {list(theirs)}", ""
    if frame.trouble:
        yield f"  the subject cannot be looked at: {printable(frame.trouble)}", ""
    if explained.guilty is not None:
        b = explained.guilty
        calls = ", ".join(str(one.number) for one in explained.history(b))
        yield f"  block {b}: held by {holders_text(frame, b)}; touched by calls {calls}", ""
    statement, why = explained.meaning
    yield f"  the rule: {statement}", ""
    yield f"  if it breaks: {why}", ""
