"""What stands on a line of an operation log, and how a line that deviates is named.

A log is JSON lines. The first line is the header: the version of the format, the configuration, the
subject. Each line after it is one call: its number, the verb, the arguments by name, and what was
answered. A line may show the whole subject after its call. What the arguments may be is as wide as
what a driver can do wrong: a block id that no pool has is misuse, and a log must be able to tell of
it. So only the form is checked here; whether the calls and answers are right is for lockstep.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from conformance.program import FOUND, Operation
from conformance.subject import RequestSpec, Snapshot
from spec.state import Config, Key
from spec.statemachine import Outcome

VERSION: Final = 1

# A list of JSON becomes a tuple; all else is taken as it stands.
_List = Field(strict=False)
Whole = Annotated[int, Field(ge=-(1 << 64), le=1 << 64)]
Ids = Annotated[tuple[Whole, ...], _List]
_Extra = Annotated[tuple[Annotated[tuple[str | Whole, ...], _List], ...], _List]
_Link = Annotated[tuple[Ids, _Extra], _List]
_Chain = Annotated[tuple[_Link, ...], Field(strict=False, min_length=1)]
_Lora = Annotated[tuple[str | Whole, Whole], _List]
_Media = Annotated[tuple[Annotated[tuple[str, Whole, Whole], _List], ...], _List]
V = TypeVar("V")
A = TypeVar("A")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Configuration(_Strict):
    num_gpu_blocks: Annotated[int, Field(ge=2, lt=1 << 31)]
    block_size: Annotated[int, Field(ge=1, lt=1 << 31)]
    max_model_len: Annotated[int, Field(ge=1, lt=1 << 63)]
    enable_caching: bool
    sliding_window: Annotated[int, Field(ge=2, lt=1 << 63)] | None
    free_rule: Literal["append", "unhashed_first"]


class Versions(_Strict):
    """What a log was made with; `subject` is the version of the package that holds the subject."""

    kvspec: str
    python: str
    subject: str | None


class Header(_Strict):
    """The first line of a log."""

    kvspec_log: Literal[1]
    config: _Configuration
    subject: str
    """The name by which `subjects.find_subject` finds it."""
    seed: int | None
    versions: Versions
    made_by: str

    @classmethod
    def of(cls, config: Config, subject: str, seed: int | None, made_by: str) -> Self:
        """Return the header of a log that is made here and now."""
        package = subject.partition(":")[0].partition(".")[0] if ":" in subject else "kvspec"
        versions = Versions(
            kvspec=_version("kvspec") or "unknown",
            python=platform.python_version(),
            subject=_version(package),
        )
        return cls(
            kvspec_log=VERSION,
            config=_Configuration.model_validate(config._asdict()),
            subject=subject,
            seed=seed,
            versions=versions,
            made_by=made_by,
        )

    @property
    def settings(self) -> Config:
        """The configuration that the calls were made under."""
        return Config(**vars(self.config))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class _Request(_Strict):
    prompt: Ids
    lora: _Lora | None = None
    media: _Media = ()
    salt: str | None = None
    prompt_logprobs: bool = False


class _Outcome(_Strict):
    accepted: Whole
    sampled: Ids


class _Args(_Strict):
    def as_given(self) -> Mapping[str, Any]:
        """Return the arguments by name as `conformance.subject.Subject` takes them."""
        return dict(vars(self))


class _NoArgs(_Args):
    pass


class _RidArgs(_Args):
    rid: str


class _AddArgs(_RidArgs):
    request: _Request

    def as_given(self) -> Mapping[str, Any]:
        return {"rid": self.rid, "request": RequestSpec(**vars(self.request))}


class _ProposeArgs(_RidArgs):
    drafts: Ids


class _AllocateArgs(_RidArgs):
    num_tokens: Whole
    hits: Ids | Literal["found"]
    num_lookahead: Whole


class _StepArgs(_Args):
    outcomes: dict[str, _Outcome]

    def as_given(self) -> Mapping[str, Any]:
        return {"outcomes": {rid: Outcome(**vars(o)) for rid, o in self.outcomes.items()}}


class _CountArgs(_Args):
    n: Whole


class _IdsArgs(_Args):
    ids: Ids


class _SealArgs(_Args):
    table: Ids
    keys: Annotated[tuple[str | _Chain, ...], _List]
    num_cached: Whole
    num_full: Whole

    def as_given(self) -> Mapping[str, Any]:
        return {**vars(self), "keys": tuple(map(_as_key, self.keys))}


class Refusing(_Strict):
    """The answer of a manager that refused: the rule, and its own words."""

    refused: str
    text: str = ""


class Raising(_Strict):
    """The answer of a manager that crashed: the exception's type and text."""

    raised: str
    text: str = ""


class Odd(_Strict):
    """An answer that no verb has: its type and how it shows itself."""

    returned: str
    text: str = ""


Answer = None | bool | Ids | Refusing | Raising | Odd


class _Seen(_Strict):
    ref_cnts: Ids
    keys: Annotated[tuple[str | None, ...], _List]
    queue: Ids
    queue_back: Ids
    num_free: Whole
    index: dict[str, Ids]
    tables: dict[str, Ids]
    usage: Annotated[float, Field(allow_inf_nan=False)] | None = None
    counters: dict[str, Whole] = {}
    stray: Ids = ()

    def as_snapshot(self) -> Snapshot:
        """Return what the subject showed; its keys are names that mean one another only."""
        return Snapshot(**vars(self))


class Line(_Strict, Generic[V, A]):
    """One call. `answer` is absent where none was given."""

    n: Annotated[int, Field(ge=1)]
    call: V
    args: A
    answer: Answer = None
    snapshot: _Seen | None = None
    unseen: Raising | None = None
    """Why there is no snapshot: looking at the subject raised this."""


_EachLine = (
    Line[Literal["add_request"], _AddArgs]
    | Line[Literal["propose"], _ProposeArgs]
    | Line[Literal["get_computed_blocks", "free", "preempt", "finish"], _RidArgs]
    | Line[Literal["allocate_slots"], _AllocateArgs]
    | Line[Literal["run_step"], _StepArgs]
    | Line[Literal["reset_prefix_cache"], _NoArgs]
    | Line[Literal["get_new_blocks"], _CountArgs]
    | Line[Literal["touch", "free_blocks", "unpublish"], _IdsArgs]
    | Line[Literal["cache_full_blocks"], _SealArgs]
)
LINES: Final[TypeAdapter[Any]] = TypeAdapter(Annotated[_EachLine, Field(discriminator="call")])
"""Reads a call's line. The verb says which arguments it has."""


def plain_args(operation: Operation) -> dict[str, Any]:
    """Return an operation's arguments as JSON has them; what a request lacks is left out."""
    given = dict(operation.args)
    if operation.action == "add_request":
        r: RequestSpec = given["request"]
        named = {"prompt": list(r.prompt), "lora": r.lora, "media": r.media, "salt": r.salt}
        kept = {name: value for name, value in named.items() if value not in (None, ())}
        given["request"] = kept | ({"prompt_logprobs": True} if r.prompt_logprobs else {})
    elif operation.action == "run_step":
        given["outcomes"] = {
            rid: {"accepted": accepted, "sampled": list(sampled)}
            for rid, (accepted, sampled) in given["outcomes"].items()
        }
    elif operation.action == "cache_full_blocks":
        given["keys"] = [chain_of(key) if isinstance(key, Key) else key for key in given["keys"]]
        given["table"] = list(given["table"])
    else:
        for name in ("ids", "hits", "drafts"):
            if name in given and given[name] != FOUND:
                given[name] = list(given[name])
    return given


def chain_of(key: Key) -> list[tuple[tuple[int, ...], Any]]:
    """Return a key as (tokens, extra) for each block of its prefix, from the root."""
    chain = []
    link: Key | None = key
    while link is not None:
        chain.append((link.tokens, link.extra))
        link = link.parent
    return chain[::-1]


def _as_key(written: str | tuple[Any, ...]) -> Key | str:
    if isinstance(written, str):
        return written
    key: Key | None = None
    for tokens, extra in written:
        key = Key(key, tokens, extra)
    assert key is not None, "a chain of no blocks has passed its model"
    return key
