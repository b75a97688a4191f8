"""The import rule of docs/architecture.md is kept, and breaking it is seen."""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

Sources = Callable[..., dict[str, str]]

ROOMS: Mapping[str, set[str]] = {
    "spec": set(),
    "kvcache": {"pydantic"},
    "gpu": {"kvcache", "torch"},
    "conformance": {"spec", "kvcache", "pydantic", "hypothesis", "rich", "typer", "jinja2"},
    "benchmarks": {"spec", "kvcache", "gpu", "conformance", "torch"},
    "examples": {"spec", "conformance"},
    "tests": {
        "spec",
        "kvcache",
        "gpu",
        "conformance",
        "pydantic",
        "hypothesis",
        "rich",
        "typer",
        "pytest",
        "numpy",
        "torch",
    },
}
"""What a room may import besides the standard library and itself; `tests` is in no list."""

PROOF = ["logic", "values", "pool", "content", "content_actions", "order", "finite", "vacuity"]
"""The files that speak to a solver."""

DOORS: Mapping[str, set[str]] = {
    "kvcache/_entry.py": {"conformance", "pytest"},
    "conformance/conforming/pytest_plugin.py": {"pytest"},
    "conformance/exhaustive/frontier.py": {"ray"},
    "conformance/monitoring/vllm_plugin.py": {"vllm"},
    "gpu/ci.py": {"conformance"},
    "gpu/kernels.py": {"triton"},
    **{f"spec/proof/{name}.py": {"z3"} for name in PROOF},
    "spec/proof/solve.py": {"z3", "cvc5"},
}
"""Files that may import, by name and at run time, what their room may not."""

PACKAGES = ("spec", "kvcache", "gpu", "conformance", "examples")
UNORDERED = {"__init__", "__main__", "_entry"}
"""Modules that stand below all others of their package and are imported by none."""


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of whatever is imported, by statement or by name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (f"{module}." if module else "")
                yield from ((node.lineno, base + alias.name) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def foreign_imports(path: str, source: str) -> list[str]:
    """Return the imports that the import rule forbids to this file."""
    room = path.split("/", maxsplit=1)[0]
    own = set() if room in {"tests", "benchmarks"} else {room}
    allowed = ROOMS[room] | own | DOORS.get(path, set()) | set(sys.stdlib_module_names)
    return [
        f"{path}:{line}: {name} must not be imported in {room}/"
        for line, name in imports(source)
        if name.split(".")[0] not in allowed
    ]


def import_order(source: str) -> list[str]:
    """Return the modules that a package's docstring lists after `Import order:`."""
    text = ast.get_docstring(ast.parse(source)) or ""
    found = re.search(r"^Import order:\s*([^.]*)\.", text, re.MULTILINE)
    return [name.strip() for name in found[1].split(",")] if found else []


def upward_imports(package: str, sources: Mapping[str, str]) -> list[str]:
    """Return what breaks a package's import order; sources are by path, `__init__.py` included."""
    order = import_order(sources.get(f"{package}/__init__.py", ""))
    if not order:
        return [f"{package}/__init__.py: the docstring has no line `Import order: a, b, c.`"]
    modules = {path: path.split("/")[1].removesuffix(".py") for path in sources}
    there, listed = set(modules.values()), set(order)
    faults = [
        f"{package}: {m} is not in the import order" for m in sorted(there - listed - UNORDERED)
    ]
    faults += [f"{package}: {m} is listed but absent" for m in sorted(listed - there)]
    for path, module in modules.items():
        above = order[: order.index(module)] if module in order else order
        for line, name in imports(sources[path]):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top == package and target != module and target not in above:
                faults.append(f"{path}:{line}: {name} does not stand above {module}")
            if not top:
                faults.append(f"{path}:{line}: {name} is a relative import; name the package")
    return faults


def test_every_room_imports_only_what_the_rule_allows(sources_of: Sources) -> None:
    """The spec needs the standard library only, production pydantic too, and nobody the tests."""
    faults = [fault for f, s in sources_of(*ROOMS).items() for fault in foreign_imports(f, s)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spec/state.py", "import pydantic"),
        ("spec/state.py", "def f():\n    from kvcache import block"),
        ("kvcache/block.py", "import os, torch.cuda"),
        ("kvcache/block.py", "import importlib\nimportlib.import_module('conformance.cli')"),
        ("kvcache/_entry.py", "import spec"),
        ("gpu/layout.py", "from conformance import workload"),
        ("gpu/memory.py", "import spec"),
        ("conformance/cli.py", "import torch"),
        ("conformance/cli.py", "from tests.conftest import x"),
        ("conformance/cli.py", "import vllm"),
        ("tests/test_x.py", "import tests"),
        ("benchmarks/x.py", "import pydantic"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, source: str) -> None:
    """The import rule has teeth in every room, wherever in the file the import stands."""
    (fault,) = foreign_imports(path, source)
    assert fault.startswith(f"{path}:{source.count(chr(10)) + 1}: ")


def test_the_door_may_load_what_its_room_may_not() -> None:
    """The command's entry loads `conformance` by name; the standard library is open to all."""
    source = "import importlib\nimportlib.import_module('conformance.cli')"
    assert foreign_imports("kvcache/_entry.py", source) == []
    assert foreign_imports("spec/state.py", "import enum\nfrom spec.pool import x") == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_imports_what_stands_above_it(sources_of: Sources, package: str) -> None:
    """Each package's docstring lists its modules in an order that its imports keep."""
    faults = upward_imports(package, sources_of(package))
    assert not faults, "\n".join(faults)


def test_a_broken_import_order_is_seen() -> None:
    """An import of what stands below, a module left out, and a list without a module are faults."""
    doc = '"""Is a package.\n\nImport order: a,\nb, c.\n"""'
    good = {"p/__init__.py": doc, "p/a.py": "import os", "p/b.py": "from p import a", "p/c.py": ""}
    assert upward_imports("p", good) == []
    assert upward_imports("p", {**good, "p/__main__.py": "from p.c import x"}) == []
    faults = {
        "p/a.py:1: p.b.x does not stand above a": {"p/a.py": "from p.b import x"},
        "p/a.py:1: p does not stand above a": {"p/a.py": "import p"},
        "p/b.py:1: .a is a relative import; name the package": {"p/b.py": "from . import a"},
        "p: d is not in the import order": {"p/d.py": ""},
    }
    for fault, change in faults.items():
        assert [fault] == upward_imports("p", {**good, **change})
    del good["p/c.py"]
    assert upward_imports("p", good) == ["p: c is listed but absent"]
    assert "has no line" in upward_imports("p", {"p/__init__.py": '"""Is one."""'})[0]
