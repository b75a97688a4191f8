"""Each row of docs/refinement.md has a test that shows it on the release, or a reason for none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "refinement.md"
TESTS = Path(__file__).with_name("test_listed_differences_0_8_5.py")

SHOWN = {
    "misuse": "test_misuse",
    "a request freed before its step ran": "test_a_request_freed_before_its_step_ran",
    "second `allocate_slots` before the step ran": "test_a_second_allocation_before_the_step_ran",
    "hits that went stale between look-up and allocation": "test_stale_hits",
    "request larger than the pool": "test_a_request_larger_than_the_pool",
    "drafts only, nothing confirmed to compute": "test_drafts_only",
    "hits of a request that was not looked up": "test_hits_without_a_look_up",
    "what may be sealed": "test_what_may_be_sealed",
    "tokens beyond `max_model_len`": "test_tokens_beyond_the_model",
    "free blocks in the window arithmetic": "test_null_hits_count_as_idle",
    "null block's `ref_cnt`": "test_the_null_block_is_counted",
    "sealing in a window": "test_sealing_in_a_window",
    "a hit wholly before the window, in a list that the caller built": (
        "test_a_hit_wholly_before_the_window"
    ),
    "usage of an idle pool": "test_the_usage_of_an_idle_pool",
    "`use_eagle`": "test_the_last_hit_is_dropped_for_eagle",
    "default hash": "test_the_default_hash",
    "sha256 key": "test_a_sha256_key_keeps_tokens_beside_the_digest",
    "builtin key": "test_a_builtin_key_is_found_behind_another_prefix",
    "adapter": "test_an_adapter_has_no_generation",
    "media": "test_media_have_no_offset",
    "salt": "test_there_is_no_salt",
    "extra keys": "test_extra_keys_have_no_tags",
    "token ids": "test_any_integer_is_a_token",
    "one id, two requests": "test_one_id_for_two_requests",
    "when counted": "test_statistics",
    "null blocks of a window hit": "test_statistics",
    "resumed requests": "test_statistics",
    "a key made without a look-up": "test_a_key_made_without_a_look_up",
}
"""The first cell of a row, and the test that shows it on the release."""

READ_ONLY = {
    "`num_computed_tokens`": "it is the release's scheduler that raises it, not its manager",
    "hits and `new_blocks` when the table is long enough": "a negative number is used as none",
}
"""Rows that the manager of the release cannot show, and why."""


def test_every_row_of_the_page_is_shown() -> None:
    """No row without a test or a reason, and no test whose row has gone."""
    page = PAGE.read_text(encoding="utf-8").split("## The encoder cache")[0]
    rows = {found[1].strip() for found in re.finditer(r"^\|([^|]+)\|", page, re.MULTILINE)}
    rows -= {"subject", "---"}
    assert rows == SHOWN.keys() | READ_ONLY.keys()


def test_every_test_shows_a_row() -> None:
    """The tests that are named exist, and there are no others."""
    body = ast.parse(TESTS.read_text(encoding="utf-8")).body
    tests = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    assert tests == set(SHOWN.values())
