"""`EncoderCacheManager`: which media are encoded, who needs them, and which go when room is needed.

A media item is encoded once, into one output for each of its tokens, and the outputs are needed
until the tokens that show the item are computed. The budget counts encoder tokens. An entry is
keyed by the item's content identifier and is in one of three states:

    ABSENT --allocate--> HELD --last holder goes--> IDLE --allocate--> HELD
                                                    IDLE --evicted--> ABSENT

Equal media are charged once, whoever shows them. A *holder* is an input of a request, not the
request: each input is freed when its own tokens are computed, so a request that shows one item
twice holds it twice, and the first place must not give up what the second still needs.

Nothing is evicted before its room is needed: then the entries that have been idle longest go, and
no more of them than needed. Every call costs O(inputs named), and one step for each entry that it
evicts; `check` alone costs O(entries). Chapter 5.9.1 names the manager.

What the engine promises: in each step it takes `get_freed`, drops these outputs first, and then
encodes every entry that was allocated while it was absent, even if its holder has gone by then.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from kvcache.encoder_errors import (
    EncoderInputDiffers,
    EncoderInputHeld,
    EncoderInputNotHeld,
    EncoderInputTooLarge,
    InvalidEncoderCacheSize,
    NoSuchEncoderInput,
    NotEnoughEncoderCache,
    RequestIdHoldsInputs,
)

if TYPE_CHECKING:
    from kvcache.request import MultiModalItem, Request


class EncoderCacheEntry:
    """One content: its size in encoder tokens, and how many inputs hold it."""

    __slots__ = ("num_tokens", "ref_cnt")

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.ref_cnt = 0

    def __repr__(self) -> str:
        return f"EncoderCacheEntry(num_tokens={self.num_tokens}, ref_cnt={self.ref_cnt})"


class HeldInputs:
    """A request that holds entries, and the numbers of the inputs by which it does."""

    __slots__ = ("input_ids", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.input_ids: set[int] = set()


class EncoderCacheManager:
    """A budget of `cache_size` encoder tokens; `InvalidEncoderCacheSize` below 0.

    `num_free_slots` encoder tokens are in no entry, and `num_freeable_slots` are in none or in an
    idle one. Inputs are numbered as in `Request.mm_items`. Every call refuses, before it changes
    anything, a number that the request does not have (`NoSuchEncoderInput`) and a request whose id
    is held by another one (`RequestIdHoldsInputs`). A question or an allocation also refuses an
    item above the whole budget (`EncoderInputTooLarge`), and one whose identifier is cached with
    another size (`EncoderInputDiffers`).
    """

    def __init__(self, cache_size: int) -> None:
        if cache_size < 0:
            raise InvalidEncoderCacheSize(cache_size=cache_size)
        self.cache_size = cache_size
        self.num_free_slots = cache_size
        self.num_freeable_slots = cache_size
        self.cached: dict[str, EncoderCacheEntry] = {}
        # A plain dict walks over what was deleted at its front; this one does not.
        self.freeable: OrderedDict[str, EncoderCacheEntry] = OrderedDict()
        self.held: dict[str, HeldInputs] = {}
        self.freed: dict[str, None] = {}

    def has_cache(self, request: Request, input_id: int) -> bool:
        """Whether the input's content has an entry, held or idle; it is held by `allocate` only."""
        return self._entry_of(request, input_id, self._item(request, input_id)) is not None

    def can_allocate(self, request: Request, input_id: int) -> bool:
        """Whether `allocate` has room: the content has an entry, or what is freeable is enough."""
        item = self._item(request, input_id)
        entry = self._entry_of(request, input_id, item)
        return entry is not None or item.length <= self.num_freeable_slots

    def allocate(self, request: Request, input_id: int) -> None:
        """The input holds its content: an entry that exists is shared, otherwise one is made.

        What exists costs nothing. For a new one idle entries are evicted, those first that have
        been idle longest, and only until there is room. Raises `EncoderInputHeld` for an input that
        holds its entry, and `NotEnoughEncoderCache` where `can_allocate` answers False.
        """
        item = self._item(request, input_id)
        name, identifier = request.request_id, item.identifier
        entry = self._entry_of(request, input_id, item)
        if input_id in self._held_by(request):
            raise EncoderInputHeld(request_id=name, input_id=input_id, identifier=identifier)
        if entry is None:
            if item.length > self.num_freeable_slots:
                raise NotEnoughEncoderCache(
                    request_id=name,
                    input_id=input_id,
                    num_tokens=item.length,
                    num_freeable_slots=self.num_freeable_slots,
                )
            entry = self._make_entry(item)
        elif not entry.ref_cnt:
            del self.freeable[identifier]
            self.num_freeable_slots -= entry.num_tokens
        entry.ref_cnt += 1
        held = self.held.get(name)
        if held is None:
            held = self.held[name] = HeldInputs(request)
        held.input_ids.add(input_id)

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """The inputs of the request that hold their content; a copy."""
        return set(self._held_by(request))

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """The input gives up its content, which stays, idle, when nobody else holds it.

        Raises `EncoderInputNotHeld`.
        """
        self._refuse_number(request, input_id)
        if input_id not in self._held_by(request):
            raise EncoderInputNotHeld(request_id=request.request_id, input_id=input_id)
        self._release(request, input_id)

    def free(self, request: Request) -> None:
        """All inputs of the request give up their content, in their order; a second call is idle.

        The order makes the first inputs the first to be evicted: a returning request finds the
        blocks of its first tokens cached most often, and then needs no encoder output for them.
        """
        for input_id in sorted(self._held_by(request)):
            self._release(request, input_id)

    def get_freed(self) -> list[str]:
        """The identifiers evicted since the last call, each once, in order of first eviction.

        One that was allocated again in the meantime is among them: its old output is dropped before
        the new one is encoded.
        """
        freed = list(self.freed)
        self.freed.clear()
        return freed

    def check(self) -> None:
        """Entries, holders, idle order and counters agree; AssertionError says where not."""
        counted: Counter[str] = Counter()
        for name, held in self.held.items():
            assert held.input_ids, f"request {name!r} is kept and holds nothing"
            assert held.request.request_id == name, f"{held.request!r} is kept as {name!r}"
            for input_id in held.input_ids:
                item = held.request.mm_items[input_id]
                entry = self.cached.get(item.identifier)
                assert entry is not None, f"{name!r} holds {item!r}, which has no entry"
                assert entry.num_tokens == item.length, f"{name!r} holds {item!r} as {entry!r}"
                counted[item.identifier] += 1
        for identifier, entry in self.cached.items():
            assert entry.ref_cnt == counted[identifier], (
                f"{identifier!r} is {entry!r} and held by {counted[identifier]} inputs"
            )
            idle = self.freeable.get(identifier) is entry
            assert idle == (not entry.ref_cnt), f"{identifier!r} is {entry!r}, idle: {idle}"
        unknown = [identifier for identifier in self.freeable if identifier not in self.cached]
        assert not unknown, f"{unknown} are idle and have no entry"
        free = self.cache_size - sum(entry.num_tokens for entry in self.cached.values())
        freeable = free + sum(entry.num_tokens for entry in self.freeable.values())
        counters = (self.num_free_slots, self.num_freeable_slots)
        assert counters == (free, freeable), f"{counters} slots are {(free, freeable)}"
        assert 0 <= free <= freeable <= self.cache_size, f"{free}, {freeable} of {self.cache_size}"

    def _make_entry(self, item: MultiModalItem) -> EncoderCacheEntry:
        """A new entry, which no input holds yet, in room that is free by then."""
        while item.length > self.num_free_slots:
            identifier, victim = self.freeable.popitem(last=False)
            del self.cached[identifier]
            self.num_free_slots += victim.num_tokens
            self.freed[identifier] = None
        entry = self.cached[item.identifier] = EncoderCacheEntry(item.length)
        self.num_free_slots -= item.length
        self.num_freeable_slots -= item.length
        return entry

    def _release(self, request: Request, input_id: int) -> None:
        """The input, which holds its content, does so no longer."""
        held = self.held[request.request_id]
        held.input_ids.remove(input_id)
        if not held.input_ids:
            del self.held[request.request_id]
        identifier = request.mm_items[input_id].identifier
        entry = self.cached[identifier]
        entry.ref_cnt -= 1
        if not entry.ref_cnt:
            self.freeable[identifier] = entry
            self.num_freeable_slots += entry.num_tokens

    def _refuse_number(self, request: Request, input_id: int) -> None:
        num_inputs = len(request.mm_items)
        if not 0 <= input_id < num_inputs:
            raise NoSuchEncoderInput(
                request_id=request.request_id, input_id=input_id, num_inputs=num_inputs
            )

    def _item(self, request: Request, input_id: int) -> MultiModalItem:
        """The item that the input shows; it fits the budget."""
        self._refuse_number(request, input_id)
        item: MultiModalItem = request.mm_items[input_id]
        if item.length > self.cache_size:
            raise EncoderInputTooLarge(
                request_id=request.request_id,
                input_id=input_id,
                num_tokens=item.length,
                cache_size=self.cache_size,
            )
        return item

    def _entry_of(
        self, request: Request, input_id: int, item: MultiModalItem
    ) -> EncoderCacheEntry | None:
        """The entry of the item's content, if there is one; it has the item's size."""
        self._held_by(request)
        entry = self.cached.get(item.identifier)
        if entry is not None and entry.num_tokens != item.length:
            raise EncoderInputDiffers(
                request_id=request.request_id,
                input_id=input_id,
                identifier=item.identifier,
                cached_tokens=entry.num_tokens,
                num_tokens=item.length,
            )
        return entry

    def _held_by(self, request: Request) -> frozenset[int] | set[int]:
        """The numbers of the inputs that the request holds; its id is nobody else's."""
        held = self.held.get(request.request_id)
        if held is None:
            return frozenset()
        if held.request is not request:
            raise RequestIdHoldsInputs(
                request_id=request.request_id, input_ids=tuple(sorted(held.input_ids))
            )
        return held.input_ids
