"""A small decoder with an encoding and options, and the same a token at a time in float64."""

import copy
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent))
import naive

from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder, ModelShape, initialize

SHAPE = ModelShape("small", d_model=16, n_layers=2, n_heads=2, mlp_ratio=2)
T, VOCABULARY = 8, 13
CLOSE = 1e-5  # of logits around 1

Score = Callable[[list[float], list[float], int, int, naive.Place], float]


def encoding(
    name: str,
    *,
    layers: int = SHAPE.n_layers,
    train_length: int = T,
    limit: int | None = None,
    plugins: Sequence[str] = (),
    **params: Any,
) -> Encoding:
    """With the parameters of its YAML, unless they are given, for a model of SHAPE."""
    sizes = {"d_model": SHAPE.d_model, "n_heads": SHAPE.n_heads, "head_dim": SHAPE.head_dim}
    more: dict[str, Any] = {"n_layers": layers, "train_length": train_length, "position_limit": limit}
    return build_encoding(name, plugins=plugins, **sizes, **more, **params)


def model_of(own: Encoding, *options: Encoding) -> Decoder:
    """With its initial values; parameters of the encoding and its options that start at zero get others."""
    shape = ModelShape("small", SHAPE.d_model, own.shape.n_layers, SHAPE.n_heads, SHAPE.mlp_ratio)
    model = Decoder(shape, VOCABULARY, own, options)
    initialize(model, 3)
    for number, parameter in enumerate([*model.encoding.parameters(), *model.options.parameters()]):
        if not parameter.detach().any():
            nn.init.normal_(parameter, generator=generator_for(number, "test"))
    return model.eval()


def text(n: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def logits(
    model: Decoder, tokens: list[int], pos: list[int] | None = None, wanted: int | None = None
) -> Tensor:
    """(T, V) of one text at 0, 1, 2, ... unless positions are given."""
    at = torch.arange(len(tokens)) if pos is None else torch.tensor(pos)
    out: Tensor = model(torch.tensor([tokens]), at, wanted)
    return out[0]


class Paper(naive.Naive):
    """Scores by a formula of the unturned query and key, in plain numbers."""

    def __init__(self, model: Decoder, score: Score) -> None:
        super().__init__(model.encoding)
        self.model, self.formula = model, score

    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: naive.Place) -> Tensor:
        weight = self.model.blocks[at.layer].attention.qkv.weight.chunk(3)[1]
        key = (weight @ at.x[j]).split(len(q))[at.head]
        product = self.formula(q.tolist(), key.tolist(), at.pos[i], at.pos[j], at)
        return torch.tensor(product / math.sqrt(len(q)), dtype=torch.float64)


@torch.no_grad()
def exactly(
    model: Decoder, tokens: list[int], build: Callable[[Decoder], naive.Naive], pos: list[int] | None = None
) -> Tensor:
    """The same logits in float64; `build` makes the encoding's plain methods from the model in float64."""
    wide = copy.deepcopy(model).double()
    return naive.decode(wide, tokens, list(range(len(tokens))) if pos is None else pos, build(wide))


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return (a.double() - b.double()).abs().max().item()
