"""Runs the scheduler of vLLM 0.33.0 in process, on a CPU, and holds its pool against the spec.

Nothing is computed: what a model would have sampled is part of the script. A ledger keeps what a
worker's memory would hold, so that "nothing unwritten is found" can be asked of a pool that does
not know what is written.

Read `script.py` (what is done), `ledger.py` (what the memory holds), `reading.py` (the pool as a
state of the specification), `harness.py` (one script, checked), `search.py` (many of them).
"""
