"""Makes a script short that breaks a property.

Delta debugging: events are left out as long as the same property breaks, then what remains is made
simpler, and all begins again until nothing helps. Fewer scheduler steps count before fewer events,
and these before smaller numbers. Leaving out alone gets stuck where a pool must first be filled, a
token a step; so scripts are offered too that do more in a step and come to the same point sooner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, Final

from conformance.scheduler import stand_in
from conformance.scheduler.harness import Make, Run, run
from conformance.scheduler.script import Add, Event, Script, Setting, Step

FEW: Final = 16
"""Events up to which every pair of them is left out."""
SHORT: Final = 3
"""Steps of a script that needs no other ways to become shorter: fill a pool, run dry, see it."""


def shrink(
    script: Script,
    broken: str,
    max_seconds: float = 30,
    make: Make = stand_in.make_scheduler,
) -> Run:
    """Return the run of a shorter script that breaks the property `broken` too.

    Raises `ValueError` for a script that does not break it.
    """
    shrinker = _Shrinker(script, broken, make)
    shrinker.work(time.monotonic() + max_seconds)
    return shrinker.best


def cost(script: Script) -> tuple[int, ...]:
    """Return what a script costs a reader, the dearest first."""
    adds = [event for event in script.events if isinstance(event, Add)]
    tokens = [token for add in adds for token in add.prompt]
    plain = sum(_size(event) for event in script.events)
    setting = script.setting
    numbers = (setting.num_gpu_blocks, setting.block_size, setting.max_model_len)
    unlike = sum(a != b for a, b in zip(setting, Setting(), strict=True))
    return (script.num_steps, len(script.events), len(tokens), sum(numbers), unlike, plain)


def _size(event: Event) -> int:
    match event:
        case Add():
            return sum(event.prompt) + event.max_tokens + abs(2 * event.priority)
        case Step():
            return event.token
    return 0


class _Shrinker:
    def __init__(self, script: Script, broken: str, make: Make) -> None:
        self._broken, self._make = broken, make
        self._tried: set[Script] = set()
        self._end = 0.0
        self.best = run(script, make)
        if self.best.divergence is None or self.best.divergence.property != broken:
            raise ValueError(f"the script does not break {broken}; it ends: {self.best.divergence}")

    def work(self, end: float) -> None:
        """Make the script shorter until nothing helps or the time is over."""
        self._end = end
        before: tuple[int, ...] | None = None
        while before != (before := cost(self.best.script)) and time.monotonic() < end:
            self._without_events()
            for offer in (_sooner, _simpler_settings, _simpler_events):
                self._all(offer)
            if len(self.best.script.events) <= FEW:
                self._all(_without_pairs)

    def _without_events(self) -> None:
        """Leave out events in a row: half of them, then quarters, down to one."""
        size = len(self.best.script.events)
        while size := size // 2:
            at = 0
            while at < len(events := self.best.script.events):
                if not self._try(self._with(events[:at] + events[at + size :])):
                    at += size

    def _with(self, events: tuple[Event, ...]) -> Script:
        return self.best.script._replace(events=events)

    def _all(self, offer: Callable[[Script], Iterator[Script]]) -> None:
        """Take the first offered script that breaks the property, until none does."""
        while any(self._try(candidate) for candidate in offer(self.best.script)):
            continue

    def _try(self, candidate: Script) -> bool:
        """Go on with a script if it breaks the same property and costs less."""
        if time.monotonic() > self._end or candidate in self._tried:
            return False
        self._tried.add(candidate)
        if candidate.num_steps > self.best.script.num_steps:
            return False
        tried = run(candidate, self._make)
        if tried.divergence is None or tried.divergence.property != self._broken:
            return False
        # What came after the violation is gone, so a script that is no shorter may have become so.
        if cost(tried.script) >= cost(self.best.script):
            return False
        self.best = tried
        return True


def _without_pairs(script: Script) -> Iterator[Script]:
    events = script.events
    for a, b in combinations(range(len(events)), 2):
        yield script._replace(events=events[:a] + events[a + 1 : b] + events[b + 1 :])


def _sooner(script: Script) -> Iterator[Script]:
    """Offer scripts that may come to the same point in fewer steps.

    A step by which every request gained a token is left out, and the token is in the prompt from
    the beginning; or a step computes more; or the pool runs dry sooner.
    """
    setting, events = script.setting, script.events
    if script.num_steps <= SHORT:
        return
    for at, event in enumerate(events):
        if isinstance(event, Step):
            earlier = (_grown(one, 1) for one in events[:at])
            yield script._replace(events=(*earlier, *events[at + 1 :]))
    for at, event in enumerate(events):
        for more in (1, 2, 4, 8):
            if isinstance(event, Add):
                changed = (*events[:at], _grown(event, more), *events[at + 1 :])
                yield script._replace(events=changed)
    budget, threshold = setting.max_num_batched_tokens, setting.long_prefill_token_threshold
    changes: list[dict[str, Any]] = [
        {"max_num_batched_tokens": 2 * budget, "long_prefill_token_threshold": 2 * threshold},
        {"max_num_batched_tokens": 2 * budget},
        {"long_prefill_token_threshold": 2 * threshold},
        {"long_prefill_token_threshold": threshold + 1},
        {
            "block_size": max(1, setting.block_size // 2),
            "max_model_len": setting.max_model_len // 2,
        },
    ]
    for change in changes:
        yield script._replace(setting=setting._replace(**change))


def _grown(event: Event, more: int) -> Event:
    """Return a request with a longer prompt, and as much less to say."""
    if not isinstance(event, Add):
        return event
    left = max(1, event.max_tokens - more)
    return event._replace(prompt=event.prompt + (0,) * more, max_tokens=left)


def _simpler_events(script: Script) -> Iterator[Script]:
    for at, event in enumerate(script.events):
        for form in _forms(event):
            if form != event:
                changed = (*script.events[:at], form, *script.events[at + 1 :])
                yield script._replace(events=changed)


def _forms(event: Event) -> Iterator[Event]:
    if isinstance(event, Step):
        yield event._replace(token=0)
    if isinstance(event, Add):
        n = len(event.prompt)
        for kept in sorted({1, n // 2, n - 1} - {0, n}):
            yield event._replace(prompt=event.prompt[:kept])
        if n > 1:
            yield event._replace(prompt=event.prompt[1:])
        for priority in (0, 1):
            yield event._replace(priority=priority)
        for most in sorted({1, 2, event.max_tokens // 2, event.max_tokens - 1} - {0}):
            yield event._replace(max_tokens=most)
        for number, token in enumerate(event.prompt):
            for other in sorted({0, token // 2, token - 1}):
                if 0 <= other < token:
                    prompt = (*event.prompt[:number], other, *event.prompt[number + 1 :])
                    yield event._replace(prompt=prompt)


def _simpler_settings(script: Script) -> Iterator[Script]:
    setting, plain = script.setting, Setting()
    kept = ("policy", "scheduler", "num_gpu_blocks", "block_size", "max_model_len")
    changes: list[dict[str, Any]] = [
        {name: getattr(plain, name)} for name in Setting._fields if name not in kept
    ]
    changes += [
        {"num_gpu_blocks": setting.num_gpu_blocks - 1},
        {"block_size": setting.block_size - 1},
        {"max_model_len": setting.max_model_len - 1},
        {"max_model_len": setting.max_model_len // 2},
    ]
    for change in changes:
        other = setting._replace(**change)
        if other != setting and _is_possible(other):
            yield script._replace(setting=other)


def _is_possible(setting: Setting) -> bool:
    """Tell whether the pool holds the longest request, and a step every prompt where it must."""
    usable = setting.num_gpu_blocks - 1
    fits = 0 < setting.max_model_len <= usable * setting.block_size
    whole = setting.enable_chunked_prefill
    return fits and (whole or setting.max_num_batched_tokens >= setting.max_model_len)
