from collections.abc import Callable, Sequence

import pytest

from conformance.adapters.reference import Reference
from conformance.exhaustive.tour import Graph, Replayed, random_share, replay, walks
from conformance.subject import Capabilities
from spec.worlds import WORLDS

Graphs = Callable[[str], Graph]

NEEDED = {
    "full": "idle_hits_are_refused one_of_two_copies_is_evicted a_preempted_request_hits",
    "tight": "a_cached_block_is_evicted a_pending_block_is_shared an_idle_hit_stands_at_the_head",
    "blocks-of-2": "unwritten_blocks_are_taken_back a_pending_block_is_shared",
    "drafts": "a_draft_is_rejected_after_its_block_filled unwritten_blocks_are_taken_back",
    "window": "a_request_with_nulls_ends a_preempted_request_hits idle_hits_are_refused",
    "window-leaves-two": "a_request_with_nulls_ends a_preempted_request_hits",
    "window-blocks-of-2": "a_request_with_nulls_ends a_preempted_request_hits",
    "no-caching": "a_reset_is_refused",
}
"""What must be seen in each small world of requests; else its tour would be green for nothing."""

COUNTS = {
    "full": (1_635, 10_769),
    "tight": (1_243, 8_437),
    "blocks-of-2": (1_767, 12_491),
    "drafts": (1_656, 10_598),
    "window": (1_212, 7_888),
    "window-leaves-two": (437, 1_723),
    "window-blocks-of-2": (1_615, 11_432),
    "no-caching": (424, 2_845),
}
"""The states and transitions of each, up to renaming of blocks."""


def toured(graph: Graph) -> Replayed:
    """Tour a graph with the production manager."""
    done = replay(graph, Reference)
    assert done.found is None, done.found
    assert len(done.covered) == graph.num_transitions
    return done


def test_a_tour_of_three_blocks_takes_every_transition(graph_of: Graphs) -> None:
    """Production makes all 1,631 moves of a pool of three blocks as specified."""
    done = toured(graph_of("pool-3"))
    assert len(done.covered) == WORLDS["pool-3"].counts.transitions == 1_631
    assert done.refused > 0


@pytest.mark.slow
def test_a_tour_of_five_blocks_takes_every_transition(graph_of: Graphs) -> None:
    """Production makes all 87,384 moves of a pool of five blocks as specified.

    They come from 10,320 states up to renaming. Random moves, as many as the tour makes, reach a
    third of the transitions, and a fifth when they begin again after fifty, as examples do.
    """
    graph = graph_of("pool-5")
    assert (graph.num_states, graph.num_transitions) == WORLDS["pool-5"].counts[:2]
    assert (graph.num_states, graph.num_transitions) == (10_320, 87_384)
    done = toured(graph)
    assert done.moves < 2.5 * graph.num_transitions
    assert 0.30 < random_share(graph, done.moves, seed=1) < 0.40
    assert 0.15 < random_share(graph, done.moves, seed=1, restart_every=50) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_a_tour_of_requests_takes_every_transition(graph_of: Graphs, name: str) -> None:
    """Requests arrive, run, are preempted and end in every order, in flight or not.

    Refused admissions are transitions too, and so is the end of a request on whose unwritten block
    another one depends.
    """
    graph = graph_of(name)
    assert (graph.num_states, graph.num_transitions) == COUNTS[name]
    assert set(NEEDED[name].split()) <= graph.world.seen
    done = toured(graph)
    assert done.calls > done.moves > graph.num_transitions
    assert done.refused > 0


def test_a_tour_need_not_rename_blocks() -> None:
    """Without symmetry every permutation of a state is a node of its own, and is toured."""
    graph = Graph(WORLDS["pool-2"].scope, symmetry=False)
    assert (graph.num_states, graph.num_transitions) == (93, 437)
    toured(graph)


def test_walks_begin_at_the_initial_state_and_take_every_edge(graph_of: Graphs) -> None:
    """Each edge begins where the one before it ends, and a second plan is the same one."""
    graph = graph_of("pool-3")
    plan = list(walks(graph))
    assert plan == list(walks(graph))
    for walk in plan:
        ends = [graph.start, *map(graph.end, walk)]
        assert [node for node, _ in walk] == ends[:-1]
    taken = {edge for walk in plan for edge in walk}
    assert taken == {(node, at) for node, edges in graph.edges.items() for at in range(len(edges))}


def test_a_shortest_path_leads_to_every_node(graph_of: Graphs) -> None:
    """No path to a state is longer than the depth of the search."""
    graph = graph_of("pool-3")
    lengths = [len(graph.path_to(node)) for node in graph.edges]
    assert (min(lengths), max(lengths)) == (0, WORLDS["pool-3"].counts.depth)
    assert lengths == sorted(lengths)


def test_random_moves_are_a_function_of_their_seed(graph_of: Graphs) -> None:
    """The share of transitions that random moves reach grows with their number."""
    graph = graph_of("pool-3")
    shares = [random_share(graph, n, seed=7) for n in (1, 100, 10_000)]
    assert shares[0] == pytest.approx(1 / graph.num_transitions)
    assert shares == sorted(shares)
    assert random_share(graph, 100, seed=7) == shares[1] != random_share(graph, 100, seed=8)


def test_a_manager_that_frees_by_another_rule_is_not_toured(graph_of: Graphs) -> None:
    """A tour under the wrong free rule would only say that the rules differ."""

    class Hasty(Reference):
        capabilities = Capabilities(free_rule="unhashed_first")

    with pytest.raises(ValueError, match="tour a scope with that free_rule"):
        replay(graph_of("pool-3"), Hasty)


def test_what_only_an_old_manager_does_is_shown_by_the_walk(graph_of: Graphs) -> None:
    """The shortest path to the failing move is sound for a new manager, so the walk is shown."""

    class Tired(Reference):
        num_taken = 0

        def get_new_blocks(self, n: int) -> tuple[int, ...]:
            self.num_taken += 1
            return super().get_new_blocks(n if self.num_taken < 40 else 0)

    found = replay(graph_of("pool-3"), Tired).found
    assert found is not None
    assert not found.shortest
    assert [move.action for move in found.path].count("get_new_blocks") == 40
    assert found.path[-1].action == found.divergence.call.action == "get_new_blocks"


def test_a_crash_is_a_difference(graph_of: Graphs) -> None:
    """A manager that raises what it does not mean to is shown with the shortest path."""

    class Fragile(Reference):
        def touch(self, ids: Sequence[int]) -> None:
            raise KeyError(ids[0])

    found = replay(graph_of("pool-3"), Fragile).found
    assert found is not None
    assert found.shortest
    assert [move.action for move in found.path] == ["get_new_blocks", "cache_full_blocks", "touch"]
    assert "raised_KeyError" in str(found.divergence)
