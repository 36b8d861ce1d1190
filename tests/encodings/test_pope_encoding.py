import math
from typing import Any

import pytest
import torch
from decoding import CLOSE, SHAPE, Paper, apart, encoding, exactly, logits, model_of, text
from formulas_rotary import pope
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.base import Shape
from posenc.encodings.pope import PoPE
from posenc.model import kernels
from posenc.model.decoder import initialize

HEADS, WIDTH = SHAPE.n_heads, SHAPE.head_dim


def built(**params: Any) -> PoPE:
    """delta is filled with angles of all sizes: zero would hide faults."""
    made = encoding("pope", **params)
    assert isinstance(made, PoPE)
    torch.nn.init.uniform_(made.delta, -7, 7, generator=torch.Generator().manual_seed(5))
    return made


def vectors(n: int, seed: int = 0) -> Tensor:
    return torch.randn(1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def products(made: PoPE, q: Tensor, k: Tensor, q_pos: list[int], k_pos: list[int], layer: int) -> Tensor:
    q, k = made.rotate(q, k, torch.tensor(q_pos), torch.tensor(k_pos), layer)
    return (q.double() @ k.double().transpose(-1, -2))[0]  # (H, T, S)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_formula(layer: int, base: float) -> None:
    made, pos = built(base=base), [0, 1, 2, 64, 257, 8191, 65_536]
    q, k = vectors(len(pos)), vectors(len(pos), 1)
    got = products(made, q, k, pos, pos, layer)
    for head in range(HEADS):
        delta = made.delta[layer, head].tolist()
        for row, i in enumerate(pos):
            for column, j in enumerate(pos):
                want = pope(q[0, head, row].tolist(), k[0, head, column].tolist(), i, j, delta, base)
                assert got[head, row, column].item() == pytest.approx(want, abs=5e-6), (head, i, j)


@pytest.mark.parametrize("most", [1 << 20, 1])
def test_the_whole_decoder(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: each layer and head has its own delta, and the scale is that of D, not of 2D."""
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    made = built()
    model, tokens = model_of(made), text(13)
    torch.nn.init.uniform_(made.delta, -7, 7, generator=torch.Generator().manual_seed(5))

    def score(q: list[float], k: list[float], i: int, j: int, at: Any) -> float:
        return pope(q, k, i, j, made.delta[at.layer, at.head].tolist())

    want = exactly(model, tokens, lambda wide: Paper(wide, score))
    assert apart(logits(model, tokens), want) < CLOSE
    assert apart(logits(model, tokens, wanted=2), want[-2:]) < CLOSE


def test_at_one_place_the_score_is_that_of_the_lengths() -> None:
    made = encoding("pope")
    assert isinstance(made, PoPE)
    initialize(model_of(made), 0)
    assert not made.delta.any()
    q = k = torch.zeros(1, HEADS, 1, WIDTH)
    got = products(made, q, k, [7], [7], 0)  # softplus(0) = log 2
    assert got.flatten().tolist() == pytest.approx([WIDTH * math.log(2) ** 2] * HEADS, rel=1e-6)


def test_pin() -> None:
    # one head of two numbers at 1 and 3: frequencies 1 and 1/100
    made = PoPE(Shape(2, 1, 2, 1, 8), base=10000.0)
    torch.nn.init.zeros_(made.delta)
    q, k = torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[[[1.0, 0.0]]]])
    got = products(made, q, k, [3], [1], 0).item()
    assert got == pytest.approx(math.log(2) * math.log(1 + math.e) * (math.cos(2) + math.cos(0.02)), rel=1e-6)


def test_frequencies_one_for_each_number() -> None:
    theta = built().frequencies().tolist()
    assert theta == pytest.approx([10000 ** (-c / WIDTH) for c in range(WIDTH)])


def test_delta_turns_keys_alone() -> None:
    made, pos = built(), [0, 5, 9]
    q, _ = made.rotate(vectors(3), vectors(3), torch.tensor(pos), torch.tensor(pos), 0)
    torch.nn.init.zeros_(made.delta)
    same, _ = made.rotate(vectors(3), vectors(3), torch.tensor(pos), torch.tensor(pos), 0)
    assert torch.equal(q, same) and q.shape == (1, HEADS, 3, 2 * WIDTH)


@pytest.mark.parametrize("shift", [1, 1000, 65_536])
def test_a_joint_shift_changes_nothing(shift: int) -> None:
    made, pos = built(), list(range(12))
    q, k = vectors(12), vectors(12, 1)
    moved = [t + shift for t in pos]
    assert apart(products(made, q, k, pos, pos, 1), products(made, q, k, moved, moved, 1)) < 1e-5


def test_a_whole_turn_of_delta_is_none() -> None:
    made, pos = built(), list(range(6))
    before = products(made, vectors(6), vectors(6, 1), pos, pos, 0)
    with torch.no_grad():
        made.delta.sub_(2 * math.pi)
    assert apart(products(made, vectors(6), vectors(6, 1), pos, pos, 0), before) < 1e-5


def test_gradient_of_delta() -> None:
    made, pos = built(), torch.tensor([2, 3, 300])
    q, k = made.rotate(vectors(3), vectors(3, 1), pos, pos, 1)
    weights = torch.randn(HEADS, 3, 3, generator=torch.Generator().manual_seed(2))
    ((q @ k.transpose(-1, -2))[0] * weights).sum().backward()
    assert made.delta.grad is not None
    assert not made.delta.grad[0].any()
    head, c, sums = 1, 3, []
    for step in (1e-5, -1e-5):
        delta = made.delta[1, head].tolist()
        delta[c] += step
        scores = [
            [
                pope(vectors(3)[0, head, a].tolist(), vectors(3, 1)[0, head, b].tolist(), i, j, delta)
                for b, j in enumerate(pos.tolist())
            ]
            for a, i in enumerate(pos.tolist())
        ]
        sums.append((torch.tensor(scores, dtype=torch.float64) * weights[head]).sum().item())
    assert made.delta.grad[1, head, c].item() == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-4)


@torch.no_grad()
def test_bf16_rounds_once() -> None:
    made, pos = built(), torch.tensor([0, 256, 257, 65_535])
    x = vectors(4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = made.rotate(x, x, pos, pos, 0)
    exact = made.rotate(x.float(), x.float(), pos, pos, 0)
    for rounded, wide in zip(got, exact, strict=True):
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(rounded, wide.bfloat16())


def test_large_numbers_neither_overflow_nor_vanish() -> None:
    made, pos = built(), torch.tensor([1])
    q, k = made.rotate(
        torch.full((1, HEADS, 1, WIDTH), 1e4), torch.full((1, HEADS, 1, WIDTH), -1e4), pos, pos, 0
    )
    assert q.isfinite().all() and k.isfinite().all()
    assert q.square().sum().item() == pytest.approx(HEADS * WIDTH * 1e8, rel=1e-5) and not k.any()


def test_an_odd_head_width_serves() -> None:
    shape = Shape(10, 2, 5, 1, 8)
    q, _ = PoPE(shape, base=10000.0).rotate(
        torch.randn(1, 2, 3, 5), torch.randn(1, 2, 3, 5), *[torch.arange(3)] * 2, 0
    )
    assert q.shape == (1, 2, 3, 10)


@pytest.mark.parametrize("base", [1.0, -2.0, math.nan, math.inf])
def test_base_out_of_range(base: float) -> None:
    with pytest.raises(UserError, match="base"):
        encoding("pope", base=base)


def test_declares() -> None:
    made = encoding("pope", layers=3)
    assert made.relative and made.prefix_stable and not made.decouples and not made.decayed
    assert {name: tuple(p.shape) for name, p in made.named_parameters()} == {"delta": (3, HEADS, WIDTH)}
