import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from conformance.workloads.workload import (
    FRESH_TOKEN,
    GeneratedParams,
    GeneratedWorkload,
    KvCacheTesterTrace,
    MooncakeTrace,
    WorkItem,
    open_trace,
)

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


def test_a_mooncake_request_is_compressed_to_a_token_an_id(
    trace: Callable[[str], Path],
) -> None:
    """At block size 1 a full unit is one token and an incomplete one is a token of its own."""
    exact = {"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [7, 8]}
    workload = open_trace(trace(lines(GOOD, exact)), block_size=1)
    assert isinstance(workload, MooncakeTrace)
    assert workload.tokens_per_id == 512
    assert workload.num_requests == 2
    assert workload.name == "trace.any"
    first, second = workload
    assert list(first.prompt_token_ids) == [7, 8, FRESH_TOKEN]
    assert first == WorkItem("r1", first.prompt_token_ids, 2, 1030, 2.5)
    assert second == WorkItem("r2", second.prompt_token_ids, 0, 1024, 3.0)
    assert list(second.prompt_token_ids) == [7, 8]


def test_a_mooncake_request_is_expanded_to_its_length(trace: Callable[[str], Path]) -> None:
    """At any other block size an id is 512 tokens, and the last one only what is left."""
    (item,) = workload = open_trace(trace(lines(GOOD)), block_size=16)
    assert workload.tokens_per_id == 1
    expected = [*range(7 * 512, 9 * 512), *range(9 * 512, 9 * 512 + 6)]
    assert list(item.prompt_token_ids) == expected
    assert item.output_length == 513


def test_the_largest_id_expands_without_overflow(trace: Callable[[str], Path]) -> None:
    """The tokens of the id 2**48 - 1 are whole and stay below those that no other request has."""
    request = {**GOOD, "input_length": 1024, "hash_ids": [2**48 - 1, 0]}
    (item,) = open_trace(trace(lines(request)), block_size=512)
    first = (2**48 - 1) * 512
    assert list(item.prompt_token_ids) == [*range(first, first + 512), *range(512)]
    assert max(item.prompt_token_ids) < FRESH_TOKEN


def test_a_conversation_has_tails_of_its_own(trace: Callable[[str], Path]) -> None:
    """A kv-cache-tester tail has no id: its tokens occur in no other request."""
    path = trace(conversation(GOOD_AGENT, {**GOOD_AGENT, "in": 40, "hash_ids": []}))
    compressed = open_trace(path, block_size=1)
    assert isinstance(compressed, KvCacheTesterTrace)
    assert compressed.tokens_per_id == 64
    prompts = [list(item.prompt_token_ids) for item in compressed]
    assert prompts == [[3, 4, FRESH_TOKEN], [FRESH_TOKEN + 1]]
    assert [item.output_length for item in compressed] == [2, 2]
    first, second = open_trace(path, block_size=16)
    tail = [FRESH_TOKEN, FRESH_TOKEN + 1]
    assert list(first.prompt_token_ids) == [*range(3 * 64, 5 * 64), *tail]
    assert list(second.prompt_token_ids) == list(range(FRESH_TOKEN + 64, FRESH_TOKEN + 104))


def test_a_sub_agent_stands_where_the_conversation_waits_for_it(
    trace: Callable[[str], Path],
) -> None:
    """A sub-agent's requests come at its place, with times that begin at its own."""
    agent = {"type": "subagent", "t": 10, "requests": [GOOD_AGENT, GOOD_AGENT]}
    workload = open_trace(trace(conversation(GOOD_AGENT, agent, GOOD_AGENT)), block_size=1)
    seen = [(item.request_id, item.timestamp) for item in workload]
    assert seen == [("r0", 1.5), ("r1.0", 11.5), ("r1.1", 11.5), ("r2", 1.5)]


def test_the_content_tells_the_format_and_blank_lines_are_skipped(
    trace: Callable[[str], Path],
) -> None:
    """A pretty-printed object, CRLF and blank lines read as what they are; extra keys may come."""
    pretty = json.dumps({"block_size": 64, "requests": [GOOD_AGENT]}, indent=1)
    assert isinstance(open_trace(trace(pretty), 1), KvCacheTesterTrace)
    spaced = "\r\n" + json.dumps({**GOOD, "extra": None}) + "\r\n  \n" + json.dumps(GOOD) + "\n\n"
    workload = open_trace(trace(spaced), 1)
    assert [item.request_id for item in workload] == ["r2", "r4"]


def test_a_workload_is_read_again_and_up_to_its_limit(trace: Callable[[str], Path]) -> None:
    """Each iteration begins anew; what comes after the limit is neither checked nor yielded."""
    workload = open_trace(trace(lines(GOOD, GOOD) + "not JSON\n"), 1, limit=2)
    assert workload.num_requests == 2
    assert list(workload) == list(workload)
    assert next(iter(workload)) == next(iter(workload))


@pytest.mark.parametrize(("block_size", "limit"), [(0, None), (-3, None), (1, 0)])
def test_arguments_below_one_are_refused(
    trace: Callable[[str], Path], block_size: int, limit: int | None
) -> None:
    """A block size or a limit that yields nothing is the caller's mistake, not the file's."""
    name = "limit" if block_size == 1 else "block_size"
    with pytest.raises(ValueError, match=f"{name} must be at least 1: .*; give a positive"):
        open_trace(trace(lines(GOOD)), block_size, limit)


def test_the_same_seed_gives_the_same_requests_in_every_process() -> None:
    """Neither the process nor its hash seed has a say in a generated workload."""
    program = (
        "from conformance.workloads.workload import GeneratedWorkload\n"
        "for i in GeneratedWorkload(7, 200, 4):\n"
        "    print(i.request_id, list(i.prompt_token_ids), i.output_length, i.timestamp)\n"
    )
    here = "".join(
        f"{i.request_id} {list(i.prompt_token_ids)} {i.output_length} {i.timestamp}\n"
        for i in GeneratedWorkload(7, 200, 4)
    )
    root = Path(__file__).parents[2]
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        printed = subprocess.run(  # noqa: S603 (the test's own program)
            [sys.executable, "-c", program],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert printed == here
    assert list(GeneratedWorkload(7, 200, 4)) == list(GeneratedWorkload(7, 200, 4))
    assert list(GeneratedWorkload(8, 200, 4)) != list(GeneratedWorkload(7, 200, 4))


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_generated_prompts_collide_in_every_way(block_size: int) -> None:
    """Equal prompts, whole blocks, stops inside a block, and forks on and off a boundary occur."""
    items = list(GeneratedWorkload(3, 300, block_size))
    prompts = [tuple(item.prompt_token_ids) for item in items]
    assert all(prompts)
    assert len({item.request_id for item in items}) == 300
    assert [item.num_input_tokens for item in items] == [len(prompt) for prompt in prompts]
    assert [item.timestamp for item in items] == sorted(item.timestamp for item in items)
    assert {item.output_length for item in items} == set(range(7))
    assert max(Counter(prompts).values()) > 5
    assert len({len(prompt) for prompt in prompts}) > 5
    offsets = {len(prompt) % block_size for prompt in prompts}
    assert offsets == set(range(block_size))
    own = [[t >= FRESH_TOKEN for t in prompt] for prompt in prompts]
    forks = {fresh.index(True) % block_size for fresh in own if any(fresh)}
    assert forks == set(range(block_size))
    fresh_tokens = Counter(t for prompt in prompts for t in prompt if t >= FRESH_TOKEN)
    assert set(fresh_tokens.values()) == {1}


def test_the_same_block_comes_back_after_another_prefix() -> None:
    """Equal tokens under different parents occur, so a key without its parent would be wrong."""
    blocks: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for item in GeneratedWorkload(3, 100, 4):
        tokens = tuple(item.prompt_token_ids)
        for end in range(4, len(tokens) + 1, 4):
            blocks.setdefault(tokens[end - 4 : end], set()).add(tokens[: end - 4])
    assert max(len(prefixes) for prefixes in blocks.values()) > 5


def test_the_shape_parameters_are_kept() -> None:
    """Depth, tail, output and interval bound what is drawn; nonsense is refused by name."""
    params = GeneratedParams(
        branching=1, depth=2, share=0.0, max_tail=0, max_output_length=0, arrival_interval_s=0.0
    )
    workload = GeneratedWorkload(1, 50, 4, params)
    assert (workload.tokens_per_id, workload.notices) == (1, [])
    for item in workload:
        assert set(item.prompt_token_ids) <= set(range(4))
        assert len(item.prompt_token_ids) <= 8
        assert (item.output_length, item.timestamp) == (0, 0.0)
    with pytest.raises(ValidationError, match="depth"):
        GeneratedParams(depth=0)
    with pytest.raises(ValidationError, match="frozen"):
        params.depth = 3
    with pytest.raises(ValueError, match="num_requests must be at least 1: 0; give a positive"):
        GeneratedWorkload(1, 0, 4)
    with pytest.raises(ValueError, match="block_size must be at least 1: -2; give a positive"):
        GeneratedWorkload(1, 1, -2)


def test_a_generated_workload_streams() -> None:
    """The first of ten million requests come at once: none is made before it is asked for."""
    items = list(islice(GeneratedWorkload(5, 10_000_000, 16), 3))
    assert [item.request_id for item in items] == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("name", "num_requests", "num_tokens"),
    [("conversation", 12_031, 144_793_823), ("synthetic", 3_993, 61_194_628)],
)
def test_the_public_mooncake_traces_have_their_known_totals(
    traces_dir: Path, name: str, num_requests: int, num_tokens: int
) -> None:
    """The two traces of the release hold what their publishers counted."""
    workload = open_trace(traces_dir / "mooncake" / f"{name}_trace.jsonl", block_size=1)
    assert workload.notices == []
    lengths = [item.num_input_tokens for item in workload]
    assert (len(lengths), sum(lengths)) == (num_requests, num_tokens)
    assert workload.num_requests == num_requests


@pytest.mark.parametrize(("folder", "unit"), [("mooncake", 512), ("kv-cache-tester", 64)])
def test_both_forms_have_the_same_full_blocks(traces_dir: Path, folder: str, unit: int) -> None:
    """A compressed prompt has as many tokens of the trace as an expanded one has full units."""
    for path in sorted((traces_dir / folder).glob("*trace*.json*")):
        forms = zip(open_trace(path, 1, 500), open_trace(path, 16, 500), strict=True)
        for compressed, expanded in forms:
            full = [t for t in compressed.prompt_token_ids if t < FRESH_TOKEN]
            assert len(expanded.prompt_token_ids) == expanded.num_input_tokens
            assert len(full) == expanded.num_input_tokens // unit
            assert [t * unit for t in full] == list(
                expanded.prompt_token_ids[: len(full) * unit : unit]
            )


def test_the_public_conversations_have_the_totals_that_they_state(traces_dir: Path) -> None:
    """Every request of a conversation is replayed, those of its sub-agents included."""
    paths = sorted((traces_dir / "kv-cache-tester").glob("trace_*.json"))
    assert len(paths) == 18
    for path in paths:
        stated = json.loads(path.read_text())["totals"]["combined_tokens"]
        items = list(open_trace(path, block_size=64))
        assert sum(item.num_input_tokens for item in items) == stated["input"]
        assert sum(item.output_length for item in items) == stated["output"]
