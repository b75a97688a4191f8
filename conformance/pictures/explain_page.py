"""Writes what happened as one HTML page that fetches nothing: every call can be looked at.

The page holds the first state and what each call changed, so that a long log stays small. Without
scripts it shows the last state and the list of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.pictures.explain import Explained
from conformance.pictures.page import filled
from conformance.pictures.picture import (
    Picture,
    answers_differ,
    calls_text,
    config_text,
    full_answer,
    holders_text,
    pictures,
)
from conformance.pictures.steptable import Letters, label
from spec.state import NULL, BlockState, Request

KINDS = [state.value for state in BlockState]

WORDS = {
    "FREE": "free",
    "FREE_CACHED": "free, cached",
    "IN_USE": "in use",
    "IN_USE_CACHED": "in use, cached",
    "SHARED": "shared",
    "NULL": "null",
}
"""What a cell says of its block's state, so that nothing is told by colour alone."""

MOST_QUEUE = 60
"""Entries of the free queue that the page shows; the data hold them all."""


def explain_page(explained: Explained) -> str:
    """Return the page; it opens at the last call, where the two sides part if they do."""
    letters = Letters()
    drawn = pictures(explained, letters)
    befores = (None, *drawn[:-1])
    calls = [_call(before, one, letters) for before, one in zip(befores, drawn, strict=True)]
    last, guilty = drawn[-1], explained.guilty
    chosen = _most_touched(drawn) if guilty is None else guilty
    return filled(
        "explain.html.j2",
        title=_title(explained),
        config=config_text(explained),
        cut=calls_text(1, drawn[0].frame.number - 1) if drawn[0].frame.number > 1 else "",
        bad=explained.divergence,
        interrupted=explained.interrupted,
        left_out=explained.config.usable - len(set(last.cells) - {NULL}),
        broke=None if explained.divergence is None else _broke(explained, last),
        words=WORDS,
        calls=calls,
        cells=[_static(last, b) for b in last.cells],
        queue=_sides(last.queue),
        index=_sides(last.listed),
        requests={rid: _request(r) for rid, r in last.frame.after.requests.items()},
        chosen=chosen,
        holders=holders_text(last.frame, chosen),
        history=[one for one in calls if chosen in one["touched"]],
        data={
            "kinds": KINDS,
            "words": WORDS,
            "calls": calls,
            "chosen": chosen,
            "guilty": guilty,
            "mostQueue": MOST_QUEUE,
            "legend": letters.legend(),
            "theirs": _theirs(last),
        },
        legend=letters.legend(),
        most_queue=MOST_QUEUE,
    )


def _title(explained: Explained) -> str:
    if explained.divergence is not None:
        return f"Call {explained.divergence.call.number}: {explained.divergence.property}"
    return "Interrupted; clean until then" if explained.interrupted else "Clean: both sides agree"


def _broke(explained: Explained, last: Picture) -> dict[str, Any]:
    """Return what broke: the line, the property, what differs, and what that means."""
    divergence = explained.divergence
    assert divergence is not None
    statement, why = explained.meaning
    return {
        "line": str(divergence),
        "property": divergence.property,
        "statement": statement,
        "why": why,
        "what": divergence.found.what,
        "trouble": last.frame.trouble,
    }


def _most_touched(drawn: Sequence[Picture]) -> int:
    """Return the block whose history is shown first where none is guilty."""
    touched = [b for one in drawn for b in one.frame.touched() if b in one.cells]
    return max(drawn[-1].cells, key=touched.count)


def _call(before: Picture | None, one: Picture, letters: Letters) -> dict[str, Any]:
    """Return a call and what it changed; a first one holds the whole state."""
    frame = one.frame
    parts = {b: _parts(one, b, letters) for b in one.cells}
    old = {} if before is None else {b: _parts(before, b, letters) for b in before.cells}
    requests = {rid: _request(r) for rid, r in frame.after.requests.items()}
    known = (
        {}
        if before is None
        else {rid: _request(r) for rid, r in before.frame.after.requests.items()}
    )
    s, index = frame.after, one.listed[0]
    call: dict[str, Any] = {
        "number": frame.number,
        "label": label(frame.action, frame.args.items(), letters) if frame.number else "start",
        "ours": full_answer(frame, frame.expected) if frame.number else "",
        "touched": sorted(b for b in frame.touched() if b in one.cells),
        "changed": [b for b, cell in one.cells.items() if cell.changed],
        "cells": [[b, *own] for b, own in parts.items() if old.get(b) != own],
    }
    if answers_differ(frame):
        call["theirs"] = full_answer(frame, frame.actual)
    changed = {
        "queue": _queue_change(None if before is None else before.queue[0], one.queue[0]),
        "index": _changes({} if before is None else before.listed[0], index),
        "requests": _changes(known, requests),
        "loose": s.loose if before is None or before.frame.after.loose != s.loose else None,
    }
    return call | {name: value for name, value in changed.items() if value not in (None, {})}


def _parts(one: Picture, b: int, letters: Letters) -> tuple[int, int, str, str]:
    """Return what a cell is made of: state, count, letter of the key, who is to write it."""
    block = one.frame.after.pool.blocks[b]
    name = "" if block.key is None else letters(block.key)
    return KINDS.index(one.cells[b].kind.value), block.ref_cnt, name, block.pending or ""


def _static(one: Picture, b: int) -> dict[str, Any]:
    """Return a cell as the page shows it without scripts."""
    cell = one.cells[b]
    return {
        "b": b,
        "kind": cell.kind.value,
        "text": cell.text,
        "expected": cell.text.rstrip("*"),
        "changed": cell.changed,
        "actual": cell.actual,
    }


def _request(r: Request) -> list[Any]:
    """Return a request: its table, tokens written, known and drafted, preemptions, if in flight."""
    return [r.table, r.num_computed, len(r.tokens), len(r.drafts), r.num_preemptions, r.in_flight]


def _queue_change(old: Sequence[int] | None, new: Sequence[int]) -> list[Sequence[int]] | None:
    """Return how a queue became another: [whole], or [gone, pushed at the head, at the tail]."""
    if old is None:
        return [new]
    if old == new:
        return None
    there = set(new)
    kept = [b for b in old if b in there]
    at = new.index(kept[0]) if kept else 0
    if not kept or list(new[at : at + len(kept)]) != kept:
        return [new]
    return [[b for b in old if b not in there], new[:at], new[at + len(kept) :]]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are new or differ, and None for those that are gone."""
    gone = dict.fromkeys(name for name in old if name not in new)
    return gone | {name: value for name, value in new.items() if old.get(name) != value}


def _sides(sides: tuple[Any, Any]) -> dict[str, Any]:
    return {"ours": sides[0], "theirs": sides[1]}


def _theirs(last: Picture) -> dict[str, Any] | None:
    """Return what the subject shows after the last call, where it is something else."""
    if not last.frame.bad:
        return None
    return {
        "cells": {b: cell.actual for b, cell in last.cells.items() if cell.actual is not None},
        "queue": last.queue[1],
        "index": last.listed[1],
        "tables": {rid: theirs for rid, (_, theirs) in last.tables.items() if theirs is not None},
    }
