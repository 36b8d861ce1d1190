from typing import Any

import pytest
import torch
from decoding import CLOSE, Paper, apart, encoding, exactly, logits, model_of, text
from formulas_rotary import rope
from naive import Place

from posenc.core.errors import UserError
from posenc.encodings.base import Shape
from posenc.encodings.options import Window
from posenc.encodings.rnope_swa import RNoPESWA
from posenc.model import kernels
from posenc.model.decoder import Decoder


def built(**params: Any) -> RNoPESWA:
    made = encoding("rnope_swa", **params)
    assert isinstance(made, RNoPESWA)
    return made


class ByLayer(Paper):
    """RoPE and a window in all layers but `free`."""

    def __init__(self, model: Decoder, free: set[int], window: int) -> None:
        def score(q: list[float], k: list[float], i: int, j: int, at: Place) -> float:
            return rope(q, k, 0, 0) if at.layer in free else rope(q, k, i, j)

        super().__init__(model, score)
        self.free, self.window = free, window

    def visible(self, i: int, j: int, layer: int) -> bool:
        return layer in self.free or i - j < self.window


@pytest.mark.parametrize(
    "layers, every, free",
    [
        (1, 4, {0}),
        (2, 4, {1}),
        (3, 4, {2}),
        (4, 4, {3}),
        (5, 4, {3}),
        (8, 4, {3, 7}),
        (4, 2, {1, 3}),
        (3, 1, {0, 1, 2}),
        (2, 9, {1}),
    ],
)
def test_which_layers_are_free(layers: int, every: int, free: set[int]) -> None:
    made = built(layers=layers, every=every)
    assert {layer for layer in range(layers) if made.is_free(layer)} == free
    pos = torch.arange(40)
    x = torch.randn(1, 2, 40, 8)
    for layer in range(layers):
        q, k = made.rotate(x, x, pos, pos, layer)
        assert torch.equal(q, x) == torch.equal(k, x) == (layer in free)
        assert made.visible(pos, pos, layer).all() == (layer in free)


@pytest.mark.parametrize("layers, every, free", [(2, 4, {1}), (4, 4, {3}), (4, 2, {1, 3}), (5, 3, {2})])
@pytest.mark.parametrize("window", [1, 3, 50])
@pytest.mark.parametrize("most", [1 << 20, 1])
def test_the_whole_decoder(
    layers: int, every: int, free: set[int], window: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    model, tokens = model_of(built(layers=layers, every=every, window=window)), text(12)
    want = exactly(model, tokens, lambda wide: ByLayer(wide, free, window))
    assert apart(logits(model, tokens), want) < CLOSE
    assert apart(logits(model, tokens, wanted=2), want[-2:]) < CLOSE


def test_drawn_positions() -> None:
    model, tokens, pos = model_of(built(window=6)), text(8), [0, 2, 3, 9, 14, 15, 40, 41]
    want = exactly(model, tokens, lambda wide: ByLayer(wide, {1}, 6), pos)
    assert apart(logits(model, tokens, pos), want) < CLOSE


def test_the_window_is_half_the_context_unless_set() -> None:
    for train_length, window in ((1, 1), (2, 1), (3, 1), (64, 32), (8192, 4096)):
        assert built(train_length=train_length).window == window
    assert built(train_length=64, window=5).window == 5
    seen = built(window=3).visible(torch.arange(5), torch.arange(5), 0)
    assert seen.tril().sum(-1).tolist() == [1, 2, 3, 3, 3]  # the token itself is one of them


def test_the_far_past_is_seen_by_the_free_layer_alone() -> None:
    tokens = text(30)
    other = [(tokens[0] + 1) % 13, *tokens[1:]]
    model = model_of(built(window=4))
    assert apart(logits(model, tokens)[-1], logits(model, other)[-1]) > 1e-4
    rotary = encoding("rope")
    model = model_of(rotary, Window(rotary.shape, window=4))  # two layers reach 6 tokens back
    assert torch.equal(logits(model, tokens)[7:], logits(model, other)[7:])


def test_says_when_no_layer_is_rotary() -> None:
    assert built(layers=2).warnings() == built(layers=4, every=2).warnings() == []
    [said] = built(layers=1).warnings()
    assert "no layer of 1" in said
    [said] = built(layers=4, every=1).warnings()
    assert "no layer of 4" in said


@pytest.mark.parametrize(
    "params", [{"every": 0}, {"every": -1}, {"window": 0}, {"base": 1.0}, {"layout": "x"}]
)
def test_values_out_of_range(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        built(**params)


def test_declares() -> None:
    made = built()
    assert made.relative and made.prefix_stable and not made.decouples and not list(made.parameters())
    assert set(made.refuses) == {"attention.window"}


def test_the_window_is_half_of_what_positions_span() -> None:
    chosen = {"base": 10000.0, "layout": "interleaved", "every": 4, "window": None}
    contiguous, drawn = (
        RNoPESWA(Shape(32, 4, 8, 4, 64, limit, limit), **chosen).window for limit in (None, 1024)
    )
    assert (contiguous, drawn) == (32, 512)
