"""The ghost ledger: what a worker's memory holds, written only by steps that were handed out.

A pool knows which blocks are found under which key, and not whether anybody has written them. The
ledger does. It is told of each step what a worker is told: which request computes which positions,
in which blocks. A worker runs steps in the order in which they are handed out, and each layer
writes all slots of a step before it reads any, so a step that is handed out counts as run for all
that is scheduled after it. What was scheduled and is in no step is never written.

Rejected: to write when the scheduler hears of the outcome. With two steps on their way that is
later than the writing, and a hit on what the first one writes would look like a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from spec.state import Key


class Work(NamedTuple):
    """What one request computes in one step: the positions from `start` to before `end`.

    `tokens` are all of its tokens where the worker is told them anew, because the request is new
    or comes back; else the worker goes on from what it knows.
    """

    rid: str
    start: int
    end: int
    table: tuple[int, ...]
    tokens: tuple[int, ...] | None = None


class Ledger:
    """What each block holds, and the tokens of each request as the worker knows them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.contents: dict[int, Key] = {}
        """Of each block that was ever written: the prefix that stands in it, as far as it goes."""
        self._tokens: dict[str, list[int]] = {}
        self._chains: dict[str, list[Key]] = {}

    def run(self, step: Iterable[Work], token: int) -> dict[str, int]:
        """Write what a step computes; return what each request samples that comes to its end."""
        sampled = {}
        for work in step:
            if work.tokens is not None:
                self._tokens[work.rid], self._chains[work.rid] = list(work.tokens), []
            tokens = self._tokens[work.rid]
            if work.end > len(tokens):
                raise UnknownTokenError(work, len(tokens))
            self._write(work, tokens)
            if work.end == len(tokens):
                sampled[work.rid] = token
                tokens.append(token)
        return sampled

    def taken(self, blocks: Iterable[int]) -> None:
        """Count what stands in blocks that are handed out as nothing: their new owner writes."""
        for b in blocks:
            self.contents.pop(b, None)

    def forget(self, rids: Iterable[str]) -> None:
        """Drop what was known of requests that have ended. What they wrote stays."""
        for rid in rids:
            self._tokens.pop(rid, None)
            self._chains.pop(rid, None)

    def pending(self, step: Iterable[Work], sealed: Collection[int]) -> dict[int, str]:
        """Return the sealed blocks that a step, scheduled and not yet run, comes to the end of."""
        size, pending = self.block_size, {}
        for work in step:
            for i in range(work.start // size, min(work.end // size, len(work.table))):
                if work.table[i] in sealed:
                    pending[work.table[i]] = work.rid
        return pending

    def _write(self, work: Work, tokens: list[int]) -> None:
        size, chain = self.block_size, self._chains[work.rid]
        extend(chain, tokens, size)
        for i in range(work.start // size, -(-work.end // size)):
            own = tuple(tokens[i * size : min((i + 1) * size, work.end)])
            parent, before = (chain[i - 1] if i else None), max(0, work.start - i * size)
            block = work.table[i]
            held = self.contents.get(block)
            if before and held is not Key(parent, own[:before]):
                self.contents[block] = Key(held, own, (("torn",),))
            else:
                self.contents[block] = Key(parent, own)


class UnknownTokenError(Exception):
    """A step computes a position whose token nobody knows yet."""

    def __init__(self, work: Work, known: int) -> None:
        super().__init__(
            f"{work.rid} computes {work.start} to {work.end}, and {known} tokens are known"
        )


def extend(chain: list[Key], tokens: Iterable[int], size: int) -> None:
    """Append to a chain the keys of the full blocks of `tokens` that it lacks."""
    known = tuple(tokens)
    for i in range(len(chain), len(known) // size):
        parent = chain[-1] if chain else None
        chain.append(Key(parent, known[i * size : (i + 1) * size]))
