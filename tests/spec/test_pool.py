"""A direct caller takes, shares, seals and releases blocks, and is told what is wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spec.pool import Refused, release_effect, take_effect
from spec.state import NULL, Block, Config, Frozen, Key, Pool, State, initial

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]
Chain = Callable[..., tuple[Key, ...]]

X = Key(None, (120, 120))
"""A key that no test seals under."""


@pytest.fixture
def w(world: World, chain: Chain) -> Scene:
    """Return a world of four blocks: 1 is held and sealed, 2 is held, 3 and 4 are free."""
    w = world(4)
    w("get_new_blocks", n=2)
    w("cache_full_blocks", table=(1, 2), keys=chain("ab"), num_cached=0, num_full=1)
    return w


def test_new_blocks_are_the_coldest(world: World) -> None:
    """The head of the queue is handed out with one reference, and the caller's ledger shows it."""
    w = world(3)
    assert w("get_new_blocks", n=2) == (1, 2)
    blocks = (Block(), Block(1), Block(1), Block())
    assert State(Config(4, 2), Pool(blocks, (3,), Frozen()), Frozen(), (1, 2)) == w.state
    assert w("get_new_blocks", n=0) == ()


def test_a_handed_out_block_is_evicted(w: Scene, chain: Chain) -> None:
    """An idle sealed block is cleaned when it is taken: no key, no content, no index entry."""
    w("free_blocks", ids=(1,))
    assert w.state.pool.copies(chain("ab")[0]) == (1,)
    assert w("get_new_blocks", n=3) == (3, 4, 1)
    assert (Block(1), Frozen(), ()) == (
        w.state.pool.blocks[1],
        w.state.pool.by_key,
        w.state.pool.queue,
    )


def test_an_eviction_leaves_the_other_copies(w: Scene, chain: Chain) -> None:
    """An index entry loses the block that is taken; the key goes with its last copy."""
    w("cache_full_blocks", table=(1, 2), keys=chain("ab") * 2, num_cached=1, num_full=2)
    w("free_blocks", ids=(1, 2))
    assert w.state.pool.by_key == {chain("ab")[0]: (1, 2)}
    w("get_new_blocks", n=3)
    assert w.state.pool.by_key == {chain("ab")[0]: (2,)}


def test_touch_adds_references(w: Scene, chain: Chain) -> None:
    """An idle block leaves the queue, a used one only counts, null is skipped."""
    w("free_blocks", ids=(1,))
    assert w("touch", ids=(NULL, 1)) is None
    (key,) = chain("ab")
    assert (Block(1, key, key), (3, 4), (1, 2)) == (
        w.state.pool.blocks[1],
        w.state.pool.queue,
        w.state.loose,
    )
    w("touch", ids=(1, 1))
    assert (Block(3, key, key), (1, 1, 1, 2)) == (w.state.pool.blocks[1], w.state.loose)
    assert w.state.pool.blocks[NULL] == Block()


def test_a_released_block_enters_the_queue_with_its_last_reference(w: Scene) -> None:
    """Each mention drops one reference; blocks enter at the tail, once, in the order given."""
    w("touch", ids=(1,))
    w("free_blocks", ids=(1,))
    assert (
        w.state.pool.blocks[1].ref_cnt,
        w.state.pool.queue,
        w.state.loose,
    ) == (1, (3, 4), (1, 2))
    w("touch", ids=(1,))
    w("free_blocks", ids=(1, 2, NULL, 1))
    assert (w.state.pool.queue, w.state.loose) == ((3, 4, 2, 1), ())
    assert w.broken() == []


def test_unhashed_blocks_may_go_to_the_head(world: World, chain: Chain) -> None:
    """With `unhashed_first` plain blocks enter at the head, each call's in its order."""
    w = world(5, free_rule="unhashed_first")
    w("get_new_blocks", n=4)
    w("cache_full_blocks", table=(1, 2, 3, 4), keys=chain("abcd"), num_cached=0, num_full=2)
    w("free_blocks", ids=(3, 2, 4, 1))
    assert w.state.pool.queue == (3, 4, 5, 2, 1)
    w("get_new_blocks", n=1)
    w("free_blocks", ids=(3,))
    assert w.state.pool.queue == (3, 4, 5, 2, 1)


def test_sealing_gives_keys_in_the_order_of_the_table(w: Scene, chain: Chain) -> None:
    """Only the range named is sealed, null is skipped, a second copy stands behind the first."""
    w("get_new_blocks", n=1)
    first, second = chain("abcd")
    keys = (X, second, first)
    assert w("cache_full_blocks", table=(1, NULL, 3), keys=keys, num_cached=1, num_full=3) is None
    assert w.state.pool.blocks[1:4] == (Block(1, first, first), Block(1), Block(1, first, first))
    assert w.state.pool.by_key == {first: (1, 3)}


def test_only_what_is_sealed_must_be_there(w: Scene) -> None:
    """A table is looked at in the range that is named."""
    args = {"table": (9, 2, 9), "keys": (X, X, X), "num_cached": 1, "num_full": 2}
    assert w("cache_full_blocks", **args) is None
    assert w.key(2) is X


def test_sealing_nothing_changes_nothing(w: Scene) -> None:
    """An empty range is a range."""
    before = w.state
    assert w("cache_full_blocks", table=(1,), keys=(X,), num_cached=1, num_full=1) is None
    assert before == w.state


def test_unpublish_takes_the_key(w: Scene, chain: Chain) -> None:
    """The block keeps its holder and its memory, and cannot be found."""
    assert w("unpublish", ids=(1,)) is None
    assert (Block(1, None, chain("ab")[0]), Frozen()) == (
        w.state.pool.blocks[1],
        w.state.pool.by_key,
    )


def test_a_reset_forgets_every_key(w: Scene, chain: Chain) -> None:
    """It succeeds when nothing is held; the queue keeps its order."""
    before = w.state
    assert w("reset_prefix_cache") is False
    assert before is w.state
    w("free_blocks", ids=(1, 2))
    assert w("reset_prefix_cache") is True
    assert ((3, 4, 1, 2), Frozen()) == (w.state.pool.queue, w.state.pool.by_key)
    assert [block._replace(content=None) for block in w.state.pool.blocks] == [Block()] * 5
    assert chain("ab")[0] is w.state.pool.blocks[1].content


SEAL = "cache_full_blocks"
REFUSALS: Sequence[tuple[str, dict[str, Any], str, dict[str, Any]]] = (
    ("get_new_blocks", {"n": -1}, "block_count_is_negative", {"n": -1}),
    ("get_new_blocks", {"n": 3}, "not_enough_free_blocks", {"n": 3, "free": 2}),
    ("touch", {"ids": (1, 5)}, "block_is_not_of_this_pool", {"block": 5, "blocks": 5}),
    ("touch", {"ids": (1, -1)}, "block_is_not_of_this_pool", {"block": -1, "blocks": 5}),
    ("touch", {"ids": (1, 2)}, "touched_block_is_not_sealed", {"block": 2}),
    ("touch", {"ids": (3,)}, "touched_block_is_not_sealed", {"block": 3}),
    ("touch", {"ids": (2, 5)}, "block_is_not_of_this_pool", {"block": 5, "blocks": 5}),
    ("free_blocks", {"ids": (5,)}, "block_is_not_of_this_pool", {"block": 5, "blocks": 5}),
    (
        "free_blocks",
        {"ids": (1, 2, 1)},
        "released_more_often_than_held",
        {"block": 1, "releases": 2, "held": 1},
    ),
    (
        "free_blocks",
        {"ids": (3,)},
        "released_more_often_than_held",
        {"block": 3, "releases": 1, "held": 0},
    ),
    (
        SEAL,
        {"table": (2, 9), "keys": (X, X), "num_cached": 0, "num_full": 2},
        "block_is_not_of_this_pool",
        {"block": 9, "blocks": 5},
    ),
    *(
        (
            SEAL,
            {"table": table, "keys": keys, "num_cached": span[0], "num_full": span[1]},
            "seal_range_is_invalid",
            {"range": span, "table": len(table)},
        )
        for table, keys, span in (
            ((2,), (X,), (-1, 1)),
            ((2,), (X,), (1, 0)),
            ((2,), (X, X), (0, 2)),
            ((2, 3), (X,), (0, 2)),
            ((9,), (X, X), (0, 2)),
        )
    ),
    (
        SEAL,
        {"table": (2, 2), "keys": (X, X), "num_cached": 0, "num_full": 2},
        "block_is_already_sealed",
        {"block": 2, "key": None},
    ),
    (
        SEAL,
        {"table": (2, 3), "keys": (X, X), "num_cached": 0, "num_full": 2},
        "sealed_block_has_not_one_holder",
        {"block": 3, "held": 0},
    ),
    *(
        (
            "unpublish",
            {"ids": ids},
            "unpublished_block_is_not_one_holders",
            {"block": b, "held": held},
        )
        for ids, b, held in (((2,), 2, 1), ((3,), 3, 0), ((NULL,), NULL, 0), ((1, 1), 1, 1))
    ),
    ("unpublish", {"ids": (1, 7)}, "block_is_not_of_this_pool", {"block": 7, "blocks": 5}),
)


@pytest.mark.parametrize(("action", "args", "rule", "values"), REFUSALS)
def test_a_broken_rule_is_named_with_its_values(
    w: Scene,
    action: str,
    args: dict[str, Any],
    rule: str,
    values: dict[str, Any],
) -> None:
    """A refused call changes nothing, and the first rule of the action that is broken is named."""
    assert w.refused(action, **args) == (rule, values)


def test_a_shared_block_keeps_its_key(w: Scene, chain: Chain) -> None:
    """With two holders nobody may seal it again or take the key from it."""
    w("touch", ids=(1,))
    (key,) = chain("ab")
    args = {"table": (1,), "keys": (X,), "num_cached": 0, "num_full": 1}
    assert w.refused(SEAL, **args) == ("block_is_already_sealed", {"block": 1, "key": key})
    expected = ("unpublished_block_is_not_one_holders", {"block": 1, "held": 2})
    assert expected == w.refused("unpublish", ids=(1,))


def test_a_refusal_reads_as_one_line() -> None:
    """The text names the rule and every value."""
    refused = Refused("not_enough_free_blocks", n=3, free=2)
    assert str(refused) == "not_enough_free_blocks: n=3, free=2"


def test_an_effect_leaves_the_pool_that_it_starts_from() -> None:
    """Everything is pure: the old pool can be looked at afterwards."""
    pool = initial(Config(3, 1)).pool
    taken, ids = take_effect(pool, 2)
    assert pool == initial(Config(3, 1)).pool
    assert (ids, taken.queue) == ((1, 2), ())
    assert release_effect(taken, (2, 1), "append").queue == (2, 1)
    assert taken.queue == ()
