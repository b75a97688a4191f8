"""The command `plan` goes from a model and bytes to blocks, and refuses what makes no sense."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.planning.model_config import find_model, load_model_config
from conformance.planning.plan import (
    MAX_SIZE_BYTES,
    UNITS,
    ModelFigures,
    Plan,
    budget_of,
    make_plan,
    parse_size,
)
from kvcache import PlanningConfig

GIB = 2**30
Command = Callable[..., Any]


def figures(output: str) -> dict[str, str]:
    """Return the rows of the table of figures."""
    return dict(re.findall(r"^(\w+(?: \w+)*) {2,}(\S.*?) *$", output, re.MULTILINE))


def workers(output: str) -> list[list[int]]:
    """Return the rows of the table of workers."""
    rows = re.findall(r"^│ +(\d.*?) │$", output, re.MULTILINE)
    return [[int(cell.replace(",", "")) for cell in row.split("│")] for row in rows]


def test_the_chapters_example_is_planned_to_the_byte(kvspec: Command) -> None:
    """Llama-2-13B in 40 GiB: 327,680 bytes a page, 13,107,200 a block, 3,276 blocks."""
    result = kvspec("plan", "--model", "llama-2-13b", "--available", "40GiB")
    assert result.exit_code == 0
    shown = figures(result.stdout)
    assert (shown["model"], shown["layers"]) == ("llama-2-13b", "40 full_attention")
    assert shown["a worker keeps"] == "40 heads of 128, float16"
    assert (shown["page bytes"], shown["block bytes"]) == ("327,680", "13,107,200")
    assert (shown["block"], shown["token bytes"]) == ("16 tokens", "819,200")
    assert shown["blocks"] == "3,276, null included"
    assert shown["tokens"] == "52,400, null's not counted"
    assert shown["concurrency"] == "12.79 requests of 4,096 tokens, 256 blocks each"
    assert workers(result.stdout) == [[0, 40 * GIB, 3276 * 13_107_200, 10_485_760, 3276]]
    assert result.stderr == ""


OTHERS = {
    "llama-3-8b": ("65,536", "20,480, null included", "39.99 requests of 8,192 tokens, 512"),
    "mistral-7b-v0.1": ("65,536", "20,480, null included", "53.19 requests of 32,768 tokens, 385"),
    "deepseek-v2-lite": ("18,432", "86,302, null included", "8.42 requests of 163,840 tokens"),
    "gemma-3-1b": ("16,384", "100,824, null included", "49.22 requests of 32,768 tokens, 2,048"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_kind_of_model_is_planned(kvspec: Command, name: str) -> None:
    """Grouped heads, a window, a latent, and windows beside full layers; parts are rounded down."""
    page, blocks, concurrency = OTHERS[name]
    shown = figures(kvspec("plan", "--model", name, "--available", "40GiB").stdout)
    assert (page, blocks) == (shown["page bytes"], shown["blocks"])
    assert shown["concurrency"].startswith(concurrency)


def test_windows_beside_full_layers_are_told(kvspec: Command) -> None:
    """The reader sees that windows save nothing here."""
    result = kvspec("plan", "--model", "gemma-3-1b", "--available", "1GiB")
    layers = "22 sliding_window, 4 full_attention, kept as full_attention"
    assert figures(result.stdout)["layers"] == layers
    assert "kvspec: 22 layers with a window keep everything, as the 4 full" in result.stderr


def test_the_memory_of_a_gpu_is_divided(kvspec: Command) -> None:
    """Total times utilization, less weights and activations: 80 * 0.9 - 26 - 6 = 40 GiB."""
    memory = "--gpu-memory 80GiB --utilization 0.9 --weights 26GiB --activations 6GiB"
    result = kvspec("plan", "--model", "llama-2-13b", *memory.split())
    assert (result.exit_code, result.stderr) == (0, "")
    assert workers(result.stdout)[0][1] == 40 * GIB
    bare = kvspec("plan", "--model", "llama-2-13b", "--gpu-memory", "80GiB")
    assert workers(bare.stdout)[0][1] == 72 * GIB
    assert "without --weights and --activations, 0 bytes are set aside" in bare.stderr


def test_the_worker_with_least_memory_decides(kvspec: Command) -> None:
    """Two workers keep half of the heads each; the larger one's blocks are not all used."""
    sizes = ("--available", "40GiB", "--available", "30GiB")
    result = kvspec("plan", "--model", "llama-3-8b", "--tp", 2, *sizes)
    assert [row[4] for row in workers(result.stdout)] == [40_960, 30_720]
    shown = figures(result.stdout)
    assert shown["blocks"] == "30,720, null included"
    assert (shown["a worker keeps"], shown["page bytes"]) == ("4 heads of 128, bfloat16", "32,768")


def test_fewer_heads_than_workers_are_kept_several_times(kvspec: Command) -> None:
    """Every worker has a head; the note says how many keep the same one."""
    result = kvspec("plan", "--model", "llama-3-8b", "--tp", 16, "--available", "1GiB")
    assert figures(result.stdout)["a worker keeps"] == "1 head of 128, bfloat16"
    assert len(workers(result.stdout)) == 16
    assert "kvspec: each of 8 key-value heads is kept by 2 workers" in result.stderr
    latent = kvspec("plan", "--model", "deepseek-v2-lite", "--tp", 4, "--available", "9GiB")
    assert "kvspec: the latent is kept by 4 workers" in latent.stderr


def test_every_option_reaches_the_plan(kvspec: Command, tmp_path: Path) -> None:
    """The plan that is written shows what was asked for, and is what was printed."""
    out = tmp_path / "plan.json"
    asked = (
        "--available 9GiB --block-size 32 --max-model-len 50000 --max-num-batched-tokens 512 "
        "--kv-cache-dtype int8 --num-gpu-blocks-override 100"
    )
    result = kvspec("plan", "--model", "mistral-7b-v0.1", *asked.split(), "--json", out)
    assert result.exit_code == 0
    plan = Plan.model_validate_json(out.read_text())
    assert (plan.block_size, plan.max_model_len, plan.dtype) == (32, 50_000, "int8")
    assert (plan.num_blocks, plan.usable_tokens) == (100, 99 * 32)
    assert plan.pages_per_request == -(-(4095 + 512) // 32) + 1
    assert figures(result.stdout)["block bytes"] == f"{plan.block_bytes:,}"
    assert "kvspec: 50000 tokens are more than the model's 32768" in result.stderr
    assert "kvspec: 100 blocks cannot hold one request of 50000 tokens" in result.stderr


def test_more_blocks_than_fit_are_told(kvspec: Command) -> None:
    """An override is used whatever fits; what it needs shows as less than nothing left over."""
    options = ("--available", "16GiB", "--num-gpu-blocks-override", 9000)
    result = kvspec("plan", "--model", "llama-3-8b", *options)
    assert workers(result.stdout.replace("-", ""))[0][4] == 9000
    assert "kvspec: 9000 blocks need more than the memory of a worker" in result.stderr


@given(
    st.sampled_from(list(OTHERS)), st.lists(st.integers(20 * GIB, 80 * GIB), min_size=1, max_size=1)
)
def test_a_plan_adds_up(name: str, budgets: list[int]) -> None:
    """Tensors fit, one block more would not, and a token's bytes are a block's over its tokens."""
    figures_ = ModelFigures(name, load_model_config(find_model(name)), 16, "float16")
    served = PlanningConfig(max_model_len=2000, max_num_batched_tokens=512)
    plan = make_plan(figures_, budgets, served)
    (worker,) = plan.workers
    assert worker.tensor_bytes <= worker.available_bytes < worker.tensor_bytes + plan.block_bytes
    assert worker.tensor_bytes == plan.block_bytes * plan.num_blocks
    assert plan.block_bytes == plan.page_size_bytes * sum(plan.layers.values())
    assert plan.token_bytes * plan.block_size == plan.block_bytes


WRONG: dict[str, tuple[str, str]] = {
    "no memory said": ("", "no memory is given; give --gpu-memory 80GiB or --available 40GiB"),
    "zero": ("--available 0", "'0' is no memory; give more than 0 bytes"),
    "zero GPU": ("--gpu-memory 0GiB", "'0GiB' is no memory; give more than 0 bytes"),
    "negative": ("--available -5GiB", "'-5GiB' is below zero; give 0 or more"),
    "negative weights": ("--gpu-memory 9GiB --weights -1", "'-1' is below zero"),
    "a comma": ("--available 1,000", "'1,000' is no size; give a number and one of bytes, kB"),
    "unknown unit": ("--available 80Gi", "'80Gi' is no size; give a number and one of"),
    "no number": ("--available GiB", "'GiB' is no size"),
    "too much": ("--available 9999999TiB", f"is more than {MAX_SIZE_BYTES} bytes; check the unit"),
    "utilization 0": ("--gpu-memory 9GiB --utilization 0", "0.0: it is a part of the memory; give"),
    "utilization 1.1": ("--gpu-memory 9GiB --utilization 1.1", "1.1: it is a part of the memory"),
    "utilization -1": ("--gpu-memory 9GiB --utilization -1", "-1.0: it is a part of the memory"),
    "utilization nan": ("--gpu-memory 9GiB --utilization nan", "nan: it is a part of the memory"),
    "both": ("--available 9GiB --gpu-memory 9GiB", "it says what is left for the cache; give it"),
    "both, weights": ("--available 9GiB --weights 1GiB", "give it without --gpu-memory"),
    "uneven sizes": ("--tp 4 --available 9GiB --available 8GiB", "2 sizes are given for 4 workers"),
    "no worker": ("--tp 0 --available 9GiB", "0: a model needs at least one worker; give a number"),
    "uneven workers": (
        "--tp 3 --available 9GiB",
        "cannot be split over 3 workers; give one of 1, 2",
    ),
    "unknown dtype": ("--available 9GiB --kv-cache-dtype fp8", "'fp8' is no dtype that is known"),
    "block size": ("--available 9GiB --block-size 0", "0: a block holds a token; give a number"),
    "length": ("--available 9GiB --max-model-len 0", "0: a request has a token; give a number"),
    "step": ("--available 9GiB --max-num-batched-tokens -1", "-1: a step computes a token"),
    "one block": ("--available 9GiB --num-gpu-blocks-override 1", "1: a pool has null and a block"),
    "used up": (
        "--gpu-memory 10GiB --weights 16GiB",
        "worker 0: -7516192768 bytes are available for the cache; give 1 or more: raise",
    ),
    "too little": (
        "--tp 2 --available 9GiB --available 256MiB",
        "537919488 bytes with the null block and 268435456 are available; the greatest length that",
    ),
    "json folder": ("--available 9GiB --json {there}", "is a folder; name a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused(kvspec: Command, tmp_path: Path, name: str) -> None:
    """The value, what is wrong and what to do; nothing is planned and the exit status is 2."""
    options, says = WRONG[name]
    out = tmp_path / "plan.json"
    words = options.format(there=tmp_path).split()
    result = kvspec("plan", "--model", "llama-3-8b", "--json", out, *words)
    assert result.exit_code == 2
    # The box around the message breaks it where the terminal ends.
    assert re.sub(r"\s+", "", says) in re.sub(r"[\s│]+", "", result.stderr)
    assert result.stdout == ""
    assert not out.exists()


BAD_MODELS: dict[str, tuple[str, str]] = {
    "not JSON": ("weights", ": is not JSON: "),
    "empty": ("", ": is empty; give a config.json"),
    "a field is missing": ('{"num_attention_heads": 8}', ": num_hidden_layers is missing; add"),
    "no dtype": (
        '{"num_attention_heads": 8, "num_hidden_layers": 2, "head_dim": 8}',
        "the model names no torch_dtype; add it or give --kv-cache-dtype float16",
    ),
    "no length": (
        '{"num_attention_heads": 8, "num_hidden_layers": 2, "head_dim": 8, "dtype": "float16"}',
        "the model names no max_position_embeddings; add it or give --max-model-len 4096",
    ),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_is_refused(kvspec: Command, tmp_path: Path, name: str) -> None:
    """One line names the file or the option that helps; the file is as it was."""
    text, says = BAD_MODELS[name]
    path = tmp_path / "config.json"
    path.write_text(text)
    result = kvspec("plan", "--model", path, "--available", "1GiB")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvspec: ")
    assert says in line
    assert path.read_text() == text


def test_the_model_is_never_written_over(kvspec: Command, tmp_path: Path) -> None:
    """A folder stands for the config in it, which is no place for the plan."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_attention_heads": 8, "num_hidden_layers": 2, "head_dim": 8}))
    before = path.read_text()
    result = kvspec("plan", "--model", tmp_path, "--available", "1GiB", "--json", path)
    assert result.exit_code == 2
    assert "is the input; name another file" in result.stderr
    assert path.read_text() == before


def test_help_names_the_models_and_the_exit_status(kvspec: Command) -> None:
    """What is bundled, and how the command ends."""
    shown = kvspec("plan", "--help")
    assert shown.exit_code == 0
    assert "Exit status: 0 planned, 2 bad input or too" in shown.output
    assert all(name in shown.output for name in ("llama-2-13b", "mistral-7b-v0.1"))


@given(st.integers(0, MAX_SIZE_BYTES), st.sampled_from(sorted(UNITS)), st.booleans())
def test_a_size_keeps_every_byte(number: int, unit: str, spaced: bool) -> None:  # noqa: FBT001  # drawn
    """A number and a unit are multiplied without rounding, in small or capital letters."""
    text = f"{number}{' ' if spaced else ''}{unit.upper() if spaced else unit}"
    size = number * UNITS[unit]
    if size <= MAX_SIZE_BYTES:
        assert size == parse_size(text)
        return
    with pytest.raises(ValueError, match="check the unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1.5 GiB", 3 * GIB // 2),
        ("80GB", 80 * 10**9),
        ("0.1KiB", 102),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_parts_of_a_unit_are_rounded_down(text: str, size: int) -> None:
    """A part of a byte is no byte; large numbers are exact."""
    assert size == parse_size(text)


@given(st.text("0159.- kKmGTiIbBe,\t²\u0663", max_size=8))
def test_any_text_is_a_size_or_is_refused_with_itself(text: str) -> None:
    """No text ends in another error, and the refusal shows it."""
    try:
        assert 0 <= parse_size(text) <= MAX_SIZE_BYTES
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017  # most texts are refused, some are not


def test_a_budget_is_exact() -> None:
    """The part that may be used is rounded down to a byte before the rest is taken off."""
    assert budget_of(80 * GIB, 0.9, 26 * GIB, 4 * GIB) == 42 * GIB
    assert (budget_of(101, 0.5, 1, 2), budget_of(10, 0.5, 9, 0)) == (47, -4)
