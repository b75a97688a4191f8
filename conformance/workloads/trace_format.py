"""A trace format says what a request must be, and every deviation is named with its value.

Two public formats are known. A Mooncake trace is JSON lines, one request each. A kv-cache-tester
trace is one JSON object, one conversation, whose `requests` may hold sub-agents with requests of
their own. Neither names tokens: both name blocks, and an equal hash id means an equal prefix up to
and including that block. Fields that are not named here are allowed and not read.
"""

import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field, ValidationError

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = 60
shorten: Final = _SHORT.repr
"""Returns a value's text, cut to what a message can carry, however large or deep the value is."""

_Id = Annotated[int, Field(ge=0, lt=2**48)]
_Positive = Annotated[int, Field(ge=1, le=10_000_000)]
_Natural = Annotated[int, Field(ge=0, le=10_000_000)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _MooncakeRequest(BaseModel, strict=True):
    timestamp: _Time
    input_length: _Positive
    output_length: _Natural
    hash_ids: list[_Id]


class _KvCacheTesterRequest(BaseModel, strict=True):
    t: _Time
    input_length: _Positive = Field(alias="in")
    out: _Natural
    hash_ids: list[_Id]


class SubAgent(BaseModel, strict=True):
    """What is used of a sub-agent's own entry; its requests are checked one by one."""

    t: _Time


EXPECTED: Final = {
    "timestamp": "a finite number of milliseconds, 0 or more",
    "t": "a finite number of seconds, 0 or more",
    "input_length": "an integer from 1 to 10000000",
    "in": "an integer from 1 to 10000000",
    "output_length": "an integer from 0 to 10000000",
    "out": "an integer from 0 to 10000000",
    "hash_ids": "a list of integers from 0 to 2**48 - 1",
}
"""What a field must be, in words that do not change with the version of pydantic."""


class TraceEntry(NamedTuple):
    """One request that is parsed but not checked."""

    place: str
    line: int | None
    prefix: str
    """What stands before a field's name in a message."""
    start_s: float
    fields: Any


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """What a trace format calls its fields, what one id stands for, and how a file is read."""

    unit: int
    """Tokens of one hash id."""
    tail_has_an_id: bool
    """Whether an incomplete last unit has an id too."""
    model: type[BaseModel]
    time: str
    """The name of the arrival's field."""
    per_second: float
    """Units of `time` in a second."""
    input: str
    output: str

    def num_ids(self, input_length: int) -> int:
        """Return the number of ids that a prompt of this length has."""
        return (input_length + (self.unit - 1) * self.tail_has_an_id) // self.unit


def find_problem(entry: TraceEntry, form: TraceFormat) -> str | None:
    """Return what is wrong with one request as `what: value; what to do`, or None."""
    return _field_problem(entry, form) or _ids_problem(entry, form)


def _field_problem(entry: TraceEntry, form: TraceFormat) -> str | None:
    """Return which field of one request is not what it must be, or None."""
    try:
        form.model.model_validate(entry.fields)
    except ValidationError as error:
        first = error.errors()[0]
    else:
        return None
    value = shorten(first["input"])
    if not first["loc"]:
        where = entry.prefix.rstrip(".") or "the line"
        return f"{where} must be a JSON object: {value}; write one object for each request"
    name, *index = (str(step) for step in first["loc"])
    where = f"{entry.prefix}{name}" + "".join(f"[{i}]" for i in index)
    if first["type"] == "missing":
        return f"{where} is missing: {value}; add the field or remove the request"
    expected = (
        EXPECTED[name].replace("a list of integers", "an integer") if index else EXPECTED[name]
    )
    return f"{where} must be {expected}: {value}; correct the value or remove the request"


def _ids_problem(entry: TraceEntry, form: TraceFormat) -> str | None:
    """Return how the ids contradict the prompt's length or each other, or None."""
    ids: list[int] = entry.fields["hash_ids"]
    length: int = entry.fields[form.input]
    expected = form.num_ids(length)
    where = f"{entry.prefix}hash_ids"
    if len(ids) != expected:
        sum_ = f"{length} / {form.unit}"
        rule = f"ceil({sum_})" if form.tail_has_an_id else f"floor({sum_})"
        return (
            f"{where} must hold {rule} = {expected} ids, got {len(ids)}: {shorten(ids)}; "
            f"correct {form.input} or the ids"
        )
    if len(set(ids)) == expected:
        return None
    last = {i: position for position, i in enumerate(ids)}
    first = next(position for position, i in enumerate(ids) if last[i] != position)
    return (
        f"{where}[{last[ids[first]]}] repeats hash_ids[{first}]: {ids[first]}; an id stands for "
        "the whole prefix that ends with its block, so give each prefix its own id"
    )


MOONCAKE: Final = TraceFormat(
    unit=512,
    tail_has_an_id=True,
    model=_MooncakeRequest,
    time="timestamp",
    per_second=1000.0,
    input="input_length",
    output="output_length",
)
KV_CACHE_TESTER: Final = TraceFormat(
    unit=64,
    tail_has_an_id=False,
    model=_KvCacheTesterRequest,
    time="t",
    per_second=1.0,
    input="in",
    output="out",
)
