"""Why prefix closure is promised only until a key is taken back: two runs that open the cache."""

from spec import statemachine as sm
from spec.invariants import Broken, broken
from spec.state import Config, Request, State, initial
from spec.statemachine import Outcome


def served(s: State, rid: str, tokens: tuple[int, ...], hits: tuple[int, ...] = ()) -> State:
    """Return the state after a request has arrived and its whole prompt is scheduled."""
    s = sm.add_request(s, rid, Request(tokens=tokens))
    hits = hits or sm.get_computed_blocks(s, rid)
    s, new = sm.allocate_slots(s, rid, len(tokens) - len(hits), hits)
    assert isinstance(new, tuple)
    return s


def evicting(s: State, n: int) -> list[Broken]:
    """Return what is not closed once `n` more blocks are taken, had nothing been taken back."""
    s = served(s, "last", tuple(range(100, 100 + n)))
    assert s.taken_back
    assert list(broken(s)) == []
    strict = s._replace(taken_back=False)
    return [found for name, found in broken(strict) if name == "the_cache_is_prefix_closed"]


def test_a_written_block_behind_a_pending_copy_opens_the_cache() -> None:
    """Accepted drafts are sealed as written while another request's copy of a key is pending.

    A third request then hits the pending copy and the written child behind it. All three end
    before the step runs: the written copy is released first, the pending one is taken back, and
    the child outlives its parent.
    """
    s = sm.add_request(initial(Config(10, 1)), "r", Request(tokens=(1,)))
    s = sm.propose(s, "r", (2, 3))
    s, _ = sm.allocate_slots(s, "r", 3)
    s = sm.run_step(s, {"r": Outcome(2, (4,))})
    s = served(s, "w", (1, 2, 9))
    s, _ = sm.allocate_slots(s, "r", 1)
    s = served(s, "q", (1, 2, 3, 7))
    for rid in ("r", "q", "w"):
        s = sm.finish(s, rid)
    assert list(broken(s)) == []
    assert evicting(s, 3) == []
    assert len(evicting(s, 4)) == 1


def test_a_hit_that_no_look_up_returns_opens_the_cache() -> None:
    """The guards accept any copy of a key as a hit, not only the first."""
    s = served(initial(Config(10, 1)), "a", (1, 2, 3))
    s = sm.finish(sm.run_step(s, {"a": Outcome(0, (4,))}), "a")
    s = sm.add_request(s, "w", Request(tokens=(1,), prompt_logprobs=True))
    s, pending = sm.allocate_slots(s, "w", 1)
    assert isinstance(pending, tuple)
    child = next(b for b, x in enumerate(s.pool.blocks) if x.key and x.key.tokens == (2,))
    s = served(s, "q", (1, 2, 9), (*pending, child))
    for rid in ("q", "w"):
        s = sm.finish(s, rid)
    assert list(broken(s)) == []
    assert len(evicting(s, 6)) == 1
