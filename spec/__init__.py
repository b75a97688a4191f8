"""The executable specification of a paged, prefix-shared KV-cache block manager.

Read `state.py` (what there is), `pool.py` (how blocks move), `statemachine.py` (what a scheduler
may do), `invariants.py` (what is true of every state), `steps.py` (what is true of every call).
Everything is pure and immutable and needs the standard library only.

Import order: state, pool, statemachine, registry, steps, invariants, reachable,
scope, encoding, world, explore, liveness, worlds, pairs, encoder_cache, encoder_properties,
encoder_explore, encoder_worlds, workers, proof, twins.
"""
