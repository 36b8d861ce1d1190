"""Attention with learned relative parts once more, in plain numbers, a query and a key at a time.

A score and a value are functions of (head, i, j); below them the code's output and the formula's, (H, T, D).
"""

import math
from collections.abc import Callable
from typing import Any

import decoding
import naive
import torch
from formulas import alibi_slope, sinusoid
from formulas_content import Vector, apart, build, dot, softmax
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.encodings.base import Encoding
from posenc.encodings.options import Window
from posenc.encodings.sum import Composed
from posenc.model.decoder import Decoder
from posenc.model.kernels import attend

__all__ = ["NEAR", "POSITIONS", "Example", "apart", "build", "dape", "shaw_score", "shaw_value", "xl_score"]

Score = Callable[[int, int, int], float]
Value = Callable[[int, int, int], Vector]
HEADS, WIDTH, LAYERS, TOKENS, TRAINED = 3, 8, 2, 20, 16
NEAR = list(range(TOKENS))
POSITIONS = {
    "contiguous": NEAR,
    "far": [65536 - TOKENS + t for t in NEAR],
    "drawn": [0, 1, 2, 7, 8, 30, 31, 33, 100, 101, 104, 200, 256, 257, 300, 512, 700, 1000, 1001, 1023],
    "near and far": [*range(10), *range(65527, 65537)],
}


def shaw_score(example: "Example", keys: Tensor, clip: int) -> Score:
    """keys (H, clip + 1, D)."""
    table = keys.tolist()

    def score(h: int, i: int, j: int) -> float:
        row = table[h][min(example.distance(i, j), clip)]
        key = [a + b for a, b in zip(example.key(h, j), row, strict=True)]
        return dot(example.query(h, i), key) / math.sqrt(len(key))

    return score


def shaw_value(example: "Example", added: Tensor, clip: int) -> Value:
    """added (H, clip + 1, D)."""
    table, v = added.tolist(), example.v.tolist()

    def value(h: int, i: int, j: int) -> Vector:
        row = table[h][min(example.distance(i, j), clip)]
        return [a + b for a, b in zip(v[h][j], row, strict=True)]

    return value


def xl_score(example: "Example", w: Tensor, u: Tensor, v: Tensor, base: float = 10000.0) -> Score:
    """w (H, D, d), u and v (H, D): the sum as the paper has it, with R of the distance itself."""
    matrix, of_content, of_position = w.tolist(), u.tolist(), v.tolist()

    def score(h: int, i: int, j: int) -> float:
        wave = sinusoid(example.distance(i, j), w.shape[-1], base)
        mapped = [dot(row, wave) for row in matrix[h]]
        q, k = example.query(h, i), example.key(h, j)
        content = dot([a + b for a, b in zip(q, of_content[h], strict=True)], k)
        position = dot([a + b for a, b in zip(q, of_position[h], strict=True)], mapped)
        return (content + position) / math.sqrt(len(q))

    return score


def dape(example: "Example", e: Any, layer: int) -> Score:
    """Of the encoding's own parameters; the bias from its parameters by the papers' formulas."""
    heads = range(len(example.q))
    if hasattr(e.static, "a"):
        a, b = ([0.01 + math.log1p(math.exp(x)) for x in p.tolist()] for p in (e.static.a, e.static.b))
    w1, b1, w2, b2 = (p[layer].tolist() for p in (e.w1, e.b1, e.w2, e.b2))

    def bias(h: int, r: int) -> float:
        if hasattr(e.static, "a"):
            return -a[h] * math.log(1 + b[h] * r)
        return -alibi_slope(h + 1, len(example.q)) * r

    def score(h: int, i: int, j: int) -> float:
        z = [dot(example.query(g, i), example.key(g, j)) / math.sqrt(WIDTH) for g in heads]
        beside = [bias(g, example.distance(i, j)) for g in heads]
        hidden = [dot(row, z + beside) + offset for row, offset in zip(w1, b1, strict=True)]
        hidden = [x if x > 0 else 0.01 * x for x in hidden]
        return z[h] + beside[h] + dot(w2[h], hidden) + b2[h]

    return score


class Example:
    """One text of random queries, keys and values at given positions. float64, but of float32's numbers."""

    def __init__(self, pos: list[int] = NEAR, heads: int = HEADS, width: int = WIDTH) -> None:
        generator = torch.Generator().manual_seed(len(pos))

        def vectors() -> Tensor:
            return torch.randn(heads, len(pos), width, generator=generator).double()

        self.q, self.k, self.v = 1.5 * vectors(), vectors(), vectors()
        self.loss = vectors()  # weights of the outputs in a loss
        self.pos = pos

    def query(self, h: int, i: int) -> Vector:
        return list(self.q[h, i].tolist())

    def key(self, h: int, j: int) -> Vector:
        return list(self.k[h, j].tolist())

    def distance(self, i: int, j: int) -> int:
        return self.pos[i] - self.pos[j]

    def encoding(self, name: str, **params: Any) -> Encoding:
        """Its parameters are filled with large numbers: those of a start would hide faults."""
        heads, _, width = self.q.shape
        encoding = build(name, heads, width, LAYERS, TRAINED, **params)
        generator = torch.Generator().manual_seed(1)
        for parameter in encoding.parameters():
            torch.nn.init.normal_(parameter, std=0.7, generator=generator)
        return encoding

    def output(
        self, encoding: Encoding, layer: int, *, reach: int | None = None, wanted: int | None = None
    ) -> Tensor:
        """What attention makes of it: (H, wanted, D)."""
        if reach is not None:
            encoding = Composed(encoding.shape, (encoding, Window(encoding.shape, window=reach)))
        q, k, v = (one.float()[None] for one in (self.q[:, -(wanted or len(self.pos)) :], self.k, self.v))
        x = k.transpose(1, 2).flatten(2)  # no encoding here reads it
        return attend(q, k, v, x, torch.tensor(self.pos), encoding, layer)[0]

    def formula(
        self, score: Score, value: Value | None = None, reach: int | None = None, wanted: int | None = None
    ) -> Tensor:
        heads, tokens, width = self.q.shape
        plain = self.v.tolist()
        out = torch.zeros(heads, tokens, width, dtype=torch.float64)
        for h in range(heads):
            for i in range(tokens):
                seen = [j for j in range(i + 1) if j == i or reach is None or self.distance(i, j) < reach]
                weights = softmax([score(h, i, j) for j in seen])
                values = [plain[h][j] if value is None else value(h, i, j) for j in seen]
                summed = [dot(weights, list(column)) for column in zip(*values, strict=True)]
                out[h, i] = torch.tensor(summed, dtype=torch.float64)
        return out[:, -(wanted or tokens) :]

    def numeric_gradient(self, formula: Callable[[], Tensor], of: Tensor, at: tuple[int, ...]) -> float:
        """Of sum(loss * output) by the entry `at` of `of`, a float64 tensor that `formula` reads."""
        sums, start = [], of[at].item()
        for step in (1e-5, -1e-5):
            of[at] = start + step
            sums.append((formula() * self.loss).sum().item())
        of[at] = start
        return (sums[0] - sums[1]) / 2e-5


class WholeShaw(naive.Naive):
    """Of a decoder: a row of each table, of the head's own or of the one that heads share."""

    def row(self, table: Tensor, layer: int, head: int, r: int) -> Tensor:
        of_layer = table[layer]
        return of_layer[head % len(of_layer)][min(r, self.e.clip)]

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: naive.Place) -> Tensor:
        self.head = at.head
        return s + q @ self.row(self.e.keys, at.layer, at.head, at.pos[i] - at.pos[j]) / math.sqrt(len(q))

    def value(self, v: Tensor, i: int, j: int, layer: int) -> Tensor:
        return v + self.row(self.e.added, layer, self.head, i - j)


class OfModel(naive.Naive):
    """Scores from queries and keys of all heads, made once more from the layer's inputs."""

    def __init__(self, model: Decoder) -> None:
        super().__init__(model.encoding)
        self.model = model

    def projected(self, at: naive.Place, token: int, which: int) -> tuple[Tensor, ...]:
        """Queries (0) or keys (1) of a token, by head."""
        weight = self.model.blocks[at.layer].attention.qkv.weight.chunk(3)[which]
        return (weight @ at.x[token]).split(self.model.shape.head_dim)


class WholeXL(OfModel):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: naive.Place) -> Tensor:
        w, u, v = (p[at.layer, at.head] for p in (self.e.w, self.e.u, self.e.v))
        wave = torch.tensor(sinusoid(at.pos[i] - at.pos[j], w.shape[-1], self.e.base), dtype=torch.float64)
        key = self.projected(at, j, 1)[at.head]
        return ((q + u) @ key + (q + v) @ (w @ wave)) / math.sqrt(len(q))


class WholeDAPE(OfModel):
    def bias(self, h: int, r: int, heads: int) -> Tensor:
        if hasattr(self.e.static, "a"):
            a, b = (0.01 + torch.log1p(p[h].exp()) for p in (self.e.static.a, self.e.static.b))
            return -a * torch.log(1 + b * r)
        return torch.tensor(-alibi_slope(h + 1, heads) * r, dtype=torch.float64)

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: naive.Place) -> Tensor:
        queries, keys = self.projected(at, i, 0), self.projected(at, j, 1)
        z = torch.stack([a @ b / math.sqrt(len(q)) for a, b in zip(queries, keys, strict=True)])
        b = torch.stack([self.bias(h, at.pos[i] - at.pos[j], len(z)) for h in range(len(z))])
        hidden = self.e.w1[at.layer] @ torch.cat((z, b)) + self.e.b1[at.layer]
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        return s + b[at.head] + self.e.w2[at.layer, at.head] @ hidden + self.e.b2[at.layer, at.head]


def off_by(whole: type[naive.Naive], name: str, pos: list[int], **params: Any) -> float:
    """Largest difference of a whole decoder's logits to the loops'; parameters as large as in `Example`."""
    model = decoding.model_of(decoding.encoding(name, **params))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.7, generator=generator)
    tokens = decoding.text(len(pos))

    def build(wide: Decoder) -> naive.Naive:
        return whole(wide) if issubclass(whole, OfModel) else whole(wide.encoding)

    return apart(decoding.logits(model, tokens, pos), decoding.exactly(model, tokens, build, pos))


# positions of a text of a decoder: as in a text, drawn as `positions=randomized` does, one token
PLACES = {
    "contiguous": list(range(12)),
    "drawn": [3, 4, 9, 17, 18, 40, 77, 90, 101, 102, 120, 127],
    "one": [5],
}


def largest_made(call: Callable[[], Any]) -> int:
    """How many numbers the largest tensor holds that a call makes, forwards and backwards."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, Tensor):
                    self.size = max(self.size, one.untyped_storage().nbytes() // one.element_size())
            return made

    with Largest() as largest:
        call()
    return largest.size
