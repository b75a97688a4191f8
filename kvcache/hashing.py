"""Block keys: `key = H(parent key, token ids, extra keys)`, one per full block.

A key stands for everything that decides a block's content: the tokens of the block, the whole
prefix before it (through the parent), and the adapter, media and salt (through the extra keys).
Two ways to make it:

* **sha256**. The digest of a canonical byte string is the key, and nothing else is kept. The string
  is `parent | tokens | extra keys`: the parent is 32 bytes; each token is 8 bytes, little-endian;
  the extra keys take the rest. The first parent is a constant made from the block size, so two
  block sizes never meet and the fields need no separator. It is the same in every process.
* **builtin**. The interpreter's `hash` can be made to collide, so a key keeps tokens, extra keys
  and parent, and equality compares them all. The block's own tokens are not enough: with a constant
  `H`, `abcd` and `xyz` in the cache would give `xycde` a second block whose prefix is `ab`. A loop
  compares the chain, which may be longer than the interpreter's stack, down to the first parent
  that both sides share. Equality that was found is remembered by sharing the parent, so the next
  comparison is short and a look-up of `n` blocks is linear in `n`. Rejected: interning all keys,
  which needs a table of weak references.

Chapter 5.5.3.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.config import CacheConfig

TOKEN_BYTES = 8
_DOMAIN = b"kvcache block key 1"
_ROOT_HASH = 0

ExtraKey: TypeAlias = tuple[str | int, ...]


class Adapter(Protocol):
    """What a key needs to know of an adapter."""

    lora_id: int | str
    generation: int


class Media(Protocol):
    """What a key needs to know of a media item: the tokens `[offset, offset + length)` show it."""

    identifier: str
    offset: int
    length: int


class KeySource(Protocol):
    """What a key needs to know of a request."""

    token_ids: array[int]

    @property
    def lora_request(self) -> Adapter | None:
        """The adapter, if there is one."""

    @property
    def mm_items(self) -> Sequence[Media]:
        """The media items in order of offset, without overlap."""

    @property
    def cache_salt(self) -> str | None:
        """The value that separates this request's prefixes from others', if there is one."""


def _end(item: Media) -> int:
    return item.offset + item.length


def has_extra_keys(request: KeySource) -> bool:
    """Some block of the request has extra keys."""
    return bool(
        request.mm_items or request.lora_request is not None or request.cache_salt is not None
    )


def generate_extra_keys(request: KeySource, start: int, end: int) -> tuple[ExtraKey, ...]:
    """The extra keys of the block that holds positions `[start, end)`, each with its tag.

    `("lora", id, generation)` on every block; `("mm", identifier, start - offset, overlap)` for
    each item that meets the block, in order of offset; `("salt", value)` on the first block, from
    where the chain carries it on. Chapter 5.5.3.
    """
    keys: list[ExtraKey] = []
    adapter = request.lora_request
    if adapter is not None:
        keys.append(("lora", adapter.lora_id, adapter.generation))
    items = request.mm_items
    for item_idx in range(bisect_right(items, start, key=_end), len(items)):
        item = items[item_idx]
        if item.offset >= end:
            break
        overlap = min(end, _end(item)) - max(start, item.offset)
        keys.append(("mm", item.identifier, start - item.offset, overlap))
    if start == 0 and request.cache_salt is not None:
        keys.append(("salt", request.cache_salt))
    return tuple(keys)


def _encode_field(field: str | int) -> bytes:
    # A lone surrogate is a legal character of a Python string, hence "surrogatepass".
    kind, text = (b"s", field) if isinstance(field, str) else (b"i", str(field))
    payload = text.encode("utf-8", "surrogatepass")
    return kind + len(payload).to_bytes(TOKEN_BYTES, "little") + payload


def encode_extra_keys(extra_keys: tuple[ExtraKey, ...]) -> bytes:
    """The canonical bytes of extra keys; different keys have different bytes.

    A key is its number of fields (8 bytes, little-endian) and its fields; a field is its kind (one
    byte), its length (8 bytes, little-endian) and its text in UTF-8. No keys are no bytes.
    """
    return b"".join(
        len(key).to_bytes(TOKEN_BYTES, "little") + b"".join(map(_encode_field, key))
        for key in extra_keys
    )


def sha256_root(block_size: int) -> bytes:
    """The 32 bytes that stand for the parent of a first block of `block_size` tokens."""
    return sha256(_DOMAIN + block_size.to_bytes(TOKEN_BYTES, "little")).digest()


def builtin_hash(
    parent_hash: int, tokens: tuple[int, ...], extra_keys: tuple[ExtraKey, ...]
) -> int:
    """The hash value of a builtin key; it may collide without harm."""
    return hash((parent_hash, tokens, extra_keys))


class BuiltinKey:
    """A key that is compared by content and prefix; the hash value is only a first test."""

    __slots__ = ("extra_keys", "hash_value", "parent", "tokens")

    def __init__(
        self,
        parent: BuiltinKey | None,
        tokens: tuple[int, ...],
        extra_keys: tuple[ExtraKey, ...] = (),
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.extra_keys = extra_keys
        parent_hash = _ROOT_HASH if parent is None else parent.hash_value
        self.hash_value: int = builtin_hash(parent_hash, tokens, extra_keys)

    def __hash__(self) -> int:
        return self.hash_value

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BuiltinKey):
            return NotImplemented
        mine: BuiltinKey | None = self
        theirs: BuiltinKey | None = other
        while mine is not theirs:
            if (
                mine is None
                or theirs is None
                or mine.hash_value != theirs.hash_value
                or mine.tokens != theirs.tokens
                or mine.extra_keys != theirs.extra_keys
            ):
                return False
            mine, theirs = mine.parent, theirs.parent
        # A dict compares the key it keeps with the key asked for; the latter follows the former.
        _share_parents(other, self)
        return True

    def __repr__(self) -> str:
        return f"BuiltinKey(hash_value={self.hash_value:#x}, tokens={self.tokens})"


def _share_parents(mine: BuiltinKey | None, theirs: BuiltinKey | None) -> None:
    """The parents of one chain become those of an equal one, so the next comparison is short."""
    while mine is not None and theirs is not None and mine.parent is not theirs.parent:
        parent = mine.parent
        mine.parent = theirs.parent
        mine, theirs = parent, theirs.parent


BlockHash: TypeAlias = bytes | BuiltinKey


class KeyKind(Protocol):
    """A way to make keys for blocks of `block_size` tokens."""

    block_size: int

    def extend(self, keys: list[BlockHash], request: KeySource) -> None:
        """The keys of all full blocks of confirmed tokens that `keys` lacks are appended to it."""


class Sha256Keys:
    """Keys are the digests of canonical byte strings."""

    __slots__ = ("_root", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._root = sha256_root(block_size)

    def extend(self, keys: list[BlockHash], request: KeySource) -> None:
        """32 bytes for each full block of confirmed tokens that `keys` lacks are appended to it."""
        block_size = self.block_size
        tokens = request.token_ids
        if sys.byteorder == "big":
            tokens = array("q", tokens)
            tokens.byteswap()
        parent = keys[-1] if keys else self._root
        assert isinstance(parent, bytes), f"the chain continues from {parent!r}, not from a digest"
        extras = has_extra_keys(request)
        width = block_size * TOKEN_BYTES
        begin = len(keys) * width
        end = len(tokens) // block_size * width
        with memoryview(tokens) as words, words.cast("B") as octets:
            for at in range(begin, end, width):
                message = parent + octets[at : at + width]
                if extras:
                    first = at // TOKEN_BYTES
                    message += encode_extra_keys(
                        generate_extra_keys(request, first, first + block_size)
                    )
                parent = sha256(message).digest()
                keys.append(parent)


class BuiltinKeys:
    """Keys are objects that keep their content and their prefix."""

    __slots__ = ("block_size",)

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def extend(self, keys: list[BlockHash], request: KeySource) -> None:
        """A `BuiltinKey` for each full block of confirmed tokens that `keys` lacks is appended."""
        block_size = self.block_size
        tokens = request.token_ids
        parent = keys[-1] if keys else None
        assert not isinstance(parent, bytes), f"the chain continues from the digest {parent!r}"
        extras = has_extra_keys(request)
        for first in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
            end = first + block_size
            extra_keys = generate_extra_keys(request, first, end) if extras else ()
            parent = BuiltinKey(parent, tuple(tokens[first:end]), extra_keys)
            keys.append(parent)


def key_kind(config: CacheConfig) -> KeyKind:
    """The way to make keys that the configuration asks for (chapter 5.5.3)."""
    if config.caching_hash_algo == "sha256":
        return Sha256Keys(config.block_size)
    return BuiltinKeys(config.block_size)


class HashChain:
    """The keys of one request, extended as its tokens are confirmed; nothing is hashed twice."""

    __slots__ = ("_kind", "keys", "request")

    def __init__(self, request: KeySource, kind: KeyKind) -> None:
        self.request = request
        self.keys: list[BlockHash] = []
        self._kind = kind

    def extend(self) -> list[BlockHash]:
        """The keys of all full blocks of confirmed tokens, in order of position."""
        if len(self.request.token_ids) // self._kind.block_size > len(self.keys):
            self._kind.extend(self.keys, self.request)
        return self.keys

    def adopt(self, found: Sequence[BlockHash], start: int) -> None:
        """The chain continues from the equal keys found for positions from `start` on.

        Its own twins of them may go, and later comparisons end at once, at the same object.
        """
        if not found:
            return
        end = start + len(found)
        self.keys[start:end] = found
        if end < len(self.keys):
            following, last = self.keys[end], found[-1]
            if isinstance(following, BuiltinKey) and isinstance(last, BuiltinKey):
                following.parent = last
