"""The machines of the proofs are the Python specification's, on the steps of seeded walks."""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import pytest

z3 = pytest.importorskip("z3", reason="z3-solver is not installed: pip install '.[proof]'")
pytest.importorskip("cvc5", reason="cvc5 is not installed: pip install '.[proof]'")

from conformance.exhaustive.prove import walked  # noqa: E402  # it needs the solvers
from spec import proof  # noqa: E402  # it needs the solvers
from spec import statemachine as sm  # noqa: E402  # it follows the line above
from spec.invariants import broken  # noqa: E402  # it follows the line above
from spec.proof.bridge import UNFOLD, Comparison  # noqa: E402  # it needs the solvers
from spec.proof.content_faults import CONTENT  # noqa: E402  # it needs the solvers
from spec.proof.logic import Action, Level, Machine  # noqa: E402  # it needs the solvers
from spec.proof.order_faults import ORDER  # noqa: E402  # it needs the solvers
from spec.proof.pool_claims import POOL  # noqa: E402  # it needs the solvers
from spec.proof.unfold import PoolMoves, RealStep, UnfoldError  # noqa: E402  # the same
from spec.state import NULL, Block, Config, Frozen, Key, Pool, Request, State, initial  # noqa: E402


@cache
def steps() -> tuple[RealStep, ...]:
    """Return the steps of short walks."""
    return tuple(walked(num_moves=150))


def direct() -> Iterator[RealStep]:
    """Yield the calls of one who uses the pool directly, with blocks named more than once."""
    s = initial(Config(6, 1, free_rule="unhashed_first"))
    keys = (Key(None, (1,)), Key(None, (2,)))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_new_blocks", {"n": 3}),
        ("cache_full_blocks", {"table": (1, 2), "keys": keys, "num_cached": 0, "num_full": 2}),
        ("touch", {"ids": (1, NULL, 1, 2)}),
        ("free_blocks", {"ids": (3, 1, 1)}),
        ("free_blocks", {"ids": (1, 2)}),
        ("unpublish", {"ids": (2,)}),
        ("touch", {"ids": (1,)}),
        ("free_blocks", {"ids": (2, 1)}),
        ("get_new_blocks", {"n": 4}),
        ("free_blocks", {"ids": (2, 3, 4, 5)}),
        ("reset_prefix_cache", {}),
    ]
    for action, args in calls:
        answer = getattr(sm, action)(s, **args)
        after = answer if isinstance(answer, State) else answer[0]
        yield s, action, args, after
        s = after


@pytest.mark.slow
@pytest.mark.parametrize("level", proof.LEVELS, ids=lambda level: level.name)
def test_the_machine_does_what_the_specification_does(level: Level) -> None:
    """It allows every step, and no step with a wrong value; every action is compared."""
    result = Comparison(Machine(level)).compare(steps())
    assert result.faults == []
    assert set(result.accepted) == {action.name for action in level.actions}
    assert result.rejected == result.accepted


def test_direct_callers_are_followed_too() -> None:
    """A call that names a block twice is a sequence of moves of the pool machine."""
    result = Comparison(Machine(POOL)).compare(direct())
    assert result.faults == []
    assert set(result.accepted) == {action.name for action in POOL.actions}


CHANGED = [
    (level, n)
    for level in proof.LEVELS
    for n, fault in enumerate(level.faults)
    if any("guard" not in label for label in fault.action.change)
]
"""The faults that make an action update differently, not only guard less."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "index"), CHANGED, ids=lambda x: x.name if isinstance(x, Level) else str(x)
)
def test_a_changed_action_is_another_machine(level: Level, index: int) -> None:
    """When an action of the machine updates differently, the bridge does not hold."""
    faulty = level.faults[index].action
    actions = [faulty if a.name == faulty.name else a for a in level.actions]
    assert not Comparison(Machine(level), actions).compare(steps(), max_faults=1).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "action", "guard"),
    [
        (POOL, "release", "guard: it is not null"),
        (CONTENT, "seal", "guard: its tokens are confirmed"),
        (ORDER, "take", "guard: it is a request"),
    ],
    ids=lambda x: x.name if isinstance(x, Level) else str(x),
)
def test_a_guard_that_is_too_strong_is_seen(level: Level, action: str, guard: str) -> None:
    """When the machine forbids a step that the specification makes, the bridge does not hold."""
    never = {guard: lambda *_: z3.BoolVal(False)}  # noqa: FBT003  # the formula `false`
    actions: list[Action] = [
        a._replace(change=never) if a.name == action else a for a in level.actions
    ]
    result = Comparison(Machine(level), actions).compare(steps(), max_faults=1)
    assert set(result.faults) == {f"{level.name}: {action} breaks {[guard]}"}


@pytest.mark.slow
def test_a_frame_that_is_left_out_is_seen() -> None:
    """When an update is missing, a wrong value passes, and that is a fault."""
    level = POOL
    actions = [a._replace(drop=("queued",)) if a.name == "release" else a for a in level.actions]
    result = Comparison(Machine(level), actions).compare(steps(), max_faults=1)
    assert result.faults[0].startswith("pool: release allows a wrong queued")


def test_moves_that_end_elsewhere_are_an_error() -> None:
    """The sequence of moves must give the state that the call gave."""
    before = initial(Config(4, 1))
    after, _ = sm.get_new_blocks(before, 1)
    with pytest.raises(UnfoldError):
        list(UNFOLD["pool"]((before, "get_new_blocks", {"n": 2}, after)))


def spoiled(s: State, rng: Random) -> State:
    """Return the state with one fact about one block made wrong."""
    pool, b = s.pool, rng.randrange(len(s.pool.blocks))
    block: Block = pool.blocks[b]
    keys = [None, *pool.by_key]
    made: Pool = rng.choice(
        [
            pool.update({b: block._replace(ref_cnt=block.ref_cnt + rng.choice([-1, 1]))}),
            pool.update({b: block._replace(key=rng.choice(keys))}),
            pool._replace(queue=tuple(x for x in pool.queue if x != b)),
            pool._replace(queue=(*pool.queue, b)),
            pool._replace(by_key=Frozen({k: v for k, v in pool.by_key.items() if b not in v})),
            pool._replace(by_key=Frozen({k: (*v, b) for k, v in pool.by_key.items()})),
        ]
    )
    return s._replace(pool=made)


@pytest.mark.slow
def test_the_claims_say_no_less_than_the_registry() -> None:
    """Whenever a property of the registry is broken, so is the claim of its name.

    That a block stands in the queue once is said by the claim of the chain, for all of them.
    """
    comparison = Comparison(Machine(POOL))
    rng, seen = Random(1), set()  # noqa: S311  # it must be repeatable, not secret
    for before, *_ in steps()[::2]:
        s = spoiled(before, rng)
        moves = PoolMoves(s)
        moves.moves.append(("reset", {}, s.pool, s.pool, moves.held, moves.held))
        (move,) = moves.steps()
        failing = set(comparison.failing(move))
        named = {name for name, _ in broken(s, "P") if name in comparison.claims}
        assert named <= failing or "the_free_queue_is_a_chain" in failing, s
        seen |= named
    assert seen >= set(comparison.claims) - {"an_idle_pool_is_whole"}


def test_real_states_satisfy_the_registry() -> None:
    """The walks stay within what the specification promises."""
    for _, _, _, after in steps()[::25]:
        assert list(broken(after)) == []


def test_steps_outside_the_assumptions_are_counted_apart() -> None:
    """A hit that is not the first copy of its key is no fault of the bridge, and not accepted."""
    s = initial(Config(10, 1))
    for name, tokens in (("a", (1, 2, 3)), ("w", (1,))):
        s = sm.add_request(s, name, Request(tokens=tokens, prompt_logprobs=name == "w"))
        s, new = sm.allocate_slots(s, name, len(tokens))
        if name == "a":
            s = sm.finish(sm.run_step(s, {"a": sm.Outcome(0, (4,))}), "a")
    assert isinstance(new, tuple)
    s = sm.add_request(s, "q", Request(tokens=(1, 9)))
    args: dict[str, Any] = {"rid": "q", "num_tokens": 1, "hits": new}
    after, _ = sm.allocate_slots(s, **args)
    result = Comparison(Machine(ORDER)).compare([(s, "allocate_slots", args, after)])
    assert result.outside.total() == 1
    assert result.accepted["hit"] == 0
    assert result.faults == []
