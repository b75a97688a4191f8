"""Many workers and one list of block ids: what each has room for, and which ids are handed out.

Each worker proposes how many blocks it has, and of what kind. When all have, the proposals are
unified: one number of blocks for all. From then on ids are handed out, and a worker refuses one
that not all have. The actions are pure: GUARD, which refuses by the name of a rule, then EFFECT.

Below the actions stand what is true of them, in a registry of its own, and a search over small
groups: it is small enough for one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from spec.pool import Refused
from spec.registry import Broken, Property


class Proposal(NamedTuple):
    """What one worker has. `num_blocks` counts the null block; `keeps` names its layers' spec."""

    num_blocks: int
    keeps: str = "full"


class Workers(NamedTuple):
    """One state. `num_blocks` is the unified number, None before; the null block is counted."""

    proposals: tuple[Proposal | None, ...]
    num_blocks: int | None = None
    handed_out: frozenset[int] = frozenset()

    @property
    def proposed(self) -> tuple[Proposal, ...]:
        """What was proposed so far, by rank."""
        return tuple(one for one in self.proposals if one is not None)


class WorkersStep(NamedTuple):
    """One call: `refused` is why it was refused, None where it was not."""

    before: Workers
    action: str
    args: Mapping[str, Any]
    refused: Refused | None
    after: Workers


# The actions.


def propose(s: Workers, worker: int, proposal: Proposal) -> Workers:
    """Let a worker say what it has."""
    # GUARD
    if s.proposals[worker] is not None:
        raise Refused("worker_has_proposed", worker=worker)
    # EFFECT
    proposals = (*s.proposals[:worker], proposal, *s.proposals[worker + 1 :])
    return s._replace(proposals=proposals)


def unify(s: Workers) -> Workers:
    """Give all workers one number of blocks."""
    # GUARD
    must_be_complete(s)
    must_keep_the_same(s)
    # EFFECT
    return s._replace(num_blocks=common_number(s.proposed))


def hand_out(s: Workers, block_id: int) -> Workers:
    """Tell all workers to use a block; the null block is never handed out."""
    # GUARD
    must_be_valid(s, block_id)
    if block_id in s.handed_out:
        raise Refused("block_is_handed_out", block=block_id)
    # EFFECT
    return s._replace(handed_out=s.handed_out | {block_id})


def common_number(proposals: tuple[Proposal, ...]) -> int:
    """Return the number of blocks that all workers have."""
    return min(proposal.num_blocks for proposal in proposals)


def must_be_complete(s: Workers) -> None:
    """Raise `Refused` while a worker has said nothing, and once all are unified."""
    for worker, proposal in enumerate(s.proposals):
        if proposal is None:
            raise Refused("worker_has_not_proposed", worker=worker)
    if s.num_blocks is not None:
        raise Refused("workers_are_unified", num_blocks=s.num_blocks)


def must_keep_the_same(s: Workers) -> None:
    """Raise `Refused` for the first worker whose layers keep something else than worker 0's."""
    for worker, proposal in enumerate(s.proposed):
        if proposal.keeps != s.proposed[0].keeps:
            raise Refused("workers_have_different_specs", worker=worker)


def must_be_valid(s: Workers, block_id: int) -> None:
    """Raise `Refused` for an id that is none of the unified number, and for the null block's."""
    if s.num_blocks is None or not 0 < block_id < s.num_blocks:
        raise Refused("block_id_is_not_valid_on_every_worker", block=block_id)


WORKERS_ACTIONS: Mapping[str, Callable[..., Workers]] = {
    "propose": propose,
    "unify": unify,
    "hand_out": hand_out,
}


def perform(s: Workers, action: str, args: Mapping[str, Any]) -> WorkersStep:
    """Make one call; a refusal is its result, and then the state stays."""
    try:
        return WorkersStep(s, action, args, None, WORKERS_ACTIONS[action](s, **args))
    except Refused as refused:
        return WorkersStep(s, action, args, refused, s)


# What is true of every state.

Check: TypeAlias = Callable[[Workers], Iterator[Broken]]

WORKERS_REGISTRY: dict[str, Property] = {}


def _always(why: str) -> Callable[[Check], Check]:
    """Enter a predicate under its own name; its docstring is the statement."""

    def register(check: Check) -> Check:
        text = " ".join((check.__doc__ or "").split())
        name = check.__name__
        WORKERS_REGISTRY[name] = Property(name, "W", "state", (), text, why, check)
        return check

    return register


@_always("A worker with less memory reads and writes beyond its tensors.")
def ids_are_valid_on_every_worker(s: Workers) -> Iterator[Broken]:
    """Every id that is handed out, or may be, is below the number of blocks of each worker."""
    may_be = range(s.num_blocks or 0)
    for block_id in sorted({*s.handed_out, *may_be[-1:]}):
        for worker, proposal in enumerate(s.proposals):
            if proposal is None or not 0 <= block_id < proposal.num_blocks:
                yield Broken(block_id, f"a block of worker {worker}", proposal)


@_always("Memory that every worker has set aside is never used.")
def no_block_that_all_workers_have_is_left_out(s: Workers) -> Iterator[Broken]:
    """The unified number is not below that of the worker with the fewest blocks."""
    if s.num_blocks is not None:
        fewest = min(proposal.num_blocks for proposal in s.proposed)
        if s.num_blocks < fewest:
            yield Broken(None, fewest, s.num_blocks)


@_always("One id means other bytes, of other layers, on another worker.")
def workers_that_are_unified_keep_the_same(s: Workers) -> Iterator[Broken]:
    """Where there is a unified number, the layers of all workers keep the same."""
    kinds = sorted({proposal.keeps for proposal in s.proposed})
    if s.num_blocks is not None and len(kinds) > 1:
        yield Broken(None, kinds[:1], kinds)


def broken_in_workers(s: Workers) -> Iterator[tuple[str, Broken]]:
    """Yield every property that a state breaks, in the order of the registry."""
    for p in WORKERS_REGISTRY.values():
        for instance in p.check(s):
            yield p.name, instance


# Every reachable state of small groups, breadth first.

WorkersCall: TypeAlias = tuple[str, Mapping[str, Any]]


class WorkersScope(NamedTuple):
    """How many workers there are, and what each may propose."""

    num_workers: int
    proposals: tuple[Proposal, ...]


class WorkersCounts(NamedTuple):
    """What a search counts. `transitions` are the calls that were not refused."""

    states: int
    transitions: int
    refused: int
    depth: int


class WorkersResult(NamedTuple):
    """What a search saw; it ends at the first violation: the property, and a shortest path."""

    counts: WorkersCounts
    states: tuple[Workers, ...]
    rules: frozenset[str]
    found: tuple[str, Broken, tuple[WorkersCall, ...]] | None


def calls_of(scope: WorkersScope) -> list[WorkersCall]:
    """Return every call that can be made, with ids that no worker has among them."""
    most = max(proposal.num_blocks for proposal in scope.proposals)
    calls: list[WorkersCall] = [
        ("propose", {"worker": worker, "proposal": proposal})
        for worker, proposal in product(range(scope.num_workers), scope.proposals)
    ]
    calls.append(("unify", {}))
    calls += [("hand_out", {"block_id": block_id}) for block_id in range(-1, most + 1)]
    return calls


def explore_workers(scope: WorkersScope) -> WorkersResult:
    """Search every state of a scope."""
    calls, root = calls_of(scope), Workers((None,) * scope.num_workers)
    paths: dict[Workers, tuple[WorkersCall, ...]] = {root: ()}
    rules: set[str] = set()
    transitions = refused = 0
    queue = [root]
    for s in queue:
        for call in calls:
            step = perform(s, *call)
            if step.refused is not None:
                refused += 1
                rules.add(step.refused.rule)
                continue
            transitions += 1
            if step.after in paths:
                continue
            paths[step.after] = (*paths[s], call)
            queue.append(step.after)
            bad = next(broken_in_workers(step.after), None)
            if bad is not None:
                counts = WorkersCounts(len(paths), transitions, refused, len(paths[step.after]))
                return WorkersResult(counts, (*paths,), frozenset(rules), (*bad, paths[step.after]))
    counts = WorkersCounts(len(paths), transitions, refused, len(paths[queue[-1]]))
    return WorkersResult(counts, tuple(paths), frozenset(rules), None)


class WorkersWorld(NamedTuple):
    """A scope with what it is for, and its counts, frozen."""

    about: str
    scope: WorkersScope
    counts: WorkersCounts


ROOM = tuple(Proposal(num_blocks) for num_blocks in (2, 3, 4))

WORKERS_WORLDS: dict[str, WorkersWorld] = {
    "workers-1": WorkersWorld(
        "one worker of 2 to 4 blocks", WorkersScope(1, ROOM), WorkersCounts(18, 23, 157, 5)
    ),
    "workers-2": WorkersWorld(
        "two workers of 2 to 4 blocks", WorkersScope(2, ROOM), WorkersCounts(46, 62, 536, 6)
    ),
    "workers-3": WorkersWorld(
        "three workers of 2 to 4 blocks", WorkersScope(3, ROOM), WorkersCounts(138, 230, 1978, 7)
    ),
    "workers-differ": WorkersWorld(
        "three workers, each with one of two kinds of layers",
        WorkersScope(3, (Proposal(2), Proposal(3), Proposal(2, "latent"), Proposal(3, "latent"))),
        WorkersCounts(161, 338, 2560, 6),
    ),
}
