"""Simpler forms of one call, the simplest first, and what it costs to read a program.

Nothing here knows what a failure is: `shrink.py` tries what is offered and keeps what still fails.
A form may make no sense by itself, such as more tokens than a request has: then the call is
refused, nothing fails, and the next form is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from conformance.logs.oplog_format import plain_args
from conformance.program import FOUND, Operation, Program
from conformance.subject import RequestSpec
from spec.state import Config, Key
from spec.statemachine import Outcome

Ids = tuple[int, ...]
PLAIN: Final = Config(2, 1)
"""What a configuration is by default; its numbers are the least."""


def cost(program: Program) -> tuple[int, ...]:
    """Return how much there is to read: calls, oddities, values, pool, and how large values are."""
    given = [_flat(plain_args(operation)) for operation in program.operations]
    values = [value for each in given for value in each]
    numbers = [abs(value) for value in values if isinstance(value, int)]
    config = program.config
    odd = sum(a != b for a, b in zip(config[2:5], PLAIN[2:5], strict=True))
    size = (config.num_gpu_blocks, config.block_size, config.sliding_window or 0)
    return (len(given), odd, len(values), *size, sum(numbers), sum(map(len, map(str, values))))


def _flat(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [leaf for inner in value.values() for leaf in _flat(inner)]
    if isinstance(value, (list, tuple)):
        return [leaf for inner in value for leaf in _flat(inner)]
    return [value]


def fewer(values: Ids) -> Iterator[Ids]:
    """Yield shorter sequences: nothing, the halves, and without each one."""
    if values:
        yield ()
    if len(values) > 3:
        yield values[: len(values) // 2]
        yield values[len(values) // 2 :]
    if 1 < len(values) <= 64:
        yield from (values[:i] + values[i + 1 :] for i in reversed(range(len(values))))


def lower(value: int, least: int) -> Iterator[int]:
    """Yield smaller numbers."""
    tried = dict.fromkeys((least, least + 1, (least + value) // 2, value - 1))
    yield from (n for n in tried if least <= n < value)


def simpler(operation: Operation) -> Iterator[Operation]:
    """Yield simpler forms of one call."""
    action, args = operation
    if action in FORMS:
        for changed in FORMS[action](args):
            yield Operation(action, {**args, **changed})


def _requests(args: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    r: RequestSpec = args["request"]
    plain = RequestSpec(r.prompt)
    forms = [plain, replace(r, lora=None), replace(r, media=()), replace(r, salt=None)]
    forms += [replace(r, prompt_logprobs=False)]
    forms += [replace(r, prompt=prompt) for prompt in fewer(tuple(r.prompt)) if prompt]
    forms += [replace(r, prompt=prompt) for prompt in _zeros(tuple(r.prompt))]
    forms += [
        replace(r, media=(*r.media[:i], (name, a, b), *r.media[i + 1 :]))
        for i, (name, offset, length) in enumerate(r.media)
        for a, b in ((0, length), (offset, 1), (0, 1))
    ]
    yield from ({"request": form} for form in forms if form != r)


def _zeros(tokens: Ids) -> Iterator[Ids]:
    if any(tokens):
        yield (0,) * len(tokens)
        for i, token in enumerate(tokens[:64]):
            if token:
                yield (*tokens[:i], 0, *tokens[i + 1 :])


def _allocations(args: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from ({"num_lookahead": n} for n in lower(args["num_lookahead"], 0))
    yield from ({"num_tokens": n} for n in lower(args["num_tokens"], 1))
    if args["hits"] != FOUND:
        yield from _lists("hits")(args)


def _outcomes(args: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    outcomes: Mapping[str, Outcome] = args["outcomes"]
    for rid, (accepted, sampled) in outcomes.items():
        forms = [Outcome(accepted, tokens) for tokens in (*fewer(sampled), *_zeros(sampled))]
        forms += [Outcome(n, sampled) for n in lower(accepted, 0)]
        yield from ({"outcomes": {**outcomes, rid: form}} for form in (Outcome(), *forms))


def _lists(name: str) -> Callable[[Mapping[str, Any]], Iterator[Mapping[str, Any]]]:
    """Return what offers shorter lists for an argument, then smaller values in them."""

    def offered(args: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        values = tuple(args[name])
        yield from ({name: form} for form in fewer(values))
        for i, value in enumerate(values[:64]):
            for n in lower(value, 0):
                yield {name: (*values[:i], n, *values[i + 1 :])}

    return offered


def _seals(args: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    table, keys = tuple(args["table"]), tuple(args["keys"])
    num_cached, num_full = args["num_cached"], args["num_full"]
    if table:
        yield {"table": table[:-1], "keys": keys[: len(table) - 1], "num_full": num_full - 1}
        less = {"num_cached": max(0, num_cached - 1), "num_full": num_full - 1}
        yield {"table": table[1:], "keys": keys[1:], **less}
    if len(keys) > num_full >= 0:
        yield {"keys": keys[:num_full]}
    if len(table) > num_full >= 0:
        yield {"table": table[:num_full]}
    yield from ({"num_cached": n} for n in lower(num_cached, 0))
    for i, value in enumerate(table):
        yield from ({"table": (*table[:i], n, *table[i + 1 :])} for n in lower(value, 0))
    for i, key in enumerate(keys):
        if isinstance(key, Key) and (key.parent or key.extra):
            yield {"keys": (*keys[:i], Key(None, key.tokens), *keys[i + 1 :])}


FORMS: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[Mapping[str, Any]]]]] = {
    "add_request": _requests,
    "propose": _lists("drafts"),
    "allocate_slots": _allocations,
    "run_step": _outcomes,
    "get_new_blocks": lambda args: ({"n": n} for n in lower(args["n"], 0)),
    "touch": _lists("ids"),
    "free_blocks": _lists("ids"),
    "unpublish": _lists("ids"),
    "cache_full_blocks": _seals,
}
