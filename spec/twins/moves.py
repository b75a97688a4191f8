"""Compares a twin's moves with our explorer's, one by one: where each starts and where it leads.

Counts are equal too when a model leads somewhere else but to as many states. A state is written as
the numbers that the models print, so two moves are the same when their two lines of numbers are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from spec.state import Key, Pool, Request, State
from spec.twins.configurations import PoolWorld, RequestWorld, World
from spec.world import World as Explored

Moves = Counter[tuple[str, str]]
"""How often a state and the state after it were seen."""

EMPTY = 1
NAMES = ("A", "B")


def printed_moves(output: str) -> Moves:
    """Read the moves that a model printed."""
    found: Moves = Counter()
    for line in output.splitlines():
        word, *numbers = line.split() or [""]
        if word == "move":
            half = len(numbers) // 2
            found[" ".join(numbers[:half]), " ".join(numbers[half:])] += 1
    return found


def explored_moves(world: World) -> Moves:
    """Find the moves of our explorer, without symmetry."""
    explored = Explored(world.scope, symmetry=False)
    found: Moves = Counter()
    shown = {root: _shown(world, explored.state(root)) for root in (explored.initial(),)}
    waiting = list(shown)
    while waiting:
        node = waiting.pop()
        for there, _ in explored.successors(node):
            if there not in shown:
                shown[there] = _shown(world, explored.state(there))
                waiting.append(there)
            found[shown[node], shown[there]] += 1
    return found


def difference(twin: Moves, ours: Moves) -> str | None:
    """Return what one has and the other lacks, with an example of each, or None."""
    parts = []
    for who, extra in (("the twin alone", twin - ours), ("our explorer alone", ours - twin)):
        if extra:
            before, after = min(extra)
            parts.append(f"{who} has {extra.total()} moves, such as\n  {before}\n  {after}")
    return "\n".join(parts) or None


def _shown(world: World, s: State) -> str:
    if isinstance(world, PoolWorld):
        return " ".join(map(str, _pool_numbers(s.pool, len(s.pool.blocks) - 1)))
    return " ".join(map(str, _request_numbers(world, s)))


def _pool_numbers(pool: Pool, n: int) -> Iterator[int]:
    """Yield what `print_state` of pool.pml prints."""
    for block in pool.blocks[1:]:
        yield from (block.ref_cnt, 0 if block.key is None else block.key.tokens[0] + 1)
    yield from _padded(pool.queue, n)
    for label in (0, 1):
        yield from _padded(pool.copies(Key(None, (label,))), n)


def _request_numbers(world: RequestWorld, s: State) -> Iterator[int]:
    """Yield what `print_state` of requests.m prints."""
    queue = _padded(s.pool.queue, world.blocks)
    for b, block in enumerate(s.pool.blocks[1:], 1):
        place = 0 if block.key is None else s.pool.copies(block.key).index(b)
        yield from (block.ref_cnt, _key_word(block.key), place, queue[b - 1])
    entries = -(-world.constants["longest"] // world.block_size)
    for name in NAMES:
        r = s.requests.get(name)
        shown = Request(()) if r is None else r
        table = shown.table or ()
        yield from (int(r is not None), _word(shown.tokens), _word(shown.drafts))
        preempted = min(1, shown.num_preemptions)
        yield from (shown.num_computed, preempted, int(shown.table is not None))
        # What a step that has run leaves behind is read no more, so it is no part of the state.
        hits, end = (shown.num_hits, shown.end) if shown.in_flight else (0, 0)
        yield from (len(table), hits, shown.num_cached, shown.start, end)
        yield from _padded(table, entries)


def _padded(blocks: Sequence[int], length: int) -> list[int]:
    return [*blocks, *[0] * (length - len(blocks))]


def _word(tokens: Sequence[int]) -> int:
    """Return a word as requests.m writes it: a leading 1, then the tokens."""
    word = EMPTY
    for token in tokens:
        word = 2 * word + token
    return word


def _key_word(key: Key | None) -> int:
    """Return the word that a key stands for; 0 is no key."""
    tokens: tuple[int, ...] = ()
    if key is None:
        return 0
    while key is not None:
        tokens, key = key.tokens + tokens, key.parent
    return _word(tokens)
