"""The command `kvspec scheduler`."""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.status import Status

from conformance.adapters.sources_0_8_5 import PeerMissingError
from conformance.output import (
    BAD_INPUT,
    CLEAN,
    INTERRUPTED,
    VIOLATION,
    between,
    err,
    out,
    refuse_bad_output,
    write_output,
)
from conformance.pictures.explain_page import explain_page
from conformance.pictures.explain_text import as_text, show
from conformance.scheduler import stand_in
from conformance.scheduler.properties import asked
from conformance.scheduler.report import as_json, explained_run, known, script_lines, told, verdict
from conformance.scheduler.script import POLICIES, SCHEDULERS
from conformance.scheduler.search import Aim, Found, Tally, search

MAX_SEED: Final = (1 << 63) - 1


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def checked(value: str) -> str:
        if value not in (*names, "both"):
            raise typer.BadParameter(f"{value!r} is none of {', '.join(names)}, both")
        return value

    return checked


def _seconds(value: float) -> float:
    if not 1 <= value <= 1_000_000:
        raise typer.BadParameter(f"{value:g}: give seconds from 1 to 1000000")
    return value


def _folder(path: Path | None) -> Path | None:
    if path is not None:
        there = path.resolve()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise typer.BadParameter(f"{str(path)!r} cannot be made or written; name a folder")
    return path


Policy = Annotated[
    str,
    typer.Option(
        help="How the scheduler chooses whom to serve and whom to preempt.",
        metavar="priority|fcfs|both",
        callback=_one_of(POLICIES),
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        "--scheduler",
        help="One step after the other, or the next scheduled while one is on its way.",
        metavar="sync|async|both",
        callback=_one_of(SCHEDULERS),
    ),
]
Seconds = Annotated[
    float, typer.Option(help="How long to search, for each kind of scheduler.", callback=_seconds)
]
Seed = Annotated[
    int,
    typer.Option(
        help="Fixes the scripts that are tried.",
        callback=between(0, MAX_SEED, "a seed is a whole number"),
    ),
]
Blocks = Annotated[
    int | None,
    typer.Option(
        help="Blocks of every pool, null included. Default: drawn for each script, 4 to 16.",
        callback=between(3, 10_000, "null, and two that can be handed out"),
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write the files of a violation here.", metavar="DIR", callback=_folder
    ),
]


def scheduler_command(  # noqa: PLR0913, PLR0917  # each option of the command is an argument
    policy: Policy = "both",
    scheduler: Kind = "both",
    seconds: Seconds = 120,
    seed: Seed = 0,
    blocks: Blocks = None,
    out_folder: Out = None,
    json: Annotated[Path | None, typer.Option(help="Write the result here.", metavar="OUT")] = None,
) -> None:
    """Run vLLM's own scheduler on random workloads, and hold its pool against the specification.

    It runs in this process, on the CPU, without a model. A violation is made short and explained
    step by step; a search ends with its first.
    Exit status: 0 clean, 1 violation, 2 bad input or no vLLM, 130 interrupted.
    """
    if json is not None:
        refuse_bad_output(json)
    aims = [
        Aim(one, kind, seed, blocks)
        for one in (POLICIES if policy == "both" else (policy,))
        for kind in (SCHEDULERS if scheduler == "both" else (scheduler,))
    ]
    try:
        with err.status("loading vLLM"):
            stand_in.load()
    except PeerMissingError as missing:
        err.print(f"kvspec: {missing}", style="red", soft_wrap=True)
        raise typer.Exit(BAD_INPUT) from missing
    version = stand_in.release()
    out.print(
        f"kvspec scheduler: vLLM {version}, {seconds:g} s each, seed {seed}; "
        f"{len(asked())} properties at every step"
    )
    tallies = list[Tally]()
    for aim in aims:
        with _progress(aim, seconds) as on_script:
            tallies.append(search(aim, seconds, on_script=on_script))
        _show(tallies[-1], version, out_folder)
        if tallies[-1].interrupted:
            break
    if json is not None:
        report = {"vllm": version, "searches": [as_json(tally) for tally in tallies]}
        write_output(json, jsonlib.dumps(report, indent=2) + "\n")
    if any(tally.found for tally in tallies):
        raise typer.Exit(VIOLATION)
    raise typer.Exit(INTERRUPTED if tallies[-1].interrupted else CLEAN)


@contextmanager
def _progress(aim: Aim, seconds: float) -> Iterator[Callable[[Tally], None]]:
    """Show how far a search is; yield what tells it."""
    started, status = time.monotonic(), Status(_title(aim), console=err)

    def on_script(tally: Tally) -> None:
        passed = time.monotonic() - started
        status.update(f"{_title(aim)}: {_figures(tally)}, {passed:.0f} of {seconds:.0f} s")

    with status:
        yield on_script


def _title(aim: Aim) -> str:
    return f"policy {aim.policy}, {aim.scheduler}"


def _figures(tally: Tally) -> str:
    return (
        f"{tally.num_scripts:,} scripts, {tally.num_steps:,} steps "
        f"({tally.steps_per_second:,.0f} a second), {tally.num_preempted:,} preemptions"
    )


def _show(tally: Tally, version: str, folder: Path | None) -> None:
    """Print what a search came to, and write its files where there are any."""
    out.print(f"{_title(tally.aim)}: {_figures(tally)}", soft_wrap=True)
    if tally.found is not None:
        _show_violation(tally, tally.found, version, folder)
    style = {"clean": "green", "violation": "red"}.get(verdict(tally), "yellow")
    out.print(f"{_title(tally.aim)}: verdict: {verdict(tally)}", style=style)


def _show_violation(tally: Tally, found: Found, version: str, folder: Path | None) -> None:
    short = found.run.script
    seen = explained_run(found.run, f"vLLM {version}, {_title(tally.aim)}")
    out.print(
        f"found after {found.seconds:.1f} s in script {found.number:,}; "
        f"{found.drawn.num_steps} scheduler steps, shortened to {short.num_steps}"
    )
    out.print()
    show(seen, out)
    lines = [f"  {line}" for line in told(found.run)]
    upstream = known(tally)
    if upstream is not None:
        lines.append(f"  known upstream ({', '.join(upstream.where)}): {upstream.what}")
    for line in lines:
        out.print(line, soft_wrap=True)
    out.print()
    script = "\n".join(script_lines(short))
    out.print(script, style="dim", soft_wrap=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"scheduler-{tally.aim.policy}-{tally.aim.scheduler}-{tally.aim.seed}"
        text = as_text(seen) + "\n".join(lines) + "\n\n" + script + "\n"
        for suffix, content in ((".txt", text), (".html", explain_page(seen))):
            path = folder / f"{name}{suffix}"
            write_output(path, content)
            out.print(f"wrote {path}", soft_wrap=True)
