"""Holds a block manager, ours or somebody else's, against the specification.

Import order: trace_format, trace_files, workload, subject, twin, view, divergence, lockstep,
adapters, program, subjects, driver, batch, walk, replay, production, tour, shard, frontier,
prove, solvers, output, steptable, graph_page, results, document, check, commands, cli.
"""
