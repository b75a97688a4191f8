from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.exhaustive.production import Names, load, load_manager, real, view
from conformance.exhaustive.tour import Graph
from kvcache import BlockPool, KVCacheBlock
from spec import statemachine as sm
from spec.scope import Scope
from spec.state import Config, Key, Request, State, initial

Graphs = Callable[[str], Graph]
ONE, TWO = Key(None, (1,)), Key(None, (2,))


def some_state() -> State:
    """Return a state: 1 and 2 are copies of one key, 3 has another one, 4 and 5 are free."""
    s, ids = sm.get_new_blocks(initial(Config(6, 1)), 3)
    s = sm.cache_full_blocks(s, ids, (ONE, ONE, TWO), 0, 3)
    return sm.free_blocks(sm.touch(s, (3,)), (2,))


def test_loaded_pools_are_in_the_state_that_they_were_loaded_for(
    pool_states: Callable[[Scope], Iterator[State]],
) -> None:
    """The view of a loaded pool is its state, in each of the 1,558 states of three blocks."""
    scope = Scope(Config(4, 1))
    names = Names(scope.config)
    states = list(pool_states(scope))
    assert len(states) == 1_558
    for s in states:
        assert view(load(s, names), names) == real(s)


@pytest.mark.parametrize("name", ["tight", "drafts", "window-blocks-of-2", "no-caching"])
def test_loaded_managers_are_in_the_state_that_they_were_loaded_for(
    graph_of: Graphs, name: str
) -> None:
    """Tables, sealed fronts, starts and ends of steps, drafts and chains come back from a view."""
    graph = graph_of(name)
    names = Names(graph.world.scope.config)
    for s in graph.states():
        assert view(load_manager(s, names), names) == real(s)


def test_all_that_a_request_is_comes_back_from_a_view() -> None:
    """Adapter, media and salt are in the view, and in the digests, which production makes alone."""
    config = Config(6, 2)
    names = Names(config)
    media = (("cat", 1, 2), ("dog", 3, 1))
    request = Request((5, 6, 7, 8, 9), lora=("x", 2), media=media, salt="s", prompt_logprobs=True)
    s = sm.add_request(initial(config), "A", request)
    s, new = sm.allocate_slots(s, "A", 5)
    assert new == (1, 2, 3)
    s = sm.run_step(s, {"A": sm.Outcome(0, (4,))})
    subject = load_manager(s, names)
    assert view(subject, names) == real(s) != s
    assert subject.pool.blocks[2].block_hash == names.digest(s.requests["A"].keys[1])


def test_a_pool_in_use_is_viewed_as_it_is() -> None:
    """The view needs no loading: it reads a pool that its own calls brought into its state."""
    names = Names(Config(6, 1))
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [names.digest(key) for key in (ONE, ONE, TWO)], 0, 3)
    pool.touch(blocks[2:])
    pool.free_blocks(blocks[1:2])
    assert view(pool, names) == real(some_state())


def test_a_pool_that_is_loaded_for_the_initial_state_is_a_new_one() -> None:
    """Loading neither adds an attribute nor leaves one out, and links as the constructor does."""
    new, loaded = BlockPool(6), load(initial(Config(6, 1)), Names(Config(6, 1)))
    assert vars(loaded).keys() == vars(new).keys()
    assert repr(loaded.blocks) == repr(new.blocks)
    assert loaded.free_block_queue.num_free_blocks == new.free_block_queue.num_free_blocks == 5


DAMAGE: dict[str, Callable[[Any], object]] = {
    "stands at": lambda pool: setattr(pool.blocks[3], "block_id", 9),
    "null is": lambda pool: setattr(pool, "null_block", pool.blocks[1]),
    "marked wrongly": lambda pool: setattr(pool.blocks[2], "is_null", True),
    "has 1 links": lambda pool: setattr(pool.blocks[1], "next_free_block", pool.blocks[4]),
    "does not link back": lambda pool: setattr(pool.blocks[5], "prev_free_block", None),
    "does not close": lambda pool: setattr(pool.blocks[2], "next_free_block", None),
    "are counted of": lambda pool: setattr(pool.free_block_queue, "num_free_blocks", 2),
    "is of another pool": lambda pool: pool.free_block_queue.append(KVCacheBlock(1)),
    "are of another pool": lambda pool: pool.index._first.update(
        dict.fromkeys(list(pool.index._first)[1:], KVCacheBlock(3))
    ),
    "no known key": lambda pool: setattr(pool.blocks[4], "block_hash", b"?"),
    "begin with the first": lambda pool: pool.index._first.update(
        dict.fromkeys(pool.index._copies, pool.blocks[2])
    ),
    "as several copies": lambda pool: [c.popitem() for c in pool.index._copies.values()],
    "cannot be found": lambda pool: pool.index._first.clear(),
}


@pytest.mark.parametrize("says", DAMAGE)
def test_a_pool_in_no_state_is_said_to_be_in_none(says: str) -> None:
    """A wrong link, count, mark or list has no view; the message shows it."""
    names = Names(Config(6, 1))
    pool = load(some_state(), names)
    DAMAGE[says](pool)
    with pytest.raises(AssertionError, match=says):
        view(pool, names)


def test_what_is_wrong_in_a_state_is_viewed() -> None:
    """A view shows states that the invariants forbid; it is they that must say so."""
    names = Names(Config(6, 1))
    pool = load(some_state(), names)
    pool.blocks[4].ref_cnt = 1
    pool.blocks[3].block_hash = None
    seen = view(pool, names).pool
    assert (seen.blocks[4].ref_cnt, seen.blocks[3].key, seen.copies(TWO)) == (1, None, (3,))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda subject: subject.manager._chains["A"].keys.reverse(), "the chain of 'A' is"),
        (lambda subject: subject.requests.pop("A"), "which have ended"),
        (lambda subject: subject.manager._admissions.pop("A"), "in flight and no blocks"),
        (lambda subject: setattr(subject.manager._chains["A"], "request", None), "another request"),
        (
            lambda subject: setattr(subject.manager._admissions["A"], "request", None),
            "another request",
        ),
    ],
)
def test_a_manager_in_no_state_is_said_to_be_in_none(
    damage: Callable[[Reference], object], says: str
) -> None:
    """What the manager keeps for a request agrees with the request, or there is no view."""
    names = Names(Config(4, 1))
    s = sm.add_request(initial(names.config), "A", Request((1, 2)))
    s, _ = sm.allocate_slots(s, "A", 2)
    subject = load_manager(s, names)
    assert view(subject, names) == real(s)
    damage(subject)
    with pytest.raises(AssertionError, match=says):
        view(subject, names)


def test_a_state_that_breaks_an_invariant_is_not_loaded() -> None:
    """Loading ends with production's own checks."""
    names = Names(Config(4, 1))
    s = initial(names.config)
    held = s._replace(pool=s.pool.update({1: s.pool.blocks[1]._replace(ref_cnt=1)}))
    with pytest.raises(AssertionError, match="is held 1 times, in queue: True"):
        load(held, names)
    with pytest.raises(AssertionError, match="is held 1 times, in queue: True"):
        load_manager(held, names)
    assert view(load(s, names), names) == s
