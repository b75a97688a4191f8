"""The command `kvspec`."""

from __future__ import annotations

import io
import sys

import typer

from conformance.commands.check import check_command
from conformance.commands.explore import explore_command
from conformance.commands.prove import prove_command
from conformance.commands.replay import replay_command

app = typer.Typer(
    name="kvspec",
    help="Hold a paged, prefix-shared KV-cache block manager against its executable specification.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("check")(check_command)
app.command("replay")(replay_command)
app.command("explore")(explore_command)
app.command("prove")(prove_command)


def main() -> None:
    """Run the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show is spelled out; it must not end the run.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="kvspec")


if __name__ == "__main__":
    main()
