"""The registry holds every property that the design names, each with a statement and a reason."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from spec.invariants import REGISTRY, Broken, always, broken, holders
from spec.registry import Property, Step, relevant
from spec.state import NULL, State

Scene = Any
"""The `World` of conftest.py, which no file can import."""

World = Callable[..., Scene]

OF_STATES = frozenset(
    {
        "a_block_is_free_exactly_when_nobody_holds_it",
        "a_key_tells_the_content",
        "a_request_reads_its_own_prefix",
        "a_writer_owns_its_block",
        "an_idle_pool_is_whole",
        "every_block_is_in_one_of_five_states",
        "free_and_held_and_null_make_the_pool",
        "nothing_unwritten_is_found",
        "only_full_blocks_have_a_hash",
        "only_sealed_blocks_are_shared",
        "ref_cnt_counts_the_holders",
        "skipped_positions_show_null",
        "the_cache_is_prefix_closed",
        "the_free_queue_is_a_chain",
        "the_index_and_the_blocks_agree",
        "the_null_block_is_inert",
        "unconfirmed_tokens_are_never_sealed",
    }
)
OF_STEPS = frozenset(
    {
        "a_block_handed_out_is_clean",
        "a_hit_leaves_a_token_to_compute",
        "a_refused_call_changes_nothing",
        "a_repeated_prompt_hits",
        "a_settled_block_never_changes",
        "admission_is_exact",
        "equal_keys_mean_equal_prefixes",
        "hits_and_new_blocks_are_disjoint",
        "positions_never_move",
        "reset_only_when_idle",
        "the_oldest_release_is_evicted_first",
        "the_tail_is_evicted_before_the_head",
        "what_cannot_fit_is_refused_at_once",
    }
)


def test_the_registry_is_what_the_design_names() -> None:
    """No property is lost, and none comes without being listed here."""
    assert {p.name for p in REGISTRY.values() if p.kind == "state"} == OF_STATES
    assert {p.name for p in REGISTRY.values() if p.kind == "step"} == OF_STEPS
    assert all(p.name == name for name, p in REGISTRY.items())


@pytest.mark.parametrize("p", REGISTRY.values(), ids=lambda p: str(p.name))
def test_each_property_says_what_it_means(p: Property) -> None:
    """Statement and reason are sentences; the levels are P, M or both."""
    for text in (p.statement, p.why):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
        assert "  " not in text
    assert p.levels in ("P", "M", "PM")
    assert p.kind in ("state", "step")


def test_no_two_properties_are_one() -> None:
    """Statements and reasons are told apart, so a report can be understood."""
    assert len({p.statement for p in REGISTRY.values()}) == len(REGISTRY)
    assert len({p.why for p in REGISTRY.values()}) == len(REGISTRY)


def test_a_predicate_enters_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The docstring is the statement, on one line; the predicate itself stays as it is."""
    entries: dict[str, Property] = {}
    monkeypatch.setattr("spec.registry.REGISTRY", entries)

    def nothing_is_wrong(_: State) -> Iterator[Broken]:
        """Nothing
        is wrong.
        """  # noqa: D205
        yield from ()

    found = always("state", "P", "A reason.", ("pool",))(nothing_is_wrong)
    assert found is nothing_is_wrong
    assert entries == {
        "nothing_is_wrong": Property(
            "nothing_is_wrong", "P", "state", ("pool",), "Nothing is wrong.", "A reason.", found
        )
    }


def test_what_is_broken_comes_in_the_order_of_the_registry(world: World) -> None:
    """A state is asked for properties of states, a step for properties of steps."""
    w = world(3)
    w.new("A", "abc")
    bad = w.with_block(1, ref_cnt=0)
    names = [name for name, _ in broken(bad)]
    assert names == [name for name in REGISTRY if name in names]
    assert "ref_cnt_counts_the_holders" in names
    assert list(broken(w.state)) == []
    step = w.steps[-1]._replace(after=bad)
    assert {REGISTRY[name].kind for name, _ in broken(step)} <= {"step"}


def test_a_level_selects_what_is_promised(world: World) -> None:
    """To a direct caller of the pool only the properties of level P are promised."""
    w = world(3)
    w.new("A", "abc")
    bad = w.with_request("A", num_cached=2)
    assert [name for name, _ in broken(bad)] == ["unconfirmed_tokens_are_never_sealed"]
    assert list(broken(bad, "P")) == []
    assert [name for name, _ in broken(bad, "M")] == ["unconfirmed_tokens_are_never_sealed"]


def test_a_property_of_a_call_is_asked_about_that_call(world: World) -> None:
    """What speaks of one action is not tried on another."""
    w = world(3)
    w.add("A", "abc")
    step = w.steps[-1]
    asked = {p.name for p in relevant("step", "PM", step.action)}
    assert asked == {p.name for p in REGISTRY.values() if p.kind == "step" and not p.of}
    assert list(broken(Step(step.before, "reset_prefix_cache", {}, False, step.after))) == [  # noqa: FBT003
        ("reset_only_when_idle", Broken(None, True, False))  # noqa: FBT003
    ]


class Forbidden:
    """A part of a state that a property must not look at."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"it reads {name}")

    def __iter__(self) -> NoReturn:
        raise AssertionError("it iterates")


def test_a_property_of_the_pool_reads_the_pool_alone(world: World) -> None:
    """It may be evaluated once for a pool, whoever the requests are."""
    w = world(4)
    w.new("A", "abc")
    blind = w.state._replace(requests=Forbidden())
    for p in relevant("state", "PM", "pool"):
        assert list(p.check(blind)) == []
    with pytest.raises(AssertionError, match="it reads values"):
        list(REGISTRY["ref_cnt_counts_the_holders"].check(blind))


def test_a_property_of_the_pool_does_not_read_the_ledger(world: World) -> None:
    """Whoever holds what outside any request, the answer is the same."""
    w = world(4)
    held = w.state._replace(loose=(NULL,))
    found = {p.name for p in relevant("state", "PM", "pool") if list(p.check(held))}
    assert found <= {p.name for p in REGISTRY.values() if "pool" not in p.of}


@pytest.mark.parametrize(
    "p", [p for p in REGISTRY.values() if p.of == ("request",)], ids=lambda p: str(p.name)
)
def test_a_property_of_requests_can_be_asked_one_by_one(world: World, p: Property) -> None:
    """What is wrong in a state is what is wrong with each of its requests alone."""
    w = world(9, sliding_window=3)
    for rid, letters in (("A", "abcdef"), ("B", "uvwxyz")):
        w.add(rid, letters)
        w.admit(rid, 5)
    w.run()
    for rid in "AB":
        w.allocate(rid, 1)
    for rid in "AB":
        tokens, table = w.state.requests[rid].tokens[:5], (*w.table(rid)[:2], NULL)
        w.state = w.with_request(rid, num_cached=3, table=table, tokens=tokens, salt="x")
    alone = [
        found
        for rid, r in w.state.requests.items()
        for found in p.check(w.state._replace(requests=type(w.state.requests)({rid: r})))
    ]
    assert len(alone) >= 2
    assert list(p.check(w.state)) == alone


def test_holders_are_positions_of_tables_and_loose_references(world: World) -> None:
    """Null has no holder; a block in two tables has two, and a direct caller adds his."""
    w = world(5, sliding_window=2)
    w.new("A", "abcd")
    w.add("B", "abcdx")
    w.admit("B")
    w("touch", ids=(2, 2))
    assert (w.table("A"), w.table("B")) == ((1, 2), (NULL, 2, 3))
    assert holders(w.state) == {1: 1, 2: 4, 3: 1}
