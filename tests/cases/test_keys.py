"""Cases 49 to 58: keys that leave something out, collide, or change from process to process."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from conformance.driving.walk import Walk
from kvcache.hashing import generate_extra_keys

Pool = Callable[..., Any]

COLLIDING = {"constant": lambda *_: 7, "modulo 4": lambda *parts: hash(parts) % 4}
"""Hash functions that an attacker would wish for, in place of the interpreter's."""


@pytest.fixture(params=list(COLLIDING))
def colliding_pool(
    request: pytest.FixtureRequest, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> Pool:
    """Return `pool` with builtin keys whose hash values collide."""
    monkeypatch.setattr("kvcache.hashing.builtin_hash", COLLIDING[request.param])
    return lambda usable: pool(usable, algo="builtin")


def test_case_49_colliding_hash_values_do_not_mix_prompts(colliding_pool: Pool) -> None:
    """A hit is verified by content: all prompts of two blocks, each of four, stay apart."""
    scene = colliding_pool(60)
    blocks = ("ab", "ba", "aa", "bb")
    prompts = ["".join(pair) for pair in product(blocks, repeat=2)]
    for text in prompts:
        scene.new(text, text + "z")
    assert len(set(scene.seen.index)) == len(blocks) + len(prompts)
    for text in prompts:
        first, second, _ = scene.table(text)
        assert scene.look(text + "?", text + "?") == (first, second)
    assert scene.look("other", "acabz") == ()


def test_case_49_a_prefix_is_compared_too(any_pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with the same own tokens after another prefix is a miss."""
    monkeypatch.setattr("kvcache.hashing.builtin_hash", COLLIDING["constant"])
    scene = any_pool(8)
    scene.play("new(A,abcd); new(C,xyz)")
    assert scene.look("D", "xycde") == (3,)
    assert scene.look("E", "abcde") == (1, 2)


def test_case_57_a_long_mix_under_collisions_never_mixes_content(colliding_pool: Pool) -> None:
    """Random requests with adapters, salts and media: lockstep sees no false hit."""
    walk = Walk(colliding_pool(12).pair, seed=57)
    walk.run(1_500)
    assert walk.counts["admitted with hits"] > 10


@pytest.mark.parametrize("extra", [{"lora": "p"}, {"salt": "p"}, {"media": "p@0+2"}])
def test_case_57_a_collision_does_not_hide_an_extra_key(
    colliding_pool: Pool, extra: dict[str, str]
) -> None:
    """Equal tokens and equal hash values, other extra keys: a miss."""
    scene = colliding_pool(8)
    scene.new("A", "abcde", **extra)
    assert scene.look("B", "abcde") == ()
    assert scene.look("C", "abcde", **dict.fromkeys(extra, "q@0+2")) == ()
    assert scene.look("D", "abcde", **extra) == (1, 2)


@pytest.mark.parametrize("history", ["new(T,abcde,salt=t)", "new(T,xyz,salt=t); free(T)"])
def test_case_50_hits_under_one_salt_do_not_depend_on_another(any_pool: Pool, history: str) -> None:
    """Runs that differ in what t did give s the same hits; without pressure on the pool, at that.

    Under pressure t can still evict what s would have hit: a salt separates contents, not memory.
    """
    lengths = []
    for told in ("", history):
        scene = any_pool(20)
        for story in filter(None, (told, "new(S,abc,salt=s)")):
            scene.play(story)
        hits = [scene.look(f"S{text}", text, salt="s") for text in ("abq", "abcde", "xyz")]
        lengths.append([len(found) for found in hits])
    assert lengths[0] == lengths[1] == [1, 1, 0]


def test_case_50_a_salt_stands_in_the_first_block_and_the_chain_carries_it(any_pool: Pool) -> None:
    """Later blocks have no salt of their own and are apart all the same."""
    scene = any_pool(8)
    scene.play("new(A,abcde,salt=s)")
    request = scene.subject.requests["A"]
    assert generate_extra_keys(request, 0, 2) == (("salt", "s"),)
    assert generate_extra_keys(request, 2, 4) == ()
    assert scene.look("B", "abcde", salt="t") == ()
    assert scene.look("C", "abcde") == ()
    assert scene.look("D", "abcde", salt="s") == (1, 2)


def test_case_52_one_prompt_under_two_adapters_is_two_contents(any_pool: Pool) -> None:
    """Adapter p does not hit adapter q, nor the base model, nor older weights of its own name."""
    scene = any_pool(8)
    scene.new("A", "abcde", lora=("p", 1))
    assert scene.look("B", "abcde", lora=("q", 1)) == ()
    assert scene.look("C", "abcde") == ()
    assert scene.look("D", "abcde", lora=("p", 2)) == ()
    assert scene.look("E", "abcde", lora=("p", 1)) == (1, 2)


def test_case_54_the_adapter_is_in_the_key_itself(any_pool: Pool) -> None:
    """Whoever uses keys outside the pool can tell adapters apart at every block."""
    scene = any_pool(20)
    adapters: list[Any] = [None, ("p", 1), ("q", 1), ("1", 1), (1, 1)]
    for rid, adapter in enumerate(adapters):
        scene.new(f"R{rid}", "abcde", lora=adapter)
    keys = [key for key in scene.seen.keys if key is not None]
    assert len(set(keys)) == len(keys) == 2 * len(adapters)


@pytest.mark.parametrize(
    "other",
    [
        "cat-64x64@0+4",  # equal bytes in another shape have another identifier
        "aaaa1111@0+4",  # equal in the low 16 bits
        "bbbb1111@0+2",  # a part of the item
        "bbbb1111@1+4",  # the item one token later
        "",
    ],
)
def test_case_56_two_media_behind_equal_placeholders_are_two_contents(
    any_pool: Pool, other: str
) -> None:
    """Placeholder tokens say nothing: the item's whole identifier and its place are in the key."""
    scene = any_pool(8)
    scene.new("A", "....x", media="bbbb1111@0+4")
    hits = scene.look("B", "....x", media=other)
    assert hits == ((1,) if other == "bbbb1111@0+2" else ())
    assert scene.look("C", "....x", media="bbbb1111@0+4") == (1, 2)


def test_case_56_one_name_in_three_fields_is_three_contents(any_pool: Pool) -> None:
    """The adapter named x, the salt x and the item x never meet: extra keys are tagged."""
    scene = any_pool(12)
    extras: list[dict[str, Any]] = [{"lora": "x"}, {"salt": "x"}, {"media": "x@0+2"}, {}]
    for rid, extra in enumerate(extras):
        assert scene.new(f"R{rid}", "abc", **extra).hits == ()
    assert len(scene.seen.index) == 4


TELL_KEYS = """
from kvcache import CacheConfig, KVCacheManager, LoRARequest, MultiModalItem, Request
manager = KVCacheManager(CacheConfig(num_gpu_blocks=9, block_size=2, max_model_len=64))
request = Request(
    "r", range(9), lora_request=LoRARequest(lora_id="p"), cache_salt="s",
    mm_items=[MultiModalItem(identifier="cat", offset=1, length=3)],
)
manager.allocate_slots(request, 9)
print(*(block.block_hash.hex() for block in manager.block_pool.blocks if block.block_hash))
"""


@pytest.mark.slow
def test_case_58_keys_are_equal_in_every_process() -> None:
    """A key is a function of content and configuration, not of the interpreter that made it."""
    interpreters = [
        subprocess.Popen(  # noqa: S603  # it runs this interpreter on the text above
            [sys.executable, "-c", TELL_KEYS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "4294967295")
    ]
    first, *others = (interpreter.communicate()[0].split() for interpreter in interpreters)
    assert len(set(first)) == 4
    assert others == [first, first]


def test_case_58_two_pools_of_one_process_share_no_state_in_their_keys(pool: Pool) -> None:
    """No root is drawn at random: two managers give one prompt the same sha256 keys."""
    keys = []
    for usable in (4, 7):
        scene = pool(usable)
        scene.play("new(A,abcde,salt=s)")
        keys.append([key for key in scene.seen.keys if key is not None])
    assert keys[0] == keys[1]
