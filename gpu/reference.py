"""What a request should get and keep: the model alone with one request and a row of its own.

`reference` has no pool, no table, no block and no manager. The whole prompt is computed at once and
then one token after another, and keys and values lie one after the other in memory. `LiveSlots`
holds the pool against that, byte for byte, after every step of a runner.

A slot is *live* where its block is held by a request and the slot lies below the request's computed
tokens, or where the block carries a key, whoever wrote it and even if nobody holds it now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gpu.runner import KEY, VALUE, Batch, Model, Runner
from gpu.scheduling import Drafter, Work
from kvcache.request import Request

MAX_KEPT = 16
"""So many differences are kept in full; all are counted."""


@dataclass(frozen=True)
class Reference:
    """One request, served alone.

    `kv` is what it keeps: `(num_layers, 2, num_tokens, num_kv_heads, head_size)` in the dtype of
    the cache, for all positions but that of the last output. `logits[i]` gave output i.
    """

    tokens: list[int]
    kv: torch.Tensor
    logits: torch.Tensor


def reference(model: Model, work: Work) -> Reference:
    """Serve one request alone, without a cache of blocks."""
    num_prompt = len(work.prompt_token_ids)
    num_rows = num_prompt + max(0, work.num_output_tokens - 1)
    spec = next(iter(model.kv_cache_config(2, 1).layer_specs.values()))
    shape = (model.num_layers, 2, num_rows, spec.num_kv_heads, spec.head_size)
    kv = torch.zeros(shape, dtype=model.kv_dtype, device=model.device)
    tokens: list[int] = []
    logits: list[torch.Tensor] = []
    ids, start = list(work.prompt_token_ids), 0
    while ids:
        end = start + len(ids)
        token_ids = torch.tensor(ids, dtype=torch.int64, device=model.device)
        positions = torch.arange(start, end, device=model.device)
        readable = _readable(positions, end, model.window)

        def attend(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            place: slice = slice(start, end),
            readable: torch.Tensor = readable,
        ) -> torch.Tensor:
            kv[layer, KEY, place] = key.to(model.kv_dtype)
            kv[layer, VALUE, place] = value.to(model.kv_dtype)
            keys, values = kv[layer, :, : place.stop].to(query.dtype)
            return model.mix(query[None], keys[None], values[None], readable)[0]

        rows = model.forward(token_ids, positions, attend)
        ids, start = [], end
        if len(tokens) < work.num_output_tokens:
            logits.append(rows[-1:])
            tokens += model.sample(rows[-1:]).tolist()
            ids = tokens[-1:] if len(tokens) < work.num_output_tokens else []
    return Reference(tokens, kv, torch.cat(logits) if logits else torch.empty(0))


def references(model: Model, work: Iterable[Work]) -> dict[str, Reference]:
    """Each request, served alone, by its id."""
    return {one.request_id: reference(model, one) for one in work}


def _readable(positions: torch.Tensor, end: int, window: int | None) -> torch.Tensor:
    """`[1, rows, end]`: each row reads what is not after it and, with a window, not too far."""
    distance = positions[:, None] - torch.arange(end, device=positions.device)
    return ((distance >= 0) & (distance < (window or end)))[None]


def guesses(known: Mapping[str, Reference]) -> Drafter:
    """Drafts for requests whose outputs are known: two of three are right, in a fixed pattern."""

    def draft(request: Request, most: int) -> Sequence[int]:
        outputs = known[request.request_id].tokens
        done = len(request.output_token_ids)
        return [
            token + ((done + place) % 3 == 1)
            for place, token in enumerate(outputs[done : done + most])
        ]

    return draft


@dataclass(frozen=True)
class Difference:
    """A live slot that does not hold what the request alone has there; both in bytes, as hex."""

    step: int
    layer: int
    plane: int
    slot: int
    expected: str
    found: str


class LiveSlots:
    """Compares all live slots with the references; `Hooks(after_step=LiveSlots(...))`.

    `num_compared` counts the live slots of all steps, each of which is compared in every layer and
    plane; `num_different` counts rows of a layer and plane, and the first are `differences`.
    """

    def __init__(self, known: Mapping[str, Reference]) -> None:
        self._first_row: dict[str, int] = {}
        num_rows = 0
        for request_id, one in known.items():
            self._first_row[request_id] = num_rows
            num_rows += one.kv.shape[2]
        bank = torch.cat([one.kv for one in known.values()], dim=2)
        # Bytes, not numbers: NaN is not equal to itself, and 0 is equal to -0.
        self._bank = bank.flatten(3).view(torch.uint8)
        self._live: dict[int, tuple[int, int]] = {}
        self.num_compared = 0
        self.num_different = 0
        self.differences: list[Difference] = []

    def __call__(self, runner: Runner, batch: Batch) -> None:
        """Compare what is live now, before finished requests let go."""
        self._note_live(runner)
        live = torch.tensor(
            [(block_id, *place) for block_id, place in self._live.items()], device=self._bank.device
        )
        offsets = torch.arange(runner.block_size, device=live.device)
        mask = offsets < live[:, 2:]
        slots = (live[:, :1] * runner.block_size + offsets)[mask]
        rows = (live[:, 1:2] + offsets)[mask]
        self.num_compared += len(slots)
        for layer in range(runner.model.num_layers):
            for plane in (KEY, VALUE):
                found = runner.pool.rows(layer, plane, slots).flatten(1).view(torch.uint8)
                self._compare(
                    batch.step, (layer, plane), slots, found, self._bank[layer, plane, rows]
                )

    def _note_live(self, runner: Runner) -> None:
        """By block: the row of the bank that its first slot should hold, and its live slots."""
        blocks, size = runner.manager.block_pool.blocks, runner.block_size
        self._live = {b: p for b, p in self._live.items() if blocks[b].block_hash is not None}
        for served in runner.scheduler.running:
            request = served.request
            first_row = self._first_row[request.request_id]
            for index, block_id in enumerate(runner.manager.get_block_ids(request.request_id)):
                num_live = min(size, request.num_computed_tokens - index * size)
                if num_live > 0 and not blocks[block_id].is_null:
                    self._live[block_id] = (first_row + index * size, num_live)

    def _compare(
        self,
        step: int,
        place: tuple[int, int],
        slots: torch.Tensor,
        found: torch.Tensor,
        expected: torch.Tensor,
    ) -> None:
        different = (found != expected).any(dim=1).nonzero().flatten().tolist()
        self.num_different += len(different)
        for row in different[: MAX_KEPT - len(self.differences)]:
            texts = (bytes(rows[row].tolist()).hex() for rows in (expected, found))
            self.differences.append(Difference(step, *place, int(slots[row]), *texts))
