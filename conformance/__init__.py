"""Holds a block manager, ours or somebody else's, against the specification.

Import order: contracts, counters, output, subject, workloads, adapters, planning, twin, view,
divergence, encoder_lockstep, lockstep, monitoring, driving, program, differential, exhaustive,
logs, pictures, subjects, machines, scheduler, shrinking, faults, fuzzing, check, conforming,
commands, documents, cli.
"""
