"""Writes a small world as one self-contained HTML page: every state, and a shortest path to it."""

from __future__ import annotations

from typing import Any

from conformance.pictures.page import filled
from conformance.pictures.steptable import cell, ids_text, short, tables_text
from spec.explore import Result
from spec.scope import Scope
from spec.state import BlockState, block_state
from spec.world import Node, World

MOST_STATES = 5_000
"""More than this makes a page that no browser likes, and no reader."""

KINDS = [state.value for state in BlockState if state is not BlockState.NULL]


class TooManyStates(ValueError):  # noqa: N818  # it says what there is too much of
    """The world has more states than a page can show."""


def graph_page(scope: Scope, result: Result) -> str:
    """Return the page. Raises `TooManyStates` above `MOST_STATES`."""
    states = _states(scope)
    found = result.found
    violation = found and {
        "title": f"{found.property}: expected {found.broken.expected}, is {found.broken.actual}",
        "path": [short(move) for move, _ in found.path],
    }
    return filled(
        "graph.html.j2",
        title=f"The {len(states):,} states of {scope.config.usable} blocks",
        summary=f"{result.states:,} states, {result.transitions:,} transitions, depth "
        f"{result.depth}, up to renaming of blocks. Choose a state.",
        kinds=KINDS,
        violation=violation,
        data=states,
    )


def _states(scope: Scope) -> list[dict[str, Any]]:
    world = World(scope)
    root = world.initial()
    numbers: dict[Node, int] = {root: 0}
    rows: list[dict[str, Any]] = [_row(world, root, 0, None, "")]
    for node in (order := [root]):
        here = numbers[node]
        for there, move in world.successors(node):
            if there not in numbers:
                if len(numbers) >= MOST_STATES:
                    raise TooManyStates(f"more than {MOST_STATES:,} states; choose a smaller world")
                numbers[there] = len(numbers)
                order.append(there)
                rows.append(_row(world, there, rows[here]["depth"] + 1, here, short(move)))
            rows[here]["moves"].append([short(move), numbers[there]])
    return rows


def _row(world: World, node: Node, depth: int, parent: int | None, by: str) -> dict[str, Any]:
    s = world.state(node)
    cells = [[block_state(s, b).value, cell(s, b)] for b in range(1, s.config.num_gpu_blocks)]
    queue = f"{ids_text(s.pool.queue)}  {tables_text(s)}".rstrip()
    return {
        "cells": cells,
        "queue": queue,
        "depth": depth,
        "parent": parent,
        "by": by,
        "moves": [],
    }
