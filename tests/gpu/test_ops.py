"""Every form of an operation gives the same bits, and nothing goes where it may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import ops
from gpu.eager import RING_ROWS, as_integers
from gpu.fingerprint import first_word_index, ms64_of_row, signed

UNHURRIED = settings(deadline=None)
"""A busy machine is no fault."""

NUM_BLOCKS, BLOCK_SIZE = 5, 4
NUM_SLOTS = NUM_BLOCKS * BLOCK_SIZE
SEED = -0x1234_5678_9ABC_DEF0

FORMS = [
    (2, 8, torch.bfloat16),
    (3, 8, torch.bfloat16),
    (2, 16, torch.float8_e4m3fn),
    (1, 5, torch.int8),
    (2, 2, torch.int8),
    (1, 3, torch.float64),
    (1, 3, torch.bfloat16),
]
"""Heads, elements and dtypes: rows of whole words and of a few bytes, of 2**n units and others."""


@dataclass
class Case:
    """A pool of two planes, a red block around each, and rows to be written."""

    raw: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    tags: torch.Tensor
    lease: torch.Tensor

    def plane(self, index: int) -> torch.Tensor:
        """Return the blocks and the trash block of a plane."""
        return self.raw[index, 1:-1]

    def all_operations(self) -> list[object]:
        """Return what every operation gives and leaves behind, in numbers."""
        keys, values = self.plane(0), self.plane(1)
        log, seen = new_log(ops.LEASE_COLUMNS), new_log(ops.IDENTITY_COLUMNS)
        account = (self.slots, self.tags, self.lease, log.counts, log.ring)
        nowhere = self.slots[2:3]
        routed = ops.route_slots(*account, BLOCK_SIZE)
        ops.scatter_kv(*self.rows, keys, values, *account)
        # Rows that meet in the trash block come there in no order.
        ops.poison(keys, nowhere, 0x41)
        ops.poison(values, nowhere, 0x41)
        first = self.raw.clone()
        ops.write_rows(*self.rows, keys, values, self.slots.flip(0))
        ops.poison(keys, nowhere, 0x42)
        ops.poison(values, nowhere, 0x42)
        intent = ops.ms64(self.rows[1], self.slots, SEED, 3, 1, BLOCK_SIZE)
        memory = ops.ms64_slots(values, self.slots, SEED, 3, 1)
        table = torch.tensor([[1, 2, -1], [4, 9, 0]], dtype=torch.int32)
        spans = torch.tensor([[1, 0], [7, 12], [2, 3]])
        read = ops.gather_kv(keys, table, spans[0], spans[1])
        ops.poison(keys, spans[1], 0x43)
        now = torch.arange(NUM_BLOCKS, dtype=torch.int32)
        # Block 1 has another epoch, 2 another identity, and there is no block 9.
        cells = (table, table + (table == 1), table.long() * 7, spans[2])
        ops.check_identity(*cells, now, now.long() * 7 + now // 2, seen.counts, seen.ring)
        bits = [as_integers(tensor) for tensor in (first, self.raw, read)]
        numbers = [*bits, routed, intent, memory, log.counts, log.ring, seen.counts]
        return [*(tensor.tolist() for tensor in numbers), sorted(seen.entries())]


def case_of(heads: int, head_size: int, dtype: torch.dtype) -> Case:
    """Return a case whose bytes are random, NaNs among them, with good slots and bad ones."""
    generator = torch.Generator("cpu").manual_seed(heads)

    def random(*shape: int) -> torch.Tensor:
        size = heads * head_size * dtype.itemsize
        data = torch.randint(
            256, (*shape, size), dtype=torch.uint8, generator=generator, device="cpu"
        )
        return data.view(dtype).view(*shape, heads, head_size).to(device)

    device = torch.get_default_device()

    slots = [4, 5, -1, 19, 8, NUM_SLOTS, -5, 2**40, 0, 11]
    tags = [7, 7, 7, 7, 9, 1, 2, 3, 0, 8]
    return Case(
        raw=random(2, NUM_BLOCKS + 3, BLOCK_SIZE),
        rows=random(2, len(slots)),
        slots=torch.tensor(slots),
        tags=torch.tensor(tags, dtype=torch.int32),
        lease=torch.tensor([0, 7, 8, 0, 7], dtype=torch.int32),
    )


def new_log(columns: tuple[str, ...]) -> ops.Log:
    """Return an empty log."""
    return ops.Log.empty(columns, torch.get_default_device())


@pytest.fixture(params=ops.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[ops.Backend]:
    """Let operations take one form, and tensors be made on its device; skip what cannot run."""
    form: ops.Backend = request.param
    if reason := ops.unavailable(form):
        pytest.skip(reason)
    with torch.device("cuda" if form == "cuda" else "cpu"), ops.using(form):
        yield form


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("heads", "head_size", "dtype"), FORMS)
def test_the_forms_give_the_same_bits(heads: int, head_size: int, dtype: torch.dtype) -> None:
    """All operations, on every kind of row."""
    found = case_of(heads, head_size, dtype).all_operations()
    with torch.device("cpu"), ops.using("torch"):
        assert found == case_of(heads, head_size, dtype).all_operations()


@pytest.mark.parametrize(("heads", "head_size", "dtype"), FORMS)
def test_fingerprints_are_those_of_python_integers(
    heads: int, head_size: int, dtype: torch.dtype
) -> None:
    """Of source rows and of memory; a slot outside reads the trash block's first row."""
    case = case_of(heads, head_size, dtype)
    plane = case.plane(1)
    num_words = -(-heads * head_size * dtype.itemsize // 8)

    def of(row: torch.Tensor, slot: int) -> int:
        index = first_word_index(3, 1, slot % BLOCK_SIZE, BLOCK_SIZE, num_words)
        data = bytes(row.contiguous().view(torch.uint8).flatten().tolist())
        return signed(ms64_of_row(data, seed=SEED, first_index=index))

    slots = case.slots.tolist()
    intent = [of(row, max(slot, 0)) for row, slot in zip(case.rows[0], slots, strict=True)]
    assert intent == ops.ms64(case.rows[0], case.slots, SEED, 3, 1, BLOCK_SIZE).tolist()
    inside = [slot if 0 <= slot < NUM_SLOTS else NUM_SLOTS for slot in slots]
    memory = [of(plane[slot // BLOCK_SIZE, slot % BLOCK_SIZE], slot) for slot in inside]
    assert memory == ops.ms64_slots(plane, case.slots, SEED, 3, 1).tolist()


@pytest.mark.usefixtures("backend")
def test_only_its_writer_writes_a_block_and_the_rest_goes_to_trash() -> None:
    """-1 does not reach the last slot, nor a slot too large the next plane; NaNs stay as they are.

    Slots 4 and 5 are leased to 7, slot 19 too, slot 11 to 8; 8 is not 9's, 0 is nobody's.
    """
    case = case_of(2, 8, torch.bfloat16)
    before = as_integers(case.raw).clone()
    log = new_log(ops.LEASE_COLUMNS)
    ops.scatter_kv(
        *case.rows, case.plane(0), case.plane(1), case.slots, case.tags, case.lease,
        log.counts, log.ring,
    )  # fmt: skip
    after = as_integers(case.raw)
    rows = as_integers(case.rows)
    for index in range(2):
        for row, slot in ((0, 4), (1, 5), (3, 19), (9, 11)):
            block, offset = slot // BLOCK_SIZE + 1, slot % BLOCK_SIZE
            assert torch.equal(rows[index, row], after[index, block, offset])
            before[index, block, offset] = rows[index, row]
    trash = NUM_BLOCKS + 1
    assert not torch.equal(before[:, trash], after[:, trash])
    before[:, trash] = after[:, trash]
    assert torch.equal(before, after)
    assert log.counts.tolist() == [10, 4, 2]
    expected = [[4, 8, 2, 8, 9], [6, -5, -1, -1, 2], [7, 2**40, -1, -1, 3], [8, 0, 0, 0, 0]]
    assert expected == log.entries()
    assert expected[3:] == log.entries(since=3)


@pytest.mark.usefixtures("backend")
def test_without_a_lease_a_row_goes_where_it_says_or_to_trash() -> None:
    """The guard is off; -1 and slots outside still harm nobody."""
    case = case_of(1, 5, torch.int8)
    places = [0, 19, -1, 20, 23, 24, 2**40, -(2**40), 7, 8]
    slots = torch.tensor(places)
    before = case.raw.clone()
    ops.write_rows(*case.rows, case.plane(0), case.plane(1), slots)
    for index in range(2):
        for row, slot in ((0, 0), (1, 19), (8, 7), (9, 8)):
            before[index, slot // BLOCK_SIZE + 1, slot % BLOCK_SIZE] = case.rows[index, row]
    before[:, NUM_BLOCKS + 1] = case.raw[:, NUM_BLOCKS + 1]
    assert torch.equal(before, case.raw)


SLOT = st.integers(-3, NUM_SLOTS + BLOCK_SIZE + 2)
TAG = st.integers(0, 3)


def route(slots: list[int], tags: list[int], lease: list[int]) -> tuple[list[int], list[list[int]]]:
    """Return where rows go and what is recorded, in plain Python."""
    routed, bad = [], []
    for row, (slot, tag) in enumerate(zip(slots, tags, strict=True)):
        block = slot // BLOCK_SIZE if 0 <= slot < NUM_SLOTS else -1
        found = lease[block] if block >= 0 else -1
        good = block >= 0 and found == tag and tag > 0
        routed.append(slot if good else NUM_SLOTS + row % BLOCK_SIZE)
        padding = slot == -1 or NUM_SLOTS <= slot < NUM_SLOTS + BLOCK_SIZE
        if not good and not padding:
            bad.append([row, slot, block, found, tag])
    return routed, bad


@UNHURRIED
@given(
    st.lists(st.tuples(SLOT, TAG), max_size=12),
    st.lists(TAG, min_size=NUM_BLOCKS, max_size=NUM_BLOCKS),
)
def test_slots_are_routed_as_in_plain_python(rows: list[tuple[int, int]], lease: list[int]) -> None:
    """Routed slots may be routed again: nothing is counted or recorded twice."""
    slots, tags = [slot for slot, _ in rows], [tag for _, tag in rows]
    log = new_log(ops.LEASE_COLUMNS)
    given_tags, leases = torch.tensor([tags, tags]).int()[0], torch.tensor(lease).int()
    account = (given_tags, leases, log.counts, log.ring, BLOCK_SIZE)
    routed = ops.route_slots(torch.tensor(slots, dtype=torch.int64), *account)
    expected, bad = route(slots, tags, lease)
    assert expected == routed.tolist()
    assert bad == log.entries()
    assert [len(rows), len(bad)] == log.counts.tolist()[:2]
    assert expected == ops.route_slots(routed, *account).tolist()
    assert [2 * len(rows), len(bad)] == log.counts.tolist()[:2]


@pytest.mark.usefixtures("backend")
def test_the_ring_keeps_the_first_64_of_a_call_over_the_oldest() -> None:
    """Of 70 in one call the last 6 are counted only; the next call's 10 take the oldest places."""
    log = new_log(ops.LEASE_COLUMNS)
    lease = torch.zeros(NUM_BLOCKS, dtype=torch.int32)
    for num, tag in ((70, 1), (10, 2)):
        tags = torch.full((num,), tag, dtype=torch.int32)
        ops.route_slots(torch.arange(num) % 4, tags, lease, log.counts, log.ring, BLOCK_SIZE)
    assert log.counts.tolist() == [80, 80, 0]
    assert len(log.ring) == RING_ROWS
    # Violation 70 of all is the second call's first, and stands at 70 % 64.
    assert [[row, row % 4, 0, 0, 2] for row in range(10)] == log.entries(since=70)
    assert log.ring[5].tolist() == [5, 1, 0, 0, 1]
    assert log.ring[16].tolist() == [16, 0, 0, 0, 1]


@pytest.mark.usefixtures("backend")
def test_a_step_without_tokens_does_nothing() -> None:
    """No rows, no requests and no blocks are fine."""
    case, log = case_of(2, 8, torch.bfloat16), new_log(ops.LEASE_COLUMNS)
    before, none = as_integers(case.raw).clone(), case.slots[:0]
    account = (none, case.tags[:0], case.lease, log.counts, log.ring)
    assert ops.route_slots(*account, BLOCK_SIZE).tolist() == []
    ops.scatter_kv(*case.rows[:, :0], case.plane(0), case.plane(1), *account)
    ops.poison(case.plane(0), none, 0x41)
    assert ops.ms64(case.rows[0, :0], none, SEED, 0, 0, BLOCK_SIZE).tolist() == []
    assert ops.ms64_slots(case.plane(0), none, SEED, 0, 0).tolist() == []
    table = torch.zeros(0, 3, dtype=torch.int32)
    assert tuple(ops.gather_kv(case.plane(0), table, none, none).shape) == (0, 12, 2, 8)
    now, seen = case.lease, new_log(ops.IDENTITY_COLUMNS)
    ops.check_identity(table, table, table.long(), none, now, now.long(), seen.counts, seen.ring)
    assert torch.equal(before, as_integers(case.raw))
    assert log.counts.tolist() == seen.counts.tolist() == [0, 0, 0]


@pytest.mark.usefixtures("backend")
def test_a_table_full_of_violations_leaves_room_for_the_next() -> None:
    """Of 70 cells 64 are recorded, and the next call's 3 take the oldest places."""
    log, now = new_log(ops.IDENTITY_COLUMNS), torch.zeros(NUM_BLOCKS, dtype=torch.int32)
    for shape, epoch in (((7, 10), 1), ((1, 3), 2)):
        table = torch.zeros(shape, dtype=torch.int32)
        num_cells = torch.full(shape[:1], shape[1])
        cells = (table, table + epoch, table.long(), num_cells)
        ops.check_identity(*cells, now, now.long(), log.counts, log.ring)
    assert log.counts.tolist() == [73, 73, 0]
    assert sorted(log.entries(since=70)) == [[0, cell, 0, 0, 2, 0, 0] for cell in range(3)]
    assert sum(entry[4] == 1 for entry in log.entries()) == RING_ROWS - 3


@pytest.mark.usefixtures("backend")
def test_what_is_not_wanted_is_read_as_zero() -> None:
    """Positions outside a span, and cells without a block: zero, though memory holds NaNs."""
    case = case_of(2, 8, torch.bfloat16)
    plane = case.plane(0)
    as_integers(plane)[-1] = 0x7FE7
    table = torch.tensor([[1, 2, -1], [4, NUM_BLOCKS, 0]], dtype=torch.int32)
    read = ops.gather_kv(plane, table, torch.tensor([1, 0]), torch.tensor([12, 12]))
    assert tuple(read.shape) == (2, 12, 2, 8)
    found, kept = as_integers(read), as_integers(plane)
    assert torch.equal(found[0, 1:8], torch.cat([kept[1], kept[2]])[1:])
    assert not found[0, :1].any()
    assert not found[0, 8:].any()
    assert torch.equal(found[1], torch.cat([kept[4], torch.zeros_like(kept[4]), kept[0]]))
