"""The free queue is a list with cheap removal anywhere, and notices misuse before it changes."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache import (
    AlreadyInFreeQueue,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    KVCacheError,
    NegativeBlockCount,
    NotEnoughBlocks,
    NotInFreeQueue,
)

NUM_BLOCKS = 6


def ids(queue: FreeKVCacheBlockQueue) -> list[int]:
    """Return the ids of the queue after it has checked itself."""
    queue.check()
    return [block.block_id for block in queue.get_all_free_blocks()]


@pytest.fixture
def blocks() -> list[KVCacheBlock]:
    """Return blocks 0 to 5."""
    return [KVCacheBlock(block_id) for block_id in range(NUM_BLOCKS)]


def test_the_first_order_is_id_order(blocks: list[KVCacheBlock]) -> None:
    """The queue starts in the order given, and the head leaves first."""
    queue = FreeKVCacheBlockQueue(blocks)
    assert ids(queue) == [0, 1, 2, 3, 4, 5]
    assert queue.popleft() is blocks[0]
    assert queue.popleft_n(2) == blocks[1:3]
    assert (ids(queue), queue.num_free_blocks) == ([3, 4, 5], 3)


def test_a_queue_of_one_knows_its_block(blocks: list[KVCacheBlock]) -> None:
    """The only block of a queue is in it, and after removal it is not."""
    queue = FreeKVCacheBlockQueue(blocks[:1])
    with pytest.raises(AlreadyInFreeQueue):
        queue.append(blocks[0])
    queue.remove(blocks[0])
    with pytest.raises(NotInFreeQueue):
        queue.remove(blocks[0])
    assert ids(queue) == []


def test_neighbours_can_leave_in_one_call(blocks: list[KVCacheBlock]) -> None:
    """Removal in bulk works for a run of blocks, for both ends, and in any order."""
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove_n([blocks[3], blocks[2], blocks[0], blocks[5]])
    assert ids(queue) == [1, 4]
    queue.append_n([blocks[5], blocks[0]])
    assert ids(queue) == [1, 4, 5, 0]


@pytest.mark.parametrize(
    ("refusal", "misuse"),
    [
        (NotEnoughBlocks, lambda queue, _: queue.popleft_n(4)),
        (NegativeBlockCount, lambda queue, _: queue.popleft_n(-1)),
        (AlreadyInFreeQueue, lambda queue, b: queue.append(b[2])),
        (AlreadyInFreeQueue, lambda queue, b: queue.append_n([b[3], b[0]])),
        (AlreadyInFreeQueue, lambda queue, b: queue.append_n([b[3], b[3]])),
        (NotInFreeQueue, lambda queue, b: queue.remove(b[3])),
        (NotInFreeQueue, lambda queue, b: queue.remove_n([b[0], b[4]])),
        (NotInFreeQueue, lambda queue, b: queue.remove_n([b[1], b[1]])),
    ],
)
def test_misuse_changes_nothing(
    blocks: list[KVCacheBlock],
    refusal: type[KVCacheError],
    misuse: Callable[[FreeKVCacheBlockQueue, list[KVCacheBlock]], object],
) -> None:
    """A call with one wrong block is refused whole."""
    queue = FreeKVCacheBlockQueue(blocks[:3])
    with pytest.raises(refusal):
        misuse(queue, blocks)
    assert ids(queue) == [0, 1, 2]
    assert all(block.prev_free_block is None for block in blocks[3:])


def test_an_empty_queue_has_nothing_to_pop() -> None:
    """A pop from an empty queue is refused."""
    with pytest.raises(NotEnoughBlocks):
        FreeKVCacheBlockQueue().popleft()


def test_check_sees_a_broken_chain(blocks: list[KVCacheBlock]) -> None:
    """A wrong count, a one-way link, a loop and a loose end are each named."""
    queue = FreeKVCacheBlockQueue(blocks)
    queue.num_free_blocks += 1
    with pytest.raises(AssertionError, match="links 6 blocks and counts 7"):
        queue.check()
    queue.num_free_blocks -= 1
    blocks[2].prev_free_block = blocks[0]
    with pytest.raises(AssertionError, match="backward"):
        queue.check()
    blocks[2].next_free_block = blocks[1]
    with pytest.raises(AssertionError, match="comes back to block 1"):
        queue.check()
    blocks[2].next_free_block = None
    with pytest.raises(AssertionError, match=r"breaks off after \[0, 1, 2\]"):
        queue.check()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["pop", "append", "remove"]),
        st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=3),
    ),
    max_size=12,
)


def apply(queue: FreeKVCacheBlockQueue, operation: str, named: list[KVCacheBlock]) -> list[int]:
    """Call the queue and return the ids that it popped."""
    if operation == "append":
        queue.append_n(named)
    elif operation == "remove":
        queue.remove_n(named)
    else:
        return [block.block_id for block in queue.popleft_n(len(named))]
    return []


def model_of(model: list[int], operation: str, chosen: list[int]) -> list[int] | None:
    """Return what a plain list becomes, or None where the call must be refused."""
    once = len(set(chosen)) == len(chosen)
    if operation == "pop":
        return model[len(chosen) :] if len(chosen) <= len(model) else None
    if operation == "append":
        return model + chosen if once and not set(chosen) & set(model) else None
    return [i for i in model if i not in chosen] if once and set(chosen) <= set(model) else None


@settings(deadline=None)
@given(OPERATIONS)
def test_the_queue_is_a_list(operations: list[tuple[str, list[int]]]) -> None:
    """Pops, appends and removals act as on a plain list, and refusals come when they must."""
    blocks = [KVCacheBlock(block_id) for block_id in range(NUM_BLOCKS)]
    queue, model = FreeKVCacheBlockQueue(blocks), list(range(NUM_BLOCKS))
    for operation, chosen in operations:
        named = [blocks[block_id] for block_id in chosen]
        after = model_of(model, operation, chosen)
        if after is None:
            with pytest.raises(KVCacheError):
                apply(queue, operation, named)
            after = model
        else:
            expected = model[: len(chosen)] if operation == "pop" else []
            assert expected == apply(queue, operation, named)
        model = after
        assert model == ids(queue)
