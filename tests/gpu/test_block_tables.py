"""A table gives each token its slot, and a read sees a block that its reader does not expect."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu import ops
from gpu.errors import TableRowTooLong
from gpu.tables import BlockIdentities, BlockTables, key_identity, writer_identity
from kvcache.hashing import BuiltinKey

UNHURRIED = settings(deadline=None)
"""A busy machine is no fault."""

NUM_BLOCKS, MAX_BLOCKS, BLOCK_SIZE = 8, 4, 3


def found_by(
    blocks: BlockIdentities, tables: BlockTables, rows: list[int], num_cells: list[int]
) -> list[list[int]]:
    """Return what a check records, and see that it counts what it should."""
    log = ops.Log.empty(ops.IDENTITY_COLUMNS, "cpu")
    blocks.check(tables, torch.tensor(rows), torch.tensor(num_cells), log)
    assert log.counts.tolist() == [sum(num_cells), len(log.entries()), 0]
    return log.entries()


def two_requests() -> tuple[BlockIdentities, BlockTables]:
    """Return blocks and tables of request 1 with blocks 3, 4 and of request 2 with 3, 5, 6.

    Block 3 is sealed and shared; the others are being written.
    """
    blocks, tables = BlockIdentities(NUM_BLOCKS), BlockTables(3, MAX_BLOCKS, BLOCK_SIZE)
    for block, tag, position in ((3, 1, 0), (4, 1, 1), (5, 2, 1), (6, 2, 2)):
        blocks.take(block, tag, position)
    blocks.seal(3, b"the key of a block")
    for row, ids in ((0, [3, 4]), (1, [3, 5, 6])):
        identities = [key_identity(b"the key of a block")]
        identities += [writer_identity(row + 1, position) for position in range(1, len(ids))]
        tables.set_row(row, ids, [1] * len(ids), identities)
    return blocks, tables


@UNHURRIED
@given(
    st.lists(st.tuples(st.integers(-2, 3), st.integers(-1, MAX_BLOCKS * BLOCK_SIZE)), max_size=9)
)
def test_a_token_has_the_slot_of_its_position(tokens: list[tuple[int, int]]) -> None:
    """What has no row or no block has slot -1, and nothing is read past the table."""
    tables = BlockTables(2, MAX_BLOCKS, BLOCK_SIZE)
    held = {0: [5, 2], 1: [7, 0, 6, 1]}
    for row, ids in held.items():
        tables.set_row(row, ids, [0] * len(ids), [0] * len(ids))
    expected = []
    for row, position in tokens:
        ids = held.get(row, [])
        there = 0 <= position < len(ids) * BLOCK_SIZE
        block = ids[position // BLOCK_SIZE] if there else -1
        expected.append(block * BLOCK_SIZE + position % BLOCK_SIZE if there else -1)
    rows, positions = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 2).unbind(1)
    assert expected == tables.slot_mapping(rows, positions).tolist()


def test_a_row_is_replaced_as_a_whole_and_cleared() -> None:
    """A shorter row leaves nothing of the longer one before it."""
    tables = BlockTables(2, MAX_BLOCKS, BLOCK_SIZE)
    tables.set_row(0, [1, 2, 3], [1, 1, 1], [-5, -6, -7])
    tables.set_row(0, [4], [2], [9])
    assert tables.block_ids.tolist() == [[4, -1, -1, -1], [-1] * 4]
    assert tables.epochs.tolist() == [[2, -1, -1, -1], [-1] * 4]
    assert tables.identities.tolist() == [[9, 0, 0, 0], [0] * 4]
    tables.clear_row(0)
    assert tables.block_ids.tolist() == [[-1] * 4] * 2


def test_a_row_that_is_too_long_is_refused_and_changes_nothing() -> None:
    """The error says how long rows are."""
    tables = BlockTables(1, MAX_BLOCKS, BLOCK_SIZE)
    tables.set_row(0, [1], [1], [1])
    with pytest.raises(TableRowTooLong, match="row 0: 5 blocks do not fit into 4 cells"):
        tables.set_row(0, [1] * 5, [1] * 5, [1] * 5)
    assert tables.block_ids.tolist() == [[1, -1, -1, -1]]


def test_an_identity_says_which_kind_it_is() -> None:
    """Below 0 a writer and a place, above 0 a key, 0 the null block; no two are alike by rule."""
    written = {writer_identity(tag, place) for tag in range(9) for place in (0, 1, 2**31)}
    assert len(written) == 27
    assert max(written) < 0
    assert writer_identity(2**31 - 1, 2**32 - 1) >= -(2**63)
    assert key_identity(b"\xff" * 32) == 2**63 - 1
    assert key_identity(b"\x80" + bytes(7)) == 1
    key = BuiltinKey(None, (1, 2, 3), ())
    assert 0 < key_identity(key) == key_identity(BuiltinKey(None, (1, 2, 3), ()))


def test_a_read_of_what_is_expected_finds_nothing() -> None:
    """Also with the null block in a place whose tokens are out of the window."""
    blocks, tables = two_requests()
    assert found_by(blocks, tables, [0, 1], [2, 3]) == []
    tables.set_row(2, [0, 6], [0, 1], [0, writer_identity(2, 2)])
    assert found_by(blocks, tables, [2, 0], [2, 2]) == []


def test_a_block_that_was_taken_again_is_seen_by_its_epoch() -> None:
    """Even if the same request takes it for the same place."""
    blocks, tables = two_requests()
    blocks.take(4, 1, 1)
    writer = writer_identity(1, 1)
    assert found_by(blocks, tables, [0], [2]) == [[0, 1, 4, 2, 1, writer, writer]]


def test_rows_exchanged_are_seen_by_identity_and_not_by_epoch() -> None:
    """Block and epoch move together and agree; what the reader expects stays with the reader."""
    blocks, tables = two_requests()
    for cells in (tables.block_ids, tables.epochs):
        cells[:2] = cells[:2].flip(0)
    found = found_by(blocks, tables, [0, 1], [2, 2])
    assert [entry[:5] for entry in found] == [[0, 1, 5, 1, 1], [1, 1, 4, 1, 1]]


def test_a_key_that_was_dropped_or_another_is_seen() -> None:
    """A reader of a sealed block expects its key."""
    blocks, tables = two_requests()
    blocks.seal(3, b"another key")
    (found,) = found_by(blocks, tables, [0], [1])
    assert found[5:] == [key_identity(b"another key"), key_identity(b"the key of a block")]
    blocks.forget(3)
    assert len(found_by(blocks, tables, [0, 1], [1, 1])) == 2


def test_a_cell_without_a_block_is_seen_where_one_is_read() -> None:
    """Past the end of a row, and with ids that no block has."""
    blocks, tables = two_requests()
    assert [entry[:4] for entry in found_by(blocks, tables, [0], [3])] == [[0, 2, -1, -1]]
    tables.block_ids[0, 0] = NUM_BLOCKS
    assert [entry[:4] for entry in found_by(blocks, tables, [0], [1])] == [[0, 0, NUM_BLOCKS, -1]]
