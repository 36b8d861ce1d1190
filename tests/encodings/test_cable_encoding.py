import math
from functools import partial
from typing import Any

import pytest
import torch
from formulas_content import HEADS, LAYERS, TOKENS, Example, Formula, apart, build, cable
from torch import Tensor

from posenc.encodings.alibi import slopes
from posenc.encodings.cable import Cable
from posenc.model import kernels


def built(example: Example, **params: Any) -> Cable:
    encoding = example.encoding("cable", **params)
    assert isinstance(encoding, Cable)
    return encoding


def formulas(slope: Tensor, gain: Tensor | None) -> list[Formula]:
    gains = [None] * len(slope) if gain is None else gain.tolist()
    return [partial(cable, w=w, v=v) for w, v in zip(slope.tolist(), gains, strict=True)]


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("heads, reach, wanted", [(HEADS, TOKENS, TOKENS), (1, 5, TOKENS), (2, TOKENS, 3)])
@torch.no_grad()
def test_formula(layer: int, weighted: bool, heads: int, reach: int, wanted: int) -> None:
    example = Example(heads=heads)
    encoding = built(example, weighted=weighted)
    gain = None if encoding.gain is None else encoding.gain[layer]
    got = example.weights(encoding, layer, reach=reach, wanted=wanted)
    assert apart(got, example.formula(formulas(encoding.slope[layer], gain), reach, wanted)) < 1e-6


@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 4])
@torch.no_grad()
def test_blocks_of_queries(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = built(example)
    whole = example.weights(encoding, 1)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.weights(encoding, 1), whole) < 1e-6


def test_gradients() -> None:
    example = Example()
    encoding = built(example)
    (example.weights(encoding, 0) * example.loss).sum().backward()
    assert encoding.gain is not None
    slope, gain = encoding.slope[0].detach().double(), encoding.gain[0].detach().double()
    for parameter, exact in ((encoding.slope, slope), (encoding.gain, gain)):
        assert parameter.grad is not None
        want = example.numeric_gradient(lambda: formulas(slope, gain), exact, (1, 5))
        assert parameter.grad[0, 1, 5].item() == pytest.approx(want, rel=1e-3)
        assert not parameter.grad[1].any()  # the other layer


@pytest.mark.parametrize("heads", [1, 4])
@torch.no_grad()
def test_slopes_of_one_are_alibi(heads: int) -> None:
    encoding, alibi = build("cable", heads, 8, 1, 4), build("alibi", heads, 8, 1, 4)
    assert isinstance(encoding, Cable) and encoding.gain is not None
    x, pos = torch.ones(1, 9, 8 * heads), torch.arange(9)
    encoding.slope[:] = 1 / (8 * heads)
    for head, m in enumerate(slopes(heads)):
        encoding.gain[0, head] = math.log(math.expm1(m)) / (8 * heads)
    s = torch.zeros(1, heads, 9, 9)
    scores = encoding.scores(s, x, x, pos, pos, encoding.prepare(x, x, x, 0), 0)[0]
    assert apart(scores.tril(), alibi.bias(pos, pos, 0).tril()) < 1e-6


@torch.no_grad()
def test_never_rises_with_the_distance() -> None:
    example = Example()
    encoding = built(example)
    x = example.x.float()[None]
    s = torch.zeros(1, HEADS, TOKENS, TOKENS)
    scores = encoding.scores(s, x, x, example.pos, example.pos, encoding.prepare(x, x, x, 0), 0)[0]
    for i in range(TOKENS):
        assert (scores[:, i, : i + 1].diff(dim=-1) >= 0).all()
        assert (scores[:, i, i] == 0).all()


@torch.no_grad()
def test_bf16_changes_no_slope() -> None:
    example = Example()
    encoding = built(example)
    x = example.x.float()[None].bfloat16()
    exact = encoding.prepare(x.float(), x, x, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = encoding.prepare(x, x, x, 0)
    for a, b in zip(exact, rounded, strict=True):
        assert a is not None and b is not None and torch.equal(a, b)


def test_start() -> None:
    for weighted, count in ((True, 2 * 8 * 512 * 2), (False, 2 * 8 * 512)):
        encoding = build("cable", 8, 64, 2, 64, weighted=weighted)
        assert sum(p.numel() for p in encoding.parameters()) == count
        for name, parameter in encoding.named_parameters():
            encoding.initialize(name, parameter.data, torch.Generator().manual_seed(0))
            assert parameter.std().item() == pytest.approx(512**-0.5, rel=0.05)
