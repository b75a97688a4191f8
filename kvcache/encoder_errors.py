# ruff: noqa: N818 -- a refusal is named after what is wrong, as its rule is
"""What an encoder cache refuses, with the values that led to it."""

from __future__ import annotations

from kvcache.errors import KVCacheError, RequestRefusal


class EncoderInputRefusal(RequestRefusal):
    """The base of refusals that concern one media input of a request."""

    about = "request {request_id!r}, input {input_id}: "
    input_id: int


class InvalidEncoderCacheSize(KVCacheError, ValueError):
    """A budget is below zero."""

    rule = "encoder_cache_size_is_negative"
    says = "cache_size={cache_size} encoder tokens; give 0 or more"
    cache_size: int


class NoSuchEncoderInput(EncoderInputRefusal, ValueError):
    """A request has no input of this number."""

    rule = "no_such_encoder_input"
    says = "the request shows {num_inputs} media items; number them from 0"
    num_inputs: int


class EncoderInputTooLarge(EncoderInputRefusal):
    """A media item is above the whole budget, so waiting is in vain."""

    rule = "encoder_input_is_too_large"
    says = "{num_tokens} encoder tokens of cache_size={cache_size}; end the request or raise it"
    num_tokens: int
    cache_size: int


class EncoderInputDiffers(EncoderInputRefusal):
    """One identifier is used for media of two sizes, so it does not name a content."""

    rule = "encoder_input_differs_from_its_entry"
    says = (
        "{identifier!r} is cached with {cached_tokens} encoder tokens and shown with {num_tokens}; "
        "name different media differently"
    )
    identifier: str
    cached_tokens: int
    num_tokens: int


class EncoderInputHeld(EncoderInputRefusal):
    """An input is allocated that holds its entry; it would be freed only once."""

    rule = "encoder_input_is_held"
    says = "it holds {identifier!r} already; allocate it once and free it once"
    identifier: str


class EncoderInputNotHeld(EncoderInputRefusal):
    """An input is freed that holds nothing."""

    rule = "encoder_input_is_not_held"
    says = "it holds nothing; free what get_cached_input_ids names, once"


class NotEnoughEncoderCache(EncoderInputRefusal):
    """An input needs more of the budget than is free or idle."""

    rule = "not_enough_encoder_cache"
    says = (
        "{num_tokens} encoder tokens are needed and {num_freeable_slots} are free or idle; ask "
        "can_allocate, and free a request first"
    )
    num_tokens: int
    num_freeable_slots: int


class RequestIdHoldsInputs(RequestRefusal):
    """Another request object has an id under which inputs are held."""

    rule = "request_id_holds_encoder_inputs"
    says = "another request under this id holds inputs {input_ids}; call free for that one first"
    input_ids: tuple[int, ...]
