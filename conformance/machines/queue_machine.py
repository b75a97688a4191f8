"""The machine for the free queue alone: a linked list against a plain one."""

from __future__ import annotations

from typing import ClassVar, Final

from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conformance.machines.pair_machine import chosen
from conformance.machines.strategies import PICKS, SOME, Ids
from kvcache import FreeKVCacheBlockQueue, KVCacheBlock, KVCacheError

MOST_BLOCKS: Final = 6


class QueueMachine(RuleBasedStateMachine):
    """Every method of the queue, called well and badly; `model` is what the queue must hold.

    A method is expected to raise the error whose rule is `wrong`, and then to change nothing.
    """

    make: ClassVar[type[FreeKVCacheBlockQueue]] = FreeKVCacheBlockQueue

    @initialize(n=PICKS)
    def begin(self, n: int) -> None:
        """Make blocks and queue the first few of them."""
        self.blocks = [KVCacheBlock(b) for b in range(1, MOST_BLOCKS + 1)]
        self.model = self.blocks[: n % (MOST_BLOCKS + 1)]
        self.queue = self.make(tuple(self.model))

    def expect(self, wrong: str | None, method: str, *args: object) -> object:
        """Call a method; return its result, or fail when it does not answer as it must."""
        shown = f"{method}{args} on {[block.block_id for block in self.model]}"
        result, refused = None, None
        try:
            result = getattr(self.queue, method)(*args)
        except KVCacheError as error:
            refused = error.rule
        except Exception as crash:
            raise AssertionError(f"{shown} raises {crash!r}, expected {wrong}") from crash
        assert refused == wrong, f"{shown}: refused by {refused}, expected {wrong}"
        return result

    def pops(self, n: int) -> str | None:
        """Return the rule that taking `n` blocks breaks."""
        if n < 0:
            return "block_count_is_negative"
        return "not_enough_free_blocks" if n > len(self.model) else None

    @rule()
    def popleft(self) -> None:
        """Take the head; an empty queue refuses."""
        wrong = self.pops(1)
        popped = self.expect(wrong, "popleft")
        assert popped is (None if wrong else self.model.pop(0))

    @rule(n=PICKS)
    def popleft_n(self, n: int) -> None:
        """Take some from the head: less than none, none, or more than there are among them."""
        count = n % (MOST_BLOCKS + 3) - 1
        wrong = self.pops(count)
        popped = self.expect(wrong, "popleft_n", count)
        assert popped == (None if wrong else self.model[:count])
        if not wrong:
            del self.model[:count]

    @rule(picks=SOME)
    def append_n(self, picks: Ids) -> None:
        """Append some blocks, which may be queued already or named twice."""
        blocks = chosen(self.blocks, picks)
        again = len(set(blocks)) < len(blocks) or any(block in self.model for block in blocks)
        self.expect("block_is_already_in_the_free_queue" if again else None, "append_n", blocks)
        self.model += [] if again else blocks

    @rule(pick=PICKS)
    def append(self, pick: int) -> None:
        """Append one block, which may be queued already."""
        block = self.blocks[pick % MOST_BLOCKS]
        queued = block in self.model
        self.expect("block_is_already_in_the_free_queue" if queued else None, "append", block)
        self.model += [] if queued else [block]

    @rule(picks=SOME)
    def remove_n(self, picks: Ids) -> None:
        """Take out some blocks, which may not be queued or be named twice."""
        blocks = chosen(self.blocks, picks)
        lacks = len(set(blocks)) < len(blocks) or any(b not in self.model for b in blocks)
        self.expect("block_is_not_in_the_free_queue" if lacks else None, "remove_n", blocks)
        if not lacks:
            self.model = [block for block in self.model if block not in blocks]

    @rule(pick=PICKS)
    def remove(self, pick: int) -> None:
        """Take out one block, which may not be queued."""
        block = self.blocks[pick % MOST_BLOCKS]
        queued = block in self.model
        self.expect(None if queued else "block_is_not_in_the_free_queue", "remove", block)
        if queued:
            self.model.remove(block)

    @invariant()
    def agrees(self) -> None:
        """The queue is the list, both ways, at its ends and in number; what is outside is loose."""
        if not hasattr(self, "model"):
            return
        assert self.queue.get_all_free_blocks() == self.model
        assert self.queue.num_free_blocks == len(self.model)
        assert self.queue.head is (self.model[0] if self.model else None)
        assert self.queue.tail is (self.model[-1] if self.model else None)
        self.queue.check()
        for block in self.blocks:
            linked = [block.prev_free_block is not None, block.next_free_block is not None]
            assert linked == [block in self.model] * 2, f"{block!r}: links are wrong"
