"""Says what is wrong with a line of an operation log: where, the value, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from conformance.logs.oplog_format import VERSION
from conformance.program import VERBS
from conformance.workloads.trace_format import shorten

_INT = "an integer"
_IDS = "a list of integers"
_TEXT = "a text"
EXPECTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("n", "num_tokens", "num_lookahead", "num_cached", "num_full", "num_free", "accepted"), _INT
    ),
    **dict.fromkeys(
        ("prompt", "drafts", "sampled", "ids", "table", "ref_cnts", "queue", "queue_back", "stray"),
        _IDS,
    ),
    **dict.fromkeys(("rid", "subject", "made_by", "kvspec", "python"), _TEXT),
    "hits": 'a list of integers or "found"',
    "lora": "null or [an adapter's id, a generation]",
    "media": "a list of [a text, an offset, a length]",
    "salt": "null or a text",
    "prompt_logprobs": "true or false",
    "request": "an object with a prompt",
    "outcomes": "an object that gives each request its accepted and sampled",
    "keys": "a list of texts, or of chains of [tokens, extra] from the root",
    "answer": "null, true, false, a list of integers, or an object with one of refused, raised, "
    "returned, and a text",
    "snapshot": "an object",
    "unseen": "an object with raised and a text",
    "usage": "null or a number",
    "counters": "an object that gives each counter an integer",
    "index": "an object that gives each key a list of integers",
    "tables": "an object that gives each request a list of integers",
    "args": "an object",
    "call": "one of " + ", ".join(VERBS),
    "config": "an object",
    "versions": "an object",
    "seed": "null or an integer",
    "num_gpu_blocks": "an integer from 2 to 2**31 - 1",
    "block_size": "an integer from 1 to 2**31 - 1",
    "max_model_len": "an integer from 1 to 2**63 - 1",
    "enable_caching": "true or false",
    "sliding_window": "null or an integer from 2 to 2**63 - 1",
    "free_rule": "append or unhashed_first",
}
"""What a field must be, in words that do not change with the version of pydantic."""


def call_problem(error: ValidationError, fields: Mapping[str, Any]) -> str:
    """Return what is wrong with a call's line."""
    # What comes first is the verb that chose the model, where there is one.
    tagged = fields.get("call") in VERBS if isinstance(fields.get("call"), str) else False
    return _problem(error, fields, 1 if tagged else 0)


def header_problem(error: ValidationError, fields: Mapping[str, Any]) -> str:
    """Return what is wrong with a header."""
    return _problem(error, fields, 0)


def version_problem(fields: Mapping[str, Any]) -> str | None:
    """Return why a first line is no header of this version, or None."""
    if "kvspec_log" not in fields:
        return (
            f"the header is missing: {shorten(fields)}; the first line of a log says "
            f'"kvspec_log": {VERSION} and the configuration'
        )
    given = fields["kvspec_log"]
    if type(given) is not int or given != VERSION:
        return (
            f"kvspec_log must be {VERSION}: {shorten(given)}; read the log with the kvspec that "
            "wrote it, or record again"
        )
    if fields.get("kind") == "states":
        return "a log of states has no calls to make: 'states'; judge it with `kvspec validate`"
    return None


def _problem(error: ValidationError, fields: Mapping[str, Any], skipped: int) -> str:
    first = error.errors()[0]
    path = list(first["loc"][skipped:])
    if first["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path = ["call"]
    where, name, value = _follow(path, fields)
    lacks = first["type"] == "missing" and isinstance(path[-1], str)
    if lacks and len(where) == len(path) - 1:
        holder = f" in {_shown(where)}" if where else ""
        return f"{path[-1]} is missing{holder}: {shorten(value)}; add it, or record again"
    if path == ["call"] and "call" not in fields:
        return f"call is missing: {shorten(fields)}; add it, or record again"
    if first["type"] == "extra_forbidden":
        return f"{_shown(where)} is unknown: {shorten(value)}; take it out, or record again"
    expected = EXPECTED.get(name, "an object")
    if isinstance(where[-1], int) and expected == _IDS:
        expected = _INT
    if isinstance(value, int) and expected == _INT and not isinstance(value, bool):
        expected = "at least 1" if where == ["n"] else "from -2**64 to 2**64"
    return f"{_shown(where)} must be {expected}: {shorten(value)}; correct it, or record again"


def _follow(path: list[int | str], fields: Any) -> tuple[list[int | str], str, Any]:  # noqa: ANN401  # JSON is any value
    """Return the part of a path that the line has, the last field's name in it, and its value.

    A path of pydantic's goes on with the names of the forms that a value might have had.
    """
    where: list[int | str] = []
    name, value = "", fields
    for step in path:
        if isinstance(value, dict):
            inside = step in value
        else:
            inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not inside:
            break
        value = value[step]
        where.append(step)
        name = step if isinstance(step, str) and step in EXPECTED else name
    return where, name, value


def _shown(where: list[int | str]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    return text.removeprefix(".") or "the line"
