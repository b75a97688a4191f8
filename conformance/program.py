"""A program: a configuration and the calls made on a manager, as plain data.

It is what a failure comes down to. It can be performed on any subject, made smaller, printed as a
test, and written as a log. The hits that a request was found are not written down by their ids but
as `FOUND`, so that a program that lost some of its calls still says what it meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from conformance.lockstep import PROMISES, Check, Divergence, Lockstep
from conformance.subject import Refusal, Subject
from spec.state import Config, Key, State
from spec.statemachine import Outcome, Refused

FOUND: Final = "found"
"""Stands for the hits that the request's last look-up returned."""

VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "add_request": ("rid", "request"),
    "propose": ("rid", "drafts"),
    "get_computed_blocks": ("rid",),
    "allocate_slots": ("rid", "num_tokens", "hits", "num_lookahead"),
    "run_step": ("outcomes",),
    "free": ("rid",),
    "preempt": ("rid",),
    "finish": ("rid",),
    "reset_prefix_cache": (),
    "get_new_blocks": ("n",),
    "touch": ("ids",),
    "free_blocks": ("ids",),
    "cache_full_blocks": ("table", "keys", "num_cached", "num_full"),
    "unpublish": ("ids",),
}
"""Every call that can be made, with the names of its arguments in order."""


class Operation(NamedTuple):
    """One call: a verb and its arguments by name, as `conformance.subject.Subject` takes them."""

    action: str
    args: Mapping[str, Any]


class Program(NamedTuple):
    """The configuration that a manager is made with, and the calls that follow."""

    config: Config
    operations: tuple[Operation, ...]


Factory = Callable[[Config], Subject]
"""Makes a fresh subject."""


class Recorder:
    """A subject that tells of each call: the operation before it, the answer after it.

    It answers as the subject does in everything else. `answered` gets what the call returned or
    the exception that it raised.
    """

    def __init__(
        self,
        subject: Subject,
        begun: Callable[[Operation], None],
        answered: Callable[[object], None] | None = None,
    ) -> None:
        self.subject = subject
        self._begun = begun
        self._answered = answered
        self._found: dict[str, tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever the subject has
        inner = getattr(self.subject, name)
        if name not in VERBS:
            return inner

        def call(*args: object, **named: object) -> object:
            given = dict(zip(VERBS[name], args, strict=False)) | named
            self._begun(Operation(name, self._meant(name, given)))
            try:
                result = inner(**given)
            except Exception as error:
                if self._answered is not None:
                    self._answered(error)
                raise
            if name == "get_computed_blocks":
                self._found[cast("str", given["rid"])] = tuple(result)
            elif name == "finish":
                self._found.pop(cast("str", given["rid"]), None)
            if self._answered is not None:
                self._answered(result)
            return result

        return call

    def _meant(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with `FOUND` where the hits are those of the last look-up."""
        if name != "allocate_slots":
            return given
        found = self._found.pop(given["rid"], None)
        return {**given, "hits": FOUND} if found == tuple(given["hits"]) else given


def recording(subject: Subject) -> tuple[Subject, list[Operation]]:
    """Return a subject that keeps its calls in the list beside it."""
    operations: list[Operation] = []
    return cast("Subject", Recorder(subject, operations.append)), operations


def perform(pair: Lockstep, operations: Iterable[Operation]) -> None:
    """Make a program's calls on a pair in lockstep; raise `Divergence` at the first difference.

    A refusal is an answer, and the next call follows. A call that no driver may make by now,
    because others were taken out of the program, is left out or fitted to the requests that there
    are.
    """
    found: dict[str, tuple[int, ...]] = {}
    for operation in operations:
        args = fitted(pair.state, operation, found)
        if args is None:
            continue
        try:
            result = getattr(pair, operation.action)(**args)
        except Refusal:
            continue
        except Refused as broken_promise:
            if broken_promise.rule not in PROMISES:
                raise
            continue
        if operation.action == "get_computed_blocks":
            found[args["rid"]] = result
        elif operation.action == "finish":
            found.pop(args["rid"], None)


def fitted(
    s: State, operation: Operation, found: Mapping[str, tuple[int, ...]]
) -> Mapping[str, Any] | None:
    """Return the arguments that an operation has in a state, or None where it has no meaning."""
    args = operation.args
    rid = args.get("rid")
    if rid is not None and (rid in s.requests) == (operation.action == "add_request"):
        return None
    if args.get("hits") == FOUND:
        return {**args, "hits": found.get(args["rid"], ())}
    if operation.action == "run_step":
        flying = [name for name, r in s.requests.items() if r.in_flight]
        outcomes = {name: args["outcomes"].get(name, Outcome()) for name in flying}
        return {"outcomes": outcomes} if flying else None
    return with_keys(args, s.config.block_size)


def with_keys(args: Mapping[str, Any], block_size: int) -> Mapping[str, Any]:
    """Return arguments in which a manager's own name of a key is a key of the specification."""
    if "keys" not in args:
        return args
    own = (0,) * block_size
    keys = tuple(Key(None, own, (("named", k),)) if isinstance(k, str) else k for k in args["keys"])
    return {**args, "keys": keys}


def failure(program: Program, make: Factory, check: Check = "full") -> Divergence | None:
    """Return the divergence that a program ends in on a fresh subject, or None."""
    pair = Lockstep(make(program.config), check)
    try:
        perform(pair, program.operations)
        pair.sweep()
    except Divergence as divergence:
        return divergence
    return None
