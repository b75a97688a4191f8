"""What a model's config.json says of its KV cache, and what is wrong with one that does not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.planning.model_config import (
    BUNDLED,
    MAX_FILE_BYTES,
    ModelConfig,
    ModelConfigError,
    find_model,
    load_model_config,
)

GOOD: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 100,
    "torch_dtype": "bfloat16",
}
Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Return a way to write a config: what differs from a good one, None for an absent field."""

    def write(changes: dict[str, Any]) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in {**GOOD, **changes}.items() if v is not ...}))
        return path

    return write


SHAPES = {
    "llama-2-13b": ("full_attention", 40, 40, 128, 4096),
    "llama-3-8b": ("full_attention", 32, 8, 128, 8192),
    "mistral-7b-v0.1": ("sliding_window", 32, 8, 128, 32768),
    "deepseek-v2-lite": ("mla_attention", 27, 1, 576, 163840),
    "gemma-3-1b": ("sliding_window", 26, 1, 256, 32768),
}


@pytest.mark.parametrize("name", BUNDLED)
def test_the_bundled_shapes_are_those_of_the_models(name: str) -> None:
    """Kind, layers, heads, head size and length of each, as its publisher states them."""
    config = load_model_config(find_model(name))
    specs = config.kv_cache_specs(1, 16, "float16")
    first = specs["layers.0"]
    shape = (first.kind, len(specs), first.num_kv_heads, first.head_size)
    assert SHAPES[name] == (*shape, config.max_position_embeddings)


def test_a_folder_stands_for_the_config_in_it(written: Written) -> None:
    """A checkpoint's folder and the file in it give the same; other fields are not read."""
    path = written({"architectures": ["Any"], "rope_scaling": {"factor": 2.0}})
    assert path == find_model(str(path.parent))
    assert load_model_config(path) == ModelConfig.model_validate(GOOD)


def test_a_model_with_images_is_its_language_model(written: Written) -> None:
    """The fields stand inside `text_config`; a dtype beside it stands before one inside."""
    inner = {name: value for name, value in GOOD.items() if name != "torch_dtype"}
    absent = dict.fromkeys(inner, ...)
    path = written(absent | {"text_config": inner})
    assert load_model_config(path) == ModelConfig.model_validate(GOOD)
    inside = {"text_config": inner | {"torch_dtype": "float32"}}
    assert load_model_config(written(absent | inside)).dtype == "bfloat16"
    assert load_model_config(written(absent | inside | {"torch_dtype": ...})).dtype == "float32"
    beside = {"torch_dtype": ..., "dtype": "float16"}
    assert load_model_config(written(absent | inside | beside)).dtype == "float16"


def test_absent_fields_have_the_usual_meaning(written: Written) -> None:
    """No key-value heads: one for each head. `head_dim` stands before the quotient."""
    config = load_model_config(written({"num_key_value_heads": ...}))
    assert (config.num_kv_heads, config.head_size) == (8, 8)
    config = load_model_config(written({"num_key_value_heads": None, "head_dim": 256}))
    assert (config.num_kv_heads, config.head_size) == (8, 256)
    config = load_model_config(written({"torch_dtype": ..., "dtype": "float16"}))
    assert config.dtype == "float16"


WINDOWS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "----"),
    "null": ({"sliding_window": None}, "----"),
    "all": ({"sliding_window": 5}, "wwww"),
    "switched off": ({"sliding_window": 5, "use_sliding_window": False}, "----"),
    "from a layer on": (
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 3},
        "---w",
    ),
    "all but each third": ({"sliding_window": 5, "sliding_window_pattern": 3}, "ww-w"),
    "by name": (
        {
            "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "cache_implementation": "hybrid",
        },
        "-w-w",
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_each_way_to_say_which_layers_have_a_window_is_read(written: Written, name: str) -> None:
    """A window for all, a switch, a first layer, a pattern, and a list of layers."""
    changes, expected = WINDOWS[name]
    config = load_model_config(written(changes))
    assert expected == "".join("w" if window == 5 else "-" for window in config.windows)
    kinds = [spec.kind for spec in config.kv_cache_specs(1, 16, "int8").values()]
    assert expected == "".join("w" if kind == "sliding_window" else "-" for kind in kinds)


@given(kv_heads=st.integers(1, 24), group=st.integers(1, 8), num_workers=st.integers(1, 200))
def test_every_head_is_kept_and_all_equally_often(
    kv_heads: int, group: int, num_workers: int
) -> None:
    """Heads are split evenly, or each is kept by the same number of workers; else it is refused."""
    heads = kv_heads * group
    config = ModelConfig.model_validate(
        GOOD | {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 1}
    )
    even = kv_heads % num_workers == 0 or num_workers % kv_heads == 0
    if heads % num_workers or not even:
        with pytest.raises(ModelConfigError, match=f"over {num_workers} workers; give one of 1"):
            config.kv_cache_specs(num_workers, 16, "int8")
        return
    specs = config.kv_cache_specs(num_workers, 16, "int8")
    kept = specs["layers.0"].num_kv_heads * num_workers
    assert kept % kv_heads == 0
    assert kept == max(kv_heads, num_workers)


def test_a_latent_is_kept_whole_by_every_worker() -> None:
    """MLA has one latent; eight workers keep it eight times."""
    config = load_model_config(find_model("deepseek-v2-lite"))
    assert config.kv_cache_specs(8, 16, "int8") == config.kv_cache_specs(1, 16, "int8")


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": (
        {"num_hidden_layers": 0},
        "num_hidden_layers must be an integer from 1 to 10000: 0;",
    ),
    "a huge number": (
        {"num_hidden_layers": 10**9},
        "from 1 to 10000: 1000000000; correct the value",
    ),
    "an absent field": ({"num_hidden_layers": ...}, "num_hidden_layers is missing; add the field"),
    "no heads": ({"num_attention_heads": ...}, "num_attention_heads is missing; add the field"),
    "text": ({"num_attention_heads": "8"}, "must be an integer from 1 to 65536: '8'; correct"),
    "half a head": ({"num_attention_heads": 2.5}, "must be an integer from 1 to 65536: 2.5;"),
    "a negative size": ({"head_dim": -1}, "head_dim must be an integer from 1 to 2**31: -1;"),
    "unknown dtype": ({"torch_dtype": "float17"}, "torch_dtype must be one of float64, float32"),
    "unknown dtype, new name": ({"torch_dtype": ..., "dtype": 4}, "dtype must be one of float64"),
    "no head size": ({"hidden_size": ...}, "head_dim and hidden_size are missing; add one"),
    "uneven heads": ({"hidden_size": 65}, "no multiple of num_attention_heads: 65 and 8; correct"),
    "uneven groups": ({"num_key_value_heads": 3}, "no multiple of num_key_value_heads: 8 and 3;"),
    "a window of 1": ({"sliding_window": 1}, "2 or more, or null for full attention: 1; correct"),
    "a window of 0": ({"sliding_window": 0}, "2 or more, or null for full attention: 0; correct"),
    "another layer": (
        {"layer_types": ["full_attention", "linear_attention"]},
        "layer_types[1] must be full_attention or sliding_attention: 'linear_attention'; correct",
    ),
    "layers left out": (
        {"layer_types": ["full_attention"]},
        "layer_types must hold num_hidden_layers=4 entries: 1; correct one of the two",
    ),
    "no window": (
        {"layer_types": ["sliding_attention"] * 4},
        "layer_types names sliding_attention without sliding_window; add it",
    ),
    "which layers": (
        {"sliding_window": 5, "cache_implementation": "hybrid"},
        "no field says which layers have the window; add layer_types",
    ),
    "half a latent": ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing beside kv_lora_rank"),
    "a windowed latent": (
        {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "sliding_window": 5},
        "kv_lora_rank is given with sliding_window; remove one of them",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_bad_field_is_named_with_its_value(written: Written, name: str) -> None:
    """The message is the path, the field, the value and what to do."""
    changes, problem = PROBLEMS[name]
    path = written(changes)
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; give a config.json"),
    "blank": (b" \n\t\n", "is empty; give a config.json"),
    "text": (b"hello", "is not JSON: Expecting value: line 1 column 1 (char 0): 'hello'; give"),
    "torn": (b'{"num_hidden_layers": 4,', "is not JSON: Expecting property name"),
    "a list": (b"[1, 2]", "must be one JSON object: [1, 2]; give a config.json"),
    "another coding": ('{"a": "é"}'.encode("latin-1"), "is not UTF-8: byte 0xe9 at position 7;"),
    "too deep": (b"[" * 100_000, "is not JSON: "),
    "a long number": (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_config_is_refused(tmp_path: Path, name: str) -> None:
    """A file that is empty, torn, binary or something else is named with what is wrong."""
    content, problem = CONTENTS[name]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelConfigError) as caught:
        load_model_config(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert len(str(caught.value)) < len(str(path)) + 300


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """Weights that are named by mistake are refused by their size."""
    path = tmp_path / "weights.bin"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(ModelConfigError, match=f"is larger than {MAX_FILE_BYTES} bytes: "):
        load_model_config(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A missing file, an empty folder, a pipe and an impossible name; the shapes are offered."""
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        (str(tmp_path / "absent.json"), "absent.json: does not exist; give"),
        (str(tmp_path), "config.json: does not exist; give"),
        (str(tmp_path / "pipe"), "pipe: is not a regular file; give"),
        ("x" * 1000, "x: cannot be read: File name too long; give"),
    ):
        with pytest.raises(ModelConfigError) as caught:
            find_model(name)
        assert problem in str(caught.value)
        assert "or one of deepseek-v2-lite, gemma-3-1b, llama-2-13b" in str(caught.value)


def test_a_file_that_goes_away_is_told(tmp_path: Path) -> None:
    """A file may vanish between being found and being read."""
    with pytest.raises(ModelConfigError, match="cannot be read: No such file or directory; check"):
        load_model_config(tmp_path / "gone.json")
