"""Turns a frame into what a table and a page show of it: words, cells and strips."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from conformance.divergence import answer
from conformance.pictures.explain import Explained, Frame
from conformance.pictures.steptable import Cell, Letters, cell, label, printable
from conformance.subject import Snapshot
from spec.state import NULL, State, block_state
from spec.statemachine import Refused

Ids: TypeAlias = tuple[int, ...]
Index: TypeAlias = Mapping[str, Ids]


class Picture(NamedTuple):
    """What is shown of a frame; `theirs` is None where the subject shows the same as `ours`."""

    frame: Frame
    cells: Mapping[int, Cell]
    queue: tuple[Ids, Ids | None]
    listed: tuple[Index, Index | None]
    """The index: a key's letter to its blocks."""

    @property
    def tables(self) -> Mapping[str, tuple[Ids, Ids | None]]:
        """The block table of each request that has one on either side."""
        frame = self.frame
        ours = {rid: r.table for rid, r in frame.after.requests.items() if r.table is not None}
        if frame.seen is None:
            return {rid: (table, None) for rid, table in ours.items()}
        shown = {rid: table for rid, table in frame.seen.tables.items() if table}
        both = {rid: (ours.get(rid, ()), shown.get(rid, ())) for rid in {**ours, **shown}}
        return {
            rid: (mine, other if other != mine else None) for rid, (mine, other) in both.items()
        }


def pictures(explained: Explained, letters: Letters) -> list[Picture]:
    """Return a picture of each frame, keys named by `letters` in the order of the calls."""
    blocks = explained.blocks()
    return [picture(frame, blocks, letters) for frame in explained.frames]


def picture(frame: Frame, blocks: Sequence[int], letters: Letters) -> Picture:
    """Return what is shown of a frame, with cells of some blocks."""
    s, seen, changed = frame.after, frame.seen, frame.changed()
    texts = {b: cell(s, b, letters) for b in blocks}
    ours = {letters(key): copies for key, copies in s.pool.by_key.items()}
    index = dict(sorted(ours.items(), key=_in_order))
    queue = tuple(s.pool.queue)
    if seen is None:
        cells = {b: Cell(text, block_state(s, b), b in changed) for b, text in texts.items()}
        return Picture(frame, cells, (queue, None), (index, None))
    names = _names(frame, seen, letters)
    cells = {
        b: Cell(text, block_state(s, b), b in changed, _actual(s, seen, b, names, letters))
        for b, text in texts.items()
    }
    shown = {names[key]: copies for key, copies in seen.index.items()}
    theirs = dict(sorted(shown.items(), key=_in_order))
    return Picture(
        frame,
        cells,
        (queue, seen.queue if seen.queue != queue else None),
        (index, theirs if theirs != index else None),
    )


def _in_order(entry: tuple[str, Ids]) -> tuple[int, str]:
    return len(entry[0]), entry[0]


def _names(frame: Frame, seen: Snapshot, letters: Letters) -> Mapping[Hashable, str]:
    """Return the letters of the subject's keys, those of the blocks that carry them.

    A key that means nothing to the specification gets a number behind a question mark.
    """
    names: dict[Hashable, str] = {}
    for known in (frame.after, frame.before):
        for theirs, block in zip(seen.keys, known.pool.blocks, strict=False):
            if theirs is not None and block.key is not None:
                names.setdefault(theirs, letters(block.key))
    for theirs in (*seen.keys, *seen.index):
        if theirs is not None:
            names.setdefault(theirs, f"?{len(names) + 1}")
    return names


def _actual(
    s: State, seen: Snapshot, b: int, names: Mapping[Hashable, str], letters: Letters
) -> str | None:
    """Return what the subject shows of a block, where it is not what the specification says."""
    if b >= min(len(seen.ref_cnts), len(seen.keys)):
        return "gone"
    key, carried = s.pool.blocks[b].key, seen.keys[b]
    ours = f"{s.pool.blocks[b].ref_cnt}{'' if key is None else letters(key)}"
    theirs = f"{seen.ref_cnts[b]}{'' if carried is None else names[carried]}"
    return theirs if theirs != ours else None


def said(frame: Frame, letters: Letters) -> str:
    """Return a call with its answer; where they differ the subject's stands after the mark."""
    if frame.number == 0:
        return frame.action
    call = label(frame.action, frame.args.items(), letters)
    ours, theirs = answer_text(frame.expected), answer_text(frame.actual)
    if answers_differ(frame):
        return f"{call} = {ours or 'done'} ! {theirs or 'done'}"
    return f"{call} = {ours}" if ours else call


def answers_differ(frame: Frame) -> bool:
    """Return whether the two sides answered differently."""
    return answer(frame.expected) != answer(frame.actual)


def answer_text(result: object) -> str:
    """Return an answer in a few words; nothing for a call that returns nothing."""
    if isinstance(result, Refused):
        return f"refused: {result.rule}"
    if isinstance(result, tuple):
        return str(list(result))
    return "" if result is None else printable(result)


def full_answer(frame: Frame, result: object) -> str:
    """Return an answer with the reasons of a refusal."""
    if isinstance(result, Refused):
        reasons = result.values.get("text", str(result).partition(": ")[2])
        return f"{answer_text(result)} ({printable(reasons)})" if reasons else answer_text(result)
    if result is None:
        return "None: no room now" if frame.action == "allocate_slots" else "done"
    return answer_text(result)


def config_text(explained: Explained) -> str:
    """Return what was held against the specification, on one line."""
    c = explained.config
    parts = [
        f"{c.usable:,} blocks of {c.block_size:,} token{'s' if c.block_size > 1 else ''} and null",
        "full attention" if c.sliding_window is None else f"window {c.sliding_window:,}",
    ]
    if not c.enable_caching:
        parts.append("caching off")
    if c.free_rule != "append":
        parts.append(f"free rule {c.free_rule}")
    ended = " until it was interrupted" if explained.interrupted else ""
    return f"{printable(explained.subject)}: {', '.join(parts)}; {explained.total:,} calls{ended}"


def calls_text(first: int, last: int) -> str:
    """Return a range of calls in words, as the subject of a sentence."""
    return f"call {first:,} is" if first == last else f"calls {first:,} to {last:,} are"


def holders_text(frame: Frame, b: int) -> str:
    """Return who holds a block, in words."""
    return "the null block is held by nobody" if b == NULL else printable(frame.holders(b))
