"""Whatever is wrong with a log is refused by its line, with the value and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.logs import oplog_reader
from conformance.logs.oplog import LogError, is_log, read_log, write_program
from conformance.program import VERBS, Operation, Program
from conformance.subject import RequestSpec
from spec.state import Config, Key
from spec.statemachine import Outcome

KEY = Key(Key(None, (1, 2)), (3, 4), (("lora", "x", 1),))
GOOD = (
    Operation("add_request", {"rid": "a", "request": RequestSpec((1, 2), salt="s")}),
    Operation("allocate_slots", {"rid": "a", "num_tokens": 2, "hits": (), "num_lookahead": 0}),
    Operation("run_step", {"outcomes": {"a": Outcome(0, (7,))}}),
    Operation("touch", {"ids": (1, 2)}),
    Operation("cache_full_blocks", {"table": (1,), "keys": (KEY,), "num_cached": 0, "num_full": 1}),
)
ADD, ALLOCATE, STEP, TOUCH, SEAL = range(2, 7)
"""The line of each."""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a way to write a log whose lines, by number, are replaced by others or changed."""

    def make(**replaced: Any) -> Path:  # noqa: ANN401  # a text, bytes, or fields to set
        path = tmp_path / "calls.ndjson"
        write_program(path, Program(Config(9, 2), GOOD), "reference")
        lines = [line.encode() for line in path.read_text().splitlines(keepends=True)]
        for name, new in replaced.items():
            at = int(name.removeprefix("line")) - 1
            lines[at] = new(lines[at]) if callable(new) else new.encode()
        path.write_bytes(b"".join(lines))
        return path

    return make


def refusal(path: Path) -> str:
    """Return why a log is refused, read to its end."""
    with pytest.raises(LogError) as caught:
        list(read_log(path))
    assert caught.value.path == path
    return str(caught.value)


def fields(**changed: Any) -> Callable[[bytes], bytes]:  # noqa: ANN401  # any JSON
    """Return what sets fields of a line; a path to one inside is joined by two underscores."""

    def change(raw: bytes) -> bytes:
        line = json.loads(raw)
        for path, value in changed.items():
            *outer, last = path.split("__")
            inner = line
            for name in outer:
                inner = inner[name]
            if value is GONE:
                del inner[last]
            else:
                inner[last] = value
        return json.dumps(line).encode() + b"\n"

    return change


GONE = object()

TORN = {
    '{"n": 2, "call": "fr': (1, "the last line is torn and not used: not JSON: "),
    '{"n": 2, "call": "free"': (1, "the last line is torn and not used: not JSON: "),
    '{"n": 2, "call": "free", "args": {"rid": "a"}, "answer": nu': (1, "is torn and not used"),
    '{"n": 2, "call": "free", "args": {"rid": "a"}, "answer": null': (2, "torn behind the answer"),
    '{"n": 2, "call": "free", "args": {"rid": "a"}': (2, "free, was begun and never answered"),
    "\udcff": (1, "torn and not used: not UTF-8: byte 0xff"),
    '{"n": 2, "call": "free", "args": {"rid": "a"}, "answer": null}': (2, None),
}


@pytest.mark.parametrize("end", TORN)
def test_a_torn_last_line_is_reported_and_the_rest_used(tmp_path: Path, end: str) -> None:
    """What is whole in it is used: the call, and the answer where that is there."""
    path = tmp_path / "log"
    operations = (Operation("free", {"rid": "a"}),)
    write_program(path, Program(Config(3, 1), operations), "reference")
    with path.open("ab") as file:
        file.write(end.encode("utf-8", "surrogateescape"))
    log = read_log(path)
    calls, notice = TORN[end]
    assert len(list(log)) == calls
    assert len(list(log)) == calls, "a log can be read again, with the same notices"
    if notice is None:
        assert log.notices == []
    else:
        (said,) = log.notices
        assert said.startswith(f"{path}:3: ")
        assert notice in said


LINE_DAMAGE: dict[str, tuple[int, Any, str]] = {
    "not JSON": (ADD, "{n: 1}\n", "not JSON: Expecting property name enclosed in double quotes at"),
    "cut inside": (ADD, '{"n": 1, "call"\n', "not JSON: Expecting ':' delimiter"),
    "two objects": (ADD, "{} {}\n", "not JSON: Extra data at column 4, near '{} {}"),
    "not UTF-8": (ADD, lambda raw: b"\xff" + raw, "not UTF-8: byte 0xff at position 0; a log is"),
    "binary": (ADD, lambda _: bytes(range(128, 256)) + b"\n", "not UTF-8: byte 0x80"),
    "zeros": (ADD, lambda _: bytes(50) + b"\n", "not JSON: Expecting value at column 1"),
    "a list": (ADD, "[1]\n", "the line must be a JSON object: [1]; write one object for each"),
    "null": (ADD, "null\n", "the line must be a JSON object: None"),
    "deep": (ADD, "[" * 100_000 + "\n", "not usable JSON: maximum recursion depth"),
    "long number": (ADD, "9" * 5_000 + "\n", "not usable JSON: Exceeds the limit"),
    "not a number": (TOUCH, fields(args__ids=[float("nan")]), "NaN is no JSON: NaN; a log has"),
    "infinite": (TOUCH, fields(args__ids=[float("-inf")]), "-Infinity is no JSON: -Infinity"),
    "twice": (TOUCH, '{"n": 4, "n": 4}\n', "n stands twice in one object: [('n', 4), ('n', 4)]"),
    "twice inside": (
        TOUCH,
        '{"n": 4, "call": "touch", "args": {"ids": [1], "ids": [2]}}\n',
        "ids stands twice in one object: [('ids', [1]), ('ids', [2])]; keep one",
    ),
    "second header": (TOUCH, '{"kvspec_log": 1}\n', "is a second header: {'kvspec_log': 1}; two"),
    "a line lost": (ALLOCATE, "", "n must be 2, one more than before: 3; a line was lost, doubled"),
    "a line doubled": (ALLOCATE, lambda raw: raw * 2, "n must be 3, one more than before: 2"),
    "number zero": (ADD, fields(n=0), "n must be at least 1: 0; correct it"),
    "number negative": (ADD, fields(n=-1), "n must be at least 1: -1"),
    "number as text": (ADD, fields(n="1"), "n must be an integer: '1'; correct it"),
    "number missing": (ADD, fields(n=GONE), "n is missing: {"),
    "verb unknown": (ADD, fields(call="fly"), f"call must be one of {', '.join(VERBS)}: 'fly'"),
    "verb a number": (ADD, fields(call=3), "call must be one of add_request, "),
    "verb a list": (ADD, fields(call=[]), "call must be one of add_request, "),
    "verb missing": (ADD, fields(call=GONE), "call is missing: {'args': "),
    "field unknown": (ADD, fields(when=3), "when is unknown: 3; take it out, or record again"),
    "arguments missing": (ADD, fields(args=GONE), "args is missing: {"),
    "arguments a list": (ADD, fields(args=[]), "args must be an object: []; correct it"),
    "argument missing": (ADD, fields(args__rid=GONE), "rid is missing in args: {'request': "),
    "argument unknown": (TOUCH, fields(args__rid="a"), "args.rid is unknown: 'a'; take it out"),
    "other verb's": (TOUCH, fields(call="free"), "rid is missing in args: {'ids': [1, 2]}"),
    "prompt missing": (ADD, fields(args__request={}), "prompt is missing in args.request: {}"),
    "a boolean": (TOUCH, fields(args__ids=[1, True]), "args.ids[1] must be an integer: True"),
    "a fraction": (TOUCH, fields(args__ids=[1.0]), "args.ids[0] must be an integer: 1.0"),
    "a text": (TOUCH, fields(args__ids="12"), "args.ids must be a list of integers: '12'"),
    "beyond": (TOUCH, fields(args__ids=[1 << 65]), "args.ids[0] must be from -2**64 to 2**64: 368"),
    "tokens": (ADD, fields(args__request__prompt=[None]), "args.request.prompt[0] must be an inte"),
    "salt": (ADD, fields(args__request__salt=3), "args.request.salt must be null or a text: 3"),
    "media": (
        ADD,
        fields(args__request__media=[["x", 1]]),
        "args.request.media[0] must be a list ",
    ),
    "lora": (ADD, fields(args__request__lora=["x"]), "args.request.lora must be null or [an adapt"),
    "hits": (
        ALLOCATE,
        fields(args__hits="lost"),
        'args.hits must be a list of integers or "found"',
    ),
    "outcome": (STEP, fields(args__outcomes__a=3), "args.outcomes.a must be an object that gives"),
    "accepted": (
        STEP,
        fields(args__outcomes__a__accepted=None),
        "args.outcomes.a.accepted must be",
    ),
    "key": (SEAL, fields(args__keys=[3]), "args.keys[0] must be a list of texts, or of chains"),
    "empty key": (SEAL, fields(args__keys=[[]]), "args.keys[0] must be a list of texts, or of"),
    "answer": (TOUCH, fields(answer=1.5), "answer must be null, true, false, a list of integers"),
    "snapshot": (TOUCH, fields(snapshot={}), "ref_cnts is missing in snapshot: {}; add it"),
    "unseen": (TOUCH, fields(unseen=3), "unseen must be an object with raised and a text: 3"),
}


@pytest.mark.parametrize("name", LINE_DAMAGE)
def test_a_damaged_line_is_named(write: Write, name: str) -> None:
    """The place, what is wrong, the value, and what to do."""
    line, new, problem = LINE_DAMAGE[name]
    path = write(**{f"line{line}": new})
    shown = line + (name == "a line doubled")
    said = refusal(path)
    assert said.startswith(f"{path}:{shown}: {problem}")
    assert said.partition("; ")[2], "it says what to do"


def config(**changed: object) -> Callable[[bytes], bytes]:
    """Return what sets fields of the header's configuration."""
    return fields(**{f"config__{name}": value for name, value in changed.items()})


HEADER_DAMAGE: dict[str, tuple[Any, str]] = {
    "missing": ("", "the header is missing: {"),
    "a trace": ('{"timestamp": 0}\n', "the header is missing: {'timestamp': 0}; the first line"),
    "version": (fields(kvspec_log=2), "kvspec_log must be 1: 2; read the log with the kvspec that"),
    "version true": (fields(kvspec_log=True), "kvspec_log must be 1: True"),
    "not JSON": ("kvspec\n", "not JSON: Expecting value at column 1"),
    "no configuration": (fields(config=GONE), "config is missing: {"),
    "no seed": (fields(seed=GONE), "seed is missing: {"),
    "seed": (fields(seed=1.5), "seed must be null or an integer: 1.5"),
    "subject": (fields(subject=None), "subject must be a text: None"),
    "unknown": (fields(more=1), "more is unknown: 1; take it out"),
    "one block": (config(num_gpu_blocks=1), "config.num_gpu_blocks must be an integer from 2 to"),
    "negative": (config(block_size=-4), "config.block_size must be an integer from 1 to 2**31 - 1"),
    "true blocks": (config(num_gpu_blocks=True), "config.num_gpu_blocks must be an integer from 2"),
    "window": (config(sliding_window=1), "config.sliding_window must be null or an integer from 2"),
    "caching": (config(enable_caching=1), "config.enable_caching must be true or false: 1"),
    "rule": (config(free_rule="lifo"), "config.free_rule must be append or unhashed_first: 'lifo'"),
    "half": (config(max_model_len=GONE), "max_model_len is missing in config: {"),
}


@pytest.mark.parametrize("name", HEADER_DAMAGE)
def test_a_damaged_header_is_named(write: Write, name: str) -> None:
    """A log that does not say what it was recorded on cannot be used at all."""
    new, problem = HEADER_DAMAGE[name]
    path = write(line1=new)
    with pytest.raises(LogError) as caught:
        read_log(path)
    assert str(caught.value).startswith(f"{path}:1: {problem}")


def test_what_is_no_log_at_all_is_refused(tmp_path: Path) -> None:
    """An empty file, a blank one, a torn header, a folder, nothing, and no path."""
    path = tmp_path / "log"
    for content, problem in {"": "is empty; record again", "\n \n": "is empty"}.items():
        path.write_text(content)
        assert refusal(path).startswith(f"{path}: {problem}")
    path.write_text('{"kvspec_log": 1, "con')
    assert refusal(path).startswith(f"{path}:1: the header is torn: not JSON: Unterminated string")
    path.write_text("log without a newline")
    assert refusal(path).startswith(f"{path}:1: the header is torn: not JSON: ")
    assert refusal(tmp_path).startswith(f"{tmp_path}: is not a regular file; give the path of an")
    absent = tmp_path / "absent"
    assert refusal(absent).startswith(
        f"{absent}: does not exist; give the path of an operation log"
    )
    assert "does not exist" in refusal(Path("a\0b"))


def test_blank_lines_do_not_count(write: Write) -> None:
    """They hold no call, and the lines behind them keep their numbers."""
    path = write(line3=lambda raw: b"\n\n" + raw)
    assert [call.line for call in read_log(path)] == [2, 5, 6, 7, 8]


def test_a_line_has_a_limit(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no log of calls is not read into memory whole."""
    monkeypatch.setattr(oplog_reader, "MAX_LINE_BYTES", 2_000)
    path = write(line4=f'{{"n": 3, {" " * 2_000}\n')
    assert refusal(path).startswith(f"{path}:4: is longer than 2000 bytes; put each call on a line")


def test_a_log_that_changes_while_it_is_used_is_refused(write: Write) -> None:
    """What was read of it may be of another log."""
    path = write()
    log = read_log(path)
    assert len(list(log)) == len(GOOD)
    write(line6="")
    with pytest.raises(LogError, match="changed after it was opened; open it again"):
        list(log)


def test_a_log_is_told_by_its_first_line(tmp_path: Path, trace: Callable[..., Path]) -> None:
    """Neither a trace nor what cannot be read is a log."""
    write_program(tmp_path / "log", Program(Config(3, 1), ()), "reference")
    assert is_log(tmp_path / "log")
    assert not any(map(is_log, (trace({}), tmp_path, tmp_path / "absent", Path("a\0b"))))
