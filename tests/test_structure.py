"""What every file of the repository keeps: its size, and what it must not hold."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping

import pytest

ROOMS = ("spec", "kvcache", "gpu", "conformance", "examples", "benchmarks", "tests")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_CORE_LINES = 900

Sources = Callable[..., dict[str, str]]

SPEC_CORE = ("spec/state.py", "spec/statemachine.py", "spec/invariants.py")

SIZE_EXCEPTIONS: Mapping[str, str] = {}
"""`path` or `path::function` to the reason why it may be longer."""

FORBIDDEN = (
    r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b",
    r"\bNotImplementedErro[r]\b",
    r"\b(?:breakpoin[t]|set_trac[e])\(",
    r"\b(?:issu[e]|pull reques[t]) #?\d",
)


def too_long(path: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield `path` or `path::function` and what is too long about it."""
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield path, f"{path} has {num_lines} lines, more than {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                place = f"{path}::{node.name}"
                yield place, f"{place} has {num_lines} lines, more than {MAX_FUNCTION_LINES}"


def size_faults(sources: Mapping[str, str], exceptions: Mapping[str, str]) -> list[str]:
    """Return what is too long without a reason, and the reasons that nothing needs."""
    found = dict(pair for path, source in sources.items() for pair in too_long(path, source))
    unused = [
        f"{place}: the size exception is not needed" for place in exceptions if place not in found
    ]
    return [fault for place, fault in found.items() if place not in exceptions] + unused


def swallowed_errors(path: str, source: str) -> list[str]:
    """Return the handlers that catch everything or do nothing."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            idle = all(
                isinstance(s, ast.Pass)
                or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
                for s in node.body
            )
            if node.type is None or idle:
                faults.append(f"{path}:{node.lineno}: an error is swallowed; name and handle it")
    return faults


def forbidden_words(path: str, source: str) -> list[str]:
    """Return the words that no finished file holds."""
    return [
        f"{path}:{number}: {found[0]!r} is not for a finished file"
        for number, line in enumerate(source.splitlines(), 1)
        for pattern in FORBIDDEN
        if (found := re.search(pattern, line))
    ]


def unexplained_skips(path: str, source: str) -> list[str]:
    """Return the skips and expected failures that give no reason."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    faults = []
    for node in ast.walk(tree):
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        kind = re.fullmatch(r"pytest\.(mark\.)?(skip|skipif|xfail)", name)
        if not kind or id(node) in called or not isinstance(node, ast.Call | ast.Attribute):
            continue
        given = isinstance(node, ast.Call) and (
            any(
                keyword.arg == "reason" and ast.unparse(keyword.value) != "''"
                for keyword in node.keywords
            )
            or (kind[2] != "skipif" and any(ast.unparse(arg) != "''" for arg in node.args))
        )
        if not given:
            faults.append(f"{path}:{node.lineno}: {name} gives no reason")
    return faults


def test_functions_fit_a_screen_and_files_a_sitting(sources_of: Sources) -> None:
    """What is longer has a reason in SIZE_EXCEPTIONS, and no reason outlives its need."""
    faults = size_faults(sources_of(*ROOMS), SIZE_EXCEPTIONS)
    assert not faults, "\n".join(faults)


def test_an_excess_of_size_is_seen() -> None:
    """A file and a function one line too long are faults; so is an exception without need."""
    function = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    file = "x = 1\n" * (MAX_FILE_LINES + 1)
    assert size_faults({"a.py": function}, {}) == ["a.py::f has 61 lines, more than 60"]
    assert size_faults({"a.py": file}, {}) == ["a.py has 301 lines, more than 300"]
    assert size_faults({"a.py": file}, {"a.py": "a reason"}) == []
    assert size_faults({"a.py": file.removeprefix("x = 1\n")}, {}) == []
    assert size_faults({}, {"b.py": "a reason"}) == ["b.py: the size exception is not needed"]


def test_the_core_of_the_spec_can_be_read_in_an_hour(sources_of: Sources) -> None:
    """What is true fits in fewer than 900 lines: state, actions and invariants."""
    sources = sources_of("spec")
    assert sum(len(sources[path].splitlines()) for path in SPEC_CORE) < MAX_CORE_LINES


# A % keeps this file free of the words; the test takes it out.
PER_FILE = {
    "swallowed": (swallowed_errors, "try:\n    f()\nexcept ValueError:\n    pass\n"),
    "bare": (swallowed_errors, "try:\n    f()\nexcept:\n    g()\n"),
    "ellipsis": (swallowed_errors, "try:\n    f()\nexcept OSError:\n    ...\n"),
    "later": (forbidden_words, "x = 1  # T%ODO: y\n"),
    "mend": (forbidden_words, "# F%IXME\n"),
    "unfinished": (forbidden_words, "raise NotImplemented%Error\n"),
    "debugger": (forbidden_words, "break%point()\n"),
    "tracker": (forbidden_words, "# See issue% #12.\n"),
    "skip": (unexplained_skips, "pytest.skip()\n"),
    "empty": (unexplained_skips, "pytest.skip('')\n"),
    "mark": (unexplained_skips, "@pytest.mark.skip\ndef f(): ...\n"),
    "condition": (unexplained_skips, "@pytest.mark.skipif(True)\ndef f(): ...\n"),
    "xfail": (unexplained_skips, "@pytest.mark.xfail(strict=True)\ndef f(): ...\n"),
}


@pytest.mark.parametrize("check", [swallowed_errors, forbidden_words, unexplained_skips])
def test_no_file_has_what_no_file_may_have(
    sources_of: Sources, check: Callable[[str, str], list[str]]
) -> None:
    """No error is swallowed, no work is put off in a comment, no test is skipped silently."""
    faults = [fault for path, text in sources_of(*ROOMS).items() for fault in check(path, text)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", PER_FILE)
def test_what_no_file_may_have_is_seen(name: str) -> None:
    """Each of these lines is found once, with its place."""
    check, source = PER_FILE[name]
    (fault,) = check("a.py", source.replace("%", ""))
    assert fault.startswith("a.py:")


def test_a_skip_with_a_reason_is_fine() -> None:
    """A reason may be an argument or a keyword, and its text may be computed."""
    source = (
        "pytest.skip('no disk')\npytest.skip(reason=text)\npytest.skip(f'no {x}')\n"
        "@pytest.mark.skipif(True, reason='no disk')\ndef f(): ...\n"
    )
    assert unexplained_skips("a.py", source) == []
