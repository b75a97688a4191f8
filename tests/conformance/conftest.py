"""Subjects, workloads, traces and commands that the tests of this folder make by hand.

A fixture hands over a class or a function, because test files are no modules to import from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from conformance import cli, output
from conformance.adapters.reference import Reference
from conformance.lockstep import ACTIONS
from conformance.subject import BlockView, Capabilities, Refusal, Snapshot, Subject
from conformance.workloads.workload import WorkItem
from spec.state import NULL, Config, initial
from spec.statemachine import Refused

ROOT = Path(__file__).parents[2]
GOOD = {"timestamp": 0, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 9]}


class Model:
    """The pure specification as a subject, under the free rule of its configuration."""

    name = "model"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.capabilities = Capabilities(free_rule=config.free_rule)
        self.state = initial(config)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        """Return an action of the specification as a verb."""
        if verb not in ACTIONS:
            raise AttributeError(verb)

        def call(**args: Any) -> Any:  # noqa: ANN401  # whatever the verb takes and gives
            try:
                self.state, result = ACTIONS[verb](self.state, **args)
            except Refused as refused:
                raise Refusal(refused.rule, str(refused)) from refused
            if isinstance(result, Refused):
                raise Refusal(result.rule, str(result))
            return result

        return call

    def snapshot(self) -> Snapshot:
        """Return everything."""
        pool = self.state.pool
        return Snapshot(
            ref_cnts=tuple(block.ref_cnt for block in pool.blocks),
            keys=tuple(block.key for block in pool.blocks),
            queue=pool.queue,
            queue_back=pool.queue[::-1],
            num_free=len(pool.queue),
            index=dict(pool.by_key.items()),
            tables={rid: r.table for rid, r in self.state.requests.items() if r.table},
        )

    def look(self, ids: Sequence[int]) -> tuple[list[BlockView], int, int, int]:
        """Return the views of some blocks and the ends and length of the queue."""
        pool = self.state.pool
        views: list[BlockView] = []
        for b in ids:
            key = pool.blocks[b].key
            ring = (NULL, *pool.queue, NULL)
            at = pool.queue.index(b) + 1 if b in pool.queue else None
            views.append(
                (
                    pool.blocks[b].ref_cnt,
                    None if key is None else pool.copies(key),
                    None if at is None else ring[at - 1],
                    None if at is None else ring[at + 1],
                )
            )
        first, last = (pool.queue[0], pool.queue[-1]) if pool.queue else (NULL, NULL)
        return views, first, last, len(pool.queue)

    def table(self, rid: str) -> tuple[int, ...]:
        """Return a request's block table."""
        r = self.state.requests.get(rid)
        return (r and r.table) or ()

    def num_free(self) -> int:
        """Return how many blocks can be handed out."""
        return self.state.pool.num_free()

    def num_evictions(self) -> int:
        """Nothing is counted."""
        return 0


class Recording:
    """Passes everything on to what it wraps, and keeps the calls that change something."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the wrapped object has
        found = getattr(self.inner, name)
        if name not in ACTIONS:
            return found

        def call(*args: object, **named: object) -> object:
            self.calls.append((name, *args, *named.values()))
            return found(*args, **named)

        return call


class ListWorkload:
    """Requests made by hand, in order, called r0, r1 and so on."""

    name = "by hand"
    tokens_per_id = 1

    def __init__(self, requests: Sequence[tuple[Sequence[int], int]]) -> None:
        self.requests = requests
        self.notices: list[str] = []
        self.num_requests = len(requests)

    def __iter__(self) -> Iterator[WorkItem]:
        """Yield the requests from the first one on."""
        for at, (prompt, output_length) in enumerate(self.requests):
            yield WorkItem(f"r{at}", prompt, output_length, len(prompt), float(at))


@pytest.fixture(scope="session")
def model_of() -> Callable[[Config], Subject]:
    """Return a maker of subjects that are the specification itself."""
    return lambda config: cast("Subject", Model(config))


@pytest.fixture(scope="session")
def recording() -> Callable[[object], Any]:
    """Return a maker of a wrapper that keeps the calls of whatever it wraps, in `calls`."""
    return Recording


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., ListWorkload]:
    """Return a maker of workloads from pairs of a prompt and an output length."""
    return lambda *requests: ListWorkload(requests)


Damage = Callable[[Any, tuple[Any, ...], Any], Any]


@pytest.fixture(scope="session")
def damaged() -> Callable[..., type[Reference]]:
    """Return a maker of faulty subjects: `damaged(verb, at, damage)`.

    Right after its `at`-th call of the verb, `damage(subject, arguments, result)` spoils something
    and returns the result to show.
    """

    def make(verb: str, at: int, damage: Damage) -> type[Reference]:
        sound = getattr(Reference, verb)

        def call(self: Any, *args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the verb's
            result = sound(self, *args, **named)
            self.num_seen = getattr(self, "num_seen", 0) + 1
            if self.num_seen != at:
                return result
            return damage(self, (*args, *named.values()), result)

        return type("Damaged", (Reference,), {verb: call})

    return make


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a way to run Python on this checkout: arguments, and the hash seed of the process."""

    def run(*args: str, hash_seed: str = "0", **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), **more}
        return subprocess.run(  # noqa: S603  # the test's own program
            [sys.executable, *args],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def kvspec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a way to run the command in this process, on a wide terminal without colours."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(output.out, "_width", 200)
    monkeypatch.setattr(output.err, "_width", 200)
    return lambda *args: CliRunner().invoke(cli.app, [str(arg) for arg in args])


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    """Return a way to write a trace: requests that differ from a good one, then some text."""

    def write(*requests: dict[str, Any], end: str = "", name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({**GOOD, **r}) + "\n" for r in requests) + end)
        return path

    return write


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copy the module `planted_subjects` to where it can be changed and all processes find it."""
    path = tmp_path / "modules" / "planted_subjects.py"
    path.parent.mkdir()
    path.write_text(Path(__file__).with_name("planted_subjects.py").read_text())
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setenv("PYTHONPATH", f"{path.parent}{os.pathsep}{ROOT}")
    yield path
    sys.modules.pop("planted_subjects", None)
