"""A state as bytes is the same state in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec.encoding import (
    digest,
    pool_as_bytes,
    pool_from_bytes,
    request_as_bytes,
    request_from_bytes,
)
from spec.explore import Search
from spec.scope import Scope
from spec.state import Config, Frozen, Key, Request, initial, with_tokens
from spec.world import World
from spec.worlds import WORLDS

ROOT = Path(__file__).parents[2]

SCOPES = {
    "pool": WORLDS["pool-3"].scope,
    "drafts": Scope(Config(4, 2), ("A",), ((0,), (0, 1)), (0, 1), 3, num_drafts=1),
    "window": Scope(Config(4, 1, sliding_window=2), ("A",), ((0, 0), (0, 1)), (0, 1), 4),
    "two": Scope(Config(3, 1), ("A", "B"), ((0,), (0, 0)), (0,), 2),
}

PROGRAM = """
import sys
from hashlib import sha256
from spec.explore import Search
from spec.scope import Scope
from spec.state import Config

scope = Scope(Config(3, 1, sliding_window=2), ("A", "B"), ((0,), (0, 0)), (0,), 2, num_drafts=1)
search = Search(scope)
result = search.run()
seen = sorted(search.world.encode(search.world.node(s)) for s in search.reached())
print(result[:3], sha256(b"|".join(seen)).hexdigest(), len(set(seen)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SCOPES)
def test_every_state_comes_back_from_its_bytes(name: str) -> None:
    """Decoding in the world that encoded gives the node, in a fresh world the same state."""
    search = Search(SCOPES[name])
    search.run()
    fresh = World(SCOPES[name])
    seen = set()
    for s in search.reached():
        node = search.world.node(s)
        data = search.world.encode(node)
        assert search.world.decode(data) == node
        assert fresh.state(fresh.decode(data)) == s
        assert fresh.encode(fresh.decode(data)) == data
        seen.add(data)
    assert len(seen) == search.states


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_process() -> None:
    """Processes with other hash seeds encode the same states as the same bytes."""
    outputs = []
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(  # noqa: S603  # the test's own program
            [sys.executable, "-c", PROGRAM],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        outputs.append(done.stdout)
    assert outputs[0].count("(") == 1
    assert outputs == [outputs[0]] * 3


def test_keys_with_extras_come_back() -> None:
    """A chain with a salt, an adapter and media is the same interned object again."""
    parent = Key(None, (1, 2), (("lora", "name", 3), ("salt", "s|\n'")))
    key = Key(parent, (3, 4), (("mm", "image", -1, 2),))
    start = initial(Config(3, 2)).pool
    block = start.blocks[1]._replace(ref_cnt=2, key=key, content=parent, pending="A")
    pool = start.update({1: block}).dequeue((1,)).publish(1, key)
    back = pool_from_bytes(pool_as_bytes(pool))
    assert back == pool
    assert back.blocks[1].key is key
    assert back.blocks[1].content is parent


def test_the_order_of_the_index_is_not_in_the_bytes_but_that_of_the_copies_is() -> None:
    """Two mappings that are equal give equal bytes; another first copy gives others."""
    pool = initial(Config(4, 1)).pool
    one, two = Key(None, (0,)), Key(None, (1,))
    there = pool._replace(by_key=Frozen({one: (1, 2), two: (3,)}))
    back = pool._replace(by_key=Frozen({two: (3,), one: (1, 2)}))
    turned = pool._replace(by_key=Frozen({one: (2, 1), two: (3,)}))
    assert pool_as_bytes(there) == pool_as_bytes(back)
    assert pool_as_bytes(there) != pool_as_bytes(turned)


def test_requests_come_back_and_so_does_their_absence() -> None:
    """Every field survives, and None is not a request."""
    plain = Request(tokens=(0, 1, 2), drafts=(1,), salt="s", table=(0, 2), start=1, end=3)
    full = with_tokens(plain, plain.tokens, 2)._replace(num_hits=1, num_preemptions=1)
    assert request_from_bytes(request_as_bytes(full)) == full
    assert request_from_bytes(request_as_bytes(None)) is None
    assert b"\n" not in request_as_bytes(full._replace(salt="a\nb"))


def test_a_digest_has_its_length_and_tells_states_apart() -> None:
    """Sixteen bytes, the same every time, and no two of a world alike."""
    search = Search(SCOPES["pool"])
    search.run()
    data = [search.world.encode(search.world.node(s)) for s in search.reached()]
    assert {len(digest(d)) for d in data} == {16}
    assert len({digest(d) for d in data}) == search.states == WORLDS["pool-3"].counts.states
    assert digest(b"kvspec").hex() == digest(b"kvspec").hex()
