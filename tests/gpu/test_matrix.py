"""Every way to serve the same requests gives equal tokens and equal bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from gpu.exact_model import PRIMES
from gpu.matrix import (
    FACTORS,
    MatrixRow,
    Setting,
    all_settings,
    cover,
    exact_matrix,
    shared_prefix_work,
)
from gpu.scheduling import Work

NUM_REQUESTS = 30


@pytest.fixture(scope="module")
def rows() -> list[MatrixRow]:
    """Return the part of the matrix that has every pair of choices, run once."""
    return exact_matrix(shared_prefix_work(NUM_REQUESTS, seed=1), cover(2))


@pytest.mark.slow
def test_every_way_to_serve_gives_equal_tokens_and_equal_bytes(rows: list[MatrixRow]) -> None:
    """No tolerance: cache, chunk, batch, block size, window, room, drafts and dtype."""
    assert {row.verdict for row in rows} == {"equal"}
    assert {row.num_requests for row in rows} == {NUM_REQUESTS}


@pytest.mark.slow
def test_the_matrix_had_something_to_compare(rows: list[MatrixRow]) -> None:
    """There were hits, preemptions, drafts that were kept and drafts that were not."""
    for row in rows:
        setting, tally = row.setting, row.tally
        assert row.num_compared > 1000
        assert tally.num_finished == NUM_REQUESTS
        assert (tally.num_hit_tokens > 0) == setting.enable_caching
        drafts = (tally.num_accepted_drafts > 0, tally.num_rejected_drafts > 0)
        assert drafts == (setting.num_drafts > 0,) * 2
        if setting.max_num_seqs == 1 or not setting.tight:
            assert tally.num_preemptions == 0
    assert sum(row.tally.num_preemptions for row in rows) > 20
    assert {row.setting.dtype for row in rows if row.tally.num_preemptions} == set(PRIMES)


@pytest.mark.slow
@pytest.mark.parametrize("strength", [2, 3])
def test_the_first_settings_have_every_combination_and_none_comes_twice(strength: int) -> None:
    """All settings are there, and a few of them hold every pair or triple of choices."""
    settings, first = all_settings(), cover(strength)
    assert len(settings) == len(set(settings)) == 576
    assert settings[: len(first)] == first
    assert len(first) < 5**strength
    for names in combinations(FACTORS, strength):
        seen = {tuple(getattr(setting, name) for name in names) for setting in first}
        assert seen == set(product(*(FACTORS[name] for name in names)))


def test_settings_that_did_not_begin_in_time_are_named() -> None:
    """A run without time says so; nothing counts as equal."""
    rows = exact_matrix(shared_prefix_work(3, seed=1), cover(2)[:2], seconds=0.0)
    assert [row.verdict for row in rows] == ["not run", "not run"]


def test_work_is_the_same_for_the_same_seed() -> None:
    """And has what a cache is for: prompts that begin alike, and equal ones."""
    work = shared_prefix_work(30, seed=1)
    assert work == shared_prefix_work(30, seed=1) != shared_prefix_work(30, seed=2)
    prompts = [tuple(one.prompt_token_ids) for one in work]
    assert len(set(prompts)) < len(prompts)
    assert {one.num_output_tokens for one in work} >= {0, 9}


def test_a_tight_pool_holds_one_request() -> None:
    """And its drafts, besides the null block."""
    work = [Work("a", range(10), 3)]
    tight = Setting("int8", None, True, 8, 4, 4, True, 3)  # noqa: FBT003 # the fields are named above
    assert tight.num_blocks(work) == 1 + 4
    assert replace(tight, tight=False).num_blocks(work) == 1 + 4 * 6
