"""How far a float decoder with a paged cache may be from the same decoder alone, and how far it is.

Rounding differs with the shape of a batch, so equality cannot be asked for. Three things are
measured, and each has a bound that is stated here:

* the largest difference of a key or value that is kept, over the largest key or value,
  as long as the tokens before it are the same;
* the token streams that differ from those of the request alone;
* where one differs first, how much likelier the request alone found its own token: the two were
  all but a tie, or rounding is not the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from gpu.float_model import FloatDType, FloatModel
from gpu.matrix import Setting, serve
from gpu.reference import Reference, references
from gpu.runner import KEY, VALUE, Batch, Hooks, Runner
from gpu.scheduling import Served, Work


@dataclass(frozen=True)
class Tolerance:
    """The bounds for one dtype: error of keys and values, lead in logits, per cent of streams."""

    kv: float
    lead: float
    percent_changed: float


TOLERANCES: Final[Mapping[FloatDType, Tolerance]] = {
    "float32": Tolerance(kv=2**-18, lead=2**-12, percent_changed=4.0),
    "bfloat16": Tolerance(kv=2**-6, lead=2**-4, percent_changed=10.0),
}
"""Stated bounds, some four times what was seen on a CPU: 2^-20 and 2^-8 for keys and values."""


@dataclass(frozen=True)
class ToleranceRow:
    """What one setting gave; see the module."""

    setting: Setting
    num_requests: int
    kv_error: float
    num_changed: int
    largest_lead: float
    verdict: Literal["within", "beyond"]


class KVError:
    """Compares a request's keys and values with the reference when it has all its tokens."""

    def __init__(self, known: Mapping[str, Reference]) -> None:
        self._known = known
        self._largest = max(float(one.kv.float().abs().max()) for one in known.values())
        self.largest = 0.0
        """The largest difference, over the largest reference; NaN once a NaN was read."""

    def __call__(self, runner: Runner, batch: Batch) -> None:
        """Look at those that this step finishes; they still hold their blocks."""
        for part in batch.parts:
            if not part.served.num_missing:
                self._look_at(runner, part.served)

    def _look_at(self, runner: Runner, served: Served) -> None:
        request, size = served.request, runner.block_size
        known = self._known[request.request_id]
        outputs = request.output_token_ids
        first = first_change(outputs, known.tokens)
        same = request.num_tokens - len(outputs) + first
        positions = torch.arange(
            min(same, request.num_computed_tokens, known.kv.shape[2]), device=known.kv.device
        )
        table = runner.manager.get_block_ids(request.request_id)
        blocks = torch.tensor(table, device=known.kv.device)[positions // size]
        positions, blocks = positions[blocks > 0], blocks[blocks > 0]
        slots = blocks * size + positions % size
        for layer in range(runner.model.num_layers):
            for plane in (KEY, VALUE):
                found = runner.pool.rows(layer, plane, slots).float()
                error = (found - known.kv[layer, plane, positions].float()).abs()
                if error.numel():
                    # torch's maximum is NaN where an element is; Python's `max` would lose it.
                    worst = torch.maximum(
                        error.max().cpu() / self._largest, torch.tensor(self.largest)
                    )
                    self.largest = float(worst)


def first_change(tokens: Sequence[int], expected: Sequence[int]) -> int:
    """The place of the first token that is another, or the number of tokens expected."""
    for place, token in enumerate(expected):
        if place >= len(tokens) or tokens[place] != token:
            return place
    return len(expected)


def measure(
    dtype: FloatDType,
    work: Sequence[Work],
    settings: Sequence[Setting],
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> list[ToleranceRow]:
    """A row for each setting, in order; the `dtype` of a setting itself is not used."""
    rows: list[ToleranceRow] = []
    models: dict[int | None, tuple[FloatModel, dict[str, Reference]]] = {}
    for setting in settings:
        if setting.window not in models:
            model = FloatModel(dtype, seed=seed, window=setting.window, device=device)
            models[setting.window] = (model, references(model, work))
        model, known = models[setting.window]
        errors = KVError(known)
        tokens = serve(setting, model, work, known, Hooks(after_step=errors)).tokens
        rows.append(_row(setting, dtype, known, tokens, errors.largest))
    return rows


def _row(
    setting: Setting,
    dtype: FloatDType,
    known: Mapping[str, Reference],
    tokens: Mapping[str, Sequence[int]],
    kv_error: float,
) -> ToleranceRow:
    leads = []
    for request_id, one in known.items():
        place = first_change(tokens[request_id], one.tokens)
        if place < len(one.tokens):
            logits = one.logits[place]
            got = tokens[request_id][place : place + 1]
            leads.append(float(logits.max() - logits[got[0]]) if got else float("inf"))
    bound, lead = TOLERANCES[dtype], max(leads, default=0.0)
    few = 100 * len(leads) <= bound.percent_changed * len(known)
    within = kv_error <= bound.kv and lead <= bound.lead and few
    return ToleranceRow(
        setting, len(known), kv_error, len(leads), lead, "within" if within else "beyond"
    )
