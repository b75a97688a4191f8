"""The machine of the free queue: the queue is the list, and a queue that is not fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.machines.queue_machine import QueueMachine
from kvcache import FreeKVCacheBlockQueue, KVCacheBlock


class Forgetful(FreeKVCacheBlockQueue):
    """A queue that does not count what is taken out of its middle."""

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out."""
        before = self.num_free_blocks
        super().remove_n(blocks)
        self.num_free_blocks = before


class Turned(FreeKVCacheBlockQueue):
    """A queue that appends from the back."""

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Append blocks."""
        super().append_n(blocks[::-1])


class Lenient(FreeKVCacheBlockQueue):
    """A queue that hands out what it has when more is wanted."""

    def popleft_n(self, num_blocks: int) -> list[KVCacheBlock]:
        """Hand out blocks."""
        return super().popleft_n(min(num_blocks, self.num_free_blocks))


class Strict(FreeKVCacheBlockQueue):
    """A queue that refuses to take out nothing."""

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks out."""
        if blocks:
            super().remove_n(blocks)
        else:
            self.popleft_n(-1)


@pytest.mark.slow
def test_the_queue_is_a_plain_list(profile: settings) -> None:
    """Every method answers as it must and leaves what it must, misuse included."""
    run_state_machine_as_test(QueueMachine, settings=profile)


@pytest.mark.slow
@pytest.mark.parametrize("queue", [Forgetful, Turned, Lenient, Strict])
def test_a_queue_with_a_fault_fails(queue: type[FreeKVCacheBlockQueue], profile: settings) -> None:
    """The machine sees a wrong count, a wrong order, a missing refusal and one too many."""
    machine = type("Faulty", (QueueMachine,), {"make": queue})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(profile, report_multiple_bugs=False))
