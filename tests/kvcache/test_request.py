"""A request counts its tokens and refuses what is none."""

from array import array

import pytest
from pydantic import ValidationError

from kvcache import InvalidRequest, InvalidTokenId, LoRARequest, MultiModalItem, Request


def test_a_request_starts_with_its_prompt() -> None:
    """Nothing is computed, drafted or generated at first."""
    request = Request("r", [1, 2, 3])
    assert (request.prompt_token_ids, request.output_token_ids) == ((1, 2, 3), ())
    assert (request.spec_token_ids, request.num_tokens) == ((), 3)
    assert (request.num_computed_tokens, request.num_preemptions) == (0, 0)
    assert repr(request) == "Request('r', num_tokens=3, num_computed_tokens=0)"


def test_output_is_confirmed_and_drafts_are_not() -> None:
    """`num_tokens` counts prompt and output, `num_tokens_with_spec` the drafts too."""
    request = Request("r", (1, 2))
    request.append_output_token_ids(3)
    request.append_output_token_ids([4, 5])
    request.spec_token_ids = [6]
    assert (request.prompt_token_ids, request.output_token_ids) == ((1, 2), (3, 4, 5))
    assert (request.num_tokens, request.num_tokens_with_spec) == (5, 6)
    request.spec_token_ids = ()
    assert request.num_tokens_with_spec == 5


@pytest.mark.parametrize("tokens", [[65, 66], (65, 66), range(65, 67), b"AB", array("i", [65, 66])])
def test_any_sequence_of_integers_is_a_prompt(tokens: list[int]) -> None:
    """Lists, tuples, ranges, bytes and arrays mean the integers that they hold."""
    assert Request("r", tokens).prompt_token_ids == (65, 66)


def test_the_largest_token_id_is_below_two_to_the_63() -> None:
    """The range of a token id is that of a signed 64-bit integer without its negative half."""
    assert Request("r", [0, 2**63 - 1]).prompt_token_ids == (0, 2**63 - 1)


@pytest.mark.parametrize("bad", [-1, 2**63, -(2**63) - 1, 1.0, "1", None])
def test_a_token_id_out_of_range_is_named(bad: object) -> None:
    """The refusal shows value and position, and the request stays as it was."""
    tokens = [5, bad, -7]
    with pytest.raises(InvalidTokenId) as refusal:
        Request("r", tokens)  # type: ignore[arg-type]  # the refusal is the fact
    assert (bad, 1) == (refusal.value.token_id, refusal.value.position)
    request = Request("r", [1])
    with pytest.raises(InvalidTokenId):
        request.append_output_token_ids(tokens)  # type: ignore[arg-type]  # the same
    with pytest.raises(InvalidTokenId):
        request.spec_token_ids = tokens  # type: ignore[assignment]  # the same
    assert (request.num_tokens_with_spec, request.output_token_ids) == (1, ())


def test_a_text_is_no_prompt() -> None:
    """Letters are no token ids."""
    with pytest.raises(InvalidTokenId, match="'a' at position 0"):
        Request("r", "abc")  # type: ignore[arg-type]  # the refusal is the fact


def item(offset: int, length: int) -> MultiModalItem:
    """Return a media item at a place."""
    return MultiModalItem(identifier="i", offset=offset, length=length)


@pytest.mark.parametrize(
    ("name", "prompt", "items", "reason"),
    [
        ("", [1], [], "the id is empty"),
        ("r", [], [], "the prompt is empty"),
        ("r", [1], [item(-1, 2)], "shows no tokens"),
        ("r", [1], [item(0, 0)], "shows no tokens"),
        ("r", [1], [item(0, -1)], "shows no tokens"),
        ("r", [1], [item(2, 2), item(0, 3)], "overlap"),
        ("r", [1], [item(1, 1), item(1, 1)], "overlap"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    name: str, prompt: list[int], items: list[MultiModalItem], reason: str
) -> None:
    """Ids and prompts are not empty, and media lie side by side at positions that exist."""
    with pytest.raises(InvalidRequest, match=reason):
        Request(name, prompt, mm_items=items)


def test_media_are_kept_in_order_of_offset() -> None:
    """Items that touch do not overlap, and their order is that of their tokens."""
    request = Request("r", [1], mm_items=[item(2, 2), item(0, 2)])
    assert [entry.offset for entry in request.mm_items] == [0, 2]


def test_adapters_and_media_are_checked_where_they_enter() -> None:
    """Both are frozen and strict."""
    assert LoRARequest(lora_id=1) != LoRARequest(lora_id="1")
    for fields in ({"lora_id": 1.5}, {"lora_id": 1, "other": 2}, {"lora_id": True}):
        with pytest.raises(ValidationError):
            LoRARequest.model_validate(fields)
    with pytest.raises(ValidationError):
        item(0, 1).length = 2
