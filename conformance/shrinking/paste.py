"""Prints a failing program as a test to paste: it fails while the fault is there, and not after.

The calls are written as a driver would make them, one a line. Which of them are refused is what the
specification says, so that the test holds on a mended manager; on the faulty one the difference is
raised at its call, as it was found. The text is laid out as the usual formatter lays it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final, NamedTuple

from conformance.lockstep import ACTIONS, PROMISES, Check, Divergence
from conformance.program import FOUND, VERBS, Operation, Program, fitted
from conformance.subject import RequestSpec
from spec.invariants import REGISTRY
from spec.state import Config, Key, State, initial
from spec.statemachine import Outcome, Refused

WIDTH: Final = 100
INDENT: Final = " " * 4


class _Group(NamedTuple):
    """An expression in brackets, with what stands before them."""

    before: str
    left: str
    inside: list[str | _Group]
    right: str


_Tree = str | _Group


class _Said(NamedTuple):
    """One call of the test: what is called, the rule that refuses it, the variable it fills."""

    call: _Group
    refused: str | None
    variable: str | None


def as_test(
    program: Program,
    divergence: Divergence,
    subject_name: str,
    check: Check = "full",
    masked: Sequence[str] | None = None,
) -> str:
    """Return the text of a pytest file that performs a program on a subject.

    `program` has the subject's free rule in its configuration, as `shrink` leaves it.
    `subject_name` is a name for `find_subject`. With `masked`, which may be empty, the test asks of
    the subject every rule, and leaves these observations out: names of `known.MASKS`.
    """
    how = [] if check == "full" else [_text(check)]
    subject: _Tree = f"find_subject({_text(subject_name)})(config)"
    if masked is not None:
        names = f"frozenset({{{', '.join(map(_text, masked))}}})" if masked else ""
        subject = _Group("Forgiving", "(", [subject, f"Known({names and f'masked={names}'})"], ")")
    made: list[_Tree] = [subject, *how]
    code = [
        *_laid_out(_Group("config = Config", "(", _config(program.config), ")")),
        *_laid_out(_Group("pair = Lockstep", "(", made, ")")),
    ]
    calls = list(_calls(program, divergence.call.number))
    for said in calls:
        call = said.call
        if said.refused is not None:
            code.append(f"{INDENT}with pytest.raises(Refusal, match={_text(said.refused)}):")
            code += _laid_out(call, INDENT * 2)
        elif said.variable is not None:
            code += _laid_out(call._replace(before=f"{said.variable} = {call.before}"))
        else:
            code += _laid_out(call)
    swept = divergence.call.action == "sweep"
    if swept:
        code.append(f"{INDENT}pair.sweep()")
    # A linter's limit is no reason to leave out a call.
    num_statements = 3 + len(calls) + sum(said.refused is not None for said in calls) + swept
    long = "  # noqa: PLR0915  # one call a line" if num_statements > 50 else ""
    head = [f"def test_{divergence.property}() -> None:{long}", *_docstring(divergence)]
    module = f'"""A failure of {divergence.property}, call by call."""'
    return "\n".join([module, "", *_imports("\n".join(code)), "", "", *head, *code]) + "\n"


def _imports(code: str) -> Iterator[str]:
    """Yield the imports that the code needs, sorted."""
    if "pytest." in code:
        yield from ("import pytest", "")
    if "Forgiving(" in code:
        yield "from conformance.conforming.known import Forgiving, Known"
    yield "from conformance.lockstep import Lockstep"
    used = [name for name, use in SUBJECT_NAMES.items() if use in code]
    if used:
        yield f"from conformance.subject import {', '.join(used)}"
    yield "from conformance.subjects import find_subject"
    keys = re.search(r"\bKey\(", code) is not None
    yield f"from spec.state import Config{', Key' if keys else ''}"
    if "Outcome(" in code:
        yield "from spec.statemachine import Outcome"


SUBJECT_NAMES: Final = {"Refusal": "raises(Refusal,", "RequestSpec": "RequestSpec("}


def _docstring(divergence: Divergence) -> Iterator[str]:
    """Yield the docstring: the property, what it says, and the line of the violation."""
    known = REGISTRY.get(divergence.property)
    says = known.statement if known else "The manager does what the specification does."
    yield f'{INDENT}"""The property {divergence.property} holds.'
    for text in (says, str(divergence)):
        plain = " ".join(text.split()).replace("\\", "/").replace('"', "'")
        yield ""
        yield from (INDENT + line for line in wrap(plain, WIDTH - 4, break_on_hyphens=False))
    yield f'{INDENT}"""'


def _config(config: Config) -> list[_Tree]:
    usual = Config(config.num_gpu_blocks, config.block_size)._asdict()
    always = ("num_gpu_blocks", "block_size")
    given = config._asdict().items()
    return _named({name: v for name, v in given if name in always or v != usual[name]})


def _calls(program: Program, last: int) -> Iterator[_Said]:
    """Yield the calls that mean something, up to number `last`, as the specification takes them."""
    s: State = initial(program.config)
    found: dict[str, tuple[int, ...]] = {}
    variables = _variables(program.operations)
    filled: dict[str, str] = {}
    number = 0
    for at, operation in enumerate(program.operations):
        action = operation.action
        if number == last or (args := fitted(s, operation, found)) is None:
            continue
        try:
            s, result = ACTIONS[action](s, **args)
        except Refused as refused:
            if refused.rule in PROMISES:
                continue
            result = refused
        number += 1
        rule = result.rule if isinstance(result, Refused) else None
        if action == "get_computed_blocks":
            found[args["rid"]] = result
            filled[args["rid"]] = variables.get(at, "()")
        inside = [_value(args[name]) for name in VERBS[action]]
        if operation.args.get("hits") == FOUND:
            inside[VERBS[action].index("hits")] = filled.get(args["rid"], "()")
        yield _Said(_Group(f"pair.{action}", "(", inside, ")"), rule, variables.get(at))


def _variables(operations: Sequence[Operation]) -> dict[int, str]:
    """Return a variable for each look-up whose answer is used: `hits`, where one is enough."""
    looked: dict[str, int] = {}
    used: dict[int, int] = {}
    for at, (action, args) in enumerate(operations):
        if action == "get_computed_blocks":
            looked[args["rid"]] = at
        elif args.get("hits") == FOUND and args["rid"] in looked:
            used[looked[args["rid"]]] = at
    meanwhile = any(a < b < end for a, end in used.items() for b in used)
    return {at: f"hits_{n}" if meanwhile else "hits" for n, at in enumerate(sorted(used), 1)}


def _value(value: Any) -> _Tree:  # noqa: ANN401  # whatever an argument is
    if isinstance(value, RequestSpec):
        more: dict[str, Any] = {"lora": value.lora, "media": value.media, "salt": value.salt}
        given = {name: v for name, v in more.items() if v not in (None, ())}
        given |= {"prompt_logprobs": True} if value.prompt_logprobs else {}
        return _Group("RequestSpec", "(", [_value(list(value.prompt)), *_named(given)], ")")
    if isinstance(value, Outcome):
        parts = [value.accepted, value.sampled][: 2 if value.sampled else bool(value.accepted)]
        return _Group("Outcome", "(", [_value(part) for part in parts], ")")
    if isinstance(value, Key):
        parts = [value.parent, value.tokens, *([value.extra] if value.extra else [])]
        return _Group("Key", "(", [_value(part) for part in parts], ")")
    if isinstance(value, Mapping):
        pairs = [_after(f"{_text(name)}: ", _value(v)) for name, v in value.items()]
        return _Group("", "{", pairs, "}")
    if isinstance(value, tuple):
        return _Group("", "(", [_value(v) for v in value], ",)" if len(value) == 1 else ")")
    if isinstance(value, list):
        return _Group("", "[", [_value(v) for v in value], "]")
    return _text(value) if isinstance(value, str) else repr(value)


def _named(given: Mapping[str, Any]) -> list[_Tree]:
    return [_after(f"{name}=", _value(value)) for name, value in given.items()]


def _after(prefix: str, tree: _Tree) -> _Tree:
    return prefix + tree if isinstance(tree, str) else tree._replace(before=prefix + tree.before)


def _text(text: str) -> str:
    """Return a string as source, in double quotes where that needs no escape."""
    shown = repr(text)
    return shown if '"' in shown else f'"{shown[1:-1]}"'


def _flat(tree: _Tree) -> str:
    if isinstance(tree, str):
        return tree
    return tree.before + tree.left + ", ".join(map(_flat, tree.inside)) + tree.right


def _laid_out(tree: _Tree, indent: str = INDENT, end: str = "") -> Iterator[str]:
    """Yield an expression on one line if it fits; else its parts on one, or each on its own."""
    flat = _flat(tree)
    if isinstance(tree, str) or len(indent + flat + end) <= WIDTH:
        yield indent + flat + end
        return
    yield indent + tree.before + tree.left
    deeper = indent + INDENT
    inside = deeper + ", ".join(map(_flat, tree.inside))
    # The arguments of a call may share a line; a collection that does not fit is a list to read.
    if tree.left == "(" and tree.before[-1:].isidentifier() and len(inside) <= WIDTH:
        yield inside
    else:
        for part in tree.inside:
            yield from _laid_out(part, deeper, ",")
    yield indent + tree.right.lstrip(",") + end
