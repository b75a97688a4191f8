"""Every kind of difference between a snapshot and a state is seen, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.lockstep import Lockstep
from conformance.subject import RequestSpec, Snapshot
from conformance.view import (
    Difference,
    as_state,
    chain_differences,
    differences,
    holders_of,
    key_differences,
)
from spec.state import Config, Key, State
from spec.statemachine import Outcome


class Scene(NamedTuple):
    """A state and the snapshot of a subject that is in it."""

    state: State
    seen: Snapshot


@pytest.fixture
def scene() -> Scene:
    """Return a state with every kind of fact, and its snapshot.

    `old` is gone and left blocks 1 and 2 cached. `one` shares block 1, and holds 3 and 4. `two`
    sealed block 5 under the key of block 1 before that could be seen, and holds 6.
    """
    pair = Lockstep(Reference(Config(9, 2)))
    pair.add_request("old", RequestSpec([0, 0, 1, 1]))
    pair.add_request("two", RequestSpec([0, 0, 3], prompt_logprobs=True))
    pair.allocate_slots("old", 4, (), 0)
    pair.run_step({"old": Outcome()})
    pair.finish("old")
    pair.add_request("one", RequestSpec([0, 0, 2, 2, 2]))
    hits = pair.get_computed_blocks("one")
    pair.allocate_slots("one", 3, hits, 0)
    pair.run_step({"one": Outcome()})
    pair.allocate_slots("two", 3, (), 0)
    pair.run_step({"two": Outcome()})
    return Scene(pair.state, pair.subject.snapshot())


def found(scene: Scene, **changed: Any) -> list[Difference]:  # noqa: ANN401  # any field
    """Return the differences when some fields of the snapshot are others."""
    return list(differences(scene.state, replace(scene.seen, **changed)))


def put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    """Return the tuple with one value replaced."""
    return (*values[:at], value, *values[at + 1 :])


def test_the_scene_is_as_it_says(scene: Scene) -> None:
    """The scene has a shared key, cached free blocks, and blocks of both requests."""
    assert scene.seen.tables == {"one": (1, 3, 4), "two": (5, 6)}
    assert scene.seen.queue == (7, 8, 2)
    assert scene.seen.keys[1] == scene.seen.keys[5] != scene.seen.keys[2]
    assert sorted(scene.seen.index.values()) == [(1, 5), (2,), (3,)]


def test_a_snapshot_equal_to_the_state_shows_no_difference(scene: Scene) -> None:
    """What agrees is not reported, and reads as the very state."""
    assert found(scene) == []
    assert list(chain_differences(scene.seen)) == []
    assert list(key_differences(scene.state, scene.seen)) == []
    assert as_state(scene.state, scene.state, scene.seen) == scene.state


def test_an_empty_table_is_no_table(scene: Scene) -> None:
    """A manager may keep an empty table, also of a request that is long gone."""
    tables = {**scene.seen.tables, "old": (), "never": ()}
    assert found(scene, tables=tables) == []


def test_a_wrong_reference_count_is_seen(scene: Scene) -> None:
    """The block, what it should count and what it counts are told."""
    counts = put(scene.seen.ref_cnts, 3, 2)
    assert found(scene, ref_cnts=counts) == [Difference("ref_cnt", 3, 1, 2)]


def test_a_lost_and_an_added_key_are_seen(scene: Scene) -> None:
    """A block that is sealed on one side only differs, and so does what the index says of it."""
    lost, *more = found(scene, keys=put(scene.seen.keys, 2, None))
    assert lost == Difference("sealed", 2, expected=True, actual=False)
    assert [d.block for d in more] == [2]
    added, *more = found(scene, keys=put(scene.seen.keys, 7, b"new"))
    assert added == Difference("sealed", 7, expected=False, actual=True)
    assert [d.block for d in more] == [7]


def test_a_wrong_order_of_the_queue_is_seen_where_it_begins(scene: Scene) -> None:
    """The first block that stands at a wrong place is named, with its surroundings."""
    (d,) = found(scene, queue=(7, 2, 8), queue_back=(8, 2, 7))
    assert d == Difference("free queue", 8, "[0:](7, 8, 2)", "[0:](7, 2, 8)")
    short = found(scene, queue=(7, 8), queue_back=(8, 7), num_free=2)
    assert short == [Difference("free queue", 2, "[0:](7, 8, 2)", "[0:](7, 8)")]
    (longer,) = found(scene, queue=(7, 8, 2, 3), queue_back=(3, 2, 8, 7), num_free=4)
    assert (longer.what, longer.block) == ("free queue", 3)


def test_a_broken_chain_is_seen(scene: Scene) -> None:
    """The two walks and the counter must tell one queue."""
    back = found(scene, queue_back=(2, 7))
    assert back == [Difference("queue walked backward", None, (7, 8, 2), (7, 2))]
    assert found(scene, num_free=4) == [Difference("free counter", None, 3, 4)]
    broken = replace(scene.seen, queue_back=(2, 7), num_free=4)
    assert [d.what for d in chain_differences(broken)] == ["queue walked backward", "free counter"]


def test_one_key_for_two_contents_is_seen(scene: Scene) -> None:
    """A subject that gives two different prefixes one key mixes them up."""
    same = put(scene.seen.keys, 2, scene.seen.keys[1])
    (d,) = key_differences(scene.state, replace(scene.seen, keys=same))
    blocks = scene.state.pool.blocks
    assert d == Difference("one key for two contents", 2, blocks[2].key, blocks[1].key)
    assert d in found(scene, keys=same)


def test_two_keys_for_one_content_are_seen(scene: Scene) -> None:
    """A subject that gives one prefix two keys never finds it again."""
    other = put(scene.seen.keys, 5, b"other")
    (d,) = key_differences(scene.state, replace(scene.seen, keys=other))
    assert d == Difference("two keys for one content", 5, scene.seen.keys[1], b"other")
    assert d in found(scene, keys=other)


def without(scene: Scene, b: int, *instead: int) -> dict[Any, tuple[int, ...]]:
    """Return the index with other blocks in the place of one."""
    return {
        key: tuple(c for copy in copies for c in (instead if copy == b else (copy,)))
        for key, copies in scene.seen.index.items()
    }


def test_a_wrong_index_is_seen(scene: Scene) -> None:
    """A missing, a stale, a swapped and an empty entry differ, each with a block of it."""
    gone = {key: copies for key, copies in without(scene, 2).items() if copies}
    assert {d.block for d in found(scene, index=gone)} == {2}
    assert {d.block for d in found(scene, index=without(scene, 5))} == {1, 5}
    assert {d.block for d in found(scene, index=without(scene, 3, 3, 7))} == {3, 7}
    swapped = {key: copies[::-1] for key, copies in scene.seen.index.items()}
    assert {d.block for d in found(scene, index=swapped)} == {1, 5}
    assert found(scene, index={**scene.seen.index, b"empty": ()}) != []
    stale = {**scene.seen.index, b"stale": (7,)}
    assert {d.block for d in found(scene, index=stale)} == {7}
    nowhere = {**scene.seen.index, b"nowhere": (99,)}
    assert {d.block for d in found(scene, index=nowhere)} == {99}


def test_a_wrong_table_is_seen_where_it_begins(scene: Scene) -> None:
    """The request and the first position that differs are told; so are extra and missing tables."""
    tables = dict(scene.seen.tables)
    wrong = found(scene, tables={**tables, "one": (1, 4, 3)})
    assert wrong == [Difference("table of one", 3, (1, 3, 4), (1, 4, 3))]
    cut = found(scene, tables={**tables, "one": (1, 3)})
    assert cut == [Difference("table of one", 4, (1, 3, 4), (1, 3))]
    missing = found(scene, tables={"one": (1, 3, 4)})
    assert missing == [Difference("table of two", 5, (5, 6), ())]
    extra = found(scene, tables={**tables, "old": (2,)})
    assert extra == [Difference("table of old", 2, (), (2,))]


def test_a_wrong_number_of_blocks_is_the_only_difference_told(scene: Scene) -> None:
    """Nothing else can be compared when the pools have different sizes."""
    seen = scene.seen
    fewer = found(scene, ref_cnts=seen.ref_cnts[:-1], keys=seen.keys[:-1])
    assert fewer == [Difference("number of blocks", None, 9, 8)]
    more = found(scene, ref_cnts=(*seen.ref_cnts, 0), keys=(*seen.keys, None), num_free=5)
    assert more == [Difference("number of blocks", None, 9, 10)]


def test_all_differences_are_told_in_one_go(scene: Scene) -> None:
    """One difference does not hide another."""
    tables = {"one": (1, 3, 4)}
    all_of_them = found(scene, ref_cnts=put(scene.seen.ref_cnts, 3, 2), num_free=1, tables=tables)
    assert [d.what for d in all_of_them] == ["ref_cnt", "free counter", "table of two"]


def test_a_snapshot_reads_as_a_state_of_the_specification(scene: Scene) -> None:
    """Counts, queue, index and tables are the subject's; its keys become the specification's."""
    seen = replace(
        scene.seen,
        ref_cnts=put(scene.seen.ref_cnts, 3, 7),
        keys=put(put(scene.seen.keys, 2, scene.seen.keys[1]), 7, b"unheard"),
        queue=(8, 7),
        tables={"one": (1, 3)},
    )
    view = as_state(scene.state, scene.state, seen)
    blocks, was = view.pool.blocks, scene.state.pool.blocks
    assert blocks[3].ref_cnt == 7
    assert blocks[2].key is blocks[1].key is was[1].key
    unheard = blocks[7].key
    assert isinstance(unheard, Key)
    assert unheard.extra == (("unknown to the specification", 2),)
    assert view.pool.queue == (8, 7)
    assert view.requests["one"].table == (1, 3)
    assert view.requests["two"].table == ()
    assert [block.content for block in blocks] == [block.content for block in was]
    assert view.loose == scene.state.loose


def test_a_request_without_a_table_stays_without_one(scene: Scene) -> None:
    """A request that waits reads as waiting, and one that the subject serves as served."""
    state = scene.state
    waiting = state.requests["two"]._replace(table=None)
    s = state._replace(requests=state.requests.set("two", waiting))
    seen = replace(scene.seen, tables={"one": (1, 3, 4)})
    assert as_state(s, s, seen).requests["two"].table is None
    assert as_state(s, s, scene.seen).requests["two"].table == (5, 6)


def test_holders_are_named_by_the_ledger(scene: Scene) -> None:
    """Requests by their ids, direct callers as such, null and no block as a dash."""
    shared = scene.state._replace(loose=(3, 3, 7))
    names = [holders_of(shared, b) for b in (None, 0, 1, 2, 3, 7)]
    assert names == ["-", "-", "one", "nobody", "one,caller,caller", "caller"]
