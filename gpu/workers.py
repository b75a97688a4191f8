"""Many workers, one configuration: each proposes, all gather, all come to the same end.

The manager hands out one list of block ids for all workers, so an id must be a block on each of
them (chapter 5.8). Every worker sends what it proposes, or why it cannot, and every worker computes
the same result from the same list; nobody decides for the others.

A collective that a worker does not join blocks the others, and a time-out of the collective does
not say who is missing. So the workers call the roll through the group's store before and after each
thing that they do together: each writes its name and waits for the others' with a deadline, and
whoever has not written is named. The store itself is kept by worker 0. If that process is stopped,
a call of the store blocks for ever; it is therefore made in a thread that can be left behind.

What is sent is JSON; nothing that is received is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from time import monotonic
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from gpu.errors import InvalidWorkerGroup, WorkerCannotPropose, WorkersFailed, WorkersMissing
from gpu.layout import LocalKVCache, allocate
from kvcache.errors import KVCacheError
from kvcache.interface import FrozenModel, KVCacheConfig, KVCacheSpec
from kvcache.planning import PlanningConfig, get_kv_cache_config, unify_kv_cache_configs

Result = TypeVar("Result")

GRACE_S: Final = 5.0
"""What a store may take to answer after a deadline, before worker 0 counts as missing."""

DONE: Final = "done"


class Proposal(FrozenModel):
    """What a worker sends: its configuration, or why it has none."""

    config: KVCacheConfig | None = None
    refusal: str = ""


class WorkerGroup:
    """The workers, as one of them sees them; `connect` makes it.

    `start` and `all_gather` are called by all workers, in the same order. They raise
    `WorkersMissing` with the ranks of workers that did not come within `timeout_s`, or that came
    and stopped: then within `2 * timeout_s`. Where worker 0 is stopped and not dead, `GRACE_S` is
    added. `WorkersFailed` says that all are there and their connections are not.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.timeout_s = timeout_s
        self._store = store
        self._num_rounds = 0
        self._missing: set[int] = set()

    def start(self) -> None:
        """Connect the workers: gloo on CPU, NCCL on CUDA."""
        on_cuda = self.device.type == "cuda"
        # NCCL ends the process at its own time-out; the missing worker is to be named before.
        timeout = timedelta(seconds=self.timeout_s * (4 if on_cuda else 1))

        def connect_all(_: list[str]) -> None:
            dist.init_process_group(
                "nccl" if on_cuda else "gloo",
                store=PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timeout,
                device_id=self.device if on_cuda else None,
            )

        self._together("connecting", "", connect_all)

    def all_gather(self, text: str) -> list[str]:
        """What all workers gave, by rank. Any text; it travels as UTF-8."""
        data = text.encode()

        def gather(lengths: list[str]) -> list[str]:
            sizes = [int(length) for length in lengths]
            # A collective moves tensors of one shape: all are as long as the longest.
            mine = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
            if data:
                mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            mine = mine.to(self.device)
            rows = [torch.empty_like(mine) for _ in sizes]
            dist.all_gather(rows, mine)
            return [
                bytes(row[:size].tolist()).decode() for row, size in zip(rows, sizes, strict=True)
            ]

        return self._together("gathering", str(len(data)), gather)

    def leave(self) -> None:
        """Say goodbye. Worker 0 stays until the others have left, because it keeps the store."""
        if 0 in self._missing:
            return
        others = set(range(self.world_size)) - self._missing - {0} if self.rank == 0 else set()

        def say_goodbye() -> None:
            self._store.set(f"left/{self.rank}", "")
            self._store.wait([f"left/{rank}" for rank in others], timedelta(seconds=self.timeout_s))

        try:
            _within(self.timeout_s + GRACE_S, say_goodbye)
        except (dist.DistError, TimeoutError):
            # Whoever is still there now has been named, or will find that the store is gone.
            return

    def _together(self, stage: str, value: str, action: Callable[[list[str]], Result]) -> Result:
        """Do something with all workers, between two calls of the roll."""
        self._num_rounds += 1
        values = self._roll(f"before {stage}", value, self.timeout_s)
        # Whoever is beside a worker that dies fails at once, others when their time is up. So the
        # second call waits as long as the action may still take for others, and then as usual.
        until = monotonic() + 2 * self.timeout_s
        results: list[Result] = []
        outcome = DONE
        try:
            results.append(_within(self.timeout_s, lambda: action(values)))
        except (RuntimeError, TimeoutError) as error:
            outcome = f"{type(error).__name__}: {error}".partition("\n")[0]
        outcomes = self._roll(f"after {stage}", outcome, until - monotonic())
        reasons = {rank: said for rank, said in enumerate(outcomes) if said != DONE}
        if reasons:
            raise WorkersFailed(stage=stage, reasons=reasons)
        (result,) = results
        return result

    def _roll(self, stage: str, value: str, timeout_s: float) -> list[str]:
        """What each worker wrote down at this stage, by rank."""
        keys = [self._key(stage, rank) for rank in range(self.world_size)]

        def call() -> set[int]:
            self._store.set(keys[self.rank], value)
            try:
                self._store.wait(keys, timedelta(seconds=timeout_s))
            except dist.DistStoreError:
                return {rank for rank, key in enumerate(keys) if not self._store.check([key])}
            return set()

        try:
            missing = _within(timeout_s + GRACE_S, call)
            if not missing:
                return _within(GRACE_S, lambda: [self._store.get(key).decode() for key in keys])
        except (dist.DistNetworkError, TimeoutError):
            # The store is not there any more, or does not answer: worker 0 keeps it.
            missing = {0}
        self._missing |= missing
        raise WorkersMissing(
            ranks=tuple(sorted(missing)),
            world_size=self.world_size,
            timeout_s=self.timeout_s,
            stage=stage,
        )

    def _key(self, stage: str, rank: int) -> str:
        return f"{self._num_rounds}/{stage}/{rank}"


@contextmanager
def connect(
    host: str,
    port: int,
    rank: int,
    world_size: int,
    *,
    device: torch.device | str = "cpu",
    timeout_s: float = 60.0,
) -> Iterator[WorkerGroup]:
    """The group of `world_size` workers that meet at worker 0's `host` and `port`.

    The process group is torch's default one within the `with`. Raises `InvalidWorkerGroup`, and
    `WorkersMissing` with the ranks of those that did not come within `timeout_s`.
    """
    if not 0 <= rank < world_size or not timeout_s > 0:
        raise InvalidWorkerGroup(rank=rank, world_size=world_size, timeout_s=timeout_s)

    def open_store() -> Store:
        timeout = timedelta(seconds=timeout_s)
        return TCPStore(
            host, port, None, is_master=rank == 0, timeout=timeout, wait_for_workers=False
        )

    try:
        store = open_store() if rank == 0 else _within(timeout_s, open_store)
    except (dist.DistNetworkError, TimeoutError) as error:
        if rank == 0:
            raise
        raise WorkersMissing(
            ranks=(0,), world_size=world_size, timeout_s=timeout_s, stage="opening the store"
        ) from error
    group = WorkerGroup(store, rank, world_size, device=torch.device(device), timeout_s=timeout_s)
    try:
        group.start()
        yield group
    finally:
        group.leave()
        if dist.is_initialized():
            dist.destroy_process_group()


def propose(
    specs: Mapping[str, KVCacheSpec], available_bytes: int, planning: PlanningConfig
) -> Proposal:
    """What a worker makes of its own memory; a refusal is sent, so that nobody waits for it."""
    try:
        return Proposal(config=get_kv_cache_config(specs, available_bytes, planning))
    except KVCacheError as error:
        return Proposal(refusal=str(error))


def unify(proposals: Sequence[Proposal]) -> list[KVCacheConfig]:
    """The configuration of each worker, by rank: a pure function of all proposals.

    Raises `WorkerCannotPropose` for the first worker without a configuration, and what
    `unify_kv_cache_configs` raises: `WorkersDiffer` names worker and layer.
    """
    configs: list[KVCacheConfig] = []
    for rank, proposal in enumerate(proposals):
        if proposal.config is None:
            raise WorkerCannotPropose(rank=rank, refusal=proposal.refusal)
        configs.append(proposal.config)
    return unify_kv_cache_configs(configs)


def agree(group: WorkerGroup, proposal: Proposal) -> KVCacheConfig:
    """This worker's configuration, with the number of blocks that every worker has.

    Every worker returns, or every worker raises the same error, of `unify`; or `WorkersMissing`.
    """
    texts = group.all_gather(proposal.model_dump_json())
    return unify([Proposal.model_validate_json(text) for text in texts])[group.rank]


def start_kv_cache(
    group: WorkerGroup,
    specs: Mapping[str, KVCacheSpec],
    available_bytes: int,
    planning: PlanningConfig,
) -> LocalKVCache:
    """This worker's tensors, after all workers have agreed; ids are those valid on all of them.

    `available_bytes` is what this worker measured. Raises what `agree` and `allocate` raise.
    """
    config = agree(group, propose(specs, available_bytes, planning))
    return LocalKVCache(config, allocate(config, group.device), group.rank)


def _within(seconds: float, action: Callable[[], Result]) -> Result:
    """What an action returns; raises `TimeoutError` and leaves it behind where it takes longer."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is raised by whoever waits
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future.result(timeout=seconds)
