"""A job does what its seed says, finds what is wrong, and its result can be merged."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from conformance.fuzzing.fuzz import (
    CALLS_PER_JOB,
    MAX_KEPT,
    NOTHING,
    Finding,
    Job,
    JobResult,
    SubjectCannotBeMadeError,
    episodes,
    run_job,
)
from conformance.fuzzing.shapes import EDGES, Distinct
from conformance.program import Program, failure
from conformance.subject import Capabilities
from conformance.subjects import find_subject
from spec.reachable import REACHABLE
from spec.state import Config

SUBJECTS = ("reference", "reference-builtin")


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_job_is_clean_and_the_same_every_time(subject: str) -> None:
    """Our manager does what the specification says, and a second run sees exactly the same."""
    result = run_job(Job(3, 4_000, subject))
    assert result == run_job(Job(3, 4_000, subject))
    assert result != run_job(Job(4, 4_000, subject))
    assert not result.failures
    assert not result.findings
    assert 4_000 <= result.calls < 4_050
    assert len(result.states) > 100
    assert len(result.transitions) > len(result.states)


@pytest.mark.slow
def test_jobs_see_everything_between_them() -> None:
    """Every transition of a block, every situation and every rule but a rare one is met."""
    result = NOTHING
    for seed in range(16):
        result = result.merge(run_job(Job(seed, CALLS_PER_JOB, SUBJECTS[seed % 2])))
    assert result.edges == frozenset(EDGES.values())
    assert result.reachable.keys() == REACHABLE.keys()
    assert RULES - RARE <= result.refusals.keys() <= RULES
    assert result.failures.total() == 0
    assert result.jobs == 16


RULES = {
    "block_count_is_negative",
    "block_is_already_sealed",
    "block_is_not_of_this_pool",
    "computed_tokens_without_blocks",
    "hit_is_stale",
    "hits_for_a_request_with_a_table",
    "hits_while_caching_is_off",
    "hits_with_prompt_logprobs",
    "last_step_has_not_run",
    "no_confirmed_token_to_compute",
    "not_enough_free_blocks",
    "null_hit_is_readable",
    "num_lookahead_tokens_is_negative",
    "num_tokens_is_below_one",
    "pending_block_is_shared",
    "released_more_often_than_held",
    "request_is_too_large",
    "seal_range_is_invalid",
    "sealed_block_has_not_one_holder",
    "token_id_is_out_of_range",
    "tokens_beyond_max_model_len",
    "tokens_beyond_the_request",
    "touched_block_is_not_sealed",
    "unpublished_block_is_not_one_holders",
}
"""Every rule that a manager can see broken."""

RARE = {"hits_with_prompt_logprobs"}
"""What a walk meets once in tens of thousands of calls."""

PROGRAM = """
from hashlib import sha256
from conformance.fuzzing.fuzz import Job, run_job
result = run_job(Job(7, 3_000, {subject!r}))
sketches = sha256(result.states.bits + result.transitions.bits).hexdigest()
print(result.episodes, sketches, result.as_json())
"""


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_job_is_the_same_in_every_process(python: Callable[..., Any], subject: str) -> None:
    """Neither the process nor the hash seed has a say."""
    done = [python("-c", PROGRAM.format(subject=subject), hash_seed=seed) for seed in ("0", "7")]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    assert done[0].stdout == done[1].stdout
    assert "'calls': 30" in done[0].stdout


def test_a_job_is_plain_data() -> None:
    """A job survives JSON, a result survives pickling, its counts survive JSON."""
    job = Job(5, 300, "reference")
    assert Job(*json.loads(json.dumps(job))) == job
    result = run_job(job)
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301  # our own
    plain = result.as_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["calls"] == result.calls


def test_an_episode_keeps_to_what_the_subject_can_do() -> None:
    """No window, no direct call where there is none; with both, all kinds of pools occur."""
    job = Job(1, 1, "reference")
    poor = list(islice(episodes(job, Capabilities(window=False, pool_calls=False)), 300))
    assert all(not e.pool and e.config.sliding_window is None for e in poor)
    rich = list(islice(episodes(job, Capabilities()), 300))
    assert {e.pool for e in rich} == {e.full for e in rich} == {True, False}
    small = sum(e.config.usable <= 8 for e in rich)
    assert 200 < small < 300
    assert max(e.config.usable for e in rich) > 100
    assert {e.config.block_size for e in rich} == {1, 2, 3, 4}
    assert {e.config.enable_caching for e in rich} == {True, False}
    assert all(e.config.usable <= 8 and e.calls <= 300 for e in rich if e.full)
    assert len({e.seed for e in rich}) == 300


def test_a_fault_is_found_with_the_program_that_shows_it(planted: Path) -> None:
    """The program fails by itself, by the name of the line."""
    assert planted.exists()
    result = run_job(Job(1, CALLS_PER_JOB, "planted_subjects:Leaky"))
    (finding,) = result.findings
    assert result.failures == {finding.property: 1}
    assert finding.line.startswith(f"kvspec violation: property={finding.property} call=")
    assert finding.repeated
    divergence = failure(finding.program, find_subject("planted_subjects:Leaky"))
    assert divergence is not None
    assert divergence.call.action == "preempt"
    assert failure(finding.program, find_subject("planted_subjects:Sound")) is None
    assert result == run_job(Job(1, CALLS_PER_JOB, "planted_subjects:Leaky"))


@pytest.mark.slow
def test_a_job_may_go_on_after_a_failure(planted: Path) -> None:
    """Without `stop` the whole budget is used; all failures count, a few are kept."""
    assert planted.exists()
    result = run_job(Job(1, 20_000, "planted_subjects:Leaky", stop=False))
    assert result.calls >= 20_000 - 50
    assert len(result.findings) == MAX_KEPT < result.failures.total() <= result.episodes


def test_what_does_not_fail_again_is_marked(planted: Path) -> None:
    """A subject that depends on something besides its calls is told apart."""
    assert planted.exists()
    result = run_job(Job(2, 50_000, "planted_subjects:Fickle"))
    (finding,) = result.findings
    assert not finding.repeated


def test_a_subject_that_cannot_be_made_says_with_what(planted: Path) -> None:
    """The configuration and the subject's own words are in the error."""
    assert planted.exists()
    with pytest.raises(SubjectCannotBeMadeError, match=r"Config\(.*ValueError: two tokens only"):
        run_job(Job(1, CALLS_PER_JOB, "planted_subjects:Unmakeable"))


def _finding(seed: int, episode: int) -> Finding:
    program = Program(Config(2, 1), ())
    return Finding(seed, episode, "reference", "p", "line", program, repeated=True)


NAMES = st.sampled_from(["a", "b", "c"])
COUNTS = st.dictionaries(NAMES, st.integers(1, 9)).map(Counter)
NUMBERS = st.integers(0, 99)


def _sketch(numbers: list[int]) -> Distinct:
    distinct = Distinct()
    for number in numbers:
        distinct.add(hash((number,)))
    return distinct


SKETCHES = st.lists(NUMBERS, max_size=3).map(_sketch)
RESULTS = st.builds(
    JobResult,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    COUNTS,
    COUNTS,
    st.frozensets(st.sampled_from(sorted(EDGES.values()))),
    SKETCHES,
    SKETCHES,
    COUNTS,
    st.lists(st.builds(_finding, NUMBERS, NUMBERS), max_size=MAX_KEPT).map(
        lambda findings: tuple(sorted(findings, key=lambda f: f[:5]))
    ),
)


# A result is a megabyte, which takes minutes to make smaller.
@settings(max_examples=60, phases=(Phase.generate,))
@pytest.mark.slow
@given(RESULTS, RESULTS, RESULTS)
def test_results_merge_in_any_order(a: JobResult, b: JobResult, c: JobResult) -> None:
    """Merging is associative and commutative, and nothing is lost or added by it."""
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(NOTHING) == a == NOTHING.merge(a)
    assert a.merge(b).calls == a.calls + b.calls
    assert len(a.merge(b).findings) == min(MAX_KEPT, len(a.findings) + len(b.findings))
