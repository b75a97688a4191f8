"""The pool that changes in place answers exactly as the pool of the specification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import ACTIONS, Lockstep
from conformance.subject import BlockView, Refusal, Subject
from conformance.twin import TwinPool
from spec.state import NULL, Block, Config, Key, Pool, initial
from spec.statemachine import Refused

NUM_BLOCKS = 7
KEYS = [Key(None, (token,)) for token in range(3)]

CONFIGS = {
    "full attention": Config(7, 2),
    "one usable block": Config(2, 1),
    "many blocks": Config(24, 4),
    "window": Config(9, 2, sliding_window=3),
    "wide window": Config(12, 3, sliding_window=7),
    "caching off": Config(7, 2, enable_caching=False),
    "short model": Config(7, 2, max_model_len=5),
    "unhashed first": Config(7, 2, free_rule="unhashed_first"),
    "unhashed first, window": Config(9, 2, sliding_window=4, free_rule="unhashed_first"),
}


def views_of(pool: Pool) -> list[BlockView]:
    """Return all blocks as an incremental check sees them, read off the pure pool."""
    views: list[BlockView] = []
    ring = (NULL, *pool.queue, NULL)
    for b, block in enumerate(pool.blocks):
        at = pool.queue.index(b) + 1 if b in pool.queue else None
        copies = None if block.key is None else pool.copies(block.key)
        around = (None, None) if at is None else (ring[at - 1], ring[at + 1])
        views.append((block.ref_cnt, copies, *around))
    return views


def assert_same(twin: TwinPool, pool: Pool, began: Pool) -> None:
    """Check every answer of the twin against the pure pool, and the pool when the call began."""
    n = len(pool.blocks)
    assert pool == twin.frozen()
    assert began == twin.before()
    assert pool.num_free() == twin.num_free()
    for count in range(pool.num_free() + 1):
        assert pool.heads(count) == twin.heads(count)
    for key in {*KEYS, *pool.by_key, *began.by_key}:
        assert pool.copies(key) == twin.copies(key)
    ends = (pool.queue[0], pool.queue[-1]) if pool.queue else (NULL, NULL)
    assert (*ends, len(pool.queue)) == twin.ends()
    assert views_of(pool)[1:] == twin.views(range(1, n))
    changed = {
        b: x for b, (x, y) in enumerate(zip(began.blocks, pool.blocks, strict=True)) if x != y
    }
    assert changed.items() <= twin.overwritten.items()


Change = tuple[str, tuple[Any, ...]]


def changes(draw: Callable[[st.SearchStrategy[Any]], Any], pool: Pool) -> Change:
    """Return one change that the pool allows."""
    queued = list(pool.queue)
    out = [b for b in range(1, NUM_BLOCKS) if b not in queued]
    plain = [b for b in range(1, NUM_BLOCKS) if pool.blocks[b].key is None]
    sealed = [b for b in range(1, NUM_BLOCKS) if pool.blocks[b].key is not None]

    def some(ids: list[int]) -> list[int]:
        return cast("list[int]", draw(st.lists(st.sampled_from(ids), unique=True)) if ids else [])

    match draw(st.sampled_from(["dequeue", "enqueue", "publish", "withdraw", "update"])):
        case "dequeue":
            return "dequeue", (some(queued),)
        case "enqueue":
            ids = some(out)
            split = draw(st.integers(0, len(ids)))
            return "enqueue", (ids[:split], ids[split:])
        case "publish" if plain:
            return "publish", (draw(st.sampled_from(plain)), draw(st.sampled_from(KEYS)))
        case "withdraw" if sealed:
            b = draw(st.sampled_from(sealed))
            return "withdraw", (b, pool.blocks[b].key)
    counts = draw(st.dictionaries(st.integers(1, NUM_BLOCKS - 1), st.integers(0, 3)))
    return "update", ({b: pool.blocks[b]._replace(ref_cnt=n) for b, n in counts.items()},)


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_any_sequence_of_changes_gives_the_same_pool(data: st.DataObject) -> None:
    """Every method of the pool does the same in place, however many make up one call."""
    began = pool = initial(Config(NUM_BLOCKS, 1)).pool
    twin = TwinPool(pool)
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            twin.begin()
            began = pool
        name, args = changes(data.draw, pool)
        pool = getattr(pool, name)(*args)
        assert twin is getattr(twin, name)(*args)
        if name in ("publish", "withdraw"):
            b, key = args
            block = pool.blocks[b]._replace(key=key if name == "publish" else None)
            pool, twin = pool.update({b: block}), twin.update({b: block})
        assert_same(twin, pool, began)


class Twinned(Lockstep):
    """A pair in full lockstep that steps a second state, whose pool is a twin, beside it."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject, "full")
        self.twin = TwinPool(self.state.pool)
        self.other = self.state._replace(pool=cast("Pool", self.twin))

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
        began = self.state.pool
        refused: Refusal | Refused | None = None
        result = None
        try:
            result = super()._call(action, **args)
        except (Refusal, Refused) as error:
            refused = error
        self.twin.begin()
        try:
            self.other, answer = ACTIONS[action](self.other, **args)
        except Refused as error:
            answer = error
        assert_same(self.twin, self.state.pool, began)
        assert self.state.requests == self.other.requests
        assert self.state.loose == self.other.loose
        if refused is not None:
            assert refused.rule == answer.rule
            raise refused
        assert result == answer
        return result


@pytest.fixture
def twinned(model_of: Callable[[Config], Subject]) -> Callable[[Config], Twinned]:
    """Return a maker of twinned pairs; a rule that our manager has not is the model's own."""
    return lambda config: Twinned(
        Reference(config) if config.free_rule == "append" else model_of(config)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_actions_do_the_same_on_both_pools(
    twinned: Callable[[Config], Twinned], name: str
) -> None:
    """After every call of a random walk both states, and both states before it, are equal."""
    calls = 0
    for seed in range(12):
        pair = twinned(CONFIGS[name])
        Walk(pair, seed).run(200)
        calls += pair.calls
    assert calls > 1_200


def direct_call(pair: Lockstep, rng: Random) -> None:
    """Make one random call of a direct caller of the pool, allowed or not."""
    n, size = pair.config.num_gpu_blocks, pair.config.block_size
    loose = list(pair.state.loose)
    ids = [rng.randrange(-1, n + 1) for _ in range(rng.randrange(4))]
    held = rng.sample(loose, rng.randint(0, len(loose)))
    match rng.randrange(7):
        case 0 | 1:
            pair.get_new_blocks(rng.randint(-1, 4))
        case 2:
            pair.touch(rng.choice([ids, held]))
        case 3:
            pair.free_blocks(rng.choice([ids, held, held]))
        case 4:
            table = list(dict.fromkeys(rng.choice([[b for b in ids if 0 <= b < n], held, held])))
            keys = [Key(None, (rng.randrange(3),) * size) for _ in table]
            pair.cache_full_blocks(table, keys, rng.randint(0, 1), len(table))
        case 5:
            pair.unpublish(rng.choice([ids, held[:1]]))
        case _:
            pair.reset_prefix_cache()


DIRECT_REFUSALS = {
    "block_count_is_negative",
    "not_enough_free_blocks",
    "block_is_not_of_this_pool",
    "touched_block_is_not_sealed",
    "released_more_often_than_held",
    "seal_range_is_invalid",
    "block_is_already_sealed",
    "sealed_block_has_not_one_holder",
    "unpublished_block_is_not_one_holders",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full attention", "many blocks", "unhashed first"])
def test_a_direct_caller_sees_the_same_on_both_pools(
    twinned: Callable[[Config], Twinned], name: str
) -> None:
    """Calls of the pool itself, many of them refused, leave both pools equal."""
    refused: Counter[str] = Counter()
    for seed in range(8):
        pair, rng = twinned(CONFIGS[name]), Random(seed)  # noqa: S311  # repeatable, not secret
        for _ in range(250):
            try:
                direct_call(pair, rng)
            except Refusal as refusal:
                refused[refusal.rule] += 1
    assert set(refused) == DIRECT_REFUSALS
    assert refused.total() < 1_000


def test_a_touched_block_leaves_the_middle_and_comes_back_at_an_end() -> None:
    """A block between two others, at either end, or alone in the queue can be taken out."""
    pool = initial(Config(4, 1)).pool
    for ids in ([2], [1], [3], [1, 3], [3, 2, 1]):
        twin = TwinPool(pool).dequeue(ids)
        left = pool.dequeue(ids)
        assert left == twin.frozen()
        assert left.enqueue(ids) == twin.enqueue(ids).frozen()
        twin = TwinPool(left)
        assert left.enqueue((), ids) == twin.enqueue((), ids).frozen()
        assert left == twin.before()


def test_what_a_call_overwrote_is_remembered_once() -> None:
    """A block that changes twice in one call is remembered as it was before the first change."""
    pool = initial(Config(3, 1)).pool
    twin = TwinPool(pool)
    twin.update({1: Block(5)}).update({1: Block(6), 2: Block(7)})
    assert {1: Block(), 2: Block()} == twin.overwritten
    assert pool == twin.before()
    twin.begin()
    assert twin.overwritten == {}
    assert (Block(), Block(6), Block(7)) == twin.before().blocks
