"""The cache of keys and values in tensors: how much memory it may take, its layout, its workers.

Read `layout.py` (from a configuration to tensors), `memory.py` (from a device to a number of bytes)
and `workers.py` (from many numbers to one configuration that holds on every worker). The same code
runs on CPU and on CUDA. It needs torch: `pip install 'kvspec[gpu]'` or the checkout.

Import order: errors, layout, memory, workers, fingerprint, eager, kernels, launch, ops, offline,
pool, tables, attention, exact_model, float_model, scheduling, runner, reference, matrix,
tolerances, violations, ledger, cells, contents, teller, shield, planting, fault_writes,
fault_memory, fault_tables, faults, traps, mapping, traps_cuda, goldens, bench, stages, ci.
"""
