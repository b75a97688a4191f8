"""A guard is told of all that a runner does, in order, and decides where rows go."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gpu.exact_model import ExactModel
from gpu.pool import KVPool
from gpu.runner import Batch, Runner
from gpu.scheduling import Limits, Work
from kvcache.block import KVCacheBlock
from kvcache.hashing import BlockHash
from kvcache.request import Request


@dataclass
class Recorder:
    """A guard that writes down what it is told, and sends all rows of one block to the trash."""

    told: list[str] = field(default_factory=list)
    barred: int = -1

    def take(self, block: KVCacheBlock) -> None:
        """Write it down."""
        self.told.append(f"take {block.block_id}")

    def evict(self, block: KVCacheBlock, _key: BlockHash) -> None:
        """Write it down."""
        self.told.append(f"evict {block.block_id}")

    def seal(self, block: KVCacheBlock, _key: BlockHash) -> None:
        """Write it down."""
        self.told.append(f"seal {block.block_id}")

    def touch(self, block: KVCacheBlock) -> None:
        """Write it down."""
        self.told.append(f"touch {block.block_id}")

    def release(self, block: KVCacheBlock) -> None:
        """Write it down."""
        self.told.append(f"release {block.block_id}")

    def unpublish(self, block: KVCacheBlock, _key: BlockHash) -> None:
        """Write it down."""
        self.told.append(f"unpublish {block.block_id}")

    def reset(self) -> None:
        """Write it down."""
        self.told.append("reset")

    def before_call(self, call: str, _request: Request) -> None:
        """Write it down."""
        self.told.append(call)

    def before_step(self, batch: Batch) -> torch.Tensor:
        """Send what goes to the barred block to no slot at all."""
        self.told.append(f"before_step {batch.step}")
        return torch.where(batch.slot_mapping // 4 == self.barred, -1, batch.slot_mapping)

    def before_read(self, _batch: Batch) -> None:
        """Write it down."""
        self.told.append("before_read")

    def after_write(
        self, _batch: Batch, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write down the layer; keys and values are in the dtype of the pool."""
        assert keys.dtype == values.dtype == torch.int8
        self.told.append(f"after_write {layer}")

    def settle(self, batch: Batch) -> None:
        """Write down how far the requests are; they still hold their blocks."""
        self.told.append(f"settle {[p.request.num_computed_tokens for p in batch.parts]}")


def guarded(recorder: Recorder) -> Runner:
    """Return a runner that has served one request under a guard."""
    model = ExactModel("int8")
    pool = KVPool(model.kv_cache_config(4, 4))
    runner = Runner(model, pool, Limits(max_model_len=16), guard=recorder)
    runner.serve([Work("a", [1, 2, 3, 4], 2)])
    return runner


def test_a_guard_is_told_in_order() -> None:
    """The call, its events, the step, each layer's rows, the end of the step, the release."""
    recorder = Recorder()
    guarded(recorder)
    assert recorder.told == [
        "allocate_slots(a, 4, hits=[], lookahead=0)",
        "take 1",
        "seal 1",
        "before_step 1",
        "before_read",
        "after_write 0",
        "after_write 1",
        "settle [4]",
        "allocate_slots(a, 1, hits=[], lookahead=0)",
        "take 2",
        "before_step 2",
        "before_read",
        "after_write 0",
        "after_write 1",
        "settle [5]",
        "free(a)",
        "release 2",
        "release 1",
    ]


def test_rows_that_a_guard_bars_go_to_the_trash() -> None:
    """The slots that it returns are those that are written."""
    runner = guarded(Recorder(barred=1))
    untouched = KVPool(runner.pool.config)
    for block, same in ((1, True), (2, False)):
        bytes_of = [p.plane(0, 0)[block].view(torch.uint8) for p in (runner.pool, untouched)]
        assert torch.equal(*bytes_of) is same
