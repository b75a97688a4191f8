"""Every difference that docs/refinement.md lists is shown on vLLM 0.8.5 itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.adapters.sources_0_8_5 import load
from conformance.subject import RequestSpec
from spec.state import NULL, Config
from spec.statemachine import Outcome

Make = Callable[..., Any]


def test_misuse(vllm_0_8_5: Make, small: Config) -> None:
    """A double free, an unsealed touch, a negative number and a foreign block pass in silence."""
    m = vllm_0_8_5(small)
    (b,) = m.get_new_blocks(1)
    m.free_blocks([b])
    m.free_blocks([b])
    assert m.snapshot().ref_cnts[b] == -1
    m = vllm_0_8_5(small)
    (b,) = m.get_new_blocks(1)
    m.touch([b])
    assert m.snapshot().ref_cnts[b] == 2
    assert m.get_new_blocks(-1) == ()
    m.touch([b])
    foreign = load().kv_cache_utils.KVCacheBlock(3)
    foreign.ref_cnt = 1
    m.pool.free_blocks([foreign])
    assert foreign in m.pool.free_block_queue.get_all_free_blocks()
    assert foreign not in [block for block in m.pool.blocks if block is foreign]


def test_a_request_freed_before_its_step_ran(vllm_0_8_5: Make, small: Config) -> None:
    """What nobody wrote is found by the next request."""
    m = vllm_0_8_5(small)
    m.admit("a", (1, 2, 3))
    m.finish("a")
    assert m.found("b", (1, 2, 4)) == (1,)


def test_a_second_allocation_before_the_step_ran(vllm_0_8_5: Make, small: Config) -> None:
    """The same tokens are scheduled twice."""
    m = vllm_0_8_5(small)
    m.admit("a", (1, 2, 3))
    assert m.allocate_slots("a", 3, (), 0) == ()


def test_stale_hits(vllm_0_8_5: Make) -> None:
    """A hit that carries another text by now is used."""
    m = vllm_0_8_5(Config(4, 2))
    m.served("a", (1, 2, 3))
    hits = m.found("b", (1, 2, 4))
    m.served("c", (5, 6, 7, 8, 9, 9))
    assert m.snapshot().keys[hits[0]].token_ids != (1, 2)
    assert m.allocate_slots("b", 1, hits, 0) is not None


def test_a_request_larger_than_the_pool(vllm_0_8_5: Make) -> None:
    """It is told to wait, on an empty pool too."""
    assert vllm_0_8_5(Config(3, 2)).admit("a", (1, 2, 3, 4, 5)) is None


def test_drafts_only(vllm_0_8_5: Make, small: Config) -> None:
    """A step that computes no confirmed token is accepted."""
    m = vllm_0_8_5(small)
    m.admit("a", (1, 2, 3))
    m.run_step({"a": Outcome()})
    m.propose("a", [4, 5])
    assert m.allocate_slots("a", 2, (), 0) is not None


def test_what_may_be_sealed(vllm_0_8_5: Make) -> None:
    """When drafts are trimmed the number of sealed blocks goes down, and sealing again fails."""
    m = vllm_0_8_5(Config(9, 1))
    m.admit("a", (1, 2, 3))
    m.run_step({"a": Outcome(0, (4,))})
    m.propose("a", [5, 6, 7])
    assert m.manager.num_cached_block["a"] == 3
    m.allocate_slots("a", 1, (), 0)
    assert m.manager.num_cached_block["a"] == 1
    m.run_step({"a": Outcome(0, (8,))})
    with pytest.raises(AssertionError):
        m.allocate_slots("a", 1, (), 0)


def test_tokens_beyond_the_model(vllm_0_8_5: Make) -> None:
    """Blocks are capped to the width of the table, and the call succeeds."""
    m = vllm_0_8_5(Config(9, 2, max_model_len=4))
    assert m.admit("a", (1, 2, 3, 4, 5, 6, 7)) == (1, 2)


def test_null_hits_count_as_idle(vllm_0_8_5: Make) -> None:
    """A request whose hits are null before the window is refused though it fits."""
    m = vllm_0_8_5(Config(6, 1, sliding_window=2))
    m.served("a", (1, 2, 3, 4, 5))
    hits = m.found("b", (1, 2, 3, 4, 5, 6, 7))
    assert hits[:4] == (NULL,) * 4
    new, idle = 2, 1
    assert new + idle <= m.num_free()
    assert m.allocate_slots("b", new, hits, 0) is None


def test_the_null_block_is_counted(vllm_0_8_5: Make) -> None:
    """Its count falls below zero with every request that leaves a window behind."""
    m = vllm_0_8_5(Config(7, 1, sliding_window=2))
    m.admit("a", (1, 2, 3, 4, 5))
    m.run_step({"a": Outcome(0, (6,))})
    m.allocate_slots("a", 1, (), 0)
    m.finish("a")
    assert m.snapshot().ref_cnts[NULL] < 0


def test_sealing_in_a_window(vllm_0_8_5: Make) -> None:
    """With a window no larger than a block the previous block is null, and sealing fails."""
    m = vllm_0_8_5(Config(9, 2, sliding_window=2))
    m.admit("a", (1, 2))
    for token in (3, 4):
        m.run_step({"a": Outcome(0, (token,))})
        if token == 3:
            m.allocate_slots("a", 1, (), 0)
    with pytest.raises(AssertionError):
        m.allocate_slots("a", 1, (), 0)


def test_a_hit_wholly_before_the_window(vllm_0_8_5: Make) -> None:
    """A list that the caller built is touched and held as it is."""
    m = vllm_0_8_5(Config(9, 1, sliding_window=2))
    m.served("a", (1, 2, 3, 4))
    assert m.found("b", (1, 2, 3, 4))[:2] == (NULL, NULL)
    m.allocate_slots("b", 1, (1, 2, 3), 0)
    assert m.table("b")[0] == 1
    assert m.snapshot().ref_cnts[1] == 1


def test_the_usage_of_an_idle_pool(vllm_0_8_5: Make, small: Config) -> None:
    """The null block counts as used."""
    assert vllm_0_8_5(small).snapshot().usage == pytest.approx(1 / small.num_gpu_blocks)


def test_the_last_hit_is_dropped_for_eagle(vllm_0_8_5: Make, small: Config) -> None:
    """With `use_eagle` one hit less is returned."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3, 4, 5))
    m.manager.use_eagle = True
    assert len(m.found("b", (1, 2, 3, 4, 5))) == 1


@pytest.mark.usefixtures("vllm_0_8_5")
def test_the_default_hash() -> None:
    """Python's own hash is the default."""
    manager = load().kv_cache_manager.KVCacheManager
    assert inspect.signature(manager).parameters["caching_hash_algo"].default == "builtin"


def test_a_sha256_key_keeps_tokens_beside_the_digest(vllm_0_8_5: Make, small: Config) -> None:
    """The key is a tuple of digest, tokens and extra keys."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3))
    key: Any = next(key for key in m.snapshot().keys if key is not None)
    assert (key.token_ids, key.extra_keys) == ((1, 2), None)
    assert key.hash_value.bit_length() > 64


def test_a_builtin_key_is_found_behind_another_prefix(vllm_0_8_5: Make, small: Config) -> None:
    """The parent is compared by its hash value alone, and -1 and -2 have the same."""
    m = vllm_0_8_5(small, "builtin")
    m.served("a", (-1, 1, 2, 3, 4))
    chain = load().kv_cache_utils.hash_request_tokens
    request = SimpleNamespace(
        request_id="b", all_token_ids=[-2, 1, 2, 3], mm_positions=[], lora_request=None
    )
    keys = chain(hash, 2, request)
    assert m.pool.get_cached_block(keys[0]) is None
    assert m.pool.get_cached_block(keys[1]) is not None


def test_an_adapter_has_no_generation(vllm_0_8_5: Make, small: Config) -> None:
    """New weights under an old id find what the old ones wrote."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3), lora=(7, 1))
    assert m.found("b", (1, 2, 3), lora=(7, 2)) == (1,)


def test_media_have_no_offset(vllm_0_8_5: Make, small: Config) -> None:
    """The second half of an item is found where the first half is wanted."""
    m = vllm_0_8_5(small)
    m.served("a", (9, 9, 1), media=(("picture", 0, 4),))
    assert m.found("b", (9, 9, 1), media=(("picture", 0, 2),)) == (1,)


def test_there_is_no_salt(vllm_0_8_5: Make, small: Config) -> None:
    """Two users find each other's blocks; a request has no place to say otherwise."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3), salt="one user")
    assert m.found("b", (1, 2, 3), salt="another") == (1,)
    assert "cache_salt" not in inspect.signature(load().request.Request).parameters


def test_extra_keys_have_no_tags(vllm_0_8_5: Make, small: Config) -> None:
    """The adapter and the media item stand side by side in one tuple."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3), lora=(7, 0), media=(("picture", 0, 1),))
    key: Any = next(key for key in m.snapshot().keys if key is not None)
    assert key.extra_keys == (7, "picture")


def test_hits_without_a_look_up(vllm_0_8_5: Make, small: Config) -> None:
    """Keys are made at the look-up: hits of a request that had none die on an assertion."""
    m = vllm_0_8_5(small)
    m.served("a", (1, 2, 3))
    m.add_request("b", RequestSpec((1, 2, 3, 4)))
    with pytest.raises(AssertionError):
        m.allocate_slots("b", 2, (1,), 0)


def test_a_key_made_without_a_look_up(vllm_0_8_5: Make, small: Config) -> None:
    """It sees the last media item only, so another first item gives an equal key."""
    keys = []
    for item in ("dog", "cat"):
        m = vllm_0_8_5(small)
        m.add_request("a", RequestSpec((1, 2, 3), media=((item, 0, 1), ("tree", 2, 1))))
        m.allocate_slots("a", 3, (), 0)
        keys.append(m.snapshot().keys[1].extra_keys)
    assert keys[0] == keys[1]


def test_any_integer_is_a_token(vllm_0_8_5: Make, small: Config) -> None:
    """A negative token is served."""
    assert vllm_0_8_5(small).admit("a", (-5, 1 << 80, 3)) == (1, 2)


def test_one_id_for_two_requests(vllm_0_8_5: Make, small: Config) -> None:
    """The second one continues the first one's chain: it finds what it never asked for."""
    m = vllm_0_8_5(small)
    m.admit("a", (1, 2, 3))
    m.run_step({"a": Outcome()})
    m.free("a")
    assert m.found("a", (8, 8, 8)) == (1,)


def test_statistics(vllm_0_8_5: Make) -> None:
    """Every look-up counts, nulls are hits, and a resumed request counts like a new one."""
    m = vllm_0_8_5(Config(9, 1, sliding_window=2))
    m.manager.log_stats = True
    m.manager.prefix_cache_stats = load().kv_cache_manager.PrefixCacheStats()
    m.admit("a", (1, 2, 3, 4, 5))
    m.run_step({"a": Outcome()})
    m.preempt("a")
    for _ in range(2):
        assert m.get_computed_blocks("a")[:3] == (NULL, NULL, NULL)
    stats = m.manager.prefix_cache_stats
    assert (stats.requests, stats.queries, stats.hits) == (3, 12, 8)
