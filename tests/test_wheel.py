"""The wheel is a contract: it holds `kvcache` only, and its command says how to get the rest."""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
import types
import zipfile
from pathlib import Path

import pytest

from kvcache import _entry

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without input and return its output, whatever its status."""
    return subprocess.run(  # noqa: S603 (the test's own commands)
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel without a network and return its path."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
        *("--outdir", folder, ROOT),
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_one_package(wheel: Path) -> None:
    """`spec` and `conformance` are too general as names for other people's site-packages."""
    _, version, *_ = wheel.name.split("-")
    metadata = f"kvspec-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entries = archive.read(f"{metadata}/entry_points.txt").decode()
    assert "[pytest11]\nkvspec = kvcache._entry\n" in entries
    plugin = "[vllm.general_plugins]\nkvspec_monitor = kvcache._entry:watch_vllm\n"
    assert plugin in f"{entries}\n"
    assert {name.split("/")[0] for name in names} == {"kvcache", metadata}
    assert "kvcache/py.typed" in names
    assert f"{metadata}/licenses/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".orig"))]


@pytest.mark.slow
def test_the_wheel_alone_says_how_to_install_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The command of an installed wheel ends with status 2 and one line that helps.

    `-S` keeps the checkout's own editable installation out; what the wheel depends on is found
    through PYTHONPATH, behind the installed wheel.
    """
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    installed = run(*pip, "--target", tmp_path, wheel)
    assert installed.returncode == 0, installed.stderr
    path = os.pathsep.join([str(tmp_path), sysconfig.get_path("purelib")])
    asked = run(sys.executable, "-S", tmp_path / "bin" / "kvspec", "replay", PYTHONPATH=path)
    assert (asked.returncode, asked.stdout, asked.stderr) == (2, "", _entry.HINT)
    asking = (sys.executable, "-P", "-S", "-m", "pytest", "--rootdir", tmp_path, tmp_path / "tests")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mine.py").write_text("def test_mine() -> None:\n    assert True\n")
    tested = run(*asking, "--kvspec-subject=a:B", PYTHONPATH=path)
    assert (tested.returncode, tested.stdout) == (pytest.ExitCode.USAGE_ERROR, "")
    assert "kvspec: --kvspec-subject needs the checkout, and only the wheel is " in tested.stderr
    untouched = run(*asking, "--strict-config", "-Werror", PYTHONPATH=path)
    assert (untouched.returncode, "1 passed" in untouched.stdout) == (0, True), untouched.stdout
    watching = (sys.executable, "-P", "-S", "-c", "from kvcache import _entry; _entry.watch_vllm()")
    for mode, said in (("", ""), ("warn", _entry.MONITOR_HINT)):
        watched = run(*watching, PYTHONPATH=path, KVSPEC_MONITOR=mode)
        assert (watched.returncode, watched.stdout, watched.stderr) == (0, "", said)
    program = "import kvcache; print(kvcache)"
    imported = run(sys.executable, "-P", "-S", "-c", program, PYTHONPATH=path)
    assert str(tmp_path) in imported.stdout, imported.stderr


def test_the_entry_runs_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `conformance` is installed, the command's own status is returned."""
    command = types.ModuleType("conformance.cli")
    command.main = lambda: 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "conformance.cli", command)
    assert _entry.main() == 7


def test_another_missing_module_is_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency that is missing is named as it is: the checkout would not help."""

    def load(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(f"No module named 'typer', asked for by {name}", name="typer")

    monkeypatch.setattr(importlib, "import_module", load)
    with pytest.raises(ModuleNotFoundError, match="typer"):
        _entry.main()


def test_the_package_does_not_load_the_rest() -> None:
    """`import kvcache` pulls in neither the spec nor the conformance tools nor torch."""
    program = "import json, sys, kvcache; print(json.dumps(list(sys.modules)))"
    loaded = run(sys.executable, "-c", program, PYTHONPATH=str(ROOT))
    assert loaded.returncode == 0, loaded.stderr
    names = {name.split(".")[0] for name in json.loads(loaded.stdout)}
    assert names & {"kvcache", "spec", "conformance", "torch"} == {"kvcache"}
