"""A script is drawn the same way every time, and made short without losing what it shows."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.scheduler import shortening
from conformance.scheduler.script import Abort, Add, Event, Reset, Script, Setting, Step
from conformance.scheduler.shortening import cost, shrink
from conformance.scheduler.workload import Client, draw_setting

BROKEN = "nothing_unwritten_is_found"


def seeded(seed: int) -> Random:
    """Return a source of numbers that are the same every time."""
    return Random(seed)  # noqa: S311  # repeatable, not secret


def pretend(script: Script, _make: Any) -> Any:  # noqa: ANN401  # a stand-in for a run
    """Break the property at the third step after a request with a 7 in its prompt has come."""
    seen, steps = False, 0
    for at, event in enumerate(script.events):
        seen |= isinstance(event, Add) and 7 in event.prompt
        steps += seen and isinstance(event, Step)
        if steps == 3:
            ended = script._replace(events=script.events[: at + 1])
            return SimpleNamespace(script=ended, divergence=SimpleNamespace(property=BROKEN))
    return SimpleNamespace(script=script, divergence=None)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts be judged by `pretend`."""
    monkeypatch.setattr(shortening, "run", pretend)


@pytest.mark.usefixtures("pretended")
def test_what_does_not_matter_is_left_out() -> None:
    """Three steps and one request with one token are left, in the plainest setting."""
    noise: list[Event] = [Step(3), Add("x", (1, 2, 3)), Step(), Abort("x"), Reset(running=True)]
    events = (*noise, *noise, Add("y", (4, 7, 7, 9), 5, 2), *noise, *noise, Step(), Step())
    short = shrink(Script(Setting(policy="priority", num_gpu_blocks=12), events), BROKEN).script
    assert short.num_steps == 3
    assert short.events == (Add("y", (7,)), Step(), Step(), Step())
    assert short.setting.max_model_len < Setting().max_model_len


@pytest.mark.usefixtures("pretended")
def test_a_script_that_breaks_nothing_is_refused() -> None:
    """There is nothing to make short, and nothing to show."""
    with pytest.raises(ValueError, match="does not break nothing_unwritten_is_found; it ends: Non"):
        shrink(Script(Setting(), (Step(),)), BROKEN)


def test_steps_cost_more_than_events_and_these_more_than_numbers() -> None:
    """What a reader must follow counts first."""
    setting = Setting()
    scripts = [
        Script(setting, (Add("a", (1, 2, 3)), Abort("a"), Abort("a"))),
        Script(setting, (Add("a", (1,)), Step())),
        Script(setting, (Add("a", (1, 2)), Step())),
        Script(setting, (Step(), Step())),
    ]
    assert scripts == sorted(scripts, key=cost)


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_a_setting_can_serve_the_longest_request(policy: str) -> None:
    """The pool holds it; where a prompt is computed at once, a step has room for it."""
    for seed in range(200):
        blocks = None if seed % 2 else 7
        setting = draw_setting(seeded(seed), policy, "sync", blocks)
        assert 0 < setting.max_model_len <= (setting.num_gpu_blocks - 1) * setting.block_size
        assert setting.num_gpu_blocks == (blocks or setting.num_gpu_blocks)
        if not setting.enable_chunked_prefill:
            assert setting.max_num_batched_tokens >= setting.max_model_len


def test_a_client_draws_everything_and_the_same_again() -> None:
    """All kinds of events come, prompts repeat earlier ones, and a seed fixes them."""

    def drawn(seed: int) -> list[Event]:
        setting = draw_setting(seeded(seed), "priority", "async", None)
        client, live = Client(seeded(seed), setting), dict[str, tuple[int, ...]]()
        events = []
        for _ in range(1_000):
            events.append(event := client.next(live))
            if isinstance(event, Add):
                assert 0 < len(event.prompt) < setting.max_model_len
                live[event.rid] = (*event.prompt, 1)
            elif isinstance(event, Abort):
                del live[event.rid]
        return events

    events = drawn(5)
    assert events == drawn(5)
    assert {type(event) for event in events} == {Abort, Add, Reset, Step}
    assert {event.running for event in events if isinstance(event, Reset)} == {False, True}
    prompts = [event.prompt for event in events if isinstance(event, Add)]
    assert any(b[: len(a)] == a for n, a in enumerate(prompts) for b in prompts[n + 1 :])
