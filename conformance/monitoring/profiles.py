"""How the kinds of pools and managers that a monitor can watch are called and read.

A profile is data: which methods there are, what each does to blocks, and where queue, index and
tables are kept. A kind is recognised by the name of its class or of one it derives from, so that
nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

Block: TypeAlias = Any
Pool: TypeAlias = Any
Manager: TypeAlias = Any
"""Objects of somebody else's classes."""

Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional and the named arguments of a call."""


class Profile(NamedTuple):
    """One kind of block manager. A method that its release lacks is not watched."""

    name: str
    pool_class: str
    manager_class: str
    needs: tuple[str, ...]
    """What a pool must have to be read; other releases have classes of the same name."""
    refuses: bool
    """Whether the pool itself refuses misuse with an error, and changes nothing then."""
    pool_verbs: Mapping[str, str]
    """What each method of the pool does: take, touch, release, seal, rekey, reset or find."""
    manager_verbs: Mapping[str, str]
    """Whose call each method of the manager is: serve, end, hand (the caller gets the blocks),
    trim."""
    key_of: Callable[[Block], Hashable | None]
    getter: Callable[[Pool], Callable[[Hashable], object]]
    """From a key to its block, to something else where it has several, or to None."""
    copies: Callable[[Pool, Hashable], Sequence[Block]]
    """The blocks that are listed under a key."""
    listed: Callable[[Pool], Mapping[Hashable, object]]
    """All keys, each with its block, or with something else where it has several."""
    more_keys: Callable[[Pool, Block], Iterable[Hashable]]
    """The keys of a block beside its own."""
    ends: Callable[[Pool], tuple[Block, Block]]
    """What stands before the head and what stands behind the tail of the queue."""
    tables: Callable[[Manager], Iterator[tuple[str, Sequence[Block]]]]
    """The tables of requests; one request may have several."""
    retained: Callable[[Manager], Sequence[Any]]
    """The parts of a manager that hold blocks for a copy to come, in `_pending_cow_copies`."""
    elsewhere: Callable[[Pool, Block], bool]
    """Whether the pool passes the release of a block on to the pool that it is of."""
    rekeyed: Callable[[Pool, str, Arguments], Iterable[Block]]
    """The blocks that lose a key, or get another one, by a call of this verb."""
    look_up: Callable[[Callable[..., Any], Callable[[Block], None]], Callable[..., Any]]
    """From a look-up, and whom to tell of a block that does not carry what was asked for, to a
    look-up that does so. It is called for every block of every prompt."""


def argument(arguments: Arguments, at: int, name: str) -> Any:  # noqa: ANN401  # whatever was given
    """Return an argument, given by position or by name."""
    args, named = arguments
    return args[at] if len(args) > at else named[name]


def _our_look_up(
    inner: Callable[[Hashable], Block | None], tell: Callable[[Block], None]
) -> Callable[[Hashable], Block | None]:
    def look_up(key: Hashable) -> Block | None:
        block = inner(key)
        if block is not None and block.block_hash != key:
            tell(block)
        return block

    return look_up


def _our_listed(pool: Pool) -> Mapping[Hashable, object]:
    return {**pool.index._first, **pool.index._copies}  # noqa: SLF001  # it cannot be asked for all


def _our_tables(manager: Manager) -> Iterator[tuple[str, Sequence[Block]]]:
    for rid, admission in manager._admissions.items():  # noqa: SLF001  # it cannot be asked for all
        yield rid, admission.table


OURS: Final = Profile(
    name="kvcache",
    pool_class="kvcache.block_pool.BlockPool",
    manager_class="kvcache.manager.KVCacheManager",
    needs=("free_block_queue", "index.first"),
    refuses=True,
    pool_verbs={
        "get_new_blocks": "take",
        "touch": "touch",
        "free_blocks": "release",
        "cache_full_blocks": "seal",
        "unpublish": "rekey",
        "reset_prefix_cache": "reset",
        "get_cached_block": "find",
    },
    manager_verbs={"allocate_slots": "serve", "free": "end"},
    key_of=attrgetter("block_hash"),
    getter=attrgetter("index.first"),
    copies=lambda pool, key: pool.index.copies(key),
    listed=_our_listed,
    more_keys=lambda _pool, _block: (),
    ends=lambda pool: (pool.free_block_queue._ring,) * 2,  # noqa: SLF001  # the ring's own block
    tables=_our_tables,
    retained=lambda _manager: (),
    elsewhere=lambda _pool, _block: False,
    rekeyed=lambda _pool, _verb, arguments: argument(arguments, 0, "blocks"),
    look_up=_our_look_up,
)


def _cache(pool: Pool) -> Mapping[Hashable, Any]:
    cache: Mapping[Hashable, Any] = pool.cached_block_hash_to_block._cache  # noqa: SLF001  # as above
    return cache


def _vllm_copies(pool: Pool, key: Hashable) -> Sequence[Block]:
    found = _cache(pool).get(key)
    if found is None:
        return ()
    return tuple(found.values()) if isinstance(found, dict) else (found,)


def _vllm_rekeyed(pool: Pool, verb: str, arguments: Arguments) -> Iterable[Block]:
    if verb == "evict_blocks":
        ids = argument(arguments, 0, "block_ids")
        return [pool.blocks[b] for b in sorted(ids) if b < len(pool.blocks)]
    if verb == "move_block_hashes":
        return [argument(arguments, 0, "src_block"), argument(arguments, 1, "dst_block")]
    return [argument(arguments, 1, "block")]


def _vllm_look_up(
    inner: Callable[[bytes, Sequence[int]], Sequence[Block] | None],
    tell: Callable[[Block], None],
) -> Callable[[bytes, Sequence[int]], Sequence[Block] | None]:
    def look_up(block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> Sequence[Block] | None:
        found = inner(block_hash, kv_cache_group_ids)
        if found is not None:
            for block in found:
                # A key is the hash that was asked for and the number of a group of layers.
                own = block._block_hash  # noqa: SLF001  # the property takes twice as long
                if own is None or not own.startswith(block_hash):
                    more = _more_keys(block.pool, block)
                    if not any(key.startswith(block_hash) for key in more):
                        tell(block)
        return found

    return look_up


def _more_keys(pool: Pool, block: Block) -> Iterable[Any]:
    more: Iterable[Any] = pool.cached_block_hashes_by_block.get(block.block_id, ())
    return more


def _vllm_tables(manager: Manager) -> Iterator[tuple[str, Sequence[Block]]]:
    for group in manager.coordinator.single_type_managers:
        # A group may have a pool of its own, in the memory of the host.
        if group.block_pool is manager.block_pool:
            yield from group.req_to_blocks.items()


VLLM: Final = Profile(
    name="vLLM 0.33.0",
    pool_class="vllm.v1.core.block_pool.BlockPool",
    manager_class="vllm.v1.core.kv_cache_manager.KVCacheManager",
    needs=(
        "cached_block_hash_to_block._cache",
        "cached_block_hashes_by_block",
        "free_block_queue.fake_free_list_head",
        "free_block_queue.fake_free_list_tail",
    ),
    refuses=False,
    pool_verbs={
        "get_new_blocks": "take",
        "touch": "touch",
        "free_blocks": "release",
        "unpin_blocks": "release",
        "cache_full_blocks": "seal",
        "cache_partial_block": "rekey",
        "move_block_hashes": "rekey",
        "evict_blocks": "rekey",
        "reset_prefix_cache": "reset",
        "get_cached_block": "find",
    },
    manager_verbs={
        "allocate_slots": "serve",
        "free": "end",
        "pop_blocks_for_free": "hand",
        "remove_skipped_blocks": "trim",
    },
    key_of=attrgetter("_block_hash"),
    getter=attrgetter("cached_block_hash_to_block._cache.get"),
    copies=_vllm_copies,
    listed=_cache,
    more_keys=_more_keys,
    ends=lambda pool: (
        pool.free_block_queue.fake_free_list_head,
        pool.free_block_queue.fake_free_list_tail,
    ),
    tables=_vllm_tables,
    retained=lambda manager: [
        group
        for group in manager.coordinator.single_type_managers
        if group.block_pool is manager.block_pool
    ],
    elsewhere=lambda pool, block: block.pool is not None and block.pool is not pool,
    rekeyed=_vllm_rekeyed,
    look_up=_vllm_look_up,
)

PROFILES: Final = (OURS, VLLM)


class UnknownPoolError(TypeError):
    """An object that no profile describes; the text says what was expected."""


def profile_of(watched: object) -> tuple[Profile, Pool, Manager | None]:
    """Return the profile of a pool or manager, its pool, and the manager where it is one.

    Raises `UnknownPoolError`.
    """
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(watched).__mro__]
    for profile in PROFILES:
        if profile.manager_class not in names and profile.pool_class not in names:
            continue
        manager: Manager = watched if profile.manager_class in names else None
        pool = watched if manager is None else manager.block_pool
        for path in profile.needs:
            if not _has(pool, path):
                raise UnknownPoolError(
                    f"{names[0]} is of another release than {profile.name}: its pool has no "
                    f"{path}; a monitor cannot read it"
                )
        return profile, pool, manager
    known = [name for p in PROFILES for name in (p.pool_class, p.manager_class)]
    raise UnknownPoolError(
        f"{watched!r} cannot be watched; give one of: {', '.join(known)}, or of a class that "
        "derives from it"
    )


def _has(found: object, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
