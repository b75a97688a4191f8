"""The operations on tensors, `torch.ops.kvspec.*`, and the one place where a form is chosen.

Three forms give the same bits: `torch` on any device, `cuda` (Triton's kernels), and `interp` (the
same kernels under Triton's interpreter, for tests). `using` chooses one for a while; else CUDA
tensors go to the kernels where Triton is there, and everything else to torch. Each operation has a
fake form, so that it can stand in a compiled or exported graph.

A *plane* is what a layer keeps as keys, or as values, `[num_blocks + 1, block_size, num_kv_heads,
head_size]`: the last block is the trash block, which takes whatever must not go where it says. A
*log* counts and remembers: `counts` int64 `[3]` are what was checked, the violations, the padding;
`ring` int64 `[64, columns]` holds the first 64 violations of a call, the n-th ever at row n % 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Final, Literal, get_args

import torch

from gpu import eager
from gpu.errors import BackendUnavailable, RowsDoNotFit
from gpu.launch import TritonForms

Backend = Literal["torch", "interp", "cuda"]
BACKENDS: Final = get_args(Backend)

LEASE_COLUMNS: Final = ("row", "slot", "block", "lease", "tag")
IDENTITY_COLUMNS: Final = (
    "row",
    "cell",
    "block",
    "epoch_found",
    "epoch_expected",
    "identity_found",
    "identity_expected",
)

_CHOSEN: Final[ContextVar[Backend | None]] = ContextVar("_CHOSEN", default=None)
_LIBRARY: Final = torch.library.Library("kvspec", "DEF")  # type: ignore[no-untyped-call]  # torch gives it no type


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Within it every operation takes this form; raises `BackendUnavailable`, with the reason."""
    if reason := unavailable(backend):
        raise BackendUnavailable(backend=backend, reason=reason)
    token = _CHOSEN.set(backend)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def backend_of(device: torch.device) -> Backend:
    """The form that an operation takes now on a device."""
    chosen = _CHOSEN.get()
    if chosen is not None:
        return chosen
    return "cuda" if device.type == "cuda" and unavailable("cuda") is None else "torch"


@lru_cache(maxsize=len(BACKENDS))
def unavailable(backend: Backend) -> str | None:
    """Why a form cannot run in this process, or None."""
    if backend == "torch":
        return None
    if find_spec("triton") is None:
        return "Triton is not installed"
    if backend == "cuda":
        return None if torch.cuda.is_available() else "torch finds no CUDA device"
    try:
        log, slots = Log.empty(LEASE_COLUMNS, "cpu"), torch.tensor([1])
        _forms_of("interp").route_slots(slots, slots.int(), slots.int(), log.counts, log.ring, 2)
    except Exception as error:  # noqa: BLE001  # the interpreter fails in many ways on a NumPy that it does not know
        return f"Triton's interpreter fails here: {error}"
    return None


@lru_cache(maxsize=len(BACKENDS))
def _forms_of(backend: Backend) -> ModuleType | TritonForms:
    if backend == "torch":
        return eager
    from gpu import kernels  # noqa: PLC0415  # Triton is needed from here on only

    return TritonForms(kernels.compiled() if backend == "cuda" else kernels.interpreted())


def _define(schema: str, fake: Callable[..., torch.Tensor | None]) -> Callable[..., torch.Tensor]:
    """One operation: its schema, what it gives on tensors without data, and where it is chosen."""
    name = schema.partition("(")[0]

    def dispatch(*args: torch.Tensor) -> torch.Tensor | None:
        form = getattr(_forms_of(backend_of(args[0].device)), name)
        result: torch.Tensor | None = form(*args)
        return result

    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]  # torch gives it no type
    _LIBRARY.impl(name, dispatch, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # torch gives it no type
    torch.library.register_fake(f"kvspec::{name}", fake, lib=_LIBRARY)
    operation: Callable[..., torch.Tensor] = getattr(torch.ops.kvspec, name).default
    return operation


def _nothing(*_: object) -> None:
    """What an operation gives that only writes."""


def _like_slots(_: torch.Tensor, slots: torch.Tensor, *__: object) -> torch.Tensor:
    return torch.empty_like(slots)


def _like_first(slots: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(slots)


def _gathered(plane: torch.Tensor, block_ids: torch.Tensor, *_: object) -> torch.Tensor:
    num_requests, num_cells = block_ids.shape
    return plane.new_empty((num_requests, num_cells * plane.shape[1], *plane.shape[2:]))


_PLACES: Final = "Tensor keys, Tensor values, Tensor(a!) key_plane, Tensor(b!) value_plane"

route_slots = _define(
    "route_slots(Tensor slots, Tensor tags, Tensor lease, Tensor(a!) counts, Tensor(b!) ring,"
    " int block_size) -> Tensor",
    _like_first,
)
"""Where each row may be written, int64 `[n]`; once a step, before any layer is written.

`slots` int64 `[n]`, `tags` int32 `[n]` (each row's writer, above 0), `lease` int32 `[num_blocks]`
(each block's writer, 0 where nobody may write). A slot whose block is not leased to its writer, or
that is in no block, is a violation: `LEASE_COLUMNS` go into the ring, and the row to the trash
block. -1 and slots of the trash block are padding, so routed slots may be routed again.
"""

scatter_kv = _define(
    f"scatter_kv({_PLACES}, Tensor slots, Tensor tags, Tensor lease, Tensor(c!) counts,"
    " Tensor(d!) ring) -> ()",
    _nothing,
)
"""Rows of keys and values `[n, num_kv_heads, head_size]`, routed as by `route_slots` and written.

A call counts its violations, so with several layers route once and then `write_rows`.
"""

write_rows = _define(f"write_rows({_PLACES}, Tensor slots) -> ()", _nothing)
"""Rows of keys and values, written without a lease; a slot outside the pool means trash."""

ms64 = _define(
    "ms64(Tensor rows, Tensor slots, int seed, int layer, int plane, int block_size) -> Tensor",
    _like_slots,
)
"""The fingerprints int64 `[n]` that rows `[n, num_kv_heads, head_size]` will have there."""

ms64_slots = _define(
    "ms64_slots(Tensor plane, Tensor slots, int seed, int layer, int plane_id) -> Tensor",
    _like_slots,
)
"""The fingerprints int64 `[n]` of the rows that are there; a slot outside reads the trash block."""

poison = _define("poison(Tensor(a!) plane, Tensor block_ids, int pattern) -> ()", _nothing)
"""Blocks, by ids int64 `[n]`, in which every element has the bits of `pattern`, its top bit clear.

Bytes may have it set. An id outside the pool means the trash block.
"""

gather_kv = _define(
    "gather_kv(Tensor plane, Tensor block_ids, Tensor first, Tensor last) -> Tensor", _gathered
)
"""What requests read, `[requests, cells * block_size, num_kv_heads, head_size]`, by position.

`block_ids` int32 `[requests, cells]`; positions outside `[first, last)` (int64 `[requests]`) and
cells that name no block are zero, because a masked NaN would still make a NaN of a sum.
"""

check_identity = _define(
    "check_identity(Tensor block_ids, Tensor epochs, Tensor identities, Tensor num_cells,"
    " Tensor block_epoch, Tensor block_identity, Tensor(a!) counts, Tensor(b!) ring) -> ()",
    _nothing,
)
"""The first `num_cells` cells of table rows, compared with what their blocks hold now.

`block_ids` and `epochs` int32, `identities` int64 `[requests, cells]`; `num_cells` int64
`[requests]`; `block_epoch` int32 and `block_identity` int64 `[num_blocks]`. A cell that names no
block is a violation; `IDENTITY_COLUMNS` go into the ring.
"""


@dataclass(frozen=True, slots=True)
class Log:
    """What a check counts and remembers, on the device; see the head of this file."""

    counts: torch.Tensor
    ring: torch.Tensor

    @classmethod
    def empty(cls, columns: tuple[str, ...], device: torch.device | str) -> Log:
        """A log of a check with these columns."""
        return cls(
            torch.zeros(3, dtype=torch.int64, device=device),
            torch.full((eager.RING_ROWS, len(columns)), -1, device=device),
        )

    def entries(self, since: int = 0) -> list[list[int]]:
        """The ring's rows of the violations from number `since` on; waits for the device.

        Of a call with more than 64 the first 64 are there, of several calls the latest.
        """
        total = int(self.counts[1])
        ring = self.ring.tolist()
        numbers = range(max(since, total - eager.RING_ROWS), total)
        return [ring[number % eager.RING_ROWS] for number in numbers]


def refuse_misfit(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_plane: torch.Tensor,
    value_plane: torch.Tensor,
    slots: torch.Tensor,
    tags: torch.Tensor | None = None,
) -> None:
    """Raise `RowsDoNotFit` for what `scatter_kv` or `write_rows` cannot take.

    The operations do not look themselves: a step writes many layers of one form.
    """
    num_rows = slots.shape[0]
    row = tuple(key_plane.shape[2:])
    device = key_plane.device
    like_rows, like_slots = (key_plane.dtype, (num_rows, *row)), (torch.int64, (num_rows,))
    wanted = {"keys": (keys, *like_rows), "values": (values, *like_rows)}
    wanted["value_plane"] = (value_plane, key_plane.dtype, tuple(key_plane.shape))
    wanted["slots"] = (slots, *like_slots)
    if tags is not None:
        wanted["tags"] = (tags, torch.int32, (num_rows,))
    for name, (tensor, dtype, shape) in wanted.items():
        if (tensor.dtype, tuple(tensor.shape), tensor.device) != (dtype, shape, device):
            raise RowsDoNotFit(
                name=name,
                dtype=str(tensor.dtype),
                shape=tuple(tensor.shape),
                device=str(tensor.device),
                wanted_dtype=str(dtype),
                wanted_shape=shape,
                wanted_device=str(device),
            )
