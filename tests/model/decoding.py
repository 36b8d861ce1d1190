"""A small decoder, the same in float64 a token and a head at a time, and encodings in no catalogue."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding, Shape
from posenc.model.decoder import Decoder, ModelShape, initialize

SHAPE = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=2)
T, VOCABULARY = 8, 13


def encoding(name: str, **params: Any) -> Encoding:
    """With the parameters of its YAML, unless they are given, for a model of SHAPE."""
    sizes: dict[str, Any] = {"d_model": SHAPE.d_model, "n_heads": SHAPE.n_heads, "head_dim": SHAPE.head_dim}
    return build_encoding(name, **sizes, n_layers=SHAPE.n_layers, train_length=T, **params)


def model_of(own: Encoding, *options: Encoding) -> Decoder:
    """With its initial values; parameters of the encoding and its options that start at zero get others."""
    model = Decoder(SHAPE, VOCABULARY, own, options)
    initialize(model, 3)
    for number, parameter in enumerate([*model.encoding.parameters(), *model.options.parameters()]):
        if not parameter.detach().any():
            nn.init.normal_(parameter, generator=generator_for(number, "test"))
    return model.eval()


@torch.no_grad()
def exactly(
    model: Decoder, tokens: list[int], build: Callable[[Decoder], Naive], pos: list[int] | None = None
) -> Tensor:
    """Logits (T, V) in float64; `build` makes the encoding's plain methods from the model in float64."""
    wide = copy.deepcopy(model).double()
    return decode(wide, tokens, list(range(len(tokens))) if pos is None else pos, build(wide))


class Place:
    """Where a score is made: layer, head, the layer's (normed) inputs and their positions."""

    def __init__(self, layer: int, head: int, x: list[Tensor], pos: list[int]) -> None:
        self.layer, self.head, self.x, self.pos = layer, head, x, pos


class Naive:
    """No encoding. Vectors are float64; `e` is the encoding whose parameters are read."""

    def __init__(self, e: Any) -> None:
        self.e = e.double()

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x

    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        return x

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s

    def visible(self, i: int, j: int, layer: int) -> bool:
        return True

    def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
        """Of the visible keys, oldest first; the last one is the token itself."""
        total = sum(s.exp() for s in scores)
        return [s.exp() / total for s in scores]


def norm(x: Tensor) -> Tensor:
    return x / (x.square().mean() + torch.finfo(torch.float32).eps).sqrt()


def decode(model: Decoder, tokens: list[int], pos: list[int], naive: Naive) -> Tensor:
    """Logits (T, V) of one text; `model` in float64."""
    heads, width = model.shape.n_heads, model.shape.head_dim
    stream = [model.embedding.weight[token] for token in tokens]
    for layer, block in enumerate(model.blocks):
        stream = [naive.embed(x, t, layer) for x, t in zip(stream, pos, strict=True)]
        x = [norm(s) for s in stream]
        q, k, v = (
            [(w @ one).split(width) for one in x] for w in block.attention.qkv.weight.chunk(3)
        )  # [token][head] (D,)
        attended = []
        for i in range(len(tokens)):
            by_head = []
            for h in range(heads):
                at = Place(layer, h, x, pos)
                seen = [j for j in range(i + 1) if j == i or naive.visible(pos[i], pos[j], layer)]
                query = naive.turn(q[i][h], pos[i], torch.stack(q[i]), False)
                scores = []
                for j in seen:
                    key = naive.turn(k[j][h], pos[j], torch.stack(k[j]), True)
                    scores.append(naive.score(query @ key / math.sqrt(width), query, i, j, at))
                parts = zip(naive.weights(scores, at), seen, strict=True)
                by_head.append(sum(w * v[j][h] for w, j in parts))
            attended.append(block.attention.out.weight @ torch.cat(by_head))
        stream = [s + a for s, a in zip(stream, attended, strict=True)]
        up, down = block.mlp.up.weight, block.mlp.down.weight
        stream = [s + down @ F.relu(up @ norm(s)).square() for s in stream]
    return torch.stack([model.embedding.weight @ norm(s) for s in stream])


class Double(Encoding):
    """Parameters of standard deviation 1, so that what they do is seen."""

    name = paper = formula = acts_on = past_training = "double"

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter, generator=generator)


class LayerWindow(Double):
    """A window of 3 keys in layer 0, everything above; forgets that a token sees itself."""

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = q_pos[:, None] - k_pos[None, :]
        return ((r < 3) & (r > 0)) | torch.tensor(layer > 0)


class BothPositions(Double):
    """A learned bias that needs both positions, and vectors before every block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.weight = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))
        self.direction = nn.Parameter(torch.empty(shape.n_layers, shape.d_model))

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = q_pos[:, None] - k_pos[None, :]
        psi = (1 + r.clamp_min(0).float()).log() / (2 + q_pos.float()).log()[:, None]
        psi = torch.where(r < 0, 1e4, psi)  # the future may hold anything finite
        return self.weight[layer][:, None, None] * psi

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + (pos.float()[:, None] / 8 * self.direction[layer]).to(x.dtype)


class NaiveBothPositions(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        psi = math.log(1 + at.pos[i] - at.pos[j]) / math.log(2 + at.pos[i])
        return s + self.e.weight[at.layer, at.head] * psi

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x + t / 8 * self.e.direction[layer]


class Widened(Double):
    """Each number becomes a vector on a circle, so D doubles; the scale stays that of D."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.frequency = nn.Parameter(torch.empty(shape.head_dim))

    def _turn(self, x: Tensor, pos: Tensor) -> Tensor:
        angle = pos.float()[:, None] / 8 * self.frequency
        return torch.cat((x * angle.cos(), x * angle.sin()), dim=-1).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_pos), self._turn(k, k_pos)


class OneKeyHead(Double):
    """All query heads look at the mean key, scaled by the position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gain = nn.Parameter(torch.empty(1))

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return q, k.mean(1, keepdim=True) * (1 + self.gain * k_pos.float()[:, None] / 8).to(k.dtype)
