"""`Request`: what the manager needs to know of a request.

All confirmed token ids of a request live in one array of 64-bit integers: checking them, copying
them and handing them to the key function then run at the speed of C. Chapter 5.4 and 5.5.3.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from kvcache.errors import InvalidRequest, InvalidTokenId

_TOKEN_LIMIT = 2**63


class LoRARequest(BaseModel):
    """An adapter; `generation` changes when other weights are loaded under the same id."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    lora_id: int | str
    generation: int = 0


class MultiModalItem(BaseModel):
    """A media item whose content `identifier` names, shown by tokens `[offset, offset+length)`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    identifier: str
    offset: int
    length: int


class Request:
    """One request: its confirmed tokens, its drafts, and how many of its tokens are written.

    `num_computed_tokens` counts tokens whose keys and values have been written: the engine raises
    it after a step has run, less the rejected drafts, and resets it to 0 at preemption, after it
    has called `KVCacheManager.free`. `token_ids` are the confirmed tokens, to be read only.

    Raises `InvalidRequest` for an empty id, an empty prompt, and media that overlap or lie at
    negative positions, and `InvalidTokenId` for a token outside `0 <= t < 2**63`.
    """

    __slots__ = (
        "_num_prompt_tokens",
        "_spec_token_ids",
        "cache_salt",
        "lora_request",
        "mm_items",
        "num_computed_tokens",
        "num_preemptions",
        "prompt_logprobs",
        "request_id",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        *,
        lora_request: LoRARequest | None = None,
        mm_items: Sequence[MultiModalItem] = (),
        cache_salt: str | None = None,
        prompt_logprobs: int | None = None,
    ) -> None:
        if not request_id:
            raise InvalidRequest(request_id=request_id, reason="the id is empty; give it a name")
        token_ids = _checked_tokens(prompt_token_ids)
        if not token_ids:
            raise InvalidRequest(
                request_id=request_id, reason="the prompt is empty; give 1 token or more"
            )
        self.request_id = request_id
        self.token_ids = token_ids
        self._num_prompt_tokens = len(token_ids)
        self._spec_token_ids: tuple[int, ...] = ()
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.lora_request = lora_request
        self.mm_items = _checked_media(request_id, mm_items) if mm_items else ()
        self.cache_salt = cache_salt
        self.prompt_logprobs = prompt_logprobs

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt's tokens; a copy."""
        return tuple(self.token_ids[: self._num_prompt_tokens])

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The confirmed tokens that were generated; a copy."""
        return tuple(self.token_ids[self._num_prompt_tokens :])

    @property
    def spec_token_ids(self) -> tuple[int, ...]:
        """The draft tokens that follow the confirmed ones."""
        return self._spec_token_ids

    @spec_token_ids.setter
    def spec_token_ids(self, tokens: Sequence[int]) -> None:
        self._spec_token_ids = tuple(_checked_tokens(tokens))

    @property
    def num_tokens(self) -> int:
        """The number of confirmed tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """The number of confirmed tokens and drafts."""
        return len(self.token_ids) + len(self._spec_token_ids)

    def append_output_token_ids(self, tokens: int | Sequence[int]) -> None:
        """The tokens are confirmed: they follow the others, all of them or, on error, none."""
        self.token_ids.extend(_checked_tokens((tokens,) if isinstance(tokens, int) else tokens))

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, num_tokens={self.num_tokens}, "
            f"num_computed_tokens={self.num_computed_tokens})"
        )


def _checked_tokens(tokens: Sequence[int]) -> array[int]:
    """The tokens as an array; `InvalidTokenId` names the first that is out of range.

    The array refuses what is no integer or too wide, and `min` finds what is negative, so a good
    list is never walked by the interpreter.
    """
    # An array takes bytes for its own memory image, so any other sequence is listed first.
    source = tokens if isinstance(tokens, list | tuple | array) else list(tokens)
    try:
        checked = array("q", source)
    except (TypeError, OverflowError):
        raise _first_invalid(source) from None
    if checked and min(checked) < 0:
        raise _first_invalid(source)
    return checked


def _first_invalid(tokens: Sequence[object]) -> InvalidTokenId:
    position, token_id = next(
        (position, token_id)
        for position, token_id in enumerate(tokens)
        if not (hasattr(token_id, "__index__") and 0 <= token_id.__index__() < _TOKEN_LIMIT)
    )
    return InvalidTokenId(token_id=token_id, position=position)


def _checked_media(
    request_id: str, mm_items: Sequence[MultiModalItem]
) -> tuple[MultiModalItem, ...]:
    """The items in order of offset; `InvalidRequest` where they overlap or are out of range."""
    items = tuple(sorted(mm_items, key=lambda item: item.offset))
    for item in items:
        if item.offset < 0 or item.length < 1:
            raise InvalidRequest(
                request_id=request_id,
                reason=f"{item!r} shows no tokens; give an offset >= 0 and a length >= 1",
            )
    for one, other in pairwise(items):
        if one.offset + one.length > other.offset:
            raise InvalidRequest(
                request_id=request_id,
                reason=f"{one!r} and {other!r} overlap; a token shows one item",
            )
    return items
