"""What a monitor does around the calls that give, take back and look up the keys of blocks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from conformance.monitoring.pool_watch import watch_release, watch_take, watch_touch
from conformance.monitoring.profiles import Block
from conformance.monitoring.signature import around
from conformance.monitoring.sweep import short
from conformance.monitoring.violation import Found
from conformance.monitoring.watched import MASK, Watched, code_of
from spec.state import NULL

Method: TypeAlias = Callable[..., Any]


def watch_seal(w: Watched, inner: Method, verb: str) -> Method:
    """Blocks get their keys: somebody holds them, and they are found."""
    owners, profile = w.owners, w.profile

    def look(block: Block, key: Hashable) -> None:
        if block.block_id == NULL or not owners.held[block.block_id]:
            w.report(verb, _sealed(block))
        elif not w.is_listed(key, block):
            w.report(verb, w.unlisted(block))

    return around(
        inner,
        SEAL,
        w=w,
        start=code_of(verb),
        refused=partial(w.refused, verb, ()),
        look=look,
        pool=w.pool,
        held=owners.held,
        keys=owners.keys,
        getter=profile.getter,
        key_of=profile.key_of,
    )


SEAL: Final = f"""
    def method(PARAMETERS):
        w.stamp = (w.stamp | {MASK}) + start
        try:
            result = inner(ARGUMENTS)
        except Exception as error:
            refused(error)
            raise
        get = getter(pool)
        for block in blocks[num_cached_blocks:num_full_blocks]:
            # A block that was passed over has no key: it can never serve a hit.
            key = key_of(block)
            if key is not None:
                b = block.block_id
                keys[b] = key
                if get(key) is not block or not held[b]:
                    look(block, key)
        if w.stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return result
"""
"""What stands around the call that is made for every block that is full. Null is never held."""


def _sealed(block: Block) -> Found:
    b, key = block.block_id, short(block.block_hash)
    if b == NULL:
        return Found("the_null_block_is_inert", b, None, key, "the null block is sealed")
    what = f"block {b} is sealed while nobody holds it, so nobody writes it"
    return Found("a_writer_owns_its_block", b, "a holder", "none", what)


def watch_rekey(w: Watched, inner: Method, verb: str) -> Method:
    """Blocks lose keys or get others: what they carry is found, and what they lost is not."""
    code, profile, pool = code_of(verb), w.profile, w.pool

    def rekey(*args: Any, **named_args: Any) -> Any:  # noqa: ANN401  # as the pool's
        w.stamp = (w.stamp | MASK) + code
        named = list(profile.rekeyed(pool, verb, (args, named_args)))
        before = [block.block_hash for block in named]
        try:
            result = inner(*args, **named_args)
        except Exception as error:
            w.refused(verb, (), error)
            raise
        for block, old in zip(named, before, strict=True):
            key = w.owners.keys[block.block_id] = block.block_hash
            if key is not None and not w.is_listed(key, block):
                w.report(verb, w.unlisted(block))
            if old is not None and old != key and w.is_listed(old, block):
                w.report(verb, _lost(block, old))
        if w.stamp >= w.sweep_at and w.who is w.base:
            w.regular_sweep()
        return result

    return rekey


def _lost(block: Block, old: object) -> Found:
    b = block.block_id
    what = f"block {b} has lost a key under which it is still found"
    return Found("the_index_and_the_blocks_agree", b, "not listed", short(old), what)


def watch_reset(w: Watched, inner: Method, verb: str) -> Method:
    """All keys are forgotten exactly when nobody holds a block."""
    code, num_usable = code_of(verb), len(w.pool.blocks) - 1

    def reset(*args: Any, **named: Any) -> Any:  # noqa: ANN401  # as the pool's
        w.stamp = (w.stamp | MASK) + code
        result = bool(inner(*args, **named))
        num_held = num_usable - w.owners.idle
        left = [b.block_id for b in w.pool.blocks if result and b.block_hash is not None]
        if result != (not num_held) or left:
            what = f"a reset returns {result} with {num_held} blocks held and keys on {left[:4]}"
            found = Found("reset_only_when_idle", None, not num_held, (result, left[:4]), what)
            w.report(verb, found)
        if result:
            w.owners.keys[:] = [None] * (num_usable + 1)
            w.sweep(verb)
        return result

    return reset


def watch_find(w: Watched, inner: Method, verb: str) -> Method:
    """What is found under a key carries it. A look-up changes nothing and counts as no call."""

    def tell(block: Block) -> None:
        b, own = block.block_id, short(block.block_hash)
        what = f"a look-up finds block {b}, which carries another key or none"
        w.report(verb, Found("the_index_and_the_blocks_agree", b, "the key", own, what))

    return w.profile.look_up(inner, tell)


POOL_WATCHES: Final[Mapping[str, Callable[[Watched, Method, str], Method]]] = {
    "take": watch_take,
    "touch": watch_touch,
    "release": watch_release,
    "seal": watch_seal,
    "rekey": watch_rekey,
    "reset": watch_reset,
    "find": watch_find,
}
"""By what a method does to blocks."""
