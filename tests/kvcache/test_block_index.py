"""The index finds the block that was sealed first, whatever copies come and go."""

from collections.abc import Callable

import pytest

from kvcache import BlockIndex, KVCacheBlock


def sealed(block_id: int, key: bytes) -> KVCacheBlock:
    """Return a block that carries a key."""
    block = KVCacheBlock(block_id)
    block.block_hash = key
    return block


@pytest.fixture
def blocks() -> list[KVCacheBlock]:
    """Return three blocks with one key and a fourth with another."""
    return [sealed(1, b"k"), sealed(2, b"k"), sealed(3, b"k"), sealed(4, b"q")]


@pytest.fixture
def index(blocks: list[KVCacheBlock]) -> BlockIndex:
    """Return an index in which block 3 was sealed first, then 1, 4 and 2."""
    index = BlockIndex()
    index.add_n([blocks[2], blocks[0], blocks[3]])
    index.add(blocks[1])
    return index


def ids(index: BlockIndex, key: bytes) -> list[int]:
    """Return the ids of the blocks with a key in the order of sealing."""
    return [block.block_id for block in index.copies(key)]


def test_the_first_sealed_is_found(index: BlockIndex, blocks: list[KVCacheBlock]) -> None:
    """A look-up returns the block sealed first; copies are listed in the order of sealing."""
    assert index.first(b"k") is blocks[2]
    assert index.first(b"q") is blocks[3]
    assert index.first(b"x") is None
    assert (ids(index, b"k"), ids(index, b"q"), ids(index, b"x")) == ([3, 1, 2], [4], [])
    assert (len(index), list(index)) == (2, [b"k", b"q"])
    index.check(blocks)


def test_the_next_in_order_becomes_the_first(index: BlockIndex, blocks: list[KVCacheBlock]) -> None:
    """A key goes with its last block only."""
    index.discard(blocks[2])
    assert index.first(b"k") is blocks[0]
    index.discard(blocks[1])
    assert ids(index, b"k") == [1]
    index.discard(blocks[0])
    assert index.first(b"k") is None
    assert list(index) == [b"q"]
    index.check(blocks[3:])


def test_a_middle_copy_leaves_without_notice(index: BlockIndex, blocks: list[KVCacheBlock]) -> None:
    """The first stays first when another copy goes."""
    index.discard(blocks[0])
    assert ids(index, b"k") == [3, 2]
    assert index.first(b"k") is blocks[2]


def test_clear_forgets_everything(index: BlockIndex) -> None:
    """Nothing is found after clear, also through the bound method."""
    first = index.first
    index.clear()
    assert (len(index), first(b"k"), index.copies(b"k")) == (0, None, ())


def test_an_unlisted_block_cannot_be_discarded(
    index: BlockIndex, blocks: list[KVCacheBlock]
) -> None:
    """A block without a key, or with a key under which it is not listed, is our own mistake."""
    for stranger in (KVCacheBlock(9), sealed(9, b"k"), sealed(9, b"q"), sealed(9, b"x")):
        with pytest.raises(AssertionError, match="key"):
            index.discard(stranger)
    with pytest.raises(AssertionError, match="has no key"):
        index.add(KVCacheBlock(9))
    index.check(blocks)


@pytest.mark.parametrize(
    ("message", "spoil"),
    [
        (r"\[4\] under a key that \[\] carry", lambda _, b: setattr(b[3], "block_hash", None)),
        (r"\[3, 1, 2\] under a key that \[2, 3\]", lambda _, b: setattr(b[0], "block_hash", b"z")),
        ("2 keys are carried by blocks and 1", lambda i, _: i._first.pop(b"q")),
        ("block 3 was sealed first", lambda i, b: i._first.__setitem__(b"k", b[0])),
        ("has 1 entry", lambda i, b: i._copies.__setitem__(b"q", {4: b[3]})),
        (
            "cannot be found",
            lambda i, b: i._copies.__setitem__(b"z", {8: b[0], 9: b[1]}),
        ),
    ],
)
def test_check_sees_a_disagreement(
    index: BlockIndex,
    blocks: list[KVCacheBlock],
    message: str,
    spoil: Callable[[BlockIndex, list[KVCacheBlock]], None],
) -> None:
    """Blocks and index that disagree in any way are named."""
    spoil(index, blocks)
    with pytest.raises(AssertionError, match=message):
        index.check(blocks)
