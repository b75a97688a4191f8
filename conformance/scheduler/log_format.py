"""What stands on a line of a log of kind `states`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from conformance.logs.oplog_format import Header
from conformance.scheduler.harness import config_of
from conformance.scheduler.judge import Facts, Glimpse
from conformance.scheduler.script import Setting
from conformance.subject import Snapshot

KIND: Final = '"kind":"states"'
Whole = Annotated[int, Field(ge=-(1 << 64), le=1 << 64)]
Ids = tuple[Whole, ...]
Action = Literal[
    "add_request",
    "schedule",
    "update_from_output",
    "abort",
    "preempt_running",
    "reset_prefix_cache",
]


class StatesHeader(Header):
    """The first line: that of any log, what kind it is, and how the scheduler was set up."""

    kind: Literal["states"]
    setting: dict[str, bool | int | str]

    @classmethod
    def made(cls, setting: Setting, subject: str, seed: int) -> Self:
        """Return the header of a log that is made here and now."""
        plain = Header.of(config_of(setting), subject, seed, "kvspec record")
        return cls(**vars(plain), kind="states", setting=setting._asdict())


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class _Work(_Strict):
    rid: str
    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]
    table: Ids
    tokens: Ids | None


class _Facts(_Strict):
    tokens: Ids
    hashes: tuple[str, ...]
    num_computed: Whole
    num_cached: Whole
    num_preemptions: Whole
    lives: bool


class _Seen(_Strict):
    ref_cnts: Ids
    keys: tuple[str | None, ...]
    queue: Ids
    queue_back: Ids
    num_free: Whole
    index: dict[str, Ids]
    tables: dict[str, Ids]
    usage: Annotated[float, Field(allow_inf_nan=False)] | None
    stray: Ids


class StatesLine(_Strict):
    """One moment. `token` is what a scheduled step samples; `result` is that of a reset."""

    n: Annotated[int, Field(ge=1)]
    call: Action
    args: dict[str, Whole | str | Ids]
    work: tuple[_Work, ...]
    token: Whole | None
    result: bool | None
    taken: Ids
    requests: dict[str, _Facts]
    snapshot: _Seen

    def glimpse(self) -> Glimpse:
        """Return what was seen."""
        facts = {rid: Facts(**vars(one)) for rid, one in self.requests.items()}
        return Glimpse(Snapshot(**vars(self.snapshot)), facts, self.taken)
