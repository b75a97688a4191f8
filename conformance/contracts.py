"""Runs the contracts of tests/contracts/ through CrossHair and tells four verdicts apart.

CrossHair calls a contract with symbols in place of its arguments and follows every path through the
code it reaches. What it says is read for each contract by itself: its exit status is the same for
*confirmed* and for *not refuted in the time given*. A contract whose leading assertions no argument
meets is confirmed too, because there is nothing to refute. So whatever is confirmed is run once
more with an end that fails; only when that is reached was there something to confirm.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import Enum
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "contracts"
TABLE = "contracts.toml"
SECONDS = 120.0
"""Processor seconds that CrossHair may spend on one contract."""

REACHED = "the end of the contract is reached"
SLACK = 60.0
"""Seconds for a process to start and to stop, on a busy machine."""

MESSAGE = re.compile(r"\A.+?:\d+: (info|warning|error): (.*)\Z", re.DOTALL)


class Verdict(Enum):
    """What a run says of a contract."""

    CONFIRMED = "confirmed"
    NOT_REFUTED = "not refuted"
    REFUTED = "refuted"
    FAILED = "failed to run"


class ContractError(ValueError):
    """Contracts and table do not agree, or a file of them cannot be read."""


class Expected(BaseModel):
    """What the table says of a contract: the place, the verdict, and the bound if there is one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    on: str
    expected: Literal["confirmed", "refuted"]
    bound: str = ""


class Contract(NamedTuple):
    """A contract: the function `name` of `module`, which says `says` of the place `on`."""

    module: str
    name: str
    says: str
    on: str
    expected: Verdict
    bound: str
    end: int
    """The last line of the function."""


class Result(NamedTuple):
    """What a run says of a contract, in which words, after how many seconds."""

    contract: Contract
    verdict: Verdict
    details: str
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one, and a refutation is an assertion's."""
        if self.verdict is Verdict.REFUTED and not self.details.startswith("AssertionError"):
            return False
        return self.verdict is self.contract.expected


def installed() -> bool:
    """Return whether CrossHair is there."""
    return importlib.util.find_spec("crosshair") is not None


def read_contracts(folder: Path = FOLDER) -> list[Contract]:
    """Return the contracts of a folder in the order of its table.

    Raises `ContractError` where the table cannot be read, or names what is not there, or lacks what
    is.
    """
    table = folder / TABLE
    try:
        data = tomllib.loads(table.read_text(encoding="utf-8"))
        entries = TypeAdapter(dict[str, dict[str, Expected]]).validate_python(data)
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ContractError(f"{table}: cannot be read: {error}") from error
    functions = {
        (file.stem, node.name): node
        for file in sorted(folder.glob("*_contracts.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not file.name.startswith("test_")
    }
    named = [(module, name) for module, names in entries.items() for name in names]
    if odd := sorted(set(named) ^ set(functions)):
        names = ", ".join(".".join(one) for one in odd)
        raise ContractError(f"{table}: {names}: in the table or in a file, not in both; give both")
    return [_contract(m, n, functions[m, n], entries[m][n]) for m, n in named]


def _contract(module: str, name: str, node: ast.FunctionDef, entry: Expected) -> Contract:
    says = " ".join((ast.get_docstring(node) or "").split())
    end = node.end_lineno or node.lineno
    return Contract(module, name, says, entry.on, Verdict(entry.expected), entry.bound, end)


def classify(name: str, status: int, output: str, errors: str) -> tuple[Verdict, str]:
    """Return the verdict on one contract from the words of one run of CrossHair, and the words.

    `confirmed`, `not refuted` and `refuted` need the very words and the exit status that goes with
    them; whatever else was said or not said is `failed to run`.
    """
    found = MESSAGE.match(output.strip())
    level, message = found.groups() if found else ("", output.strip())
    match level, message, status:
        case "info", "Confirmed over all paths.", 0:
            return Verdict.CONFIRMED, message
        case "info", "Not confirmed.", 0:
            return Verdict.NOT_REFUTED, message
        case "error", _, 1 if f" when calling {name}(" in message:
            return Verdict.REFUTED, message
    said = message or errors.strip() or "nothing was said"
    return Verdict.FAILED, f"exit status {status}: {said.splitlines()[-1]}"


class Runner:
    """Runs contracts, each in a process of its own; `stop` ends those that run."""

    def __init__(
        self,
        folder: Path = FOLDER,
        seconds: float = SECONDS,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = (sys.executable, "-m", "crosshair"),
    ) -> None:
        self.folder = folder
        self.command = command
        self.seconds = seconds
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            **(environment or {}),
        }
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, contracts: Sequence[Contract], jobs: int = 1) -> Iterator[Result]:
        """Yield the result of each contract when it is there, in no order."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed([pool.submit(self.check, one) for one in contracts]):
                    yield done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()

    def stop(self) -> None:
        """End every process that runs."""
        for process in list(self._running):
            process.kill()

    def check(self, contract: Contract) -> Result:
        """Return the result of one contract; what is confirmed has been seen to reach its end."""
        started = time.monotonic()
        verdict, details = self._ask(contract, self.folder)
        if verdict is Verdict.CONFIRMED:
            with tempfile.TemporaryDirectory() as folder:
                self._write_twin(contract, Path(folder))
                twin, said = self._ask(contract, Path(folder))
            if twin is not Verdict.REFUTED or REACHED not in said:
                verdict, details = Verdict.FAILED, f"no argument reaches the end: {said}"
        return Result(contract, verdict, details, time.monotonic() - started)

    def _write_twin(self, contract: Contract, folder: Path) -> None:
        """Write the contract's file with an end that fails."""
        file = f"{contract.module}.py"
        lines = (self.folder / file).read_text(encoding="utf-8").splitlines()
        lines.insert(contract.end, f"    raise AssertionError({REACHED!r})")
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _ask(self, contract: Contract, folder: Path) -> tuple[Verdict, str]:
        command = [*self.command, "check", "--report_all"]
        command += ["--analysis_kind=asserts", f"--per_condition_timeout={self.seconds}"]
        # The time for a single path is not bounded: a slow path is not a path that was followed.
        command += [f"--per_path_timeout={self.seconds}", f"{contract.module}.{contract.name}"]
        with subprocess.Popen(  # noqa: S603  # our interpreter, on names that our table lists
            command,
            cwd=folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self._running.add(process)
            try:
                output, errors = process.communicate(timeout=10 * self.seconds + SLACK)
            except subprocess.TimeoutExpired:
                process.kill()
                return Verdict.FAILED, f"it did not end in {10 * self.seconds + SLACK:.0f} s"
            finally:
                self._running.discard(process)
        return classify(contract.name, process.returncode, output, errors)


def digest_of_code(folder: Path = FOLDER) -> str:
    """Return a digest of what results speak of: production and the contracts on it."""
    files = sorted((ROOT / "kvcache").glob("*.py"))
    files += [*sorted(folder.glob("*_contracts.py")), folder / TABLE]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def result_data(results: Sequence[Result]) -> dict[str, Any]:
    """Return results as data: what they are of, and each contract with its place and verdict."""
    return {
        "code": digest_of_code(),
        "kvspec": version("kvspec"),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("crosshair-tool", "z3-solver")},
        "contracts": {
            f"{c.module}.{c.name}": {
                "says": c.says,
                "on": c.on,
                "bound": c.bound,
                "expected": c.expected.value,
                "verdict": r.verdict.value,
                "details": r.details,
                "seconds": round(r.seconds, 1),
            }
            for r in sorted(results, key=lambda r: (r.contract.module, r.contract.name))
            for c in [r.contract]
        },
        "ok": bool(results) and all(r.as_expected for r in results),
    }
