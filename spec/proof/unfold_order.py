"""Takes a step of the Python specification apart into steps of the machine of orders.

Only steps with full attention and caching on, and without direct callers, are steps of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec.pool import seal_effect, take_effect, touch_effect
from spec.proof.unfold import Move, RealStep, UnfoldError, queue_values
from spec.proof.unfold_requests import Path, with_request
from spec.proof.values import Table
from spec.state import NULL, State


def order_steps(step: RealStep) -> Iterator[Move]:
    """Yield the steps of the machine of orders that a step of the specification makes."""
    before, action, args, after = step
    config = before.config
    if before.loose or after.loose or config.sliding_window or not config.enable_caching:
        return
    path = OrderPath(before, after)
    if action == "allocate_slots" and after != before:
        _allocate(path, after, args["rid"])
    elif action == "run_step":
        path.go("run", after, {})
    elif action in ("free", "preempt", "finish") and before.requests[args["rid"]].table:
        _free(path, after, args["rid"])
    elif action == "reset_prefix_cache" and before.pool.num_free() == config.usable:
        path.go("reset", after, {})
    yield from path.moves
    if path.real(path.state) != path.real(after):
        raise UnfoldError(f"the moves end in {path.state}, the call in {after}")


class OrderPath(Path):
    """A walk from one state to another. Its witnesses are kept beside the states."""

    def __init__(self, before: State, after: State) -> None:
        super().__init__(before, after)
        self.rigid["append"] = before.config.free_rule == "append"
        self.by: dict[tuple[Any, ...], Any] = {}
        self.at: dict[tuple[Any, ...], int] = {}
        self.place: dict[tuple[Any, ...], int] = {}
        self.above: dict[tuple[Any, ...], int] = {}
        for rid, r in before.requests.items():
            for i, b in enumerate(r.table or ()):
                self.by[b,], self.at[b,] = rid, i
                if before.pool.blocks[b].pending == rid:
                    self.place[b,] = i

    def real(self, s: State) -> dict[str, Any]:
        """Return the value of every field that is not a witness."""
        requests = s.requests.items()
        pending = {(b,): block.pending for b, block in enumerate(s.pool.blocks)}
        tables = {(x, i): b for x, r in requests for i, b in enumerate(r.table or ())}
        return queue_values(s.pool) | {
            "pending": Table(pending, None),
            "length": Table({(x,): len(r.table) for x, r in requests if r.table}, 0),
            "cached": Table({(x,): r.num_cached for x, r in requests if r.num_cached}, 0),
            "table": Table(tables, NULL),
        }

    def values(self, s: State) -> dict[str, Any]:
        """Return the value of every field, the witnesses as they are now."""
        return self.real(s) | {
            "by": Table(dict(self.by), None),
            "at": Table(dict(self.at), 0),
            "place": Table(dict(self.place), 0),
            "above": Table(dict(self.above), NULL),
        }

    def go_with(
        self, action: str, state: State, params: dict[str, Any], **witnesses: dict[int, Any]
    ) -> None:
        """Note one step that also changes witnesses."""
        old = self.values(self.state)
        for name, changes in witnesses.items():
            getattr(self, name).update({(b,): value for b, value in changes.items()})
        self.go(action, state, params)
        *rest, last = self.moves
        self.moves = [*rest, last._replace(values={**last.values, **old})]


def _allocate(path: OrderPath, after: State, rid: str) -> None:
    old, r = path.state.requests[rid], after.requests[rid]
    new = r.table or ()
    hits = r.num_hits if old.table is None else 0
    for i in range(len(old.table or ()), len(new)):
        b, s = new[i], path.state
        entry: dict[str, dict[int, Any]] = {"by": {b: rid}, "at": {b: i}}
        if i < hits:
            s = with_request(s, rid, table=new[: i + 1], num_cached=i + 1)
            idle = entry if path.state.pool.blocks[b].ref_cnt == 0 else {}
            s = s._replace(pool=touch_effect(s.pool, [b]))
            path.go_with("hit", s, {"r": rid, "v": b}, **idle)
        else:
            s = with_request(s, rid, table=new[: i + 1])
            s = s._replace(pool=take_effect(s.pool, 1)[0])
            path.go_with("take", s, {"r": rid, "v": b}, **entry)
    for i in range(hits if old.table is None else old.num_cached, r.num_cached):
        block = after.pool.blocks[new[i]]
        s = with_request(path.state, rid, num_cached=i + 1)
        s = s._replace(pool=seal_effect(s.pool, {new[i]: block}))
        written = block.pending is None
        path.go_with("seal", s, {"r": rid, "written": written}, place={new[i]: i})


def _free(path: OrderPath, after: State, rid: str) -> None:
    before = path.state
    table = before.requests[rid].table or ()
    others = {
        b: (x, i)
        for x, r in before.requests.items()
        for i, b in enumerate(r.table or ())
        if x != rid
    }
    goes = [b for b in table if b not in others]
    stays = [b for b in table if b in others]
    params = {
        "r": rid,
        "pos": Table({(b,): i for i, b in enumerate(table)}, -1),
        "goes": Table({(b,): True for b in goes}, default=False),
        "other": Table({(b,): others[b][0] for b in stays}, None),
        "entry": Table({(b,): others[b][1] for b in stays}, 0),
    }
    where = {b: i for i, b in enumerate(table)}
    path.go_with(
        "free",
        after,
        params,
        by={b: others[b][0] for b in stays},
        at={b: others[b][1] for b in stays},
        above={b: table[where[b] - 1] if where[b] else NULL for b in goes},
    )
