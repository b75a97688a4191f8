"""The named worlds of the encoder cache, with their counts, frozen.

A count that changes means that the specification, or the search, became another one.
"""

from __future__ import annotations

from typing import NamedTuple

from spec.encoder_cache import Media
from spec.encoder_explore import EncoderCounts, EncoderScope


class EncoderWorld(NamedTuple):
    """A scope with what it is for, and its counts."""

    about: str
    scope: EncoderScope
    counts: EncoderCounts


A, B, C, D = ("a", 1), ("b", 1), ("c", 1), ("d", 2)
"""Contents with their sizes."""

ENCODER_WORLDS: dict[str, EncoderWorld] = {
    "encoder-one": EncoderWorld(
        "one request with one item that fills the budget",
        EncoderScope(1, (Media("A", (A,)),)),
        EncoderCounts(5, 30, 45, 3),
    ),
    "encoder-turns": EncoderWorld(
        "three requests with an item each, room for two",
        EncoderScope(2, (Media("A", (A,)), Media("B", (B,)), Media("C", (C,)))),
        EncoderCounts(1_063, 16_798, 28_911, 13),
    ),
    "encoder-twice": EncoderWorld(
        "a request that shows an item twice, and one that shares it and needs all the room",
        EncoderScope(2, (Media("A", (A, B, A)), Media("B", (A, D)))),
        EncoderCounts(867, 16_514, 19_033, 14),
    ),
    "encoder-three-holders": EncoderWorld(
        "three requests that show one item, and items of their own",
        EncoderScope(2, (Media("A", (A,)), Media("B", (A, B)), Media("C", (A, D)))),
        EncoderCounts(867, 18_248, 25_969, 14),
    ),
    "encoder-strangers": EncoderWorld(
        "a name used twice, an identifier used for two sizes, an item above the budget",
        EncoderScope(
            2, (Media("A", (A, B)), Media("A", (A, D), 1), Media("B", (("a", 2), ("e", 3))))
        ),
        EncoderCounts(513, 7_560, 20_655, 13),
    ),
    "encoder-sizes": EncoderWorld(
        "items of 1, 2 and 3 tokens in a budget of 3",
        EncoderScope(3, (Media("A", (A, D)), Media("B", (A, B)), Media("C", (("e", 3),)))),
        EncoderCounts(6_577, 137_706, 197_721, 15),
    ),
}
