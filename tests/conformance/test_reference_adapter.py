"""The adapter of our own manager shows the same facts in every way that it offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.adapters.reference import Reference, refusing
from conformance.driving.walk import Walk
from conformance.lockstep import Lockstep
from conformance.subject import BlockView, Capabilities, Refusal, RequestSpec, Subject
from kvcache import InvalidTokenCount, KVCacheBlock
from spec.state import NULL, Config, Key
from spec.statemachine import Outcome

CONFIGS = {
    "full attention": (Config(9, 2), "sha256"),
    "builtin": (Config(12, 1), "builtin"),
    "window": (Config(12, 2, sliding_window=3), "sha256"),
    "caching off": (Config(9, 2, enable_caching=False), "builtin"),
}


def assert_consistent(subject: Reference) -> None:
    """Check that a snapshot, a look at every block, and the tables tell the same."""
    seen = subject.snapshot()
    views, head, tail, num_free = subject.look(range(len(seen.ref_cnts)))
    assert (head, tail, num_free) == (
        seen.queue[0] if seen.queue else NULL,
        seen.queue[-1] if seen.queue else NULL,
        seen.num_free,
    )
    assert seen.num_free == len(seen.queue) == subject.num_free()
    assert seen.queue == seen.queue_back[::-1]
    expected: list[BlockView] = []
    for b, (ref_cnt, key) in enumerate(zip(seen.ref_cnts, seen.keys, strict=True)):
        ring = (NULL, *seen.queue, NULL)
        at = seen.queue.index(b) + 1 if b in seen.queue else None
        around = (None, None) if at is None else (ring[at - 1], ring[at + 1])
        expected.append((ref_cnt, None if key is None else seen.index[key], *around))
    assert views == expected
    assert sorted(b for copies in seen.index.values() for b in copies) == [
        b for b, key in enumerate(seen.keys) if key is not None
    ]
    assert seen.tables == {rid: t for rid in subject.requests if (t := subject.table(rid))}
    held = [b for table in seen.tables.values() for b in table if b != NULL]
    assert sum(seen.ref_cnts) == len(held)
    subject.manager.check()


class Looked(Lockstep):
    """A pair that looks at its subject in every way after every call."""

    def _call(self, action: str, **args: Any) -> Any:  # noqa: ANN401  # as the verb's
        try:
            return super()._call(action, **args)
        finally:
            assert isinstance(self.subject, Reference)
            assert_consistent(self.subject)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_every_look_tells_the_same(name: str) -> None:
    """After each call of random walks, snapshot, look and tables agree."""
    config, algorithm = CONFIGS[name]
    for seed in range(6):
        pair = Looked(Reference(config, algorithm))
        Walk(pair, seed).run(150)


def test_a_new_subject_is_idle() -> None:
    """Every usable block is free, in order of its id, and nothing is known."""
    seen = Reference(Config(4, 2)).snapshot()
    assert (seen.ref_cnts, seen.keys) == ((0,) * 4, (None,) * 4)
    assert (seen.queue, seen.queue_back, seen.num_free) == ((1, 2, 3), (3, 2, 1), 3)
    assert (seen.index, seen.tables) == ({}, {})


def test_a_look_shows_what_is_asked_in_its_order() -> None:
    """Null, a block in use, and queued ones at either end, as often as they are named."""
    subject = Reference(Config(5, 2))
    subject.get_new_blocks(1)
    views, head, tail, num_free = subject.look([4, 1, 2, 4, 0])
    last = (0, None, 3, NULL)
    assert views == [last, (1, None, None, None), (0, None, NULL, 3), last, (0, None, None, None)]
    assert (head, tail, num_free) == (2, 4, 3)
    subject.get_new_blocks(3)
    assert subject.look([]) == ([], NULL, NULL, 0)


FOREIGN: dict[str, Callable[[Reference, list[int]], object]] = {
    "touch": lambda subject, ids: subject.touch(ids),
    "free_blocks": lambda subject, ids: subject.free_blocks(ids),
    "unpublish": lambda subject, ids: subject.unpublish(ids),
    "cache_full_blocks": lambda subject, ids: subject.cache_full_blocks(
        ids, [Key(None, (1, 1))] * len(ids), 0, len(ids)
    ),
    "hits": lambda subject, ids: subject.allocate_slots("a", 1, ids, 0),
}


@pytest.mark.parametrize("verb", FOREIGN)
@pytest.mark.parametrize("ids", [[5], [-1], [1, 5], [10**9], [-(10**9)]])
def test_an_id_out_of_range_is_refused(verb: str, ids: list[int]) -> None:
    """An id of no block is asked for with a block of no pool, also where Python would wrap."""
    subject = Reference(Config(5, 2))
    subject.add_request("a", RequestSpec([1] * 9))
    subject.cache_full_blocks(subject.get_new_blocks(1), [Key(None, (1, 1))], 0, 1)
    before = subject.snapshot()
    with pytest.raises(Refusal) as caught:
        FOREIGN[verb](subject, ids)
    assert caught.value.rule in {"block_is_not_of_this_pool", "block_is_already_sealed"}
    if ids != [1, 5]:
        assert caught.value.rule == "block_is_not_of_this_pool"
    assert before == subject.snapshot()


def test_a_refusal_has_the_rule_and_the_words_of_the_manager() -> None:
    """Typed errors of the manager become refusals; any other error stays what it is."""

    def refuse(name: str) -> None:
        raise InvalidTokenCount(request_id=name, num_tokens=0)

    with pytest.raises(Refusal) as caught:
        refusing(refuse, "a")
    assert caught.value.rule == "num_tokens_is_below_one"
    assert caught.value.text == "request 'a': num_tokens=0; schedule 1 token or more"
    assert isinstance(caught.value.__cause__, InvalidTokenCount)
    with pytest.raises(ZeroDivisionError):
        refusing(lambda: 1 // 0)


def test_a_request_arrives_with_everything_that_names_its_content() -> None:
    """Adapter, media, salt and the wish for prompt logprobs reach the manager's request."""
    subject = Reference(Config(5, 2))
    spec = RequestSpec([1, 2, 3], (7, 2), (("picture", 1, 2),), "salt", prompt_logprobs=True)
    subject.add_request("a", spec)
    request = subject.requests["a"]
    assert request.lora_request is not None
    assert (request.lora_request.lora_id, request.lora_request.generation) == (7, 2)
    (item,) = request.mm_items
    assert (item.identifier, item.offset, item.length) == ("picture", 1, 2)
    assert (request.cache_salt, request.prompt_logprobs) == ("salt", 0)
    subject.add_request("b", RequestSpec([1]))
    plain = subject.requests["b"]
    assert (plain.lora_request, plain.mm_items) == (None, ())
    assert (plain.cache_salt, plain.prompt_logprobs) == (None, None)


def test_a_step_confirms_accepted_drafts_before_what_was_sampled() -> None:
    """Accepted drafts are written, the sampled token is not, and rejected ones are forgotten."""
    subject = Reference(Config(9, 2))
    subject.add_request("a", RequestSpec([1, 2, 3]))
    subject.allocate_slots("a", 3, (), 0)
    subject.run_step({"a": Outcome(0, (4,))})
    subject.propose("a", [5, 6, 7])
    subject.allocate_slots("a", 4, (), 0)
    subject.run_step({"a": Outcome(2, (8,))})
    request = subject.requests["a"]
    assert list(request.token_ids) == [1, 2, 3, 4, 5, 6, 8]
    assert (request.num_computed_tokens, request.spec_token_ids) == (6, ())
    subject.preempt("a")
    assert (request.num_computed_tokens, request.num_preemptions) == (0, 1)
    assert subject.table("a") == ()
    subject.finish("a")
    assert subject.requests == {}


def test_a_ring_that_never_closes_is_cut_off() -> None:
    """A snapshot of a broken queue ends, and shows more blocks than there are."""
    subject = Reference(Config(4, 2))
    blocks = subject.pool.blocks
    blocks[3].next_free_block = blocks[2]
    seen = subject.snapshot()
    assert len(seen.queue) == 5
    assert seen.queue_back == (3, 2, 1)
    blocks[3].next_free_block = None
    assert subject.snapshot().queue == (1, 2, 3)
    assert isinstance(blocks[3], KVCacheBlock)


def test_the_adapter_is_a_subject() -> None:
    """It has a name, says what it can do, and counts evictions from the beginning."""
    subject: Subject = Reference(Config(3, 2))
    assert (subject.name, subject.capabilities) == ("reference", Capabilities())
    assert subject.capabilities.free_rule == "append"
    subject.cache_full_blocks(subject.get_new_blocks(1), [Key(None, (1, 1))], 0, 1)
    subject.free_blocks([1])
    subject.get_new_blocks(2)
    assert subject.num_evictions() == 1
