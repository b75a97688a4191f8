"""What a run has seen: the reachable properties, the states of blocks, and their transitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from conformance.exhaustive.tour import Edge, Graph, names_in
from spec import statemachine as sm
from spec.pool import TRANSITIONS
from spec.reachable import ENDINGS, REACHABLE, seen_in
from spec.registry import Step
from spec.scope import Move
from spec.state import NULL, BlockState, State, block_state
from spec.statemachine import Refused

EFFECTS: Final[Mapping[str, str]] = {
    "get_new_blocks": "take",
    "cache_full_blocks": "seal",
    "touch": "touch",
    "free_blocks": "release",
    "unpublish": "unpublish",
    "reset_prefix_cache": "reset",
}
"""The calls that are one effect each. What a call of a request does to a block may be several."""

Transition = tuple[str, BlockState, BlockState]

ALL_TRANSITIONS: Final = frozenset(
    (effect, *ends) for effect, pairs in TRANSITIONS.items() for ends in pairs
)
ALL_STATES: Final = frozenset(BlockState) - {BlockState.NULL}


class Reached:
    """Counts of what was seen. `note` is told of every call, with the states around it."""

    def __init__(self) -> None:
        self.properties: Counter[str] = Counter()
        self.states: Counter[BlockState] = Counter()
        self.transitions: Counter[Transition] = Counter()

    def note(self, step: Step) -> None:
        """Count what a call shows."""
        # A refused allocation shows nothing, and may name blocks that there are not.
        if step.action in ENDINGS or not isinstance(step.result, Refused):
            self.properties.update(seen_in(step))
        effect = EFFECTS.get(step.action)
        old, new = step.before.pool.blocks, step.after.pool.blocks
        for b in range(1, len(new)):
            if old[b] is not new[b] and old[b] != new[b]:
                change = block_state(step.before, b), block_state(step.after, b)
                self.states[change[1]] += 1
                if effect is not None:
                    self.transitions[effect, *change] += 1

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield everything that must be seen, by name, with how often it was."""
        for name in sorted(REACHABLE):
            yield name, self.properties[name]
        for state in BlockState:
            if state in ALL_STATES:
                yield state.value, self.states[state]
        for effect, before, after in sorted(ALL_TRANSITIONS, key=str):
            yield (
                f"{effect}: {before.value} -> {after.value}",
                self.transitions[effect, before, after],
            )

    def missing(self) -> list[str]:
        """Return the names of what was never seen."""
        return [name for name, count in self.counts() if not count]


class Covered:
    """Which transitions of an explored world of the pool alone were taken.

    The world moves one block at a time, so a call on several blocks counts as its moves in order.
    Calls in states that the world does not have, and refused ones, are left out.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken: set[Edge] = set()

    @property
    def share(self) -> float:
        """The share of the transitions that was taken."""
        return len(self.taken) / self.graph.num_transitions

    def note(self, step: Step) -> None:
        """Enter the moves of a call."""
        scope, s = self.graph.world.scope, step.before
        if s.config != scope.config or isinstance(step.result, Refused):
            return
        for action, args in _moves(step):
            self._enter(s, action, args)
            made = getattr(sm, action)(s, **args)
            s = made if isinstance(made, State) else made[0]

    def _enter(self, s: State, action: str, args: Mapping[str, Any]) -> None:
        world = self.graph.world
        node = world.canonical(world.node(s))
        if node not in self.graph.edges:
            return
        to = {b: n for n, b in enumerate(names_in(s, world), 1)}
        given = {
            name: tuple(to[b] for b in value) if name in ("ids", "table") else value
            for name, value in args.items()
            if name not in ("num_cached", "num_full")
        }
        move = Move(action, tuple(given.items()))
        for at, (_, known) in enumerate(self.graph.edges[node]):
            if known == move:
                self.taken.add((node, at))


def _moves(step: Step) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a call on several blocks as calls on one."""
    action, args = step.action, step.args
    if action == "reset_prefix_cache":
        yield action, {}
    elif action == "get_new_blocks":
        for _ in range(args["n"]):
            yield action, {"n": 1}
    elif action == "cache_full_blocks":
        for i in range(args["num_cached"], args["num_full"]):
            if args["table"][i] != NULL:
                table, keys = (args["table"][i],), (args["keys"][i],)
                yield action, {"table": table, "keys": keys, "num_cached": 0, "num_full": 1}
    elif action in EFFECTS:
        for b in args["ids"]:
            if b != NULL:
                yield action, {"ids": (b,)}
