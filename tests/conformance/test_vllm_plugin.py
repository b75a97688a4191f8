"""The plugin that vLLM loads: off unless it is asked for, and clear about what it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

import pytest

from conformance.monitoring import vllm_plugin

Python = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM = """
import sys
from kvcache import _entry
_entry.watch_vllm()
print(sorted({name.split(".")[0] for name in sys.modules} & {"conformance", "vllm", "torch"}))
"""


def test_nothing_is_loaded_while_it_is_off(python: Python) -> None:
    """Without the variable, or with an empty one, a server pays nothing."""
    for more in ({}, {"KVSPEC_MONITOR": ""}):
        done = python("-c", PROGRAM, **more)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_bad_mode_stops_with_its_value(python: Python) -> None:
    """Who asks for the monitor and mistypes is told, and not left unwatched."""
    done = python("-c", PROGRAM, KVSPEC_MONITOR="yes")
    assert done.returncode == 1
    assert "KVSPEC_MONITOR='yes' is no mode; set it to one of raise, warn" in done.stderr


@pytest.mark.parametrize("sweep", ["0", "-1", "many", "", "1.5", "\u0664"])
def test_a_bad_number_is_refused(sweep: str) -> None:
    """The message shows the value and what to give."""
    environment = {"KVSPEC_MONITOR": "warn", "KVSPEC_MONITOR_SWEEP": sweep}
    with pytest.raises(ValueError, match=r"KVSPEC_MONITOR_SWEEP=.* whole number from 1 on"):
        vllm_plugin.settings(environment)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"KVSPEC_MONITOR": "warn"}, ("warn", 1000)),
        ({"KVSPEC_MONITOR": "raise", "KVSPEC_MONITOR_SWEEP": "7"}, ("raise", 7)),
    ],
)
def test_settings_are_read(environment: Mapping[str, str], expected: tuple[str, int]) -> None:
    """The number of calls between two sweeps has a default."""
    assert vllm_plugin.settings(environment) == expected
