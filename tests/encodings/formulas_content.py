"""Attention by content once more, by another route than the code's: plain numbers, a key at a time.

A formula gives the weights of query i over the keys that it sees, the oldest first and the token itself last.
Below them: the code's weights, and how far the two are apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.options import Window
from posenc.encodings.sum import Composed
from posenc.model.kernels import attend

Vector = list[float]
HEADS, WIDTH, LAYERS, TOKENS, TRAINED = 3, 8, 2, 20, 16


@dataclass(frozen=True)
class Text:
    """Queries and keys of one head and the layer's input, by token; a query sees the last `reach` keys."""

    q: list[Vector]
    k: list[Vector]
    x: list[Vector]
    reach: int

    def seen(self, i: int) -> range:
        return range(max(0, i - self.reach + 1), i + 1)

    def score(self, i: int, j: int) -> float:
        return dot(self.q[i], self.k[j]) / math.sqrt(len(self.q[i]))


Formula = Callable[[Text, int], list[float]]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(m * n for m, n in zip(a, b, strict=True))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def softmax(scores: list[float]) -> list[float]:
    total = math.fsum(math.exp(s) for s in scores)
    return [math.exp(s) / total for s in scores]


def fox(text: Text, i: int, w: Vector, b: float) -> list[float]:
    def kept(j: int) -> float:
        return math.prod(sigmoid(dot(w, text.x[m]) + b) for m in range(j + 1, i + 1))

    return softmax([text.score(i, j) + math.log(kept(j)) for j in text.seen(i)])


def cable(text: Text, i: int, w: Vector, v: Vector | None) -> list[float]:
    gain = 1.0 if v is None else math.log(1 + math.exp(dot(v, text.x[i])))
    scores = []
    for j in text.seen(i):
        slopes = [dot(w, text.x[m]) for m in range(j + 1, i + 1)]
        scores.append(text.score(i, j) - gain * sum(slope for slope in slopes if slope > 0))
    return softmax(scores)


def stick_breaking(text: Text, i: int, remainder: str) -> list[float]:
    left, nearest_first = 1.0, []
    for j in reversed(text.seen(i)[:-1]):
        share = sigmoid(text.score(i, j))
        nearest_first.append(left * share)
        left *= 1 - share
    return [*reversed(nearest_first), left if remainder == "self" else 0.0]


def cope(text: Text, i: int, table: list[Vector], p_max: int) -> list[float]:
    scores = []
    for j in text.seen(i):
        p = min(sum(sigmoid(text.score(i, m)) for m in range(j, i + 1)), p_max)
        low, high = table[math.floor(p)], table[math.ceil(p)]
        part = p - math.floor(p)
        at = [(1 - part) * a + part * b for a, b in zip(low, high, strict=True)]
        scores.append(text.score(i, j) + dot(text.q[i], at))
    return softmax(scores)


def scale_invariant(text: Text, i: int, tau: float, pos: list[int]) -> list[float]:
    """Of queries and keys that are turned already."""
    scores = []
    for j in text.seen(i):
        # a and m as the paper solves them from its two conditions, with alpha = beta = e^(1/2)
        alpha = beta = math.exp(0.5)
        a = math.sqrt(2 * (math.log((pos[i] - pos[j]) / tau + 1) - math.log(alpha) + beta / alpha))
        scores.append(a * text.score(i, j) - a**2 + beta / alpha)
    return softmax(scores)


def build(name: str, heads: int, width: int, layers: int, train_length: int, **params: Any) -> Encoding:
    sizes: dict[str, Any] = {"d_model": heads * width, "n_heads": heads, "head_dim": width}
    return build_encoding(name, n_layers=layers, train_length=train_length, **sizes, **params)


class Example:
    """One text of random vectors. float64, but of float32's numbers."""

    def __init__(self, tokens: int = TOKENS, heads: int = HEADS, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def vectors(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator).double()

        self.q, self.k = 1.5 * vectors(heads, tokens, WIDTH), vectors(heads, tokens, WIDTH)
        self.x = vectors(tokens, heads * WIDTH)
        self.pos = torch.arange(tokens)
        self.loss = vectors(heads, tokens, tokens)  # weights of the weights in a loss

    def encoding(self, name: str, **params: Any) -> Encoding:
        """Its parameters are filled with large numbers: those of a start would hide faults."""
        heads = len(self.q)
        encoding = build(name, heads, WIDTH, LAYERS, TRAINED, **params)
        generator = torch.Generator().manual_seed(1)
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        return encoding

    def weights(
        self, encoding: Encoding, layer: int, *, reach: int = TOKENS, wanted: int | None = None
    ) -> Tensor:
        """What attention makes of it: (H, wanted, S). The values are unit vectors, so the output is p."""
        heads, tokens, _ = self.q.shape
        if reach < tokens:
            encoding = Composed(encoding.shape, (encoding, Window(encoding.shape, window=reach)))
        wanted = wanted or tokens
        q, k, x = (one.float()[None] for one in (self.q[:, -wanted:], self.k, self.x))
        v = torch.eye(tokens).expand(1, heads, tokens, tokens)
        return attend(q, k, v, x, self.pos, encoding, layer)[0]

    def text(self, head: int, reach: int = TOKENS) -> Text:
        return Text(self.q[head].tolist(), self.k[head].tolist(), self.x.tolist(), reach)

    def formula(self, formulas: list[Formula], reach: int = TOKENS, wanted: int | None = None) -> Tensor:
        """The same by a formula for each head."""
        heads, tokens, _ = self.q.shape
        out = torch.zeros(heads, tokens, tokens, dtype=torch.float64)
        for head, formula in enumerate(formulas):
            text = self.text(head, reach)
            for i in range(tokens):
                out[head, i, text.seen(i)] = torch.tensor(formula(text, i), dtype=torch.float64)
        return out[:, -(wanted or tokens) :]

    def numeric_gradient(
        self, formulas: Callable[[], list[Formula]], of: Tensor, at: tuple[int, ...]
    ) -> float:
        """Of sum(loss * weights) by the entry `at` of `of`, a float64 tensor that `formulas` reads."""
        sums, start = [], of[at].item()
        for step in (1e-5, -1e-5):
            of[at] = start + step
            sums.append((self.formula(formulas()) * self.loss).sum().item())
        of[at] = start
        return (sums[0] - sums[1]) / 2e-5


def apart(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().max().item()
