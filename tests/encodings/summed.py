"""Sums, and the same by loops."""

from collections.abc import Sequence

from decoding import Paper, T, encoding
from formulas_rotary import rope
from naive import Naive, Place
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.sum import Sum
from posenc.model.decoder import Decoder

N = T + 4


def made_of(*kinds: type[Encoding]) -> Sum:
    shape = encoding("nope").shape
    return Sum(shape, parts=[kind(shape) for kind in kinds])


class All(Naive):
    """Plain methods of several encodings one after another: the biases first, then laws of scores."""

    def __init__(self, wide: Decoder, parts: Sequence[Naive], biases: Sequence[Naive] = ()) -> None:
        super().__init__(wide.encoding)
        self.parts, self.biases = parts, biases

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        for part in self.parts:
            x = part.embed(x, t, layer)
        return x

    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        for part in self.parts:
            x = part.turn(x, t, heads, key)
        return x

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        for part in (*self.biases, *self.parts):
            s = part.score(s, q, i, j, at)
        return s

    def visible(self, i: int, j: int, layer: int) -> bool:
        return all(part.visible(i, j, layer) for part in self.parts)

    def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
        own = [part for part in self.parts if type(part).weights is not Naive.weights]
        return own[0].weights(scores, at) if own else super().weights(scores, at)

    def value(self, v: Tensor, i: int, j: int, layer: int) -> Tensor:
        for part in self.parts:
            v = part.value(v, i, j, layer)
        return v


def rotary(wide: Decoder) -> Paper:
    return Paper(wide, lambda q, k, i, j, at: rope(q, k, i, j))
