"""What the machines draw from: small pools, short prompts, few values, so that things collide.

A draw costs more than a call on a small pool. Each of these is therefore a single number or a
single choice out of a table, and what is chosen is fitted to the state where it is used: a number
picks one of the requests that there are, whatever their number.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

from hypothesis import strategies as st

from spec.state import Config

Ids = tuple[int, ...]

PLENTY: Final = 1 << 30
"""A model length that no prompt here comes near."""

FAVOURED: Final = (
    100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117,
    118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135,
    136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153,
    154, 155, 156, 157, 158, 159, 160, 161, 162, 163, 164, 165, 166, 167, 168, 169, 170, 171,
    172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189,
    190, 191, 192, 193, 194, 195, 196, 197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207,
    208, 209, 210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223, 224, 225,
    226, 227, 228, 229, 230, 231, 232, 233, 234, 235, 236, 237, 238, 239, 240, 241, 242, 243,
    244, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254,
)  # fmt: skip
"""Every number that Hypothesis might favour when it draws how many rules to leave out of a program.

It draws that from 0 to 254, and favours integers from 100 on that it finds in the sources of
whatever is imported. With all of them written out here it favours the same ones in every process,
so that a run is a function of its seed.
"""

PICKS: Final = st.integers(0, 59)
"""Picks one of a few things; 60 is divided evenly by most numbers of them."""

TOKENS: Final = st.integers(0, 1)
SAMPLES: Final = st.sampled_from((0, 1, 0, 1, 2))
"""A token that is sampled, or 2 for none."""

MANY: Final[tuple[Ids, ...]] = (
    (0,),
    (1,),
    (2,),
    (3,),
    (0, 0),
    (0, 1),
    (1, 0),
    (1, 2),
    (2, 0),
    (0, 1, 2),
    (2, 1, 0),
    (0, 1, 0),
    (0, 0, 0),
    (0, 1, 2, 3),
    (3, 2, 1, 0),
    (),
)
SOME: Final = st.sampled_from(MANY)
"""Picks several things in some order, the same one twice among them."""

ANY_IDS: Final = st.sampled_from(
    (
        *((b,) for b in range(-1, 10)),
        (0, 1),
        (1, 1),
        (2, 1),
        (1, 2, 1),
        (1, 0, 9),
        (2, 2, 2),
        (3, 1),
    )
)
"""Block ids that nobody looked up: null, foreign ones, and the same one twice among them."""

ENDINGS: Final = st.sampled_from(("finish", "preempt", "free"))
MISUSED: Final = st.sampled_from(("touch", "free_blocks", "unpublish"))

AMOUNTS: Final = st.sampled_from((0, 0, 0, 1, 2, 3))
"""How many tokens to ask for; 0 stands for all that are left."""

LOOKAHEADS: Final = st.sampled_from((0, 0, 0, 1, 2, 3))


SIZES: Final = st.sampled_from(tuple(product((2, 1, 3, 3, 4, 4, 5, 6, 7, 8), (1, 2, 2, 3, 4))))
"""Usable blocks and block size; small pools are more often drawn."""


class Kind(NamedTuple):
    """What else is fixed for a run."""

    window: int | None = None
    max_model_len: int = PLENTY
    caching: bool = True

    def config(self, size: Ids) -> Config:
        """Return the configuration with so many usable blocks of so many tokens."""
        usable, block_size = size
        return Config(usable + 1, block_size, self.max_model_len, self.caching, self.window)


KINDS: Final = st.sampled_from(
    (
        *(Kind(),) * 6,
        Kind(2),
        Kind(3),
        Kind(3),
        Kind(4),
        Kind(4),
        Kind(6),
        Kind(None, 3),
        Kind(None, 5),
        Kind(3, 4),
        Kind(caching=False),
        Kind(caching=False),
        Kind(3, caching=False),
    )
)
"""Most runs have full attention, no limit that they meet, and a cache."""


class Extra(NamedTuple):
    """What besides tokens a request may come with; `media` are (item, offset, length)."""

    lora: tuple[int | str, int] | None = None
    media: tuple[tuple[str, int, int], ...] = ()
    salt: str | None = None
    prompt_logprobs: bool = False


PLAIN: Final = Extra()
ADAPTERS: Final = (Extra(lora=("x", 0)), Extra(lora=("x", 1)), Extra(lora=("y", 0)))
SALTS: Final = (Extra(salt="x"), Extra(salt="y"))
MEDIA: Final = (
    Extra(media=(("x", 0, 2),)),
    Extra(media=(("x", 1, 2),)),
    Extra(media=(("x", 0, 1),)),
    Extra(media=(("x", 1, 1),)),
    Extra(media=(("y", 0, 2),)),
    Extra(media=(("x", 0, 1), ("x", 1, 3))),
)
LOGPROBS: Final = Extra(prompt_logprobs=True)

EXTRAS: Final = st.sampled_from((PLAIN, PLAIN, *ADAPTERS, *SALTS, *MEDIA, LOGPROBS))
"""Few, and nearly alike: the same word as adapter, salt and item, one item at two offsets."""

RIVALS: Final = st.sampled_from(
    (
        (PLAIN, LOGPROBS, PLAIN),
        ADAPTERS,
        MEDIA,
        (*SALTS, ADAPTERS[0]),
        (PLAIN, ADAPTERS[0], SALTS[0], MEDIA[0]),
    )
)
"""Those that must not be taken for one another."""


class Shape(NamedTuple):
    """A prompt before the block size is known: whole blocks, tokens beyond, and where it turns."""

    blocks: int
    beyond: int
    turn: int

    def prompt(self, size: int) -> Ids:
        """Return the tokens: zeros, but for the first one of block `turn`, and the last."""
        length = max(1, self.blocks * size + min(self.beyond, size - 1))
        one = self.turn * size
        return tuple(int(i == one) for i in range(length))


SHAPES: Final = st.sampled_from(
    [Shape(*parts) for parts in product((2, 1, 3, 1, 4, 0), (0, 1, 2), (9, 0, 1, 2))]
)
"""Prompts of a small tree: they begin alike and part at the beginning of a block, or never."""

LABELS: Final = st.sampled_from(tuple(product((0, 1), repeat=3)))
"""Contents of up to three blocks, of which there are two kinds."""
