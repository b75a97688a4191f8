"""The exact decoder computes what Python integers compute, and shows every change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gpu.attention import Attend
from gpu.exact_model import PRIMES, ExactDType, ExactModel, powers_of_rotation
from gpu.reference import reference
from gpu.scheduling import Work

PROMPT = [5, 2**40 + 1, 17, 2**62, 0, 5, 9]
GOLDEN: dict[ExactDType, list[int]] = {
    "bfloat16": [49852965659403621, 50906730768802351, 60561519420851352],
    "int8": [15234569780541359, 18886271450477701, 35154049578826109],
    "float8_e4m3fn": [254905833364293956, 404949911690378005, 67149593515549304],
}
"""What the prompt is followed by, seed 0: the same on every machine and device."""

dtypes = pytest.mark.parametrize("dtype", PRIMES)
Vector = list[int]
Matrix = list[Vector]


class ByHand:
    """The decoder once more, token by token, in Python integers and loops."""

    def __init__(self, model: ExactModel) -> None:
        self.model = model
        self.prime = model.prime
        self.weights: dict[str, Matrix] = {
            name: weight.to(torch.int64).tolist() for name, weight in model._weights.items()
        }
        self.cache: list[list[tuple[Matrix, Matrix]]] = [[] for _ in range(model.num_layers)]
        self.turns = powers_of_rotation(self.prime)

    def add(self, *vectors: Vector) -> Vector:
        """Return the sum of vectors."""
        return [sum(column) % self.prime for column in zip(*vectors, strict=True)]

    def times(self, vector: Vector, name: str) -> Vector:
        """Return a vector times a weight."""
        columns = zip(*self.weights[name], strict=True)
        return [sum(a * b for a, b in zip(vector, c, strict=True)) % self.prime for c in columns]

    def heads(self, vector: Vector) -> Matrix:
        """Return a vector, cut into heads."""
        return [vector[i : i + 8] for i in range(0, len(vector), 8)]

    def turn(self, heads: Matrix, position: int) -> Matrix:
        """Return heads, turned by their position."""
        turned = []
        for head in heads:
            row: Vector = []
            for pair in range(4):
                c, s = self.turns[position * (pair + 1) % len(self.turns)]
                x, y = head[2 * pair], head[2 * pair + 1]
                row += [(x * c - y * s) % self.prime, (x * s + y * c) % self.prime]
            turned.append(row)
        return turned

    def digits(self, number: int) -> Vector:
        """Return a number in base p."""
        return [number // self.prime**i % self.prime for i in range(len(self.weights["token"]))]

    def mix(self, layer: int, query: Matrix, first: int) -> Vector:
        """Return the attention of one row over what is kept from a position on."""
        mixed: Vector = []
        for head, row in enumerate(query):
            total = [0] * 8
            for keys, values in self.cache[layer][first:]:
                score = sum(a * b for a, b in zip(row, keys[head // 2], strict=True))
                weight = score % self.prime % (self.prime - 1) + 1
                total = [t + weight * v for t, v in zip(total, values[head // 2], strict=True)]
            mixed += [t % self.prime for t in total]
        return mixed

    def step(self, token: int, position: int) -> int:
        """Return the token that follows."""
        window = self.model.window
        first = 0 if window is None else max(0, position - window + 1)
        hidden = self.add(
            self.times(self.digits(token), "token"), self.times(self.digits(position), "position")
        )
        for layer in range(self.model.num_layers):
            query, key, value = (
                self.heads(self.times(hidden, f"{layer}.{name}"))
                for name in ("query", "key", "value")
            )
            self.cache[layer].append((self.turn(key, position), value))
            mixed = self.mix(layer, self.turn(query, position), first)
            hidden = self.add(hidden, self.times(mixed, f"{layer}.output"))
            inner = self.add(self.times(hidden, f"{layer}.up"), self.weights[f"{layer}.bias"][0])
            squares = [x * x % self.prime for x in inner]
            hidden = self.add(hidden, self.times(squares, f"{layer}.down"))
        logits = self.times(hidden, "logits")
        return sum(x * self.prime**i for i, x in enumerate(logits))


@dtypes
@pytest.mark.parametrize("window", [None, 3])
def test_the_decoder_is_that_of_python_integers(dtype: ExactDType, window: int | None) -> None:
    """Tokens, keys and values agree with loops over integers, which cannot be rounded."""
    model = ExactModel(dtype, window=window, seed=3)
    found = reference(model, Work("r", PROMPT, 4))
    by_hand = ByHand(model)
    tokens = [by_hand.step(token, position) for position, token in enumerate(PROMPT)][-1:]
    while len(tokens) < 4:
        tokens.append(by_hand.step(tokens[-1], len(PROMPT) + len(tokens) - 1))
    assert found.tokens == tokens
    for layer, kept in enumerate(by_hand.cache):
        for plane in (0, 1):
            expected = torch.tensor([pair[plane] for pair in kept], dtype=torch.float64)
            assert torch.equal(found.kv[layer, plane].double(), expected)


@dtypes
def test_the_cache_holds_every_number_exactly(dtype: ExactDType) -> None:
    """0 to p - 1 survive the dtype; the next prime up would not for the floats."""
    model = ExactModel(dtype)
    numbers = torch.arange(model.prime, dtype=torch.float64)
    assert torch.equal(numbers.to(model.kv_dtype).double(), numbers)
    kv = reference(model, Work("r", PROMPT, 8)).kv.double()
    assert kv.min() >= 0
    assert kv.max() < model.prime
    assert len(set(kv.flatten().tolist())) > model.prime // 2


@dtypes
def test_tokens_are_the_same_on_every_machine(dtype: ExactDType) -> None:
    """The weights come from the seed alone, and no device rounds."""
    assert reference(ExactModel(dtype), Work("r", PROMPT, 3)).tokens == GOLDEN[dtype]


@pytest.mark.slow
def test_another_process_computes_the_same() -> None:
    """Neither the process nor `PYTHONHASHSEED` has a part in it."""
    program = (
        "from gpu.exact_model import ExactModel; from gpu.reference import reference;"
        "from gpu.scheduling import Work;"
        f"print(reference(ExactModel('int8'), Work('r', {PROMPT}, 3)).tokens)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    done = subprocess.run(  # noqa: S603 # the interpreter that runs this test
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(GOLDEN["int8"])


@dtypes
def test_a_change_of_any_kept_element_changes_the_next_token(dtype: ExactDType) -> None:
    """One element of one key or value of the first layer, whichever it is."""
    model = ExactModel(dtype)
    known = reference(model, Work("r", PROMPT, 1))
    num_tokens = len(PROMPT)
    tokens, positions = torch.tensor(PROMPT[-1:]), torch.tensor([num_tokens - 1])
    readable = torch.ones(1, 1, num_tokens, dtype=torch.bool)

    def attend_over(kv: torch.Tensor) -> Attend:
        return lambda layer, query, _key, _value: model.mix(
            query[None], kv[layer, None, 0], kv[layer, None, 1], readable
        )[0]

    kv = known.kv.double()
    clean = model.sample(model.forward(tokens, positions, attend_over(kv)))
    assert clean.tolist() == known.tokens
    for plane in (0, 1):
        unseen = 0
        for place in range(kv[0, plane].numel()):
            foul = kv.clone()
            element = foul[0, plane].view(-1)[place]
            foul[0, plane].view(-1)[place] = (element + 1) % model.prime
            found = model.sample(model.forward(tokens, positions, attend_over(foul)))
            unseen += torch.equal(found, clean)
        # A key is not seen where the query is 0 in both heads that read it, a value always is.
        assert unseen <= (0 if plane else kv[0, 0].numel() // model.prime)


def test_positions_a_rotation_apart_are_not_alike() -> None:
    """The rotations of the smallest prime repeat after 12 positions; the embedding does not."""
    model = ExactModel("float8_e4m3fn")
    assert len(powers_of_rotation(13)) == 12
    tokens = torch.tensor([7, 7])
    kept: list[torch.Tensor] = []

    def attend(
        _layer: int, query: torch.Tensor, key: torch.Tensor, _value: torch.Tensor
    ) -> torch.Tensor:
        kept.append(key)
        return query

    model.forward(tokens, torch.tensor([3, 15]), attend)
    assert not torch.equal(kept[0][0], kept[0][1])


@pytest.mark.parametrize("prime", [13, 127, 251])
def test_rotations_are_a_cycle_and_keep_distances(prime: int) -> None:
    """The product of a turned pair and another depends on the distance of their positions."""
    turns = powers_of_rotation(prime)
    assert len(set(turns)) == len(turns)
    assert all((c * c + s * s) % prime == 1 for c, s in turns)

    def turned(pair: tuple[int, int], position: int) -> tuple[int, int]:
        (c, s), (x, y) = turns[position % len(turns)], pair
        return x * c - y * s, x * s + y * c

    products = {
        sum(a * b for a, b in zip(turned((3, 5), n + 4), turned((2, 9), n), strict=True)) % prime
        for n in range(40)
    }
    assert len(products) == 1
    assert sum(turned((3, 5), 4)) % prime != sum(turned((3, 5), 5)) % prime


def test_no_odd_prime_no_rotation() -> None:
    """What is no prime has no such cycle, and is told."""
    with pytest.raises(ValueError, match="2 is no odd prime"):
        powers_of_rotation(2)


@dtypes
def test_rows_that_are_not_finite_are_tokens_of_no_good_run(dtype: ExactDType) -> None:
    """Memory that nobody wrote gives a token that a request accepts and no clean run makes."""
    model = ExactModel(dtype)
    logits = torch.zeros(2, model.num_logits, dtype=torch.float64)
    largest = torch.full_like(logits[:1], model.prime - 1)
    logits[0], logits[1, -1] = torch.nan, torch.inf
    foul, clean = model.sample(logits), model.sample(largest)
    assert (foul > clean).all()
    assert int(foul.max()) < 2**63
    assert int(clean) == model.prime**model.num_logits - 1


def test_a_window_hides_what_lies_before_it() -> None:
    """Two layers with a window of 3 see 5 tokens; a token before them changes nothing."""
    model, full = ExactModel("int8", window=3), ExactModel("int8")
    for other, sees in ((model, False), (full, True)):
        tokens = [reference(other, Work("r", [first, *PROMPT[1:]], 1)).tokens for first in (5, 6)]
        assert (tokens[0] != tokens[1]) is sees
