"""Smaller forms of a whole program: shorter prompts, fewer steps and tokens, a smaller pool.

As in `simpler.py`, a form is an offer, and may make no sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.logs.oplog_format import chain_of
from conformance.program import Operation, Program
from conformance.shrinking.simpler import PLAIN, Ids
from conformance.subject import RequestSpec
from spec.state import Config, Key
from spec.statemachine import Outcome


def shorter(program: Program) -> Iterator[Program]:
    """Yield programs in which one prompt is shorter, and its request is allocated as much less."""
    every = len(program.operations)
    for operation in program.operations:
        if operation.action == "add_request":
            rid, request = operation.args["rid"], operation.args["request"]
            prompt = tuple(request.prompt)
            for n in dict.fromkeys((len(prompt) // 2, program.config.block_size, 1)):
                if 0 < n < len(prompt):
                    front, back = replace(request, prompt=prompt[:-n]), prompt[n:]
                    yield _less(program, rid, front, n, every)
                    yield _less(program, rid, front, n, 1)
                    yield _less(program, rid, replace(request, prompt=back), n, 1)


def _less(program: Program, rid: str, request: RequestSpec, n: int, most: int) -> Program:
    """Return the program with another prompt, and `n` tokens less in the first `most` calls."""
    made = []
    for operation in program.operations:
        args = operation.args
        mine = args.get("rid") == rid
        if mine and operation.action == "add_request":
            args = {**args, "request": request}
        elif mine and operation.action == "allocate_slots" and most and args["num_tokens"] > n:
            args, most = {**args, "num_tokens": args["num_tokens"] - n}, most - 1
        made.append(Operation(operation.action, args))
    return Program(program.config, tuple(made))


def merged(program: Program) -> Iterator[Program]:
    """Yield programs in which two steps of a request are one; what was sampled is its prompt."""
    calls = program.operations
    last: dict[str, int] = {}
    for at, (action, args) in enumerate(calls):
        if action == "allocate_slots":
            rid = args["rid"]
            if rid in last:
                yield _merged(program, last[rid], at, at)
                yield _merged(program, last[rid], at, last[rid])
            last[rid] = at
        elif action in ("free", "preempt", "finish"):
            last.pop(args["rid"], None)


def _merged(program: Program, first: int, second: int, kept: int) -> Program:
    """Return the program with two allocations of a request as one, at one of their places."""
    calls = program.operations
    one, two = calls[first].args, calls[second].args
    rid = one["rid"]
    between = [args["outcomes"] for action, args in calls[first:second] if action == "run_step"]
    said = tuple(t for outcomes in between if rid in outcomes for t in outcomes[rid].sampled)
    both = {**one, "num_tokens": one["num_tokens"] + two["num_tokens"]}
    made = []
    for at, operation in enumerate(calls):
        action, args = operation
        if at == kept:
            made.append(Operation(action, both))
        elif action == "add_request" and args["rid"] == rid and at < first:
            prompt = (*args["request"].prompt, *said)
            request = replace(args["request"], prompt=prompt)
            made.append(Operation(action, {**args, "request": request}))
        elif at not in (first, second):
            made.append(operation)
    return Program(program.config, tuple(made))


def tighter(program: Program) -> Iterator[Program]:
    """Yield programs in which the pool is smaller and one call asks for as much less."""
    config, calls = program
    forms = [(1, form) for form in shorter(program)]
    for at, (action, args) in enumerate(calls):
        for name in ("num_lookahead", "num_tokens", "n"):
            for k in (2, 1):
                least = k * (1 if name == "n" else config.block_size)
                if args.get(name, 0) >= least:
                    less = Operation(action, {**args, name: args[name] - least})
                    forms.append((k, Program(config, (*calls[:at], less, *calls[at + 1 :]))))
    for k, form in forms:
        if config.num_gpu_blocks - k >= 2:
            yield form._replace(config=config._replace(num_gpu_blocks=config.num_gpu_blocks - k))


def configurations(program: Program) -> Iterator[Program]:
    """Yield the program under simpler configurations, its requests fitted to smaller blocks."""
    config, operations = program
    for name in ("sliding_window", "enable_caching", "max_model_len"):
        if getattr(config, name) != getattr(PLAIN, name):
            yield Program(config._replace(**{name: getattr(PLAIN, name)}), operations)
    for size in range(1, min(config.block_size, 17)):
        window = config.sliding_window
        scaled = None if window is None else max(2, window * size // config.block_size)
        for tail in (size - 1, size):
            for shown in dict.fromkeys((scaled, window)):
                smaller = config._replace(block_size=size, sliding_window=shown)
                yield _rescaled(program, smaller, tail)
        yield Program(config._replace(block_size=size), operations)
    if config.sliding_window is not None:
        for window in range(2, min(config.sliding_window, 34)):
            yield Program(config._replace(sliding_window=window), operations)
    blocks = {*range(2, 66), *(1 << i for i in range(7, 32))}
    for n in sorted(n for n in blocks if n < config.num_gpu_blocks):
        yield Program(config._replace(num_gpu_blocks=n), operations)


def _rescaled(program: Program, config: Config, tail: int) -> Program:
    """Return the program with smaller blocks: equal blocks stay equal, and others different.

    Of an incomplete block, `tail` tokens are kept.
    """
    old, size = program.config.block_size, config.block_size
    names: dict[Ids, int] = {}

    def length(n: int) -> int:
        return n // old * size + min(n % old, tail)

    def prompt(tokens: Sequence[int]) -> Ids:
        made: list[int] = []
        for start in range(0, len(tokens), old):
            part = tuple(tokens[start : start + old])
            n = size if len(part) == old else min(len(part), tail)
            made += [names.setdefault(part, len(names)), *([0] * size)][:n]
        return tuple(made)

    operations = []
    for action, args in program.operations:
        given = dict(args)
        if action == "add_request" and (tokens := prompt(args["request"].prompt)):
            media = [(name, length(a), max(1, length(n))) for name, a, n in args["request"].media]
            given["request"] = replace(args["request"], prompt=tokens, media=tuple(media))
        elif action == "allocate_slots":
            given["num_tokens"] = max(1, length(args["num_tokens"]))
            given["num_lookahead"] = length(args["num_lookahead"])
        elif action == "cache_full_blocks":
            given["keys"] = tuple(_with_tokens(key, prompt) for key in args["keys"])
        operations.append(Operation(action, given))
    return Program(config, tuple(operations))


def renamed(program: Program) -> Iterator[Program]:
    """Yield the program with tokens 0, 1 and so on as they come, then with fewer tokens."""
    tokens: dict[int, int] = {}
    for _, args in program.operations:
        for token in _tokens(args):
            tokens.setdefault(token, len(tokens))
    yield _mapped(program, {}, tokens)
    for gone in sorted(tokens, reverse=True)[:64]:
        for into in sorted(token for token in tokens if token < gone)[:2]:
            yield _mapped(program, {}, {gone: into})


def numbered(program: Program) -> Program:
    """Return the program with its requests called r1, r2 and so on as they come."""
    rids = dict.fromkeys(args["rid"] for _, args in program.operations if "rid" in args)
    return _mapped(program, {rid: f"r{at}" for at, rid in enumerate(rids, 1)}, {})


def _tokens(args: Mapping[str, Any]) -> Iterator[int]:
    """Yield every token that a call names, in order."""
    if "request" in args:
        yield from args["request"].prompt
    yield from args.get("drafts", ())
    for outcome in args.get("outcomes", {}).values():
        yield from outcome.sampled
    for key in args.get("keys", ()):
        if isinstance(key, Key):
            yield from (token for own, _ in chain_of(key) for token in own)


def _mapped(program: Program, rids: Mapping[str, str], tokens: Mapping[int, int]) -> Program:
    """Return the program with other names and tokens, where there are others."""

    def put(values: Sequence[int]) -> Ids:
        return tuple(tokens.get(token, token) for token in values)

    operations = []
    for action, args in program.operations:
        given = dict(args)
        if "rid" in args:
            given["rid"] = rids.get(args["rid"], args["rid"])
        if "request" in args:
            given["request"] = replace(args["request"], prompt=put(args["request"].prompt))
        if "drafts" in args:
            given["drafts"] = put(args["drafts"])
        if "outcomes" in args:
            given["outcomes"] = {
                rids.get(rid, rid): Outcome(accepted, put(sampled))
                for rid, (accepted, sampled) in args["outcomes"].items()
            }
        if "keys" in args:
            given["keys"] = tuple(_with_tokens(key, put) for key in args["keys"])
        operations.append(Operation(action, given))
    return Program(program.config, tuple(operations))


def _with_tokens(key: Any, put: Callable[[Sequence[int]], Ids]) -> Any:  # noqa: ANN401  # a name of the manager's own is left as it is
    """Return a key with other tokens."""
    if not isinstance(key, Key):
        return key
    made: Key | None = None
    for tokens, extra in chain_of(key):
        made = Key(made, put(tokens), extra)
    return made
