"""The configuration is checked when it enters and does not change."""

import pytest
from pydantic import ValidationError

from kvcache import CacheConfig


def test_the_defaults_are_caching_with_sha256_and_full_attention() -> None:
    """Sizes have no default; everything else has."""
    config = CacheConfig(num_gpu_blocks=2, block_size=1, max_model_len=1)
    assert (config.enable_caching, config.caching_hash_algo) == (True, "sha256")
    assert config.sliding_window is None


@pytest.mark.parametrize(
    "change",
    [
        {"num_gpu_blocks": 1},
        {"block_size": 0},
        {"max_model_len": 0},
        {"sliding_window": 1},
        {"caching_hash_algo": "md5"},
        {"block_size": "16"},
        {"num_gpu_blocks": 2.0},
        {"unknown": 1},
    ],
)
def test_a_value_out_of_range_is_refused(change: dict[str, object]) -> None:
    """Sizes have least values, types are strict, and unknown fields are errors."""
    fields = {"num_gpu_blocks": 2, "block_size": 1, "max_model_len": 1} | change
    with pytest.raises(ValidationError):
        CacheConfig.model_validate(fields)


def test_a_configuration_is_frozen() -> None:
    """No field can be set after construction."""
    config = CacheConfig(num_gpu_blocks=2, block_size=1, max_model_len=1)
    with pytest.raises(ValidationError):
        config.block_size = 2
