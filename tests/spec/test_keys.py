"""A key is everything that determines a block: the prefix, the tokens, and tagged extras."""

import pickle

import pytest

from spec.state import Key, Request, extra_keys, with_tokens


def test_equal_parts_are_one_key() -> None:
    """A key is interned, so comparing two prefixes is one comparison of objects."""
    parent = Key(None, (1, 2))
    assert Key(parent, (3,), (("salt", "x"),)) is Key(parent, (3,), (("salt", "x"),))


@pytest.mark.parametrize(
    "other",
    [
        Key(None, (3, 4)),
        Key(Key(None, (1, 1)), (3, 4)),
        Key(Key(None, (1, 2)), (4, 3)),
        Key(Key(None, (1, 2)), (3, 4), (("salt", "x"),)),
        Key(Key(None, (1, 2), (("salt", "x"),)), (3, 4)),
    ],
    ids=["no parent", "parent", "order", "extra", "parent's extra"],
)
def test_each_part_of_a_key_counts(other: Key) -> None:
    """Another parent, other tokens and other extras are another key."""
    key = Key(Key(None, (1, 2)), (3, 4))
    assert other is not key
    assert other != key


def test_a_key_survives_pickling_as_itself() -> None:
    """What comes back is the one object with these parts, whatever the protocol."""
    key = Key(Key(None, (1, 2), (("lora", "x", 0),)), (3, 4))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(key, protocol)) is key  # noqa: S301  # our own bytes


def test_a_long_chain_survives_pickling() -> None:
    """The key of the three-thousandth block is a key like any other."""
    key = Key(None, (0,))
    for n in range(3_000):
        key = Key(key, (n,))
    assert pickle.loads(pickle.dumps(key)) is key  # noqa: S301  # our own bytes


def test_a_key_shows_its_own_tokens() -> None:
    """A key's text hides the prefix behind dots and shows the extras."""
    first = Key(None, (1, 2), (("salt", "x"),))
    assert repr(first) == "<1 2(('salt', 'x'),)>"
    assert repr(Key(first, (3, 4))) == "<...3 4>"


def test_no_two_kinds_of_extra_meet() -> None:
    """An adapter, a salt and an image that are all named x give three different keys."""
    named = [Request((1, 2), lora=("x", 0)), Request((1, 2), salt="x")]
    named += [Request((1, 2), media=(("x", 0, 2),)), Request((1, 2))]
    extras = [extra_keys(r, 0, 2) for r in named]
    assert extras == [(("lora", "x", 0),), (("salt", "x"),), (("mm", "x", 0, 2),), ()]
    assert len({Key(None, (1, 2), extra) for extra in extras}) == 4
    assert Key(None, (1, 2), extra_keys(Request((1, 2), lora=("x", 1)), 0, 2)) != Key(
        None, (1, 2), extras[0]
    )


def test_an_adapter_is_in_every_block_and_a_salt_in_the_first() -> None:
    """The chain carries the salt on; the adapter's id and generation are repeated."""
    r = Request((1,) * 6, lora=(7, 2), salt="s")
    assert [extra_keys(r, i, 2) for i in range(3)] == [
        (("lora", 7, 2), ("salt", "s")),
        (("lora", 7, 2),),
        (("lora", 7, 2),),
    ]
    salted = with_tokens(Request((), salt="s"), (1, 2, 3, 4), 2).keys[1]
    plain = with_tokens(Request(()), (1, 2, 3, 4), 2).keys[1]
    assert (salted.tokens, salted.extra) == (plain.tokens, plain.extra)
    assert salted is not plain


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (("p", 0, 4), [(0, 4), None, None]),
        (("p", 4, 4), [None, (0, 4), None]),
        (("p", 3, 2), [(-3, 1), (1, 1), None]),
        (("p", 1, 11), [(-1, 3), (3, 4), (7, 4)]),
        (("p", 11, 1), [None, None, (-3, 1)]),
        (("p", 12, 4), [None, None, None]),
    ],
)
def test_an_item_is_in_the_blocks_that_it_meets(
    item: tuple[str, int, int], expected: list[tuple[int, int] | None]
) -> None:
    """The offset is the block's start inside the item: negative when the item starts later."""
    r = Request((1,) * 12, media=(item,))
    found = [extra_keys(r, i, 4) for i in range(3)]
    assert found == [() if e is None else (("mm", "p", *e),) for e in expected]


def test_an_item_without_tokens_is_in_no_block() -> None:
    """What shows no token determines nothing; production refuses such an item."""
    assert extra_keys(Request((1, 2), media=(("x", 1, 0),)), 0, 2) == ()


def test_items_stand_in_the_order_of_their_offsets() -> None:
    """Two items in one block are named front to back, however the request lists them."""
    items = (("q", 2, 2), ("p", 0, 2))
    expected = (("mm", "p", 0, 2), ("mm", "q", -2, 2))
    assert expected == extra_keys(Request((1,) * 4, media=items), 0, 4)
    assert expected == extra_keys(Request((1,) * 4, media=items[::-1]), 0, 4)


def test_only_full_blocks_have_keys() -> None:
    """The chain grows with the confirmed tokens, and what it has stays."""
    r = with_tokens(Request(()), (1, 2, 3), 2)
    assert (Key(None, (1, 2)),) == r.keys
    longer = with_tokens(r, (1, 2, 3, 4, 5), 2)
    assert (r.keys[0], Key(r.keys[0], (3, 4))) == longer.keys
