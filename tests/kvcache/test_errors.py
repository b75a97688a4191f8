"""Refusals have stable names, carry their values, and say them."""

import pickle

import pytest

import kvcache
from kvcache import KVCacheError, NotEnoughBlocks, PendingBlockShared, StaleHit

RULES = {
    "NegativeBlockCount": "block_count_is_negative",
    "NotEnoughBlocks": "not_enough_free_blocks",
    "ForeignBlock": "block_is_not_of_this_pool",
    "TouchedUnsealed": "touched_block_is_not_sealed",
    "ReleasedTooOften": "released_more_often_than_held",
    "SealRangeInvalid": "seal_range_is_invalid",
    "AlreadySealed": "block_is_already_sealed",
    "SealedByMany": "sealed_block_has_not_one_holder",
    "UnpublishRefused": "unpublished_block_is_not_one_holders",
    "NotInFreeQueue": "block_is_not_in_the_free_queue",
    "AlreadyInFreeQueue": "block_is_already_in_the_free_queue",
    "InvalidTokenCount": "num_tokens_is_below_one",
    "InvalidLookahead": "num_lookahead_tokens_is_negative",
    "TokensBeyondRequest": "tokens_beyond_the_request",
    "TokensBeyondModelLength": "tokens_beyond_max_model_len",
    "HitsForRunningRequest": "hits_for_a_request_with_a_table",
    "HitsWithoutCaching": "hits_while_caching_is_off",
    "StaleHit": "hit_is_stale",
    "NullHitIsReadable": "null_hit_is_readable",
    "StepHasNotRun": "last_step_has_not_run",
    "NothingConfirmed": "no_confirmed_token_to_compute",
    "ComputedWithoutBlocks": "computed_tokens_without_blocks",
    "HitsWithPromptLogprobs": "hits_with_prompt_logprobs",
    "RequestTooLarge": "request_is_too_large",
    "PendingBlockShared": "pending_block_is_shared",
    "InvalidTokenId": "token_id_is_out_of_range",
    "InvalidRequest": "request_is_invalid",
    "RequestIdInUse": "request_id_is_in_use",
    "InvalidPoolSize": "pool_size_is_below_two",
    "InvalidRunningCount": "num_running_is_below_one",
    "InvalidEncoderCacheSize": "encoder_cache_size_is_negative",
    "NoSuchEncoderInput": "no_such_encoder_input",
    "EncoderInputTooLarge": "encoder_input_is_too_large",
    "EncoderInputDiffers": "encoder_input_differs_from_its_entry",
    "EncoderInputHeld": "encoder_input_is_held",
    "EncoderInputNotHeld": "encoder_input_is_not_held",
    "NotEnoughEncoderCache": "not_enough_encoder_cache",
    "RequestIdHoldsInputs": "request_id_holds_encoder_inputs",
    "NoAttentionLayers": "no_attention_layers",
    "NoMemoryForBlocks": "no_memory_for_blocks",
    "MemoryBelowOneRequest": "memory_is_below_one_request",
    "LayersDiffer": "layers_have_different_specs",
    "NoWorkers": "no_workers",
    "WorkersDiffer": "workers_have_different_specs",
}


def test_every_refusal_has_its_rule() -> None:
    """The public error classes and their rules are exactly these."""
    public = {name: getattr(kvcache, name) for name in kvcache.__all__}
    errors = {
        name: item.rule
        for name, item in public.items()
        if isinstance(item, type) and issubclass(item, KVCacheError) and item is not KVCacheError
    }
    assert errors == RULES


@pytest.mark.parametrize("name", RULES)
def test_a_message_shows_every_value(name: str) -> None:
    """Each attribute that a refusal declares is an argument and stands in its message."""
    kind = getattr(kvcache, name)
    declared = {field for base in kind.__mro__ for field in vars(base).get("__annotations__", {})}
    values = {field: f"<{field}>" for field in declared - {"rule", "about", "says"}}
    error = kind(**values)
    for field, value in values.items():
        assert value == getattr(error, field)
        assert value in str(error)


def test_a_refusal_reads_as_a_sentence() -> None:
    """A message says what is wrong with which values, and what to do."""
    assert str(NotEnoughBlocks(wanted=3, free=2)) == (
        "3 blocks were asked for and 2 are free; ask for less or free a request"
    )
    assert str(PendingBlockShared(block_id=4, writer="A", holders=("A", "B"))) == (
        "block 4 is unwritten by 'A', held by ('A', 'B'); free the latest first or run the step"
    )


def test_a_refusal_crosses_processes() -> None:
    """A pickled refusal comes back with its class, values and message."""
    error = StaleHit(request_id="A", block_id=3, position=1)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  # the bytes are our own
    assert (type(error), error.__dict__, str(error)) == (type(copy), copy.__dict__, str(copy))
