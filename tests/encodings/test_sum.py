"""Several encodings acting as one: through the decoder, in their order, alone and nested."""

import math
from collections.abc import Callable
from typing import Any

import formulas
import pytest
import torch
from decoding import CLOSE, SHAPE, Paper, T, apart, encoding, exactly, logits, model_of, text
from doubles import (
    BothPositions,
    Double,
    EveryLayer,
    Everything,
    ForgetGate,
    LayerWindow,
    OneKeyHead,
    Randomized,
    RandomizedSlopes,
    Shaw,
    StickBreaking,
    Widened,
)
from formulas_rotary import pope
from naive import NAIVE, Naive, Place
from summed import All, N, made_of, rotary
from torch import Tensor, nn

from posenc.encodings.options import build_options
from posenc.encodings.sum import Sum
from posenc.model import kernels
from posenc.model.decoder import Decoder

COMBINATIONS: list[list[type[Double]]] = [
    [ForgetGate, Shaw],
    [Shaw, ForgetGate],  # scores that read the queries, then a law with prepare's state
    [EveryLayer, LayerWindow, RandomizedSlopes],
    [StickBreaking, Widened, EveryLayer],
    [BothPositions, RandomizedSlopes],  # a bias by both positions and one by distance
    [LayerWindow, Shaw, ForgetGate, OneKeyHead],
    [Randomized, BothPositions, EveryLayer],
    [ForgetGate, Everything],
    [EveryLayer, EveryLayer, ForgetGate, ForgetGate],  # twice the same, each with parameters of its own
]


@pytest.mark.parametrize("most", [1 << 20, 1])
@pytest.mark.parametrize("kinds", COMBINATIONS, ids=lambda kinds: "-".join(kind.__name__ for kind in kinds))
def test_the_whole_decoder(kinds: list[type[Double]], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    model = model_of(made_of(*kinds))
    tokens = text(N)
    pos = [0, 1, 3, 4, 5, 9, 14, 15, 20, 33, 34, 40] if Randomized in _bases(kinds) else list(range(N))

    def build(wide: Decoder) -> Naive:
        return All(wide, [NAIVE[type(part)](part) for part in wide.encoding.members])

    want = exactly(model, tokens, build, pos)
    assert apart(logits(model, tokens, pos), want) < 2e-5
    assert apart(logits(model, tokens, pos, wanted=2), want[-2:]) < 2e-5


def _bases(kinds: list[type[Double]]) -> set[type]:
    return {base for kind in kinds for base in kind.__mro__}


class Alibi(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return s - formulas.alibi_slope(at.head + 1, SHAPE.n_heads) * (at.pos[i] - at.pos[j])


class T5(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        bucket = formulas.t5_bucket(at.pos[i] - at.pos[j], self.e.buckets, self.e.max_distance)
        return s + self.e.table[at.head, bucket]


class Row(Naive):
    def embed(self, x: Tensor, t: int, layer: int) -> Tensor:
        return x if layer else x + self.e.table[0, t]


class Hot(Double):
    """Scores times 3: a law of scores that tells whether the biases were there before it."""

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return 3 * s


class NaiveHot(Naive):
    def score(self, s: Tensor, q: Tensor, i: int, j: int, at: Place) -> Tensor:
        return 3 * s


def polar(wide: Decoder) -> Paper:
    delta = wide.encoding.members[0].delta
    return Paper(wide, lambda q, k, i, j, at: pope(q, k, i, j, delta[at.layer, at.head].tolist()))


SHIPPED: dict[str, tuple[list[Any], Callable[[Decoder, Any], list[Naive]]]] = {
    "alibi-rope": (["alibi", "rope"], lambda wide, parts: [rotary(wide), Alibi(parts[0])]),
    "rope-t5-alibi": (
        ["rope", {"name": "t5", "buckets": 4, "max_distance": 6}, "alibi"],
        lambda wide, parts: [rotary(wide), T5(parts[1]), Alibi(parts[2])],
    ),
    "pope-t5": (["pope", "t5"], lambda wide, parts: [polar(wide), T5(parts[1])]),
    "learned-alibi": (["learned", "alibi"], lambda wide, parts: [Row(parts[0]), Alibi(parts[1])]),
    "nope-rope": (["nope", "rope"], lambda wide, parts: [rotary(wide)]),
}


@pytest.mark.parametrize("case", SHIPPED)
def test_shipped_ones_through_the_decoder(case: str) -> None:
    parts, build = SHIPPED[case]
    model, tokens = model_of(encoding("sum", parts=parts)), text(T)
    want = exactly(
        model,
        tokens,
        lambda wide: All(wide, build(wide, wide.encoding.members)),
    )
    assert apart(logits(model, tokens), want) < CLOSE


@pytest.mark.parametrize("order", [0, 1])
def test_biases_come_before_laws_of_scores(order: int) -> None:
    shape = encoding("nope").shape
    parts = [Hot(shape), encoding("alibi")]
    model, tokens = model_of(Sum(shape, parts=parts[::-1] if order else parts)), text(N)
    want = exactly(model, tokens, lambda wide: All(wide, [NaiveHot(wide.encoding)], [Alibi(wide.encoding)]))
    assert apart(logits(model, tokens), want) < CLOSE


def test_embeddings_come_in_the_order_of_the_parts() -> None:
    # sinusoidal scales the token embeddings: what was added before is scaled with them
    tokens = text(T)
    first, last = (
        model_of(encoding("sum", parts=parts))
        for parts in (["learned", "sinusoidal"], ["sinusoidal", "learned"])
    )
    for ours, order in ((first, (0, 1)), (last, (1, 0))):
        rows = ours.encoding.members[order[0]].table[0]
        nn.init.normal_(rows, generator=torch.Generator().manual_seed(0))
    x, pos = torch.zeros(1, T, SHAPE.d_model), torch.arange(T)
    rows = first.encoding.members[0].table[0]
    waves = first.encoding.members[1].embed(x, pos, 0)
    assert torch.allclose(first.effective_encoding.embed(x, pos, 0), rows * math.sqrt(SHAPE.d_model) + waves)
    assert torch.allclose(last.effective_encoding.embed(x, pos, 0), rows + waves)
    assert apart(logits(first, tokens), logits(last, tokens)) > 1e-3


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "learned", "fox", "shaw", "stick_breaking", "rnope_swa", "fire"]
)
def test_a_sum_of_one_is_that_one(name: str) -> None:
    alone, both = encoding(name), encoding("sum", parts=[name])
    assert both.hooks == alone.hooks
    one, other = model_of(alone), model_of(both)
    for mine, own in zip(one.encoding.parameters(), other.encoding.parameters(), strict=True):
        own.data.copy_(mine.data)
    assert torch.equal(logits(one, text(N)), logits(other, text(N)))


def test_a_sum_in_a_sum_is_one_sum() -> None:
    flat = model_of(encoding("sum", parts=["learned", "alibi", "rope"]))
    nested = model_of(encoding("sum", parts=["learned", {"name": "sum", "parts": ["alibi", "rope"]}]))
    nested.encoding.get_parameter("members.0.table").data.copy_(
        flat.encoding.get_parameter("members.0.table")
    )
    assert torch.equal(logits(flat, text(T)), logits(nested, text(T)))


def test_options_act_beside_a_sum() -> None:
    own = encoding("sum", parts=["alibi", "rope"])
    options = build_options(own.shape, own, positions={"name": "contiguous"}, window=5, scale="logn")
    model, tokens = model_of(own, *options), text(N)

    class Near(All):
        def visible(self, i: int, j: int, layer: int) -> bool:
            return i - j < 5

        def weights(self, scores: list[Tensor], at: Place) -> list[Tensor]:
            factor = math.log(len(scores)) / math.log(T)
            return super().weights([s * factor for s in scores], at)

    want = exactly(model, tokens, lambda wide: Near(wide, [rotary(wide), Alibi(wide.encoding)]))
    assert apart(logits(model, tokens), want) < CLOSE
