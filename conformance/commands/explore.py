"""The command `kvspec explore`."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.exhaustive.frontier import RayWorkers, explore_in_parallel
from conformance.output import (
    BAD_INPUT,
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    err,
    out,
    refuse_bad_output,
    write_output,
)
from conformance.pictures.graph_page import TooManyStates, graph_page
from conformance.pictures.steptable import step_table
from spec.explore import Limits, Result, Search
from spec.pool import TRANSITIONS
from spec.reachable import REACHABLE
from spec.scope import Scope, all_prompts
from spec.state import Config
from spec.worlds import WORLDS, Counts


def explore_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    config: Annotated[
        str | None, typer.Option(help="A named world; `--list` shows them.", metavar="NAME")
    ] = None,
    list_worlds: Annotated[bool, typer.Option("--list", help="List the named worlds.")] = False,  # noqa: FBT002  # a flag
    blocks: Annotated[int, typer.Option(help="Blocks, null included.", min=2, max=16)] = 4,
    requests: Annotated[
        int, typer.Option(help="Requests; 0 moves the pool's blocks one by one.", min=0, max=4)
    ] = 2,
    block_size: Annotated[int, typer.Option(min=1, max=8)] = 1,
    window: Annotated[int | None, typer.Option(help="Sliding window in tokens.", min=2)] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt.", min=1, max=6)] = 2,
    max_tokens: Annotated[int, typer.Option(help="Longest request.", min=1, max=12)] = 3,
    drafts: Annotated[int, typer.Option(help="Drafts a step.", min=0, max=3)] = 0,
    no_caching: Annotated[bool, typer.Option("--no-caching")] = False,  # noqa: FBT002  # a flag
    free_rule: Annotated[str, typer.Option(metavar="append|unhashed_first")] = "append",
    symmetry: Annotated[  # noqa: FBT002  # a flag
        bool, typer.Option(help="Count states up to renaming of blocks.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1, max=256)] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Use Ray's workers as the jobs.")] = False,  # noqa: FBT002  # a flag
    max_seconds: Annotated[float, typer.Option(help="Stop after this time.", min=0.1)] = 1e9,
    max_memory: Annotated[int, typer.Option(help="Stop at this many MiB.", min=32)] = 1 << 30,
    html: Annotated[
        Path | None, typer.Option(help="Write the states as one HTML page.", metavar="OUT")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Search every reachable state of a small world, breadth first.

    A violation is shown with a shortest path to it. Exit status: 0 when nothing is left and nothing
    is broken, 1 violation or a named world with other counts, 2 bad input, 3 stopped at a limit,
    130 interrupted.
    """
    if list_worlds:
        out.print(_list())
        raise typer.Exit(CLEAN)
    _refuse_bad_options(config, free_rule, json, html)
    free = Config(blocks, block_size, 1 << 30, not no_caching, window, free_rule)
    names = ("A", "B", "C", "D")[:requests]
    prompts = all_prompts((0, 1), prompt_tokens)
    scope = Scope(free, names, prompts, (0, 1), max(max_tokens, prompt_tokens), drafts)
    expected: Counts | None = None
    if config is not None:
        scope, expected = WORLDS[config].scope, WORLDS[config].counts
    limits = Limits(seconds=max_seconds, memory=max_memory * 2**20)
    result = _search(scope, limits, jobs, symmetry=symmetry, ray=ray)
    wrong = _show(result, expected if symmetry and result.stopped is None else None)
    if html is not None:
        _write_page(html, scope, result)
    if json is not None:
        write_output(json, jsonlib.dumps(as_json(result), indent=2) + "\n")
    if result.found is not None or wrong:
        raise typer.Exit(VIOLATION)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(CLEAN if result.stopped is None else 3)


def _refuse_bad_options(
    config: str | None, free_rule: str, json: Path | None, html: Path | None
) -> None:
    if free_rule not in ("append", "unhashed_first"):
        raise typer.BadParameter(
            f"{free_rule!r} is neither append nor unhashed_first", param_hint="--free-rule"
        )
    if config is not None and config not in WORLDS:
        raise typer.BadParameter(
            f"{config!r} is no named world; one of: {', '.join(WORLDS)}", param_hint="--config"
        )
    if json is not None:
        refuse_bad_output(json)
    if html is not None:
        refuse_bad_output(html, option="--html")


def _write_page(html: Path, scope: Scope, result: Result) -> None:
    try:
        write_output(html, graph_page(scope, result))
    except TooManyStates as error:
        err.print(f"kvspec: --html: {error}", style="red")
        raise typer.Exit(BAD_INPUT) from error


def _search(scope: Scope, limits: Limits, jobs: int, *, symmetry: bool, ray: bool) -> Result:
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=None)
        tell = _teller(lambda text: progress.update(task, description=text))
        if jobs == 1 and not ray:
            search = Search(scope, symmetry=symmetry, limits=limits)
            return search.run(lambda s: tell(s.depth, s.states, s.transitions))
        backend = {"workers": RayWorkers} if ray else {}
        return explore_in_parallel(
            scope,
            jobs,
            symmetry=symmetry,
            limits=limits,
            on_level=lambda depth, states, _: tell(depth, states, 0),
            **backend,
        )


def _teller(show: Callable[[str], None]) -> Callable[[int, int, int], None]:
    started = time.perf_counter()

    def tell(depth: int, states: int, transitions: int) -> None:
        rate = transitions / max(1e-9, time.perf_counter() - started)
        speed = f", {rate:,.0f} transitions a second" if transitions else ""
        show(f"depth {depth}: {states:,} states{speed}")

    return tell


def as_json(result: Result) -> dict[str, Any]:
    """Return a result as plain data."""
    found = result.found
    return {
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "seconds": round(result.seconds, 3),
        "memory_bytes": result.memory,
        "stopped": result.stopped,
        "edges": sorted([a.value, b.value] for a, b in result.edges),
        "seen": sorted(result.seen),
        "violation": None
        if found is None
        else {
            "property": found.property,
            "broken": [str(part) for part in found.broken],
            "path": [str(move) for move, _ in found.path],
        },
    }


def _show(result: Result, expected: Counts | None) -> bool:
    """Print a result; return whether the counts differ from the frozen ones."""
    rate = result.transitions / max(1e-9, result.seconds)
    out.print(
        f"{result.states:,} states, {result.transitions:,} transitions, depth {result.depth}, "
        f"{result.seconds:.1f} s, {rate:,.0f} transitions a second, "
        f"{result.memory / 2**20:,.0f} MiB"
    )
    allowed = set().union(*TRANSITIONS.values())
    for a, b in sorted(result.edges, key=lambda edge: (edge[0].value, edge[1].value)):
        note = "" if (a, b) in allowed or a is b else "  (more than one effect in a call)"
        out.print(f"  {a.value} -> {b.value}{note}", style="dim")
    unseen = [name for name in REACHABLE if name not in result.seen]
    out.print(f"seen: {', '.join(sorted(result.seen)) or 'nothing'}")
    out.print(f"not seen in this world: {', '.join(unseen) or 'nothing is left out'}")
    wrong = expected is not None and expected != (result.states, result.transitions, result.depth)
    if result.found is not None:
        broken = result.found.broken
        out.print(
            f"kvspec violation: property={result.found.property} block={broken.block} "
            f"expected={broken.expected} actual={broken.actual} found_by=explore",
            style="red",
            soft_wrap=True,
        )
        out.print(step_table(result.found.path, "a shortest path to it"))
    elif result.stopped is not None:
        out.print(f"verdict: stopped ({result.stopped}); what was seen is clean", style="yellow")
    elif wrong:
        out.print(f"verdict: the frozen counts are {expected}", style="red")
    else:
        same = ", and the counts are the frozen ones" if expected else ""
        out.print(f"verdict: clean, nothing is left to see{same}", style="green")
    return wrong


def _list() -> Table:
    table = Table("name", "states", "transitions", "depth", "what")
    for name, world in WORLDS.items():
        states, transitions, depth = world.counts
        table.add_row(name, f"{states:,}", f"{transitions:,}", str(depth), world.about)
    return table
