"""The random walk is repeatable, reaches what is interesting, and finds nothing on our manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from conformance.adapters.reference import Reference
from conformance.driving.walk import Walk
from conformance.lockstep import Check, Divergence, Lockstep
from conformance.subject import Capabilities, Subject
from spec.state import NULL, Config


class Place(NamedTuple):
    """A configuration and a kind of keys."""

    config: Config
    algorithm: str = "sha256"


PLACES = {
    "full attention": Place(Config(9, 2)),
    "builtin keys": Place(Config(20, 1), "builtin"),
    "roomy": Place(Config(40, 4), "builtin"),
    "tight": Place(Config(5, 1)),
    "two blocks": Place(Config(3, 2)),
    "window": Place(Config(20, 1, sliding_window=4)),
    "narrow window": Place(Config(12, 2, sliding_window=2), "builtin"),
    "wide window": Place(Config(14, 3, sliding_window=8), "builtin"),
    "caching off": Place(Config(9, 2, enable_caching=False)),
    "window, caching off": Place(Config(12, 2, sliding_window=3, enable_caching=False)),
    "short model": Place(Config(16, 2, max_model_len=6)),
    "shortest model": Place(Config(16, 4, max_model_len=1)),
}

SEEN = {
    "admitted with hits",
    "no room",
    "reset False",
    "reset True",
    "refused: block_is_not_of_this_pool",
    "refused: computed_tokens_without_blocks",
    "refused: hit_is_stale",
    "refused: hits_for_a_request_with_a_table",
    "refused: hits_while_caching_is_off",
    "refused: last_step_has_not_run",
    "refused: no_confirmed_token_to_compute",
    "refused: null_hit_is_readable",
    "refused: num_lookahead_tokens_is_negative",
    "refused: num_tokens_is_below_one",
    "refused: pending_block_is_shared",
    "refused: request_is_too_large",
    "refused: token_id_is_out_of_range",
    "refused: tokens_beyond_max_model_len",
    "refused: tokens_beyond_the_request",
}
"""What the walks below count between them."""

RARE = {"refused: hits_with_prompt_logprobs"}
"""What a walk meets once in tens of thousands of moves."""

HAPPENED = {
    "accepted drafts",
    "admitted",
    "admitted with hits",
    "an eviction",
    "chunk",
    "finished in flight",
    "forgot keys",
    "hit on a pending block",
    "moved window",
    "null hit",
    "preempted in flight",
    "second copy of a key",
    "several in one step",
    "shared block",
    "took keys back",
}
"""What happens between them, as the states of the specification show it."""


class Observed(Lockstep):
    """A pair that counts what happens, from the states before and after each call."""

    def __init__(self, subject: Subject, check: Check, sweep_every: int | None = None) -> None:
        super().__init__(subject, check, sweep_every)
        self.happened: Counter[str] = Counter()

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
        r = self.state.requests.get(args.get("rid", ""))
        flying = r is not None and r.in_flight
        blocks = self.state.pool.blocks
        own = [b for b in args.get("hits", ()) if 0 <= b < len(blocks)]
        pending = any(blocks[b].pending for b in own)
        keys = len(self.state.pool.by_key)
        evicted = self.num_evictions()
        result = super()._call(action, **args)
        hits = args.get("hits", ())
        given = action == "allocate_slots" and result is not None
        fewer = len(self.state.pool.by_key) < keys
        outcomes = args.get("outcomes", {})
        self.happened += Counter(
            {
                "accepted drafts": sum(outcome.accepted for outcome in outcomes.values()),
                "admitted": given and not (r and r.table),
                "admitted with hits": given and any(b != NULL for b in hits),
                "an eviction": self.num_evictions() > evicted,
                "chunk": given and r is not None and args["num_tokens"] < len(r.tokens) - len(hits),
                "finished in flight": action == "finish" and flying,
                "forgot keys": action == "reset_prefix_cache" and fewer,
                "hit on a pending block": given and pending,
                "moved window": given and r is not None and self._moved(args["rid"], r.table),
                "null hit": given and NULL in hits,
                "preempted in flight": action == "preempt" and flying,
                "second copy of a key": any(len(c) > 1 for c in self.state.pool.by_key.values()),
                "several in one step": len(outcomes) > 1,
                "shared block": any(block.ref_cnt > 1 for block in self.state.pool.blocks),
                "took keys back": flying and action in ("preempt", "finish", "free") and fewer,
            }
        )
        return result

    def _moved(self, rid: str, table: tuple[int, ...] | None) -> bool:
        return table is not None and (self.table(rid).count(NULL) > table.count(NULL))


@pytest.fixture(scope="module")
def walked() -> Callable[[str, Check, range, int], Counter[str]]:
    """Return a way to walk with some seeds in one place; what was counted, and what happened."""

    def walk(name: str, check: Check, seeds: range, num_moves: int) -> Counter[str]:
        config, algorithm = PLACES[name]
        counted: Counter[str] = Counter()
        for seed in seeds:
            pair = Observed(Reference(config, algorithm), check, sweep_every=100)
            steps = Walk(pair, seed)
            steps.run(num_moves)
            pair.sweep()
            counted += steps.counts
            counted += Counter({f"happened: {what}": n for what, n in pair.happened.items()})
        return counted

    return walk


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_both_ways_to_check_walk_alike_and_find_nothing(
    walked: Callable[[str, Check, range, int], Counter[str]], name: str
) -> None:
    """Our manager does in every place what the specification says, and a check changes nothing."""
    full = walked(name, "full", range(8), 300)
    assert full == walked(name, "incremental", range(8), 300)
    assert full.total() > 0


@pytest.mark.slow
def test_the_walks_see_everything_of_interest(
    walked: Callable[[str, Check, range, int], Counter[str]],
) -> None:
    """No rule that a walk can meet and nothing that makes faults likely is missing from them."""
    counted: Counter[str] = Counter()
    for name in PLACES:
        counted += walked(name, "incremental", range(100, 125), 500)
    happened = {what.removeprefix("happened: ") for what in counted if what[:9] == "happened:"}
    seen = {what for what in counted if what[:9] != "happened:"}
    assert happened == HAPPENED
    assert seen >= SEEN
    assert seen <= SEEN | RARE


PROGRAM = """
import logging
from hashlib import sha256
from conformance.adapters.reference import Reference
from conformance.lockstep import Lockstep
from conformance.driving.walk import Walk
from spec.state import Config

logging.disable()

class Told(Lockstep):
    calls_made = ()
    def _call(self, action, **args):
        self.calls_made += ((action, sorted(args.items())),)
        return super()._call(action, **args)

for config, algorithm in {places}:
    pair = Told(Reference(config, algorithm), {check!r})
    walk = Walk(pair, {seed})
    walk.run(300)
    calls = sha256(repr(pair.calls_made).encode()).hexdigest()
    print(len(pair.calls_made), calls, sorted(walk.counts.items()))
"""


@pytest.mark.slow
def test_a_walk_is_a_function_of_its_seed(python: Callable[..., Any]) -> None:
    """Another process, another hash seed and another way to check make the same calls."""
    places = [tuple(PLACES[name]) for name in ("full attention", "builtin keys", "window")]

    def printed(check: str, seed: int, hash_seed: str) -> str:
        program = PROGRAM.format(places=places, check=check, seed=seed)
        done = python("-c", program, hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    first = printed("full", 5, "0")
    assert first == printed("full", 5, "1") == printed("incremental", 5, "2")
    assert first != printed("full", 6, "0")
    assert len(first.splitlines()) == len(places)


@pytest.mark.parametrize("check", ["full", "incremental"])
def test_a_walk_finds_a_seeded_fault(damaged: Callable[..., type[Reference]], check: Check) -> None:
    """A fault that one call makes ends the walk at that call."""

    def keep_a_reference(subject: Any, _: object, result: tuple[int, ...]) -> object:  # noqa: ANN401
        subject.pool.blocks[result[0]].ref_cnt += 1
        return result

    pair = Lockstep(damaged("allocate_slots", 1, keep_a_reference)(Config(9, 2)), check)
    with pytest.raises(Divergence) as caught:
        Walk(pair, 1).run(100)
    assert caught.value.call.action == "allocate_slots"
    assert caught.value.call.number == pair.calls


def test_a_walk_of_no_moves_makes_no_call() -> None:
    """Nothing happens before the first move."""
    pair = Lockstep(Reference(Config(3, 1)))
    walk = Walk(pair, 0)
    walk.run(0)
    assert (pair.calls, walk.counts) == (0, Counter())


class _WithoutDrafts(Reference):
    capabilities = Capabilities(lookahead=False)


def test_a_subject_without_look_ahead_is_asked_for_none(recording: Callable[[object], Any]) -> None:
    """Neither a careful move nor misuse proposes drafts or wants slots beyond them."""
    made = 0
    for seed in range(12):
        subject = recording(_WithoutDrafts(Config(6, 2)))
        Walk(Lockstep(subject, "incremental"), seed).run(300)
        assert "propose" not in {verb for verb, *_ in subject.calls}
        asked = [args[-1] for verb, *args in subject.calls if verb == "allocate_slots"]
        assert not any(asked)
        made += len(asked)
    assert made > 500
