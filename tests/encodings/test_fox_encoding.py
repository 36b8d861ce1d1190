import math
from functools import partial

import pytest
import torch
from formulas_content import HEADS, LAYERS, TOKENS, Example, Formula, apart, build, fox
from torch import Tensor

from posenc.encodings.families.content import CumulativeGates
from posenc.encodings.fox import FoX
from posenc.model import kernels


def formulas(gate: Tensor, offset: Tensor) -> list[Formula]:
    return [partial(fox, w=w, b=b) for w, b in zip(gate.tolist(), offset.tolist(), strict=True)]


def built(example: Example) -> FoX:
    encoding = example.encoding("fox")
    assert isinstance(encoding, FoX)
    return encoding


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("heads, reach, wanted", [(HEADS, TOKENS, TOKENS), (1, 5, TOKENS), (2, TOKENS, 3)])
@torch.no_grad()
def test_formula(layer: int, heads: int, reach: int, wanted: int) -> None:
    example = Example(heads=heads)
    encoding = built(example)
    parts = formulas(encoding.gate[layer], encoding.offset[layer])
    got = example.weights(encoding, layer, reach=reach, wanted=wanted)
    assert apart(got, example.formula(parts, reach, wanted)) < 1e-6


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
    gate, offset = encoding.gate[0].detach().double(), encoding.offset[0].detach().double()
    at: tuple[int, ...]
    for parameter, exact, at in ((encoding.gate, gate, (1, 5)), (encoding.offset, offset, (2,))):
        assert parameter.grad is not None
        want = example.numeric_gradient(lambda: formulas(gate, offset), exact, at)
        assert parameter.grad[0][at].item() == pytest.approx(want, rel=1e-3)
        assert not parameter.grad[1].any()  # the other layer


@torch.no_grad()
def test_gates_of_one_half_are_a_slope_of_log_two() -> None:
    encoding = build("fox", 1, 8, 1, 4)
    for parameter in encoding.parameters():
        parameter.zero_()
    x, s = torch.randn(1, 5, 8), torch.zeros(1, 1, 5, 5)
    pos = torch.arange(5)
    scores = encoding.scores(s, x, x, pos, pos, encoding.prepare(x, x, x, 0), 0)[0, 0]
    for i in range(5):
        for j in range(i + 1):
            assert scores[i, j].item() == pytest.approx(-math.log(2) * (i - j), abs=1e-6)
    assert (scores.diagonal() == 0).all()  # the own token loses nothing


@torch.no_grad()
def test_the_nearest_of_65536_tokens_are_exact() -> None:
    encoding = build("fox", 1, 8, 1, 4)
    for parameter in encoding.parameters():
        parameter.zero_()
    far = 1 << 16
    x, pos = torch.zeros(1, far, 8), torch.arange(far)
    state = encoding.prepare(x, x[:, None, -1:], x[:, None], 0)
    scores = encoding.scores(torch.zeros(1, 1, 1, far), x, x, pos[-1:], pos, state, 0)[0, 0, 0]
    want = math.log(2) * (pos.double() - (far - 1))
    # a difference of two float32 sums would be off by 4e-3 from the first neighbour on
    assert apart(scores[-1000:], want[-1000:]) < 1e-4
    assert ((scores - want) / want)[:-1].abs().max() < 1e-6


@torch.no_grad()
def test_a_changed_future_rounds_no_past_score_anew() -> None:
    example = Example(tokens=200)
    encoding = built(example)
    s, q = torch.randn(1, HEADS, 200, 200), example.q.float()[None]
    found = []
    for future in (1.0, -3.0):
        x = example.x.float()[None].clone()
        x[:, 150:] *= future
        found.append(encoding.scores(s, q, q, example.pos, example.pos, encoding.prepare(x, q, q, 0), 0))
    assert torch.equal(found[0][:, :, :150, :150], found[1][:, :, :150, :150])


@torch.no_grad()
def test_bf16_changes_no_gate() -> None:
    example = Example()
    encoding = built(example)
    x = example.x.float()[None].bfloat16()
    exact = encoding.prepare(x.float(), x, x, 0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.prepare(x, x, x, 0)[0], exact)


@torch.no_grad()
def test_a_model_in_float64() -> None:
    example = Example()
    encoding = built(example).double()
    passed, _ = encoding.prepare(example.x[None], example.q[None], example.k[None], 1)
    step = torch.sigmoid(encoding.gate[1] @ example.x[3] + encoding.offset[1]).log()
    assert apart(passed[0, :, 3] - passed[0, :, 2], -step) < 1e-14


def test_start() -> None:
    encoding = build("fox", 8, 64, 2, 64)
    assert isinstance(encoding, FoX) and isinstance(encoding, CumulativeGates)
    for name, parameter in encoding.named_parameters():
        encoding.initialize(name, parameter.data, torch.Generator().manual_seed(0))
    assert not encoding.offset.any()
    assert encoding.gate.std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert sum(p.numel() for p in encoding.parameters()) == 2 * 8 * (512 + 1)
