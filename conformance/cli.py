"""The command `kvspec`."""

from __future__ import annotations

import io
import sys

import typer

from conformance.commands.check import check_command
from conformance.commands.conform import conform_command
from conformance.commands.contracts import contracts_command
from conformance.commands.explain import explain_command
from conformance.commands.explore import explore_command
from conformance.commands.fuzz import fuzz_command
from conformance.commands.mutants import mutants_command
from conformance.commands.plan import plan_command
from conformance.commands.prove import prove_command
from conformance.commands.record import record_command
from conformance.commands.replay import replay_command
from conformance.commands.scheduler import scheduler_command
from conformance.commands.shrink import shrink_command
from conformance.commands.validate import validate_command

app = typer.Typer(
    name="kvspec",
    help="Hold a paged, prefix-shared KV-cache block manager against its executable specification.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command("check")(check_command)
app.command("replay")(replay_command)
app.command("record")(record_command)
app.command("validate")(validate_command)
app.command("shrink")(shrink_command)
app.command("explain")(explain_command)
app.command("explore")(explore_command)
app.command("fuzz")(fuzz_command)
app.command("scheduler")(scheduler_command)
app.command("conform")(conform_command)
app.command("prove")(prove_command)
app.command("contracts")(contracts_command)
app.command("mutants")(mutants_command)
app.command("plan")(plan_command)


def main() -> None:
    """Run the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show is spelled out; it must not end the run.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="kvspec")


if __name__ == "__main__":
    main()
