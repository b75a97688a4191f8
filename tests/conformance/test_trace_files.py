import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.workloads import trace_files
from conformance.workloads.workload import KvCacheTesterTrace, MooncakeTrace, TraceError, open_trace

GOOD = {"timestamp": 2500, "input_length": 1030, "output_length": 513, "hash_ids": [7, 8, 9]}
GOOD_AGENT = {"t": 1.5, "type": "n", "in": 130, "out": 65, "hash_ids": [3, 4]}


def lines(*requests: object) -> str:
    """Return the text of a Mooncake trace."""
    return "".join(json.dumps(request) + "\n" for request in requests)


def conversation(*requests: object) -> str:
    """Return the text of a kv-cache-tester trace."""
    return json.dumps({"id": "x", "block_size": 64, "requests": requests})


@pytest.fixture
def trace(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Return a function that writes a trace and returns its path."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "trace.any"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_torn_last_line_is_dropped_and_reported(trace: Callable[[str], Path]) -> None:
    """What a crash left at the end is no error: the complete requests are used."""
    path = trace(lines(GOOD, GOOD) + '{"timestamp": 27, "inp')
    workload = open_trace(path, 1)
    assert len(list(workload)) == workload.num_requests == 2
    (notice,) = workload.notices
    assert notice.startswith(f"{path}:3: the last line is torn and not used: not JSON: ")
    assert notice.endswith("; 2 complete requests are used")
    complete = open_trace(trace(lines(GOOD).rstrip("\n")), 1)
    assert (complete.num_requests, complete.notices) == (1, [])


def bad_line(**fields: object) -> str:
    """Return a trace whose second line differs from a good one by these fields."""
    return lines(GOOD, {**GOOD, **fields})


def deep_conversation(depth: int) -> str:
    """Return a conversation whose sub-agents have sub-agents, down to a depth."""
    request: dict[str, object] = GOOD_AGENT
    for _ in range(depth):
        request = {"type": "subagent", "t": 0, "requests": [request]}
    return conversation(request)


LENGTH = "must be an integer from 1 to 10000000"
ID = "must be an integer from 0 to 2**48 - 1"
MOONCAKE_FAULTS: dict[str, tuple[str | bytes, int | None, str]] = {
    "empty": ("", None, "holds no request; give a complete trace"),
    "blank": ("\n \n", None, "holds no request"),
    "only a torn line": ('{"timestamp": 0, ', None, "holds no request ("),
    "not JSON": (lines(GOOD) + "{timestamp: 1}\n", 2, "not JSON: Expecting property name"),
    "cut inside": ('{"timestamp": 0,\n' + lines(GOOD), 1, "at column 17, near "),
    "a list": (lines([1, 2]), 1, "the line must be a JSON object: [1, 2]; write one"),
    "null": (lines(None), 1, "the line must be a JSON object: None"),
    "two objects": ("{} {}\n", 1, "not JSON: Extra data at column 4, near '{} {}'"),
    "not UTF-8": (lines(GOOD).encode() + b'{"\xff": 1}\n', 2, "not UTF-8: byte 0xff at position 2"),
    "deep": ("[" * 100_000 + "\n", 1, "not usable JSON: maximum recursion depth"),
    "long number": ("9" * 5000 + "\n", 1, "not usable JSON: Exceeds the limit"),
    "missing": ('{"timestamp": 0}\n', 1, "input_length is missing: {'timestamp': 0}; add"),
    "boolean": (bad_line(input_length=True), 2, f"input_length {LENGTH}: True; correct"),
    "fraction": (bad_line(input_length=1030.0), 2, f"input_length {LENGTH}: 1030.0;"),
    "text": (bad_line(input_length="1030"), 2, f"input_length {LENGTH}: '1030';"),
    "zero": (bad_line(input_length=0), 2, f"input_length {LENGTH}: 0;"),
    "absurd": (bad_line(input_length=10_000_001), 2, f"input_length {LENGTH}: 10000001;"),
    "negative output": (bad_line(output_length=-1), 2, "integer from 0 to 10000000: -1;"),
    "absurd output": (bad_line(output_length=10**30), 2, "output_length must be an integer"),
    "null output": (bad_line(output_length=None), 2, "from 0 to 10000000: None;"),
    "negative time": (bad_line(timestamp=-0.5), 2, "milliseconds, 0 or more: -0.5;"),
    "no number": (bad_line(timestamp=float("nan")), 2, "a finite number of milliseconds"),
    "infinite": (bad_line(timestamp=float("inf")), 2, "0 or more: inf;"),
    "huge time": (bad_line(timestamp=10**400), 2, "timestamp must be a finite number"),
    "text time": (bad_line(timestamp="0"), 2, "timestamp must be a finite number"),
    "ids no list": (bad_line(hash_ids="789"), 2, "hash_ids must be a list of integers from 0"),
    "negative id": (bad_line(hash_ids=[7, 8, -1]), 2, f"hash_ids[2] {ID}: -1;"),
    "absurd id": (bad_line(hash_ids=[7, 2**48, 9]), 2, f"hash_ids[1] {ID}: {2**48};"),
    "boolean id": (bad_line(hash_ids=[True, 8, 9]), 2, f"hash_ids[0] {ID}: True;"),
    "text id": (bad_line(hash_ids=["7", 8, 9]), 2, f"hash_ids[0] {ID}: '7';"),
    "too few ids": (bad_line(hash_ids=[7, 8]), 2, "hold ceil(1030 / 512) = 3 ids, got 2: [7, 8];"),
    "too many ids": (bad_line(input_length=1024), 2, "ceil(1024 / 512) = 2 ids, got 3: [7, 8, 9]"),
    "no ids": (bad_line(hash_ids=[]), 2, "= 3 ids, got 0: [];"),
    "repeated": (bad_line(hash_ids=[7, 8, 7]), 2, "hash_ids[2] repeats hash_ids[0]: 7; an id"),
}
AGENT = {"type": "subagent", "t": 0}
CONVERSATION_FAULTS: dict[str, tuple[str | bytes, int | None, str]] = {
    "not JSON": (
        '{"block_size": 64,\n "requests": [}',
        2,
        "not JSON: Expecting value at column 15",
    ),
    "cut": (conversation(GOOD_AGENT)[:-9], 1, "not JSON: Expecting value at column 102, "),
    "not UTF-8": (b'{"requests":\n"\xc3("}', 2, "not UTF-8: byte 0xc3 at position 14; save"),
    "a list": ('[{"requests": []}]', None, "the file must be a JSON object: [{'requests': []}];"),
    "other unit": ('{"block_size": 16, "requests": []}', None, "block_size must be 64: 16;"),
    "no unit": ('{"requests": []}', None, "block_size must be 64: None;"),
    "no list": ('{"block_size": 64, "requests": {}}', None, "requests must be a list: {};"),
    "none": (conversation(), None, "holds no request"),
    "no object": (conversation(GOOD_AGENT, 5), None, "requests[1] must be a JSON object: 5;"),
    "missing": (conversation({"t": 0}), None, "requests[0].in is missing: {'t': 0};"),
    "text": (conversation({**GOOD_AGENT, "in": "130"}), None, f"requests[0].in {LENGTH}: '130';"),
    "output": (conversation({**GOOD_AGENT, "out": -1}), None, "requests[0].out must be"),
    "time": (conversation({**GOOD_AGENT, "t": -1}), None, "requests[0].t must be a finite"),
    "ids": (conversation(GOOD_AGENT, {**GOOD_AGENT, "in": 300}), None, "requests[1].hash_ids must"),
    "id": (
        conversation({**GOOD_AGENT, "hash_ids": [1, -1]}),
        None,
        f"requests[0].hash_ids[1] {ID}",
    ),
    "agent time": (
        conversation({**AGENT, "t": None}),
        None,
        "requests[0].t must be a finite number",
    ),
    "agent list": (conversation(AGENT), None, "requests[0].requests must be a list: None;"),
    "agents": (deep_conversation(9), None, "requests are nested more than 8 deep; flatten"),
    "agent request": (
        conversation({**AGENT, "requests": [GOOD_AGENT, {**GOOD_AGENT, "hash_ids": [3]}]}),
        None,
        "requests[0].requests[1].hash_ids must hold floor(130 / 64) = 2 ids, got 1: [3]; correct",
    ),
}


@pytest.mark.parametrize("fault", MOONCAKE_FAULTS)
def test_a_faulty_line_is_refused_with_its_place(
    trace: Callable[[str | bytes], Path], fault: str
) -> None:
    """A Mooncake trace that cannot be replayed is refused before any request is yielded."""
    content, line, problem = MOONCAKE_FAULTS[fault]
    assert_refused(trace(content), line, problem)


@pytest.mark.parametrize("fault", CONVERSATION_FAULTS)
def test_a_faulty_conversation_is_refused_with_its_place(
    trace: Callable[[str | bytes], Path], fault: str
) -> None:
    """A kv-cache-tester trace that cannot be replayed is refused, with the request's index."""
    content, line, problem = CONVERSATION_FAULTS[fault]
    assert_refused(trace(content), line, problem)


def assert_refused(path: Path, line: int | None, problem: str) -> None:
    """Check that opening raises one line that names the place, the problem and a remedy."""
    with pytest.raises(TraceError) as caught:
        open_trace(path, 1)
    error = caught.value
    assert (error.path, error.line) == (path, line)
    assert problem in error.problem
    place = f"{path}:{line}" if line else f"{path}"
    assert str(error) == f"{place}: {error.problem}"
    assert "; " in error.problem
    assert "\n" not in str(error)
    assert len(error.problem) < 300


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a missing file, an impossible name and a pipe are refused by name."""
    assert_refused(tmp_path, None, "is not a regular file; give the path of a trace file")
    assert_refused(tmp_path / "absent", None, "does not exist; give")
    assert_refused(tmp_path / ("x" * 300), None, "cannot be read: File name too long; check")
    assert_refused(Path("a\0b"), None, "does not exist; give")
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", None, "is not a regular file")


@pytest.mark.skipif(
    not Path("/proc/self/mem").is_file(),
    reason="needs Linux's /proc/self/mem, a file whose first byte cannot be read",
)
def test_a_file_that_fails_while_it_is_read_is_refused() -> None:
    """An error of the disk becomes a trace error, in the look at the format and in both readers."""
    path = Path("/proc/self/mem")
    assert_refused(path, None, "cannot be read: Input/output error; check")
    for kind in (MooncakeTrace, KvCacheTesterTrace):
        with pytest.raises(TraceError, match="cannot be read: Input/output error"):
            kind(path, 1)


def test_a_file_too_large_to_hold_is_refused(
    trace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded: neither an endless line nor a huge object is read into it."""
    monkeypatch.setattr(trace_files, "_MAX_LINE_BYTES", 200)
    monkeypatch.setattr(trace_files, "_MAX_OBJECT_BYTES", 100)
    assert_refused(trace(lines(GOOD) + " " * 199 + "{}"), 2, "is longer than 200 bytes; put")
    assert_refused(trace(conversation(GOOD_AGENT)), None, "is larger than 100 bytes: ")


def test_a_file_that_changed_after_its_check_is_refused(trace: Callable[[str], Path]) -> None:
    """What was checked is what is replayed, or nothing is."""
    workload = open_trace(trace(lines(GOOD)), 1)
    trace(lines(GOOD, GOOD))
    with pytest.raises(TraceError, match="changed after it was checked; open it again"):
        list(workload)


def test_memory_stays_flat_however_long_a_trace_is(trace: Callable[[str], Path]) -> None:
    """Checking and iterating hold a line at a time, not the file and not the requests."""
    ids = list(range(200))
    path = trace(lines({**GOOD, "input_length": 200 * 512, "hash_ids": ids}) * 1500)
    assert path.stat().st_size > 1_000_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_trace(path, 1)) == 1500
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300_000


def test_a_trace_error_survives_a_process_boundary() -> None:
    """A worker's trace error arrives whole."""
    error = TraceError(Path("a"), 3, "is bad: 1; mend it")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 (the test's own bytes)
    assert (again.path, again.line, str(again)) == (Path("a"), 3, "a:3: is bad: 1; mend it")
