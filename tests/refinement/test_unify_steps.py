"""Production unifies configurations as the specification does, in every small group of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from conformance.faults.workers import IDS_ARE_VALID
from kvcache import (
    BlockPool,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheError,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    WorkersDiffer,
    unify_kv_cache_configs,
)
from spec.workers import (
    WORKERS_REGISTRY,
    WORKERS_WORLDS,
    Proposal,
    Workers,
    broken_in_workers,
    explore_workers,
    perform,
)

Unify = Callable[[Sequence[KVCacheConfig]], list[KVCacheConfig]]

KEEPS: dict[str, KVCacheSpec] = {
    "full": FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float16"),
    "latent": MLAAttentionSpec(block_size=2, head_size=2, dtype="float16"),
}


def config_of(proposal: Proposal) -> KVCacheConfig:
    """Return a worker's configuration of one layer."""
    spec = KEEPS[proposal.keeps]
    return KVCacheConfig(
        num_blocks=proposal.num_blocks,
        tensors={"layer": KVCacheTensor(size=proposal.num_blocks * spec.page_size_bytes)},
        kv_cache_groups=(KVCacheGroupSpec(layer_names=("layer",), kv_cache_spec=spec),),
    )


def complete_groups() -> list[Workers]:
    """Return every state of the worlds in which all have proposed and nothing is unified yet."""
    worlds = [explore_workers(world.scope).states for world in WORKERS_WORLDS.values()]
    return [
        s
        for states in worlds
        for s in states
        if len(s.proposed) == len(s.proposals) and s.num_blocks is None
    ]


def differences(unify: Unify) -> list[str]:
    """Return where a unification does something else than the specification, or breaks it."""
    faults = []
    for s in complete_groups():
        step = perform(s, "unify", {})
        rule = step.refused and (step.refused.rule, step.refused.values["worker"])
        expected = rule or [step.after.num_blocks] * len(s.proposals)
        actual: object
        try:
            unified = unify([config_of(proposal) for proposal in s.proposed])
            actual = [config.num_blocks for config in unified]
            broken = dict(broken_in_workers(s._replace(num_blocks=unified[0].num_blocks)))
        except WorkersDiffer as error:
            actual, broken = (error.rule, error.worker), {}
        except (KVCacheError, ValueError) as error:
            actual, broken = str(error), {}
        if actual != expected or broken:
            faults.append(f"{s.proposals}: {expected} != {actual} {sorted(broken)}")
    return faults


def test_every_unification_of_the_worlds_is_the_specifications() -> None:
    """Numbers and refusals agree, the worker that is named included."""
    assert len(complete_groups()) == 3 + 9 + 27 + 64
    assert differences(unify_kv_cache_configs) == []


def taking(number: Callable[[list[int]], int]) -> Unify:
    """Return production's unification with another number of blocks."""

    def unify(configs: Sequence[KVCacheConfig]) -> list[KVCacheConfig]:
        unify_kv_cache_configs(configs)
        number_of_all = number([config.num_blocks for config in configs])
        # `model_copy` checks nothing: it makes what a worker without checks would believe.
        return [config.model_copy(update={"num_blocks": number_of_all}) for config in configs]

    return unify


@pytest.mark.parametrize(
    ("unify", "num_faults"),
    [
        # Of the groups of 1, 2 and 3 workers, then of those of two kinds with no second kind.
        (taking(max), 0 + 6 + 24 + 12),
        (taking(lambda numbers: numbers[0]), 0 + 3 + 13 + 6),
        # Here those that must be refused are let through, too.
        (list, 0 + 6 + 24 + 12 + 48),
    ],
    ids=["largest", "worker 0", "each its own"],
)
def test_a_wrong_unification_differs(unify: Unify, num_faults: int) -> None:
    """In every group where it matters, and in no other."""
    assert len(differences(unify)) == num_faults


def test_every_id_of_a_pool_of_the_common_number_may_be_handed_out() -> None:
    """The manager's pool gives all of them and none besides, null left out."""
    for s in complete_groups():
        unified = perform(s, "unify", {}).after
        if unified.num_blocks is None:
            continue
        pool = BlockPool(unified.num_blocks)
        for block in pool.get_new_blocks(pool.get_num_free_blocks()):
            step = perform(unified, "hand_out", {"block_id": block.block_id})
            assert step.refused is None
            unified = step.after
        assert len(unified.handed_out) == (unified.num_blocks or 0) - 1
        assert not list(broken_in_workers(unified))


def test_the_name_of_the_property_is_the_registrys() -> None:
    """Seeded faults are named after it."""
    assert IDS_ARE_VALID in WORKERS_REGISTRY
