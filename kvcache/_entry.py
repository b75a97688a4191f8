"""The `kvspec` command and the plugins find `conformance` here; only the checkout has it."""

import importlib
import os
import sys
from typing import Any, Final


def _hint(what: str) -> str:
    """The line that says how to get what an installed wheel lacks."""
    return (
        f"kvspec: {what} needs the checkout, and only the wheel is installed here: there is no "
        "module 'conformance'; run `pip install -e .` in a clone of the kvspec repository\n"
    )


HINT: Final = _hint("the command")
MONITOR: Final = "KVSPEC_MONITOR"
MONITOR_HINT: Final = _hint(f"the monitor that {MONITOR} asks for")


def main() -> object:
    """Run the command and return its exit status; exit with 2 where it cannot be found.

    `conformance` is loaded by name and not before the call, so that `import kvcache` never needs
    it. Any other module that is missing is a fault to be seen, not a hint to be given.
    """
    try:
        command = importlib.import_module("conformance.cli")
    except ModuleNotFoundError as error:
        if error.name != "conformance":
            raise
        sys.stderr.write(HINT)
        raise SystemExit(2) from None
    return command.main()


def pytest_addoption(parser: Any) -> None:  # noqa: ANN401  # pytest is not needed at run time
    """The options of the pytest plugin; `parser` is a `pytest.Parser`."""
    group = parser.getgroup("kvspec", "kvspec: hold a block manager against the specification")
    group.addoption(
        "--kvspec-subject",
        action="append",
        default=[],
        metavar="NAME",
        help="Run the conformance suite on this block manager, e.g. yours as module:Class. May be "
        "given several times. Its checks are called kvspec::NAME::CHECK; the argument `kvspec::` "
        "runs nothing else.",
    )
    group.addoption(
        "--kvspec-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="How long to go on with each check after its first round, which is always the same.",
    )
    group.addoption(
        "--kvspec-seed", type=int, default=0, metavar="N", help="Fixes what is tried. Default: 0."
    )


def pytest_configure(config: Any) -> None:  # noqa: ANN401  # as above
    """The plugin itself, loaded where a subject is named, and nowhere else.

    `config` is a `pytest.Config`. Raises `pytest.UsageError` where `conformance` is not installed.
    """
    if not config.getoption("--kvspec-subject"):
        return
    try:
        plugin = importlib.import_module("conformance.conforming.pytest_plugin")
    except ModuleNotFoundError as error:
        if error.name not in {"conformance", "conformance.conforming.pytest_plugin"}:
            raise
        usage_error = importlib.import_module("pytest").UsageError
        raise usage_error(_hint("--kvspec-subject").rstrip()) from None
    config.pluginmanager.register(plugin, "kvspec-suite")


def watch_vllm() -> None:
    """The plugin that vLLM loads: its pools are watched if `KVSPEC_MONITOR` says `warn` or `raise`.

    vLLM calls this in each of its processes, wherever the wheel is installed. While the variable is
    unset or empty nothing is loaded and nothing happens. Where `conformance` is not installed a
    line says so, and vLLM goes on unwatched. Raises `ValueError` for another value.
    """
    if not os.environ.get(MONITOR):
        return
    try:
        plugin = importlib.import_module("conformance.monitoring.vllm_plugin")
    except ModuleNotFoundError as error:
        if error.name not in {"conformance", "conformance.monitoring.vllm_plugin"}:
            raise
        sys.stderr.write(MONITOR_HINT)
        return
    plugin.install(os.environ)
