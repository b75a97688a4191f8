"""Keys tell everything that decides a block's content, and nothing else."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache import (
    BuiltinKey,
    CacheConfig,
    HashChain,
    KVCacheManager,
    LoRARequest,
    MultiModalItem,
    Request,
    encode_extra_keys,
    generate_extra_keys,
)
from kvcache.hashing import BlockHash, key_kind, sha256_root

ALGORITHMS = ("sha256", "builtin")


def chain_of(request: Request, algorithm: str, block_size: int = 2) -> HashChain:
    """Return the chain of a request by itself."""
    config = CacheConfig.model_validate(
        {
            "num_gpu_blocks": 2,
            "block_size": block_size,
            "max_model_len": 9,
            "caching_hash_algo": algorithm,
        }
    )
    chain = HashChain(request, key_kind(config))
    chain.extend()
    return chain


def keys(algorithm: str, word: str, **options: object) -> list[BlockHash]:
    """Return the keys of a request by itself."""
    request = Request("r", [ord(letter) for letter in word], **options)  # type: ignore[arg-type]  # any option
    return chain_of(request, algorithm).keys


def test_a_sha256_key_is_the_digest_of_a_fixed_string() -> None:
    """Parent, tokens of 8 bytes little-endian, extra keys: another program can compute it."""
    root = hashlib.sha256(b"kvcache block key 1" + (2).to_bytes(8, "little")).digest()
    assert root == sha256_root(2)
    first = hashlib.sha256(root + b"a" + bytes(7) + b"b" + bytes(7)).digest()
    second = hashlib.sha256(first + b"c" + bytes(7) + b"d" + bytes(7)).digest()
    assert [first, second] == keys("sha256", "abcde")


@pytest.mark.slow
def test_sha256_keys_are_the_same_in_every_process() -> None:
    """Neither the process nor the interpreter's hash seed changes a key."""
    program = (
        "from kvcache import *; from kvcache.hashing import key_kind\n"
        "config = CacheConfig(num_gpu_blocks=2, block_size=2, max_model_len=9)\n"
        "item = MultiModalItem(identifier='i', offset=1, length=2)\n"
        "adapter = LoRARequest(lora_id='x', generation=3)\n"
        "r = Request('r', [7, 8, 2**63 - 1, 0], lora_request=adapter, mm_items=[item],"
        " cache_salt='s')\n"
        "print(*(key.hex() for key in HashChain(r, key_kind(config)).extend()))"
    )
    outputs = {
        subprocess.run(  # noqa: S603  # the program is the constant above
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    (output,) = outputs
    assert [len(key) for key in output.split()] == [64, 64]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_full_blocks_have_keys(algorithm: str) -> None:
    """A half block has no key, so its key never changes while it fills."""
    assert [len(keys(algorithm, "abcd"[:n])) for n in range(1, 5)] == [0, 1, 1, 2]
    assert keys(algorithm, "abc") == keys(algorithm, "abd")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_tells_the_whole_prefix(algorithm: str) -> None:
    """Equal tokens after different prefixes have different keys; equal prefixes have equal ones."""
    assert keys(algorithm, "abcd")[1] != keys(algorithm, "xbcd")[1]
    assert keys(algorithm, "abcd") == keys(algorithm, "abcde")


def test_block_sizes_never_meet() -> None:
    """The first parent tells the block size, so `abcd` as 2 + 2 and as 4 share no key."""
    request = Request("r", [1, 2, 3, 4])
    assert not set(chain_of(request, "sha256", 2).keys) & set(chain_of(request, "sha256", 4).keys)


OPTIONS: list[dict[str, object]] = [
    {},
    {"cache_salt": "x"},
    {"cache_salt": "y"},
    {"cache_salt": "1"},
    {"cache_salt": ""},
    {"lora_request": LoRARequest(lora_id="x")},
    {"lora_request": LoRARequest(lora_id="x", generation=1)},
    {"lora_request": LoRARequest(lora_id="1")},
    {"lora_request": LoRARequest(lora_id=1)},
    {"lora_request": LoRARequest(lora_id="x"), "cache_salt": "x"},
    {"mm_items": [MultiModalItem(identifier="x", offset=0, length=2)]},
    {"mm_items": [MultiModalItem(identifier="x", offset=0, length=1)]},
    {"mm_items": [MultiModalItem(identifier="x", offset=1, length=1)]},
    {"mm_items": [MultiModalItem(identifier="y", offset=0, length=2)]},
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_adapter_media_and_salt_separate_equal_tokens(algorithm: str) -> None:
    """The adapter x, its next generation, the salt x and the image x never share a block."""
    chains = [keys(algorithm, "abcd", **options) for options in OPTIONS]
    for one, other in itertools.combinations(chains, 2):
        assert not set(one) & set(other)


def test_extra_keys_are_tagged_fields() -> None:
    """The adapter is in every block, an item where it is seen, the salt in the first block only."""
    request = Request(
        "r",
        range(8),
        lora_request=LoRARequest(lora_id="a", generation=2),
        mm_items=[
            MultiModalItem(identifier="late", offset=5, length=1),
            MultiModalItem(identifier="early", offset=1, length=4),
        ],
        cache_salt="s",
    )
    lora = ("lora", "a", 2)
    assert [generate_extra_keys(request, start, start + 2) for start in range(0, 8, 2)] == [
        (lora, ("mm", "early", -1, 1), ("salt", "s")),
        (lora, ("mm", "early", 1, 2)),
        (lora, ("mm", "early", 3, 1), ("mm", "late", -1, 1)),
        (lora,),
    ]


FIELDS = st.one_of(st.integers(-300, 300), st.sampled_from(["", "a", "1", "s\0", "\ud800", "é"]))
EXTRA_KEYS = st.lists(st.lists(FIELDS, max_size=3).map(tuple), max_size=3).map(tuple)


@settings(deadline=None)
@given(EXTRA_KEYS, EXTRA_KEYS)
def test_different_extra_keys_have_different_bytes(
    one: tuple[tuple[str | int, ...], ...], other: tuple[tuple[str | int, ...], ...]
) -> None:
    """The encoding is injective; nothing at all is the empty string."""
    assert (one == other) == (encode_extra_keys(one) == encode_extra_keys(other))
    assert (one == ()) == (encode_extra_keys(one) == b"")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_hashed_twice(algorithm: str) -> None:
    """A chain keeps its keys when tokens are confirmed, and gets only the new ones."""
    request = Request("r", [1, 2, 3])
    chain = chain_of(request, algorithm)
    (first,) = chain.keys
    request.append_output_token_ids([4, 5])
    assert chain.extend()[0] is first
    assert chain.keys == chain_of(Request("s", [1, 2, 3, 4, 5]), algorithm).keys


def test_an_array_of_tokens_stays_extendable() -> None:
    """Hashing lends the token array out and gives it back."""
    request = Request("r", [1, 2])
    chain_of(request, "sha256")
    request.append_output_token_ids([3, 4])
    assert request.num_tokens == 4


def test_a_collision_is_a_miss(
    monkeypatch: pytest.MonkeyPatch,
    manager_of: Callable[..., KVCacheManager],
    request_of: Callable[..., Request],
    new: Callable[..., Request],
) -> None:
    """With a constant hash function `xycde` hits one block of `abcd` and `xyz`: its own `xy`."""
    monkeypatch.setattr("kvcache.hashing.builtin_hash", lambda *_: 1)
    manager = manager_of(caching_hash_algo="builtin")
    new(manager, "A", "abcd")
    new(manager, "C", "xyz")
    hits, num_tokens = manager.get_computed_blocks(request_of("B", "xycde"))
    assert ([block.block_id for block in hits], num_tokens) == ([3], 2)
    hits, _ = manager.get_computed_blocks(request_of("D", "abcde"))
    assert [block.block_id for block in hits] == [1, 2]
    manager.check()


def test_builtin_keys_compare_in_a_loop_and_share_what_is_equal() -> None:
    """Long chains are compared without recursion, and the next comparison ends at once."""
    length = 20_000
    mine, theirs = (chain_of(Request("r", range(length)), "builtin", 1).keys for _ in range(2))
    assert mine[-1] == theirs[-1]
    for one, other in zip(mine, theirs, strict=True):
        assert isinstance(one, BuiltinKey)
        assert isinstance(other, BuiltinKey)
        assert one.parent is other.parent
    assert hash(mine[5]) == hash(theirs[5])


def test_builtin_keys_differ_in_every_part() -> None:
    """Tokens, extra keys, parent and length of the chain each make a difference."""
    parent = BuiltinKey(None, (1,))
    key = BuiltinKey(parent, (2,), (("salt", "s"),))
    assert key == BuiltinKey(BuiltinKey(None, (1,)), (2,), (("salt", "s"),))
    for other in (
        BuiltinKey(parent, (3,), (("salt", "s"),)),
        BuiltinKey(parent, (2,)),
        BuiltinKey(None, (2,), (("salt", "s"),)),
        BuiltinKey(BuiltinKey(None, (9,)), (2,), (("salt", "s"),)),
    ):
        assert key != other
    assert key != "key"
    assert repr(parent) == f"BuiltinKey(hash_value={parent.hash_value:#x}, tokens=(1,))"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_chain_continues_from_the_keys_that_were_found(
    algorithm: str,
    manager_of: Callable[..., KVCacheManager],
    request_of: Callable[..., Request],
    new: Callable[..., Request],
) -> None:
    """After a hit the chain holds the found objects, and so does the next key's parent."""
    for window in (None, 3):
        manager = manager_of(caching_hash_algo=algorithm, sliding_window=window)
        new(manager, "A", "abcdef")
        request = request_of("B", "abcdefg")
        hits, num_tokens = manager.get_computed_blocks(request)
        assert num_tokens == 6
        chain = manager._chains["B"].extend()
        assert chain[2] is hits[2].block_hash
        request.append_output_token_ids(ord("h"))
        following = manager._chains["B"].extend()[3]
        assert algorithm == "sha256" or getattr(following, "parent", None) is hits[2].block_hash
