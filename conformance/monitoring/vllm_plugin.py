"""Watches every pool that vLLM makes in this process: what the plugin of the wheel switches on.

vLLM loads its plugins before it makes an engine. The constructors of its manager and its pool are
wrapped here, so each of them is watched from its first call on. A pool that a manager makes belongs
to the manager's monitor; other pools, such as those in a host's memory, get their own.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from conformance.monitoring.monitor import SWEEP_EVERY, attach, monitor_of
from conformance.monitoring.profiles import UnknownPoolError
from conformance.monitoring.violation import SAYING, Mode, logger

MODE_VARIABLE: Final = "KVSPEC_MONITOR"
SWEEP_VARIABLE: Final = "KVSPEC_MONITOR_SWEEP"
WRAPPED: Final = "_kvspec_wrapped"


def settings(environment: Mapping[str, str]) -> tuple[Mode, int]:
    """Return the mode and the calls between two sweeps. Raises `ValueError` for a bad value."""
    asked, sweep = environment[MODE_VARIABLE], environment.get(SWEEP_VARIABLE, str(SWEEP_EVERY))
    modes: dict[str, Mode] = {"warn": "warn", "raise": "raise"}
    if asked not in modes:
        raise ValueError(
            f"{MODE_VARIABLE}={asked!r} is no mode; set it to one of {', '.join(SAYING)}, or unset "
            "it to watch nothing"
        )
    if not sweep.isascii() or not sweep.isdigit() or int(sweep) < 1:
        raise ValueError(
            f"{SWEEP_VARIABLE}={sweep!r} is no number of calls; set it to a whole number from 1 "
            f"on, or unset it for {SWEEP_EVERY}"
        )
    return modes[asked], int(sweep)


def install(environment: Mapping[str, str]) -> None:
    """Have every manager and pool of vLLM that is made from now on watched.

    A second call does nothing: vLLM loads its plugins more than once. Raises `ValueError` for a bad
    value.
    """
    mode, sweep_every = settings(environment)
    managers = importlib.import_module("vllm.v1.core.kv_cache_manager")
    pools = importlib.import_module("vllm.v1.core.block_pool")
    kinds = (managers.KVCacheManager, pools.BlockPool)
    if any(WRAPPED in vars(kind) for kind in kinds):
        return
    depth = [0]

    def watch(made: object) -> None:
        try:
            attach(made, mode, sweep_every)
        except UnknownPoolError as error:
            logger.warning("kvspec: not watched: %s", error)

    def wrapped(init: Callable[..., None], *, owns_pools: bool) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: ANN401, N807  # as the class's own
            depth[0] += owns_pools
            try:
                init(self, *args, **named)
            finally:
                depth[0] -= owns_pools
            if owns_pools:
                watch(self)
                for pool in _other_pools(self):
                    watch(pool)
            elif not depth[0] and monitor_of(self) is None:
                watch(self)

        return __init__

    for kind in kinds:
        kind.__init__ = wrapped(kind.__init__, owns_pools=kind is kinds[0])
        setattr(kind, WRAPPED, True)
    logger.info("kvspec: every block pool of this process is watched (%s)", mode)


def _other_pools(manager: Any) -> list[Any]:  # noqa: ANN401  # a manager of vLLM
    """Return the pools of a manager's groups that are not its own."""
    groups = getattr(manager.coordinator, "single_type_managers", ())
    pools = {id(group.block_pool): group.block_pool for group in groups}
    pools.pop(id(manager.block_pool), None)
    return [pool for pool in pools.values() if monitor_of(pool) is None]
