"""Measures how fast MS64 reads, beside a plain sum of the same words.

    .venv/bin/python benchmarks/fingerprint.py [--mib N ...] [--row-bytes N] [--rounds N]

Both are of torch, on one thread of the CPU, in turns in one process, and the best time of each
counts; `compiled` is `ms64_rows` by `torch.compile`, which needs a C++ compiler, and `eager` the
form that the operations take. The exit status is 1 if a compiled ratio is below the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

import torch

from gpu.fingerprint import ms64_rows, ms64_rows_in_chunks, row_keys, word_steps

BOUND = 0.4
"""Of the words per second of a plain int64 sum, where the words do not fit into a cache."""
SIZES_MIB = (64, 128)
SEED = 0x1F83D9ABFB41BD6B


def best_seconds(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least time of each, taken in turns after a first call that is not counted."""
    for call in work.values():
        call()
    best = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, call in work.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def measure(num_mib: int, row_bytes: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a sum and of each form of MS64 over so many rows."""
    num_words = row_bytes // 8
    num_rows = num_mib * 2**20 // row_bytes
    words = torch.randint(-(2**62), 2**62, (num_rows, num_words))
    offsets = torch.arange(num_rows) % 16
    keys = row_keys(offsets, seed=SEED, layer=3, plane=1, block_size=16, num_words=num_words)
    steps = word_steps(num_words, words.device)
    compiled = torch.compile(ms64_rows)
    found = compiled(words, keys, steps)
    assert torch.equal(ms64_rows_in_chunks(words, keys, steps), found), "the forms differ"
    work: dict[str, Callable[[], object]] = {
        "sum": lambda: words.sum(-1),
        "compiled": lambda: compiled(words, keys, steps),
        "eager": lambda: ms64_rows_in_chunks(words, keys, steps),
    }
    return best_seconds(work, rounds)


def main() -> int:
    """Print a line for each size; return 1 if a ratio is below the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, nargs="+", default=SIZES_MIB, help="MiB of rows")
    parser.add_argument("--row-bytes", type=int, default=1024, help="bytes of a row, words only")
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed")
    options = parser.parse_args()
    if options.row_bytes % 8 or min(options.row_bytes, options.rounds, *options.mib) < 1:
        parser.error("give sizes and rounds of 1 or more, and rows of whole words of 8 bytes")
    torch.manual_seed(SEED % 2**32)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, rows of {options.row_bytes} bytes, bound {BOUND}")
    worst = float("inf")
    for num_mib in options.mib:
        seconds = measure(num_mib, options.row_bytes, options.rounds)
        speeds = {name: num_mib / 1024 / one for name, one in seconds.items()}
        ratio = speeds["compiled"] / speeds["sum"]
        worst = min(worst, ratio)
        print(
            f"{num_mib:5d} MiB: "
            + ", ".join(f"{name} {speed:.2f} GiB/s" for name, speed in speeds.items())
            + f"; compiled/sum {ratio:.2f}, eager/sum {speeds['eager'] / speeds['sum']:.3f}"
        )
    return int(worst < BOUND)


if __name__ == "__main__":
    sys.exit(main())
