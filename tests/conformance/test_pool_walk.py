"""The walk on a pool's direct calls is repeatable, tries all misuse, and finds nothing on ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.pool_walk import PoolWalk
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.subject import Capabilities
from spec.state import Config

PLACES = {
    "small": (Config(6, 2), "sha256"),
    "one block": (Config(2, 1), "builtin"),
    "larger": (Config(40, 3), "sha256"),
    "caching off": (Config(9, 2, enable_caching=False), "sha256"),
}

MISUSE = {
    "block_count_is_negative",
    "block_is_already_sealed",
    "block_is_not_of_this_pool",
    "not_enough_free_blocks",
    "released_more_often_than_held",
    "seal_range_is_invalid",
    "sealed_block_has_not_one_holder",
    "touched_block_is_not_sealed",
    "unpublished_block_is_not_one_holders",
}
"""Every rule for direct callers."""


def walked(name: str, check: Check, seeds: range, num_moves: int) -> Counter[str]:
    """Walk with some seeds in one place; return what was counted."""
    config, algorithm = PLACES[name]
    counted: Counter[str] = Counter()
    for seed in seeds:
        pair = Lockstep(Reference(config, algorithm), check, sweep_every=100)
        walk = PoolWalk(pair, seed)
        walk.run(num_moves)
        pair.sweep()
        counted += walk.counts
        counted["calls"] += pair.calls
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_both_ways_to_check_walk_alike_and_find_nothing(name: str) -> None:
    """Our pool does in every place what the specification says, and a check changes nothing."""
    full = walked(name, "full", range(8), 200)
    assert full == walked(name, "incremental", range(8), 200)
    assert full["calls"] >= 8 * 200


@pytest.mark.slow
def test_every_rule_is_broken() -> None:
    """No misuse that the pool can see is missing, and resets go both ways."""
    counted: Counter[str] = Counter()
    for name in PLACES:
        counted += walked(name, "incremental", range(30), 300)
    refused = {what.removeprefix("refused: ") for what in counted if what[:8] == "refused:"}
    assert refused == MISUSE
    assert counted["reset True"] > 0 < counted["reset False"]


PROGRAM = """
import logging
from conformance.adapters.reference import Reference
from conformance.lockstep import Lockstep
from conformance.driving.pool_walk import PoolWalk
from conformance.program import recording
from spec.state import Config

logging.disable()
subject, operations = recording(Reference(Config(7, 1)))
PoolWalk(Lockstep(subject, "incremental"), {seed}).run(400)
print([(o.action, sorted((n, repr(v)) for n, v in o.args.items())) for o in operations])
"""


@pytest.mark.slow
def test_a_walk_is_a_function_of_its_seed(python: Callable[..., Any]) -> None:
    """Another process and another hash seed make the same calls; another seed does not."""
    first, second, other = (
        python("-c", PROGRAM.format(seed=seed), hash_seed=hash_seed)
        for seed, hash_seed in ((5, "0"), (5, "9"), (6, "0"))
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout != other.stdout


def test_a_subject_that_cannot_unpublish_is_not_asked() -> None:
    """Neither use nor misuse of that call is made."""

    class Plain(Reference):
        capabilities = Capabilities(unpublish=False)

        def unpublish(self, ids: object) -> None:
            raise AssertionError(ids)

    for seed in range(20):
        PoolWalk(Lockstep(Plain(Config(6, 1)), "incremental"), seed).run(150)


class Twice(Reference):
    """Miscounts the queue when one call drops two references of a block."""

    def free_blocks(self, ids: Sequence[int]) -> None:
        """Drop a direct caller's references."""
        super().free_blocks(ids)
        self.pool.free_block_queue.num_free_blocks += len(ids) != len(set(ids))


def test_one_call_drops_several_references_of_a_block() -> None:
    """A fault that shows only there is found within a few walks."""

    def fails(seed: int) -> bool:
        try:
            PoolWalk(Lockstep(Twice(Config(5, 1)), "incremental"), seed).run(150)
        except Divergence as divergence:
            return divergence.call.action == "free_blocks"
        return False

    assert any(fails(seed) for seed in range(20))


def test_a_walk_of_no_moves_makes_no_call() -> None:
    """Nothing happens before the first move."""
    pair = Lockstep(Reference(Config(3, 1)))
    walk = PoolWalk(pair, 0)
    walk.run(0)
    assert (pair.calls, walk.counts) == (0, Counter())
