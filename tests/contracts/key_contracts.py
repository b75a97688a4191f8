"""Contracts on `kvcache.hashing`: what is framed apart stays apart, and a chain is its prefix.

Texts are short and over two letters: what framing must tell apart is where one text ends and the
next begins. Builtin keys are made here with the worst hash there is, one that gives every key the
same value, so that only their comparison tells them apart. Sha256 keys have no contract: the bytes
of tokens come from a `memoryview`, which CrossHair cannot follow. A function whose name begins with
`wrong_` states what is false.
"""

from kvcache import BuiltinKey, encode_extra_keys, hashing

vars(hashing)["builtin_hash"] = lambda *_: 0


def _small(*texts: str) -> bool:
    """Return whether all texts have at most two letters, each a or b."""
    return all(len(text) <= 2 and all(letter in "ab" for letter in text) for text in texts)


def _chain(first: int, second: int) -> BuiltinKey:
    """Return the key of the second of two blocks of one token."""
    return BuiltinKey(BuiltinKey(None, (first,)), (second,))


def fields_do_not_run_together(a: str, b: str, c: str, d: str) -> None:
    """Two different pairs of fields have different bytes, wherever one field ends."""
    assert _small(a, b, c, d)
    assert (a, b) != (c, d)
    assert encode_extra_keys(((a, b),)) != encode_extra_keys(((c, d),))


def keys_do_not_run_together(a: str, b: str, c: str, d: str) -> None:
    """One extra key of two fields and two extra keys of one field have different bytes."""
    assert _small(a, b, c, d)
    assert encode_extra_keys(((a, b),)) != encode_extra_keys(((c,), (d,)))


def a_number_is_no_text(text: str, number: int) -> None:
    """A number and a text that shows the same digits have different bytes."""
    assert len(text) <= 1
    assert -9 <= number <= 9
    assert encode_extra_keys(((text,),)) != encode_extra_keys(((number,),))


def equal_keys_mean_equal_prefixes(a: int, b: int, c: int, d: int) -> None:
    """The second keys of two chains are equal exactly when both tokens are."""
    assert a >= 0
    assert (_chain(a, b) == _chain(c, d)) == (a == c and b == d)


def a_prefix_is_no_key_of_its_own(a: int, b: int, c: int) -> None:
    """The key of a first block never equals that of a second block, whatever their tokens."""
    assert a >= 0
    assert BuiltinKey(None, (c,)) != _chain(a, b)


def comparing_keys_changes_no_answer(a: int, b: int, c: int, d: int) -> None:
    """What a comparison shares between two chains changes no later comparison."""
    assert a >= 0
    ours, theirs = _chain(a, b), _chain(c, d)
    first = ours == theirs
    assert (theirs == ours) == first
    assert (ours == theirs) == first
    assert ours == _chain(a, b)
    assert theirs == _chain(c, d)


def wrong_a_key_is_its_own_tokens(a: int, b: int, c: int, d: int) -> None:
    """The second keys of two chains are equal when the second tokens are."""
    assert a >= 0
    assert (_chain(a, b) == _chain(c, d)) == (b == d)


def wrong_fields_need_no_length(a: str, b: str, c: str, d: str) -> None:
    """Two different pairs of fields, put one behind the other, have different bytes."""
    assert _small(a, b, c, d)
    assert (a, b) != (c, d)
    assert (a + b).encode() != (c + d).encode()
