"""The plugin in a process of its own, as vLLM 0.33.0 loads it: on when asked for, and else off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.adapters import sources_0_33_0 as sources
from conformance.adapters.sources_0_8_5 import PeerMissingError

ROOT = Path(__file__).parents[2]

PROGRAM = """
import vllm.plugins
vllm.plugins.load_general_plugins()
from conformance.scheduler import stand_in
from conformance.scheduler.script import Setting
from conformance.monitoring.monitor import monitor_of
stand_in.load()
import vllm.v1.core.block_pool as b
pools = [stand_in.make_scheduler(Setting()).kv_cache_manager.block_pool, b.BlockPool(4, True, 1)]
found = [m and m.watched for m in map(monitor_of, pools)]
print([w and (w.manager is not None, w.sweep_every >> 4) for w in found])
pools[1].free_blocks(pools[1].get_new_blocks(1) * 2)
"""


def run(**more: str) -> tuple[int, str, str]:
    """Run the program with some variables; return its status, its last line, and its errors."""
    done = subprocess.run(  # noqa: S603  # the test's own program
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines()[-1], done.stderr


@pytest.mark.slow
def test_the_plugin_watches_what_is_made_later() -> None:
    """The loader of vLLM finds the plugin; managers and single pools are watched, if asked for."""
    try:
        sources.load()
    except PeerMissingError as missing:
        pytest.skip(str(missing))
    assert run()[:2] == (0, "[None, None]")
    status, said, errors = run(KVSPEC_MONITOR="raise", KVSPEC_MONITOR_SWEEP="7")
    assert (status, said) == (1, "[(True, 7), (False, 7)]")
    assert "kvspec violation: property=ref_cnt_counts_the_holders call=2 free_blocks" in errors
    status, said, errors = run(KVSPEC_MONITOR="warn")
    assert (status, said) == (0, "[(True, 1000), (False, 1000)]")
    assert "kvspec violation: property=ref_cnt_counts_the_holders call=2 free_blocks" in errors
