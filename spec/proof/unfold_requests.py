"""Takes a step of the Python specification apart into steps of the machine of requests.

The states in between are ordinary states of the specification. What the machine calls a request's
own prefix and keys is read off the request's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spec.proof.unfold import Move, RealStep, UnfoldError, keys_of
from spec.proof.values import Domains, Table
from spec.state import NULL, Key, Request, State, extra_keys

UNWRITTEN = "unwritten"
ABSENT = Request(tokens=())
PLACES = ("computed", "start", "end")
NUMBERS = (
    "length",
    "hits",
    "cached",
    "confirmed",
    *(f"{place}_{part}" for place in PLACES for part in "ij"),
)


def content_steps(step: RealStep) -> Iterator[Move]:
    """Yield the steps of the machine of requests that a step of the specification makes."""
    before, action, args, after = step
    if before.loose or after.loose or after == before:
        return
    path = Path(before, after)
    if action == "allocate_slots":
        _allocate(path, after, args["rid"])
    elif action == "run_step":
        path.go("run", after, writers(before))
    elif action in ("free", "preempt", "finish"):
        _end(path, before, after, args["rid"])
    elif action == "add_request":
        path.go("renew", after, {"r": args["rid"], "n": path.confirmed(after, args["rid"])})
    elif action == "reset_prefix_cache":
        path.go("reset", after, {})
    yield from path.moves
    last = path.state
    if path.values(last) != path.values(after):
        raise UnfoldError(f"the moves end in {last}, the call in {after}")


class Path:
    """A walk from one state of the specification to another, with the values of each stop."""

    def __init__(self, before: State, after: State) -> None:
        self.state = before
        self.moves: list[Move] = []
        self.size = before.config.block_size
        self.texts = dict(before.requests) | dict(after.requests)
        longest = max((len(r.tokens) + len(r.drafts) for r in self.texts.values()), default=0)
        tables = [r.table or () for s in (before, after) for r in s.requests.values()]
        top = max(longest // self.size, self.size, *map(len, tables), 0) + 2
        keys = {k: None for s in (before, after) for k in keys_of(s.pool)}
        keys |= {k: None for r in self.texts.values() for k in r.keys}
        self.domains: Domains = {
            "Block": range(before.config.num_gpu_blocks),
            "Key": [None, *keys],
            "Request": [None, *self.texts],
            "Int": range(-1, top),
            "Slot": [UNWRITTEN],
        }
        self.rigid: dict[str, Any] = {
            "null": NULL,
            "nokey": None,
            "noone": None,
            "unwritten": UNWRITTEN,
            "size": self.size,
            "ck": self._key,
            "mine": self._mine,
            "names": _named,
        }

    def go(self, action: str, state: State, params: Mapping[str, Any]) -> None:
        """Note one step of the machine."""
        values = self.rigid | {f"{action}.{name}": value for name, value in params.items()}
        new = {f"{name}.next": value for name, value in self.values(state).items()}
        self.moves.append(Move(action, values | self.values(self.state) | new, self.domains))
        self.state = state

    def confirmed(self, s: State, rid: str) -> int:
        """Return how many full blocks of confirmed tokens a request has; 0 when it is not there."""
        return len(s.requests.get(rid, ABSENT).tokens) // self.size

    def values(self, s: State) -> dict[str, Any]:
        """Return the value of every field."""
        numbers: dict[str, dict[tuple[Any, ...], int]] = {name: {} for name in NUMBERS}

        def note(name: str, rid: str, value: int) -> None:
            numbers[name][rid,] = value

        for rid in self.texts:
            r = s.requests.get(rid, ABSENT)
            note("length", rid, len(r.table or ()))
            note("hits", rid, r.num_hits)
            note("cached", rid, r.num_cached)
            note("confirmed", rid, self.confirmed(s, rid))
            positions = (r.num_computed, r.start, r.end)
            for place, position in zip(PLACES, positions, strict=True):
                index, offset = divmod(position, self.size)
                note(f"{place}_i", rid, index)
                note(f"{place}_j", rid, offset)
        blocks = list(enumerate(s.pool.blocks))
        tables = {(x, i): b for x, r in s.requests.items() for i, b in enumerate(r.table or ())}
        slots = {(b, j): v for b, block in blocks for j, v in self._slots(block.content)}
        places = {
            (b,): (s.requests[block.pending].table or ()).index(b)
            for b, block in blocks
            if block.pending is not None
        }
        return {name: Table(values, 0) for name, values in numbers.items()} | {
            "table": Table(tables, NULL),
            "key": Table({(b,): block.key for b, block in blocks}, None),
            "pending": Table({(b,): block.pending for b, block in blocks}, None),
            "place": Table(places, 0),
            "content": Table(slots, UNWRITTEN),
        }

    def _slots(self, content: Key | None) -> Iterator[tuple[int, object]]:
        if content is not None:
            for j in range(min(len(content.tokens), self.size)):
                torn = content.extra == (("torn",),)
                part = content.tokens[: j + 1]
                yield j, (content, j) if torn else Key(content.parent, part, content.extra)

    def _key(self, rid: str | None, i: int) -> object:
        r = ABSENT if rid is None else self.texts[rid]
        return r.keys[i] if 0 <= i < len(r.keys) else ("no key", rid, i)

    def _mine(self, rid: str | None, i: int, j: int) -> object:
        r = ABSENT if rid is None else self.texts[rid]
        if i < 0 or not 0 <= j < self.size or i * self.size + j >= len(r.tokens):
            return ("unknown", rid, i, j)
        parent = r.keys[i - 1] if i else None
        tokens = r.tokens[i * self.size : i * self.size + j + 1]
        return Key(parent, tokens, extra_keys(r, i, self.size))


def _named(key: Key | None, j: int) -> object:
    """Return what a key says about a slot."""
    if key is None or not 0 <= j < len(key.tokens):
        return ("nothing", key, j)
    return Key(key.parent, key.tokens[: j + 1], key.extra)


def with_request(s: State, rid: str, **changes: Any) -> State:  # noqa: ANN401  # any field
    """Return the state in which some fields of a request are different."""
    r = s.requests[rid]._replace(**changes)
    return s._replace(requests=s.requests.set(rid, r))


def writers(s: State) -> dict[str, Any]:
    """Return for each block which scheduled request writes it, and at which index."""
    size = s.config.block_size
    who: dict[tuple[Any, ...], Any] = {}
    where: dict[tuple[Any, ...], int] = {}
    for rid, r in s.requests.items():
        if r.in_flight:
            table = r.table or ()
            for i in range(r.start // size, min(-(-r.end // size), len(table))):
                who[table[i],], where[table[i],] = rid, i
    return {"who": Table(who, None), "where": Table(where, 0)}


def _allocate(path: Path, after: State, rid: str) -> None:
    old = path.state.requests[rid]
    r = after.requests[rid]
    table = list(old.table or ())
    for i in reversed(range(len(table))):
        if table[i] != (r.table or ())[i]:
            table[i] = NULL
            path.go("leave", with_request(path.state, rid, table=tuple(table)), {"r": rid, "i": i})
    if (old.start, old.end, len(table)) == (r.start, r.end, len(r.table or ())):
        return
    new = r.table or ()
    hits = r.num_hits if old.table is None else 0
    taken = {(b,): i for i, b in enumerate(new) if i >= max(len(table), hits)}
    cached = hits if old.table is None else old.num_cached
    sealed = {b: i for i, b in enumerate(new) if cached <= i < r.num_cached and b != NULL}
    plain = {b: after.pool.blocks[b]._replace(key=None, pending=None) for b in sealed}
    state = with_request(after, rid, num_cached=cached)
    state = state._replace(pool=after.pool.update(plain))
    path.go("schedule", state, {"r": rid, "hits": hits, "at": Table(taken, -1)})
    for i in range(cached, r.num_cached):
        block = {new[i]: after.pool.blocks[new[i]]} if new[i] != NULL else {}
        state = with_request(path.state, rid, num_cached=i + 1)
        path.go("seal", state._replace(pool=state.pool.update(block)), {"r": rid})


def _end(path: Path, before: State, after: State, rid: str) -> None:
    r = before.requests[rid]
    if r.table is not None:
        gone = {"table": None, "num_hits": 0, "num_cached": 0, "start": 0, "end": 0}
        state = with_request(before._replace(pool=after.pool), rid, **gone)
        entries = Table({(b,): i for i, b in enumerate(r.table)}, -1)
        path.go("free", state, {"r": rid, "at": entries})
    if path.values(path.state) != path.values(after):
        path.go("renew", after, {"r": rid, "n": path.confirmed(after, rid)})
