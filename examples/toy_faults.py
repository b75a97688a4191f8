"""Three faults planted in the toy, each of a kind that real managers have had."""

from __future__ import annotations

from examples.toy import Toy
from examples.toy_manager import ToyManager, ToyPool, ToyRequest


class _FreesForward(ToyManager):
    def order_of_release(self, r: ToyRequest) -> list[int]:
        return r.table


class _SealsPartial(ToyManager):
    def num_full(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)


class _ForgetsHalf(ToyPool):
    def forget(self, b: int) -> None:
        self.keys[b] = None


class _KeepsEntries(ToyManager):
    pool_class = _ForgetsHalf


class ForwardFree(Toy):
    """Gives a table back from its head, so that what many share is evicted first."""

    manager_class = _FreesForward


class SharesPartial(Toy):
    """Lets a block be found that is not full, so that its tokens change under a name."""

    manager_class = _SealsPartial


class ForgetsIndex(Toy):
    """Takes the key from a block and leaves its entry in the index, which leads to other tokens."""

    manager_class = _KeepsEntries
