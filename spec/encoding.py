"""States as bytes that are the same in every process, and back.

A search over several processes gives each state an owner by a digest of these bytes. Python's
`hash` would not do: it differs between processes for strings, and before 3.12 for None.
"""

from __future__ import annotations

from ast import literal_eval
from hashlib import blake2b
from typing import Any, cast

from spec.state import Block, Frozen, Key, Pool, Request, key_of_chain

DIGEST_BYTES = 16


def digest(data: bytes) -> bytes:
    """Return the digest by which a state is owned and remembered."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def pool_as_bytes(pool: Pool) -> bytes:
    """Return a pool as canonical bytes."""
    blocks = [(b.ref_cnt, _plain(b.key), _plain(b.content), b.pending) for b in pool.blocks]
    index = sorted((_plain(key), copies) for key, copies in pool.by_key.items())
    return repr((blocks, pool.queue, index)).encode()


def pool_from_bytes(data: bytes) -> Pool:
    """Return the pool that the bytes stand for."""
    blocks, queue, index = literal_eval(data.decode())
    return Pool(
        tuple(
            Block(count, key_of_chain(key), key_of_chain(held), writer)
            for count, key, held, writer in blocks
        ),
        queue,
        Frozen({cast("Key", key_of_chain(key)): copies for key, copies in index}),
    )


def request_as_bytes(r: Request | None) -> bytes:
    """Return a request, or its absence, as canonical bytes."""
    if r is None:
        return b"None"
    fields: dict[str, Any] = r._asdict()
    fields["keys"] = tuple(_plain(key) for key in r.keys)
    return repr(tuple(fields.values())).encode()


def request_from_bytes(data: bytes) -> Request | None:
    """Return the request that the bytes stand for."""
    fields = literal_eval(data.decode())
    if fields is None:
        return None
    r = Request(*fields)
    chains = cast("tuple[Any, ...]", r.keys)
    return r._replace(keys=tuple(cast("Key", key_of_chain(chain)) for chain in chains))


def _plain(key: Key | None) -> tuple[Any, ...]:
    """Return a key as its chain of (tokens, extra), the first block first; () for none."""
    chain: list[tuple[Any, ...]] = []
    while key is not None:
        chain.append((key.tokens, key.extra))
        key = key.parent
    return tuple(reversed(chain))
