"""Holds a block manager, ours or somebody else's, against the specification.

Import order: trace_format, trace_files, workload, subject, twin, view,
divergence, lockstep, adapters, driver, batch, walk, replay, production, tour, shard, frontier,
prove, output, steptable, graph_page, explore_command, prove_command, results, document, check, cli.
"""
