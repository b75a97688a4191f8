# ruff: noqa: ANN001, ANN201, ANN202, N803, N806 -- Triton has types and constants of its own
# ruff: noqa: PLR0913, PLR0917 -- a kernel has no other way to be given anything
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton's forms of the operations: this is the only file that imports Triton.

Rows are copied as *units*: int64 where a row is whole words and lies on a word's boundary, else
bytes. Widths are powers of two at or above a count, as Triton wants them, and masked.

No kernel uses the standard functions of `tl` that are kernels themselves (sum, cumsum, zeros):
those are compiled or interpreted for the whole process, and both are needed in one.
"""

import inspect
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.interpreter import InterpretedFunction

RING_ROWS = tl.constexpr(64)


@triton.jit
def _add(one, other):
    return one + other


@triton.jit
def _mix64(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


@triton.jit
def _inside(slot, num_slots):
    return (slot >= 0) & (slot < num_slots)


@triton.jit
def _judge(slot, tag, lease, known, num_slots, BLOCK_SIZE: tl.constexpr):
    """Is a slot its writer's, is it padding, which block is it in and who holds the lease."""
    inside = _inside(slot, num_slots) & known
    block = tl.where(inside, slot // BLOCK_SIZE, -1)
    found = tl.load(lease + block, mask=inside, other=-1)
    good = inside & (found == tag) & (tag != 0)
    in_trash = (slot >= num_slots) & (slot < num_slots + BLOCK_SIZE)
    return good, ((slot == -1) | in_trash) & known, block, found


@triton.jit
def _account(
    slots, tags, lease, counts, ring, num_rows, num_slots,
    BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Count a step's slots, and write its first violations over the oldest rows of the ring."""
    before = tl.load(counts + 1)
    num_bad = before - before
    num_padded = before - before
    for start in range(0, num_rows, WIDTH):
        row = start + tl.arange(0, WIDTH)
        known = row < num_rows
        slot = tl.load(slots + row, mask=known, other=-1)
        tag = tl.load(tags + row, mask=known, other=0)
        good, padded, block, found = _judge(slot, tag, lease, known, num_slots, BLOCK_SIZE)
        bad = known & (good == 0) & (padded == 0)
        one = bad.to(tl.int64)
        rank = num_bad + tl.associative_scan(one, 0, _add) - one
        place = ring + (before + rank) % RING_ROWS * 5
        written = bad & (rank < RING_ROWS)
        tl.store(place, row.to(tl.int64), mask=written)
        tl.store(place + 1, slot, mask=written)
        tl.store(place + 2, block.to(tl.int64), mask=written)
        tl.store(place + 3, found.to(tl.int64), mask=written)
        tl.store(place + 4, tag.to(tl.int64), mask=written)
        num_bad += tl.reduce(one, 0, _add)
        num_padded += tl.reduce(padded.to(tl.int64), 0, _add)
    tl.store(counts, tl.load(counts) + num_rows)
    tl.store(counts + 1, before + num_bad)
    tl.store(counts + 2, tl.load(counts + 2) + num_padded)


@triton.jit(do_not_specialize=["num_rows"])
def route_slots(
    slots, tags, lease, routed, counts, ring, num_rows, num_slots,
    BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Send each slot that is not its writer's to the trash block; one program, so in order."""
    _account(slots, tags, lease, counts, ring, num_rows, num_slots, BLOCK_SIZE, WIDTH)
    for start in range(0, num_rows, WIDTH):
        row = start + tl.arange(0, WIDTH)
        known = row < num_rows
        slot = tl.load(slots + row, mask=known, other=-1)
        tag = tl.load(tags + row, mask=known, other=0)
        good, _, _, _ = _judge(slot, tag, lease, known, num_slots, BLOCK_SIZE)
        tl.store(routed + row, tl.where(good, slot, num_slots + row % BLOCK_SIZE), mask=known)


@triton.jit(do_not_specialize=["num_rows"])
def scatter_kv(
    keys, values, key_plane, value_plane, slots, tags, lease, counts, ring, num_rows, num_slots,
    key_stride, value_stride, key_block_stride, value_block_stride,
    CHECKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr,
    LOG_WIDTH: tl.constexpr,
):  # fmt: skip
    """Write one row of keys and of values; the first program keeps the account as well."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if CHECKED:
        good, _, _, _ = _judge(slot, tl.load(tags + row), lease, row >= 0, num_slots, BLOCK_SIZE)
        if row == 0:
            _account(slots, tags, lease, counts, ring, num_rows, num_slots, BLOCK_SIZE, LOG_WIDTH)
    else:
        good = _inside(slot, num_slots)
    slot = tl.where(good, slot, num_slots + row % BLOCK_SIZE)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE * UNITS
    unit = tl.arange(0, WIDTH)
    mask = unit < UNITS
    key = tl.load(keys + row * key_stride + unit, mask=mask)
    value = tl.load(values + row * value_stride + unit, mask=mask)
    tl.store(key_plane + block * key_block_stride + offset + unit, key, mask=mask)
    tl.store(value_plane + block * value_block_stride + offset + unit, value, mask=mask)


@triton.jit
def _words(start, word, known, ROW_BYTES: tl.constexpr, BY_WORD: tl.constexpr):
    """The words of rows, which begin at `start`; the last one is filled up with zeros."""
    if BY_WORD:
        words = tl.load(start + word, mask=known, other=0).to(tl.uint64)
    else:
        words = (word - word).to(tl.uint64)
        for byte in tl.static_range(8):
            there = known & (word * 8 + byte < ROW_BYTES)
            part = tl.load(start + word * 8 + byte, mask=there, other=0)
            words |= part.to(tl.uint64) << (8 * byte)
    return words


@triton.jit(do_not_specialize=["num_rows", "first_key"])
def ms64(
    memory, slots, out, num_rows, num_slots, stride, first_key,
    BY_SLOT: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_BYTES: tl.constexpr,
    BY_WORD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Fingerprint rows: those at the slots of a plane, or source rows that will be there.

    `stride` is that of a block or that of a row, in units; `first_key` that of layer and plane.
    """
    NUM_WORDS: tl.constexpr = (ROW_BYTES + 7) // 8
    UNITS: tl.constexpr = ROW_BYTES // 8 if BY_WORD else ROW_BYTES
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    known = row < num_rows
    slot = tl.load(slots + row, mask=known, other=0)
    if BY_SLOT:
        slot = tl.where(_inside(slot, num_slots), slot, num_slots)
        start = memory + slot // BLOCK_SIZE * stride + slot % BLOCK_SIZE * UNITS
    else:
        slot = tl.where(slot >= 0, slot, 0)
        start = memory + row * stride
    key = (slot % BLOCK_SIZE).to(tl.uint64) * NUM_WORDS * 0x9E3779B97F4A7C15
    key += tl.cast(tl.cast(first_key, tl.int64), tl.uint64)
    total = key - key
    for first in tl.static_range(0, NUM_WORDS, WIDTH):
        word = (first + tl.arange(0, WIDTH))[None, :]
        there = known[:, None] & (word < NUM_WORDS)
        steps = word.to(tl.uint64) * 0x9E3779B97F4A7C15
        mixed = _words(start[:, None], word, there, ROW_BYTES, BY_WORD) + key[:, None] + steps
        mixed = tl.where(there, _mix64(mixed), mixed - mixed)
        total += tl.reduce(mixed, 1, _add)
    tl.store(out + row, total.to(tl.int64), mask=known)


@triton.jit(do_not_specialize=["pattern"])
def poison(
    plane, block_ids, num_blocks, block_stride, pattern,
    UNITS: tl.constexpr, BY_WORD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Fill blocks with a 64-bit pattern; an id outside the plane means the trash block."""
    block = tl.load(block_ids + tl.program_id(0))
    block = tl.where(_inside(block, num_blocks), block, num_blocks)
    unit = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    fill = tl.cast(tl.cast(pattern, tl.int64), tl.uint64) + (unit - unit).to(tl.uint64)
    if not BY_WORD:
        fill = (fill >> (unit % 8 * 8).to(tl.uint64)) & 0xFF
    place = plane + block * block_stride + unit
    tl.store(place, fill.to(place.dtype.element_ty), mask=unit < UNITS)


@triton.jit
def gather_kv(
    plane, block_ids, first, last, out, num_blocks, num_cells, block_stride,
    BLOCK_SIZE: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Copy one row by the table; zeros where no position is wanted or no block is."""
    request = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1).to(tl.int64)
    block = tl.load(block_ids + request * num_cells + position // BLOCK_SIZE).to(tl.int64)
    wanted = (position >= tl.load(first + request)) & (position < tl.load(last + request))
    wanted = wanted & _inside(block, num_blocks)
    block = tl.where(wanted, block, num_blocks)
    unit = tl.arange(0, WIDTH)
    start = plane + block * block_stride + position % BLOCK_SIZE * UNITS
    row = tl.load(start + unit, mask=unit < tl.where(wanted, UNITS, 0), other=0)
    place = out + (request * num_cells * BLOCK_SIZE + position) * UNITS + unit
    tl.store(place, row, mask=unit < UNITS)


@triton.jit
def check_identity(
    block_ids, epochs, identities, num_cells, block_epoch, block_identity, before, counts, ring,
    max_cells, num_blocks, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compare the cells of one table row with what their blocks hold now."""
    row = tl.program_id(0).to(tl.int64)
    num = tl.load(num_cells + row)
    for start in range(0, max_cells, WIDTH):
        cell = start + tl.arange(0, WIDTH)
        known = (cell < num) & (cell < max_cells)
        at = row * max_cells + cell
        block = tl.load(block_ids + at, mask=known, other=-1).to(tl.int64)
        there = known & _inside(block, num_blocks)
        epoch = tl.load(epochs + at, mask=known, other=-1).to(tl.int64)
        identity = tl.load(identities + at, mask=known, other=0)
        epoch_found = tl.load(block_epoch + block, mask=there, other=-1).to(tl.int64)
        identity_found = tl.load(block_identity + block, mask=there, other=0)
        bad = (epoch_found != epoch) | (identity_found != identity) | (there == 0)
        one = (known & bad).to(tl.int64)
        tl.atomic_add(counts, tl.reduce(known.to(tl.int64), 0, _add))
        total = tl.atomic_add(counts + 1, tl.reduce(one, 0, _add))
        rank = total + tl.associative_scan(one, 0, _add) - one
        written = known & bad & (rank - tl.load(before + 1) < RING_ROWS)
        place = ring + rank % RING_ROWS * 7
        tl.store(place, row + cell - cell, mask=written)
        tl.store(place + 1, cell.to(tl.int64), mask=written)
        tl.store(place + 2, block, mask=written)
        tl.store(place + 3, epoch_found, mask=written)
        tl.store(place + 4, epoch, mask=written)
        tl.store(place + 5, identity_found, mask=written)
        tl.store(place + 6, identity, mask=written)


KERNELS = (route_slots, scatter_kv, ms64, poison, gather_kv, check_identity)


def compiled() -> dict[str, Any]:
    """The kernels by name, to be compiled for the device that their arguments are on."""
    return {kernel.fn.__name__: kernel for kernel in KERNELS}


def interpreted() -> dict[str, Any]:
    """The kernels by name, to be run on a CPU, a scalar at a time, whatever TRITON_INTERPRET is."""
    names = dict(globals())
    for name, value in globals().items():
        if isinstance(getattr(value, "fn", None), types.FunctionType):
            names[name] = _plain(value.fn, names)
    return {name: InterpretedFunction(names[name]) for name in compiled()}


def _plain(fn: Any, names: dict[str, Any]) -> Any:  # noqa: ANN401  # a kernel has no type
    """A kernel as a function of Python, which calls others of its kind."""
    plain: Any = types.FunctionType(fn.__code__, names, fn.__name__, fn.__defaults__)
    plain.__annotations__ = inspect.get_annotations(fn)
    plain.fn = plain  # A reduction looks for its function here.
    return plain


def assembly(name: str, args: Sequence[Any], num_warps: int, capability: int) -> tuple[str, Path]:
    """A kernel compiled for an NVIDIA device, there or not: its PTX, and where the assembler is.

    It is compiled as a launch with these arguments would compile it, numbers of 1 apart.
    """
    kernel = compiled()[name]
    signature, constants, aligned = {}, {}, {}
    for place, (param, arg) in enumerate(zip(kernel.params, args, strict=True)):
        signature[param.name] = "constexpr" if param.is_constexpr else _type_of(arg)
        if param.is_constexpr:
            constants[place,] = arg
        elif isinstance(arg, torch.Tensor) or not (arg % 16 or param.do_not_specialize):
            aligned[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    result = triton.compile(source, target=target, options=options)
    return result.asm["ptx"], Path(get_ptxas(capability).path)


def _type_of(arg: torch.Tensor | int) -> str:
    """The type of a kernel's argument: a pointer to integers, or the integer that holds it."""
    if isinstance(arg, torch.Tensor):
        name = str(arg.dtype).removeprefix("torch.")
        return "*" + name.replace("uint", "u").replace("int", "i")
    return "i32" if -(2**31) <= arg < 2**31 else "i64"
