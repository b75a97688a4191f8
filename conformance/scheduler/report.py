"""Says what a search found: the step table of the shortened script, what it means, who knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from conformance.pictures.explain import Explained, Frame
from conformance.scheduler.harness import Run
from conformance.scheduler.properties import Moment, asked
from conformance.scheduler.script import Event, Script
from conformance.scheduler.search import Tally
from spec.invariants import REGISTRY
from spec.state import Key


class Known(NamedTuple):
    """A fault that the project which has it knows."""

    property: str
    policy: str
    what: str
    where: tuple[str, ...]


KNOWN: Final = (
    Known(
        "nothing_unwritten_is_found",
        "priority",
        "Under the policy `priority`, schedule() can preempt a request that it has scheduled "
        "earlier in the same call. allocate_slots() has published the blocks that the request was "
        "going to fill; they are freed with their hashes, and no step writes them.",
        ("vllm-project/vllm#43569", "vllm-project/vllm#57580"),
    ),
)
"""What upstream has a report or a proposed change for."""


def known(tally: Tally) -> Known | None:
    """Return what is known upstream of what a search found, if anything is."""
    if tally.found is None:
        return None
    broken, policy = tally.found.divergence.property, tally.aim.policy
    return next((k for k in KNOWN if (k.property, k.policy) == (broken, policy)), None)


def explained_run(performed: Run, subject: str) -> Explained:
    """Return a run as the step table shows it: one row for each half of a scheduler's step."""
    config, moments = performed.harness.config, performed.moments
    frames = [Frame(0, "start", {}, None, None, performed.first, performed.first)]
    for number, moment in enumerate(moments, 1):
        last = frames[-1].after
        answer = moment.result
        frame = Frame(number, moment.action, moment.args, answer, answer, last, moment.after)
        frames.append(frame)
    return Explained(subject, config, tuple(frames), len(moments), performed.divergence)


def told(performed: Run) -> Iterator[str]:
    """Yield, a line each, how a key came to be found that nobody wrote."""
    broke, moments = performed.divergence, performed.moments
    if broke is None or broke.property != "nothing_unwritten_is_found" or not moments:
        return
    moment, b = moments[-1], broke.found.block
    key = None if b is None else moment.after.pool.blocks[b].key
    if key is None:
        return
    owner = _publisher(moment, key)
    place = f"block {b}, tokens {_place(key)}"
    if owner is None:
        yield f"Nobody who lives has published {place}, and no step has written it."
        return
    yield (
        f"{owner} published {place}, in call {len(moments)}, and was preempted in the same call: "
        f"the step that is handed out is {moment.args['runs']}, without {owner}."
    )
    yield f"So no step writes block {b}; while it stays cached, a request with this prefix gets it."


def _publisher(moment: Moment, key: Key) -> str | None:
    """Return the request that lost its blocks in this moment and has this key in its chain."""
    before = moment.before.requests
    for rid, r in moment.after.requests.items():
        was = before.get(rid)
        if key in r.keys and was is not None and was.num_preemptions < r.num_preemptions:
            return rid
    return None


def _place(key: Key) -> str:
    """Return the positions that a key names, first and last."""
    end, node = 0, key
    while True:
        end += len(node.tokens)
        if node.parent is None:
            return f"{end - len(key.tokens)} to {end - 1}"
        node = node.parent


def script_lines(script: Script) -> Iterator[str]:
    """Yield a script as lines of Python that make it again."""
    yield f"Script({script.setting},"
    yield "    ("
    for event in script.events:
        yield f"        {event},"
    yield "    ),"
    yield ")"


def as_json(tally: Tally) -> dict[str, Any]:
    """Return the result of a search as JSON has it."""
    aim, found, upstream = tally.aim, tally.found, known(tally)
    result: dict[str, Any] = {
        **aim._asdict(),
        "scripts": tally.num_scripts,
        "steps": tally.num_steps,
        "preemptions": tally.num_preempted,
        "seconds": round(tally.seconds, 3),
        "steps_per_second": round(tally.steps_per_second, 1),
        "verdict": verdict(tally),
        "properties": asked(),
    }
    if found is not None:
        short = found.run.script
        result["violation"] = {
            "property": found.divergence.property,
            "line": str(found.divergence),
            "found_after_seconds": round(found.seconds, 3),
            "drawn_steps": found.drawn.num_steps,
            "steps": short.num_steps,
            "setting": short.setting._asdict(),
            "events": [_plain_event(event) for event in short.events],
            "known_upstream": [] if upstream is None else list(upstream.where),
        }
    return result


def _plain_event(event: Event) -> Mapping[str, Any]:
    return {"event": type(event).__name__.lower(), **event._asdict()}


def verdict(tally: Tally) -> str:
    """Return the verdict in a word."""
    if tally.found is not None:
        return "violation"
    return "interrupted" if tally.interrupted else "clean"


def statement(name: str) -> str:
    """Return what a property says."""
    p = REGISTRY.get(name)
    return p.statement if p else "The scheduler does not raise on what an engine may ask of it."
