"""Contracts on `kvcache.free_queue`: one operation of the real queue from any state of it.

A queue of up to three blocks is in one of few states up to the names of its blocks, so a state is
said by its length, and the blocks that an operation names by their place. The blocks are real and
so are their links. A function whose name begins with `wrong_` states what is false.
"""

from kvcache import (
    AlreadyInFreeQueue,
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    NegativeBlockCount,
    NotEnoughBlocks,
    NotInFreeQueue,
)

BLOCKS = 3


def _blocks(length: int) -> list[KVCacheBlock]:
    # The ids are plain numbers: they play no part, and only the length is a symbol.
    return [KVCacheBlock(block_id) for block_id in range(BLOCKS) if block_id < length]


def _queue_of(length: int) -> tuple[FreeKVCacheBlockQueue, list[KVCacheBlock], KVCacheBlock]:
    """Return a queue, what is in it in order, and a block that is not."""
    queued = _blocks(length)
    return FreeKVCacheBlockQueue(queued), queued, KVCacheBlock(BLOCKS)


def _is(queue: FreeKVCacheBlockQueue, blocks: list[KVCacheBlock]) -> bool:
    """Return whether the queue, walked both ways and counted, is these blocks in this order."""
    queue.check()
    return queue.get_all_free_blocks() == blocks and queue.num_free_blocks == len(blocks)


def popleft_takes_the_head(length: int) -> None:
    """`popleft` takes the head out and leaves a chain of the others, in order."""
    assert 1 <= length <= BLOCKS
    queue, queued, _ = _queue_of(length)
    assert queue.popleft() is queued[0]
    assert _is(queue, queued[1:])
    assert queued[0].prev_free_block is None
    assert queued[0].next_free_block is None


def popleft_n_takes_what_there_is_or_refuses(length: int, wanted: int) -> None:
    """`popleft_n` takes the first blocks in order, or refuses any other number and changes none."""
    assert 0 <= length <= BLOCKS
    assert -1 <= wanted <= BLOCKS + 1
    queue, queued, _ = _queue_of(length)
    try:
        taken = queue.popleft_n(wanted)
    except NegativeBlockCount:
        assert wanted < 0
        assert _is(queue, queued)
    except NotEnoughBlocks:
        assert wanted > length
        assert _is(queue, queued)
    else:
        assert 0 <= wanted <= length
        assert taken == queued[:wanted]
        assert _is(queue, queued[wanted:])


def append_makes_the_tail(length: int) -> None:
    """`append` puts a block behind all others and leaves their order."""
    assert 0 <= length <= BLOCKS
    queue, queued, loose = _queue_of(length)
    queue.append(loose)
    assert _is(queue, [*queued, loose])
    assert queue.tail is loose


def append_refuses_a_queued_block(length: int, place: int) -> None:
    """`append` refuses a block that is in the queue already, and changes nothing."""
    assert 0 <= place < length <= BLOCKS
    queue, queued, _ = _queue_of(length)
    refused = False
    try:
        queue.append(queued[place])
    except AlreadyInFreeQueue:
        refused = True
    assert refused
    assert _is(queue, queued)


def remove_closes_the_gap(length: int, place: int) -> None:
    """`remove` takes a block out wherever it stands, joins its neighbours, and clears its links."""
    assert 0 <= place < length <= BLOCKS
    queue, queued, _ = _queue_of(length)
    queue.remove(queued[place])
    assert _is(queue, queued[:place] + queued[place + 1 :])
    assert queued[place].prev_free_block is None
    assert queued[place].next_free_block is None


def remove_n_takes_two_out_in_any_order(length: int, first: int, second: int) -> None:
    """`remove_n` takes two blocks out, neighbours or not; one named twice is refused unchanged."""
    assert 0 <= first < length <= BLOCKS
    assert 0 <= second < length
    queue, queued, _ = _queue_of(length)
    try:
        queue.remove_n([queued[first], queued[second]])
    except NotInFreeQueue:
        assert first == second
        assert _is(queue, queued)
    else:
        assert _is(queue, [b for place, b in enumerate(queued) if place not in (first, second)])


def remove_refuses_a_loose_block(length: int) -> None:
    """`remove` refuses a block that is not in the queue, and changes nothing."""
    assert 0 <= length <= BLOCKS
    queue, queued, loose = _queue_of(length)
    refused = False
    try:
        queue.remove(loose)
    except NotInFreeQueue:
        refused = True
    assert refused
    assert _is(queue, queued)


class _ForgetsTheBackLink(FreeKVCacheBlockQueue):
    """A queue whose splice sets only one of the two links."""

    def remove(self, block: KVCacheBlock) -> None:
        """The block after the one that leaves goes on naming it as its predecessor."""
        after = block.next_free_block
        super().remove(block)
        assert after is not None, "the block is queued"
        after.prev_free_block = block


def wrong_a_splice_needs_no_back_link(length: int, place: int) -> None:
    """A splice that sets the forward link only leaves a chain."""
    assert 0 <= place < length <= BLOCKS
    queued = _blocks(length)
    queue = _ForgetsTheBackLink(queued)
    queue.remove(queued[place])
    assert _is(queue, queued[:place] + queued[place + 1 :])


def wrong_append_makes_the_head(length: int) -> None:
    """`append` puts a block before all others."""
    assert 0 <= length <= BLOCKS
    queue, queued, loose = _queue_of(length)
    queue.append(loose)
    assert _is(queue, [loose, *queued])
