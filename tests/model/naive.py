"""The decoder once more, a token and a head at a time, in float64; an encoding is a few plain methods."""

import math
from typing import Any

import doubles
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.model.decoder import Decoder


class Naive:
    """No encoding. Vectors are float64; `e` is the encoding whose parameters are read."""

    def __init__(self, e: Any) -> None:
        self.e = e.double()

    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x

    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        return x

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: "Place") -> Tensor:
        return s

    def visible(self, i: int, j: int, layer: int) -> bool:
        return True

    def weights(self, scores: list[Tensor], at: "Place") -> list[Tensor]:
        """Of the visible keys, oldest first; the last one is the token itself."""
        total = sum(s.exp() for s in scores)
        return [s.exp() / total for s in scores]

    def value(self, v: Tensor, i: int, j: int, layer: int) -> Tensor:
        return v


class Place:
    """Where a score is made: layer, head, the layer's (normed) inputs and their positions."""

    def __init__(self, layer: int, head: int, x: list[Tensor], pos: list[int]) -> None:
        self.layer, self.head, self.x, self.pos = layer, head, x, pos


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
                weights = naive.weights(scores, at)
                parts = zip(weights, seen, strict=True)
                by_head.append(sum(w * naive.value(v[j][h], pos[i], pos[j], layer) for w, j in parts))
            attended.append(block.attention.out.weight @ torch.cat(by_head))
        stream = [s + a for s, a in zip(stream, attended, strict=True)]
        up, down = block.mlp.up.weight, block.mlp.down.weight
        stream = [s + down @ F.relu(up @ norm(s)).square() for s in stream]
    return torch.stack([model.embedding.weight @ norm(s) for s in stream])


class Shaw(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s + q @ self.e.keys[at.layer, min(at.pos[i] - at.pos[j], 4)] / math.sqrt(len(q))

    def value(self, v: Tensor, i: int, j: int, layer: int) -> Tensor:
        return v + self.e.added[layer, min(i - j, 4)]


class ForgetGate(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        gates = [
            torch.sigmoid(self.e.gate[at.head] @ at.x[m] + self.e.offset[at.head])
            for m in range(j + 1, i + 1)
        ]
        return s + sum(gate.log() for gate in gates)


class StickBreaking(Naive):
    def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
        left, out = torch.tensor(1.0, dtype=torch.float64), []
        for s in reversed(scores[:-1]):  # the nearest first, without the token itself
            share = torch.sigmoid(s + self.e.shift[at.head, 0, 0])
            out.append(left * share)
            left = left * (1 - share)
        return [*reversed(out), torch.zeros((), dtype=torch.float64)]


class LayerWindow(Naive):
    def visible(self, i: int, j: int, layer: int) -> bool:
        return layer > 0 or i - j < 3


class RandomizedSlopes(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s - self.e.slope[at.head] * (1 + at.layer) * (at.pos[i] - at.pos[j]) / 8


class BothPositions(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        psi = math.log(1 + at.pos[i] - at.pos[j]) / math.log(2 + at.pos[i])
        return s + self.e.weight[at.layer, at.head] * psi


class EveryLayer(Naive):
    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x + t / 8 * self.e.direction[layer]


class Widened(Naive):
    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        # the product of two such vectors is sum of q_d k_d cos((i - j) w_d)
        angle = t / 8 * self.e.frequency
        return torch.cat((x * angle.cos(), x * angle.sin()))


class OneKeyHead(Naive):
    def turn(self, x: Tensor, t: int, heads: Tensor, key: bool) -> Tensor:
        return heads.mean(0) * (1 + self.e.gain[0] * t / 8) if key else x


class Everything(LayerWindow):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        biased = s - self.e.slope[at.head] * (at.pos[i] - at.pos[j]) / 4
        return biased * self.e.heat[at.layer].exp()


NAIVE: dict[type[doubles.Double], type[Naive]] = {
    doubles.Shaw: Shaw,
    doubles.ForgetGate: ForgetGate,
    doubles.StickBreaking: StickBreaking,
    doubles.LayerWindow: LayerWindow,
    doubles.Randomized: Naive,
    doubles.RandomizedSlopes: RandomizedSlopes,
    doubles.BothPositions: BothPositions,
    doubles.EveryLayer: EveryLayer,
    doubles.Widened: Widened,
    doubles.OneKeyHead: OneKeyHead,
    doubles.Everything: Everything,
}
