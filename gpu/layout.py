"""From a configuration to tensors, and from a block's id to the bytes that it names.

A layer's memory is one row of bytes. It is allocated as such, whatever the dtype, so its size is
what the plan says to the byte; a *view* shows it as keys and values:

    full attention, window   (2, num_blocks, block_size, num_kv_heads, head_size)   K, then V
    MLA                      (num_blocks, block_size, head_size)

A worker may hold more blocks than all workers have in common. Its views then show all of its own,
and ids are checked against the common number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from operator import index
from typing import Final

import torch

from gpu.errors import (
    BlockIdNotValid,
    DeviceMemoryExhausted,
    LayersWithoutTensors,
    NoSuchLayer,
    TensorIsNoPages,
    TensorsOverlap,
    TooFewBlocksInTensor,
    UnknownDType,
)
from kvcache.interface import (
    DTYPE_SIZE_BYTES,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
)

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name) for name in DTYPE_SIZE_BYTES
}
"""torch's dtypes by the names that a spec uses, which are torch's own."""


def torch_dtype_of(name: str) -> torch.dtype:
    """The dtype of a name; raises `UnknownDType`, which lists the names."""
    if name not in TORCH_DTYPES:
        raise UnknownDType(dtype=name, known=tuple(TORCH_DTYPES))
    return TORCH_DTYPES[name]


def shape_of(spec: KVCacheSpec, num_blocks: int) -> tuple[int, ...]:
    """The shape of a layer's view."""
    if isinstance(spec, MLAAttentionSpec):
        return num_blocks, spec.block_size, spec.head_size
    return 2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size


def view_of(raw: torch.Tensor, spec: KVCacheSpec) -> torch.Tensor:
    """A layer's bytes, shown as what the layer keeps; nothing is copied.

    `raw` is one-dimensional uint8 and holds whole pages. Raises `TensorIsNoPages`.
    """
    page = spec.page_size_bytes
    good = raw.dim() == 1 and raw.dtype == torch.uint8 and raw.is_contiguous()
    if not good or raw.numel() == 0 or raw.numel() % page:
        raise TensorIsNoPages(
            dtype=str(raw.dtype).removeprefix("torch."),
            shape=tuple(raw.shape),
            page_size_bytes=page,
        )
    return raw.view(torch_dtype_of(spec.dtype)).view(shape_of(spec, raw.numel() // page))


def allocate(config: KVCacheConfig, device: torch.device | str) -> dict[str, torch.Tensor]:
    """The memory of every layer, by its name: uint8, one-dimensional, all zero.

    Zero, because memory as it comes may hold a NaN, which a mask of zeros does not silence. Raises
    `DeviceMemoryExhausted` with the first layer that does not fit; what was taken is given back.
    """
    tensors: dict[str, torch.Tensor] = {}
    for layer, tensor in config.tensors.items():
        try:
            tensors[layer] = torch.zeros(tensor.size, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            taken = sum(other.numel() for other in tensors.values())
            tensors.clear()
            raise DeviceMemoryExhausted(
                layer=layer, size_bytes=tensor.size, device=str(device), taken_bytes=taken
            ) from error
    return tensors


class LocalKVCache:
    """One worker's tensors under the configuration of all workers.

    `tensors` are those of `allocate`, for this configuration or for the one that this worker
    proposed. Raises `LayersWithoutTensors`, `TensorIsNoPages`, `TensorsOverlap`, and
    `TooFewBlocksInTensor` where the configuration has more blocks than a tensor; fewer is fine.
    """

    def __init__(
        self, config: KVCacheConfig, tensors: Mapping[str, torch.Tensor], rank: int = 0
    ) -> None:
        specs = config.layer_specs
        if odd := sorted(specs.keys() ^ tensors.keys()):
            raise LayersWithoutTensors(layers=tuple(odd))
        _refuse_overlap(tensors)
        self.config = config
        self.rank = rank
        self.views: dict[str, torch.Tensor] = {}
        """By layer, in the shapes above, with all blocks that this worker has."""
        for layer, spec in specs.items():
            self.views[layer] = view_of(tensors[layer], spec)
            num_local_blocks = tensors[layer].numel() // spec.page_size_bytes
            if num_local_blocks < config.num_blocks:
                raise TooFewBlocksInTensor(
                    rank=rank,
                    layer=layer,
                    num_blocks=config.num_blocks,
                    num_local_blocks=num_local_blocks,
                )

    def check_block_ids(self, block_ids: Iterable[int]) -> None:
        """Raise `BlockIdNotValid` for the first id that is not valid on every worker.

        Below 0 is no more valid than too large: torch would take -1 for the last block.
        """
        for block_id in block_ids:
            if not 0 <= index(block_id) < self.config.num_blocks:
                raise BlockIdNotValid(
                    rank=self.rank, block_id=block_id, num_blocks=self.config.num_blocks
                )

    def block(self, layer: str, block_id: int) -> torch.Tensor:
        """What a layer keeps for one block, as a view that can be written.

        `(2, block_size, num_kv_heads, head_size)`, for MLA `(block_size, head_size)`. Raises
        `NoSuchLayer` and `BlockIdNotValid`.
        """
        if layer not in self.views:
            raise NoSuchLayer(rank=self.rank, layer=layer, layers=tuple(self.views))
        self.check_block_ids([block_id])
        view = self.views[layer]
        return view.select(_block_dim_of(self.config.layer_specs[layer]), block_id)


def _block_dim_of(spec: KVCacheSpec) -> int:
    return 0 if isinstance(spec, MLAAttentionSpec) else 1


def _refuse_overlap(tensors: Mapping[str, torch.Tensor]) -> None:
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, layer) for layer, t in tensors.items())
    for (_, end, layer), (start, _, other_layer) in pairwise(spans):
        if start < end:
            raise TensorsOverlap(layer=layer, other_layer=other_layer)
