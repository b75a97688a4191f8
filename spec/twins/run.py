#!/usr/bin/env python3
"""Runs the independent models and compares what they count with what our explorer counts.

`pool.pml` is for spin, `requests.m` for rumur; `README.md` beside this file says what they model.
The exit status is 0 when all counts are equal, 1 when some are not or a model broke one of its
invariants, 2 when a tool is missing.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this file is run by its path

from spec.explore import Search
from spec.twins.configurations import FULL, QUICK, UNHASHED, PoolWorld, RequestWorld, World
from spec.twins.moves import Moves, difference, explored_moves, printed_moves

HERE = Path(__file__).resolve().parent
TOOLS = ("spin", "rumur", "gcc")
INSTALL = "apt-get install spin rumur gcc"
SHOWN_LINES = 40


class Counts(NamedTuple):
    """What one search saw, and how long it took. No depth: the tool does not tell."""

    states: int
    transitions: int
    depth: int | None
    seconds: float

    def same_as(self, other: Counts) -> bool:
        """Return whether both saw the same; a depth that one of them does not tell agrees."""
        depths = {self.depth, other.depth} - {None}
        return self[:2] == other[:2] and len(depths) <= 1


class ModelBroken(Exception):  # noqa: N818  # what happened, as in `Broken`
    """A model does not build, breaks one of its invariants or was not searched to the end."""


def missing_tools() -> str | None:
    """Return what is not installed and how to install it, or None."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}; on Debian: {INSTALL}" if missing else None


def model_of(world: World) -> str:
    """Return the text of the model of a world, before its parameters are set."""
    file = "pool.pml" if isinstance(world, PoolWorld) else "requests.m"
    return (HERE / file).read_text(encoding="utf-8")


def explorer_counts(world: World) -> Counts:
    """Count with our explorer, without symmetry."""
    result = Search(world.scope, symmetry=False).run()
    if result.found is not None:
        raise ModelBroken(f"{world.name}: our explorer found {result.found}")
    return Counts(result.states, result.transitions, result.depth, result.seconds)


def twin_counts(world: World, model: str | None = None, *, bound: int = 0) -> Counts:
    """Build and run the twin of a world; its model may be given, with a change in it.

    A bound other than 0 ends a search of requests at this depth; at the end of the world too.
    """
    return _twin(world, model, bound=bound)[0]


def twin_moves(world: World, model: str | None = None) -> Moves:
    """Build and run the twin of a world and return its moves, one by one."""
    return printed_moves(_twin(world, model, printing=True)[1])


def _twin(
    world: World, model: str | None, *, bound: int = 0, printing: bool = False
) -> tuple[Counts, str]:
    """Return what a twin counts and all that it says."""
    text = model_of(world) if model is None else model
    with tempfile.TemporaryDirectory(prefix="kvspec-twin-") as name:
        folder = Path(name)
        if isinstance(world, PoolWorld):
            _build_with_spin(world, text, folder, printing=printing)
        else:
            _build_with_rumur(world, text, folder, bound=bound, printing=printing)
        started = time.perf_counter()
        out = _run(folder, "./twin")
        seconds = time.perf_counter() - started
    if isinstance(world, PoolWorld):
        if "errors: 0" not in out or "not completed" in out:
            raise ModelBroken(f"{world.name}: spin reports\n{_end(out)}")
        # Spin counts the initial state as a transition that stored it.
        transitions = _number(r"(\d+) transitions \(", out) - 1
        depth = _number(r"depth reached (\d+)", out)
        return Counts(_number(r"(\d+) states, stored", out), transitions, depth, seconds), out
    states = _number(r"(\d+) states, \d+ rules fired in", _end(out))
    fired = _number(r"states, (\d+) rules fired in", _end(out))
    return Counts(states, fired, None, seconds), out


def _build_with_spin(world: PoolWorld, text: str, folder: Path, *, printing: bool) -> None:
    (folder / "pool.pml").write_text(text, encoding="utf-8")
    rule = int(world.free_rule == UNHASHED)
    _run(folder, "spin", f"-DN={world.blocks}", f"-DFREE_RULE={rule}", "-a", "pool.pml")
    options = ["-DSAFETY", "-DNOREDUCE", "-DBFS", *["-DPRINTF"] * printing]
    _run(folder, "gcc", "-O2", "-w", *options, "-o", "twin", "pan.c")


def _build_with_rumur(
    world: RequestWorld, text: str, folder: Path, *, bound: int, printing: bool
) -> None:
    for constant, value in {**world.constants, "print_moves": int(printing)}.items():
        text, found = re.subn(rf"(?m)^  {constant}: \d+;", f"  {constant}: {value};", text)
        if found != 1:
            raise ModelBroken(f"requests.m sets the constant {constant} {found} times, not once")
    (folder / "requests.m").write_text(text, encoding="utf-8")
    options = ["--deadlock-detection", "off", "--threads", "1", "--value-type", "int32_t"]
    options += ["--bound", str(bound), "--output", "twin.c"]
    _run(folder, "rumur", *options, "requests.m")
    x86 = platform.machine() in {"x86_64", "AMD64"}
    libraries = ["-mcx16", "-lpthread"] if x86 else ["-lpthread", "-latomic"]
    _run(folder, "gcc", "-O2", "-w", "-o", "twin", "twin.c", *libraries)


def _run(folder: Path, *command: str) -> str:
    """Run a program in a folder and return what it says, or raise with the end of it."""
    done = subprocess.run(  # noqa: S603  # programs named here, files written here
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode:
        what = f"{' '.join(command)} ends with status {done.returncode}"
        raise ModelBroken(f"{what}:\n{_end(said)}")
    return said


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN_LINES:])


def _number(pattern: str, text: str) -> int:
    if (found := re.search(pattern, text)) is None:
        raise ModelBroken(f"no {pattern!r} in the output:\n{text}")
    return int(found[1])


def with_depth(world: World, twin: Counts, depth: int) -> Counts:
    """Return the twin's counts with this depth if it is the twin's, and -1 if it is not.

    rumur tells no depth, but it can be bounded: at the depth it sees every state, one before not.
    """
    if twin.depth is not None:
        return twin
    sees_all = twin_counts(world, bound=depth).states == twin.states
    sees_less = twin_counts(world, bound=depth - 1).states < twin.states
    return twin._replace(depth=depth if sees_all and sees_less else -1)


def compare(world: World, *, depth: bool) -> tuple[Counts, Counts]:
    """Count a world by its twin and by our explorer, side by side."""
    with ThreadPoolExecutor(1) as aside:
        running = aside.submit(twin_counts, world)
        ours = explorer_counts(world)
        twin = running.result()
    return (with_depth(world, twin, ours.depth or 0) if depth else twin), ours


def verdict(world: World, *, depth: bool, moves: bool) -> tuple[bool, str]:
    """Compare a world in every way that is asked for; return whether all is equal, and a row."""
    twin, ours = compare(world, depth=depth)
    if not twin.same_as(ours):
        return False, _row(world.name, *twin, *ours, "DIFFERENT")
    if not moves:
        return True, _row(world.name, *twin, *ours, "equal")
    found = difference(twin_moves(world), explored_moves(world))
    said = "equal, move by move" if found is None else f"MOVES DIFFER:\n{found}"
    return found is None, _row(world.name, *twin, *ours, said)


def _row(*cells: object) -> str:
    widths = (-36, 9, 11, 6, 7, 9, 11, 6, 7, -9)
    texts = [f"{c:.1f}" if isinstance(c, float) else "-" if c is None else str(c) for c in cells]
    padded = [t.rjust(w) if w > 0 else t.ljust(-w) for t, w in zip(texts, widths, strict=True)]
    return "  ".join(padded).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Compare the worlds that the command line names; return the exit status."""
    by_name = {world.name: world for world in FULL}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="*", help="a configuration; none: all of them")
    parser.add_argument("--quick", action="store_true", help="only those of a few seconds each")
    parser.add_argument("--depth", action="store_true", help="compare depths at L1 too; slower")
    parser.add_argument("--moves", action="store_true", help="compare every single move too")
    parser.add_argument("--list", action="store_true", help="name the configurations and end")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.name) - set(by_name):
        parser.error(f"no configuration is named {', '.join(sorted(unknown))}; see --list")
    worlds = [by_name[name] for name in chosen.name] or (QUICK if chosen.quick else FULL)
    if chosen.list:
        sys.stdout.writelines(f"{world.name}\n" for world in worlds)
        return 0
    if (missing := missing_tools()) is not None:
        sys.stderr.write(f"twins: {missing}\n")
        return 2
    heading = ("states", "transitions", "depth", "seconds")
    sys.stdout.write(_row("configuration (twin, then ours)", *heading, *heading, "verdict"))
    num_equal = 0
    for world in worlds:
        try:
            equal, said = verdict(world, depth=chosen.depth, moves=chosen.moves)
        except ModelBroken as broken:
            equal, said = False, f"{world.name}: {broken}\n"
        num_equal += equal
        sys.stdout.write(said)
        sys.stdout.flush()
    sys.stdout.write(f"{num_equal} of {len(worlds)} configurations are equal\n")
    return 0 if num_equal == len(worlds) else 1


if __name__ == "__main__":
    sys.exit(main())
