"""MS64 is one number in every arithmetic, and sees what simpler sums do not."""

from __future__ import annotations

import shutil
from functools import reduce
from operator import xor
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.fingerprint import (
    GOLDEN,
    MASK,
    first_word_index,
    mix64,
    ms64_of_row,
    ms64_rows,
    ms64_rows_in_chunks,
    row_keys,
    signed,
    word_steps,
    words_of,
)

UNHURRIED = settings(deadline=None)
"""A busy machine is no fault."""

LAYERS, PLANES, SLOTS, WORDS = 2, 2, 3, 2
WORD = st.integers(0, MASK)
SEED = 0x9D39_247E_3377_6D41

Place = tuple[int, int, int]
Page = dict[Place, list[int]]
"""Words by layer, plane and slot."""

PLACES = [(i, j, k) for i in range(LAYERS) for j in range(PLANES) for k in range(SLOTS)]
PAGES = st.lists(
    st.lists(WORD, min_size=WORDS, max_size=WORDS), min_size=len(PLACES), max_size=len(PLACES)
).map(lambda rows: dict(zip(PLACES, rows, strict=True)))


def fingerprint(page: Page, seed: int = SEED) -> int:
    """Return the fingerprint of all rows together, which sees less than that of each."""
    total = 0
    for (layer, plane, slot), words in page.items():
        row = b"".join(word.to_bytes(8, "little") for word in words)
        index = first_word_index(layer, plane, slot, SLOTS, WORDS)
        total += ms64_of_row(row, seed=seed, first_index=index)
    return total & MASK


def in_torch(rows: torch.Tensor, layer: int, plane: int, block_size: int) -> list[int]:
    """Return what torch makes of rows of bytes that lie at slots 0, 1, 2, ..."""
    words = words_of(rows)
    num_words = words.shape[1]
    keys = row_keys(
        torch.arange(rows.shape[0]) % block_size,
        seed=SEED,
        layer=layer,
        plane=plane,
        block_size=block_size,
        num_words=num_words,
    )
    result: list[int] = ms64_rows(words, keys, word_steps(num_words, words.device)).tolist()
    return result


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    """The generator's published outputs for the seed 1234567 are its states, mixed."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert expected == [mix64((1234567 + GOLDEN * step) & MASK) for step in (1, 2, 3)]


def test_a_fingerprint_does_not_change_with_the_version() -> None:
    """A recorded fingerprint can be compared with one of another machine and another year."""
    index = first_word_index(layer=1, plane=1, offset=2, block_size=4, num_words=3)
    assert ms64_of_row(bytes(range(20)), seed=7, first_index=index) == GOLDEN_ROW


GOLDEN_ROW = 0xE827_F3D8_881F_2AFE


@UNHURRIED
@given(st.binary(min_size=1, max_size=40), st.integers(0, MASK), st.integers(0, 2**40))
def test_numpy_gives_what_python_integers_give(row: bytes, seed: int, index: int) -> None:
    """A third arithmetic, with words that wrap by themselves, gives the same number."""
    words = np.frombuffer(row + bytes(-len(row) % 8), dtype="<u8")
    index_of = np.arange(len(words), dtype=np.uint64) + np.uint64(index)
    mixed = words + np.array(seed, np.uint64) + index_of * np.array(GOLDEN, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.array(factor, np.uint64)
    # The last factor of 1 leaves the last shift as it is.
    expected = int(mixed.sum(dtype=np.uint64))
    assert expected == ms64_of_row(row, seed=seed, first_index=index)


@UNHURRIED
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99), st.randoms())
def test_torch_gives_what_python_integers_give(
    row_bytes: int, num_rows: int, block_size: int, layer: int, random: Random
) -> None:
    """Rows of any number of bytes, at any place."""
    data = [random.randbytes(row_bytes) for _ in range(num_rows)]
    rows = torch.tensor([list(row) for row in data], dtype=torch.uint8)
    num_words = -(-row_bytes // 8)
    indexes = [
        first_word_index(layer, 1, slot % block_size, block_size, num_words)
        for slot in range(num_rows)
    ]
    expected = [
        signed(ms64_of_row(row, seed=SEED, first_index=index))
        for row, index in zip(data, indexes, strict=True)
    ]
    assert expected == in_torch(rows, layer, 1, block_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float64])
def test_a_dtype_is_read_as_its_bytes(dtype: torch.dtype) -> None:
    """The words of a tensor are those of its bytes, NaNs and all, also from the middle of it."""
    raw = torch.randint(256, (7, 48), dtype=torch.uint8)
    rows = raw.view(dtype).view(7, 2, -1)[2:5]
    assert torch.equal(words_of(raw[2:5]), words_of(rows))
    assert words_of(rows).data_ptr() == rows.data_ptr()
    assert torch.equal(words_of(raw)[2:5], words_of(raw.t().contiguous().t())[2:5])


@pytest.mark.parametrize("start", [0, 1, 4, 8])
def test_rows_may_begin_anywhere(start: int) -> None:
    """Also where no word begins."""
    data = torch.arange(64, dtype=torch.uint8)
    rows = data[start : start + 48].view(3, 16)
    assert torch.equal(words_of(rows.clone()), words_of(rows))


def test_many_rows_are_taken_in_chunks() -> None:
    """Chunks, the last one smaller, give what one piece gives; so do no rows."""
    words = torch.randint(-(2**62), 2**62, (1001, 40))
    keys, steps = torch.arange(1001) * 77, word_steps(40, words.device)
    assert torch.equal(ms64_rows(words, keys, steps), ms64_rows_in_chunks(words, keys, steps))
    assert ms64_rows_in_chunks(words[:0], keys[:0], steps).tolist() == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, g++")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")
def test_compiled_torch_gives_what_eager_torch_gives() -> None:
    """Also where it was compiled for another shape first, which made a wrong sum of steps."""
    compiled = torch.compile(ms64_rows)
    for num_rows, num_words in ((3, 16), (5, 32), (6, 40)):
        words = torch.randint(-(2**62), 2**62, (num_rows, num_words))
        keys, steps = torch.arange(num_rows) * 77, word_steps(num_words, words.device)
        assert torch.equal(ms64_rows(words, keys, steps), compiled(words, keys, steps))


def test_no_flip_of_a_single_bit_is_missed() -> None:
    """Each bit of a page changes the page's fingerprint."""
    random = Random(5)  # noqa: S311  # nothing secret: the page is the same in every run
    page = {place: [random.getrandbits(64) for _ in range(WORDS)] for place in PLACES}
    before = fingerprint(page)
    for place in PLACES:
        for word in range(WORDS):
            for bit in range(64):
                page[place][word] ^= 1 << bit
                assert before != fingerprint(page), f"bit {bit} of word {word} at {place}"
                page[place][word] ^= 1 << bit
    assert before == fingerprint(page)


@UNHURRIED
@given(PAGES, st.sampled_from(PLACES), st.integers(0, WORDS - 1), st.integers(1, MASK))
def test_no_change_within_a_word_is_missed(
    page: Page, place: Place, word: int, change: int
) -> None:
    """mix64 is a bijection, so whatever the new word is, it is seen."""
    before = fingerprint(page)
    page[place][word] ^= change
    assert before != fingerprint(page)


@UNHURRIED
@given(PAGES, st.data())
def test_no_exchange_of_two_words_is_missed(page: Page, data: st.DataObject) -> None:
    """Anywhere in the page, unless they are equal."""
    one, other = (
        data.draw(st.tuples(st.sampled_from(PLACES), st.integers(0, WORDS - 1))) for _ in range(2)
    )
    before = fingerprint(page)
    same = page[one[0]][one[1]] == page[other[0]][other[1]]
    exchange_words(page, one, other)
    assert same == (before == fingerprint(page))


def exchange_words(page: Page, one: tuple[Place, int], other: tuple[Place, int]) -> None:
    """Exchange two words of a page."""
    kept = page[one[0]][one[1]]
    page[one[0]][one[1]] = page[other[0]][other[1]]
    page[other[0]][other[1]] = kept


@pytest.mark.parametrize("part", [0, 1, 2], ids=["layers", "planes", "slots"])
@UNHURRIED
@given(page=PAGES)
def test_no_exchange_of_layers_planes_or_slots_is_missed(page: Page, part: int) -> None:
    """Part 0 and part 1 of the page change places as a whole."""
    moved: Page = {}
    for place, words in page.items():
        to = list(place)
        to[part] = {0: 1, 1: 0}.get(place[part], place[part])
        moved[to[0], to[1], to[2]] = words
    assert (page == moved) == (fingerprint(page) == fingerprint(moved))


@UNHURRIED
@given(PAGES, st.randoms())
def test_rows_may_be_added_up_in_any_order(page: Page, random: Random) -> None:
    """A sum has no order."""
    places = list(PLACES)
    random.shuffle(places)
    assert fingerprint(page) == fingerprint({place: page[place] for place in places})


@UNHURRIED
@given(PAGES, st.integers(0, MASK), st.integers(0, MASK))
def test_another_seed_gives_another_fingerprint(page: Page, seed: int, other: int) -> None:
    """Two pools with seeds of their own do not take each other's pages for their own."""
    assert (seed == other) == (fingerprint(page, seed) == fingerprint(page, other))


@UNHURRIED
@given(PAGES, st.permutations(range(len(PLACES) * WORDS)))
def test_simpler_sums_miss_every_exchange(page: Page, order: list[int]) -> None:
    """An exclusive or and a plain sum are the same for all orders of the words."""
    words = [word for place in PLACES for word in page[place]]
    moved = [words[index] for index in order]
    assert reduce(xor, words) == reduce(xor, moved)
    assert sum(words) & MASK == sum(moved) & MASK


@UNHURRIED
@given(PAGES, st.permutations(range(len(PLACES) * WORDS)), st.integers(1, len(PLACES)))
def test_weights_miss_every_even_number_of_sign_flips(
    page: Page, order: list[int], num_pairs: int
) -> None:
    """The top bit times an odd weight is the top bit, and two are nothing; MS64 sees them."""
    words = [word for place in PLACES for word in page[place]]
    flipped = order[: 2 * num_pairs]
    weights = [2 * index + 1 for index in range(len(words))]
    changed = [word ^ (1 << 63) * (index in flipped) for index, word in enumerate(words)]
    total, other = (sum(map(int.__mul__, weights, each)) & MASK for each in (words, changed))
    assert total == other
    rows = dict(zip(PLACES, zip(*[iter(changed)] * WORDS, strict=True), strict=True))
    assert fingerprint(page) != fingerprint({place: list(row) for place, row in rows.items()})
