import math
from functools import partial
from typing import Any

import formulas as rotary
import pytest
import torch
from formulas_content import HEADS, TOKENS, WIDTH, Example, Formula, Text, apart, scale_invariant

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.families.rotary import Rotary
from posenc.encodings.options import build_options
from posenc.encodings.rope import RoPE
from posenc.encodings.scale_invariant import ScaleInvariant
from posenc.model import kernels


def formula(text: Text, i: int, pos: list[int], tau: float, **rotation: Any) -> list[float]:
    def turned(vectors: list[list[float]]) -> list[list[float]]:
        if not rotation["fraction"]:
            return vectors
        return [rotary.rope(x, t, drop_low=0.0, **rotation) for x, t in zip(vectors, pos, strict=True)]

    return scale_invariant(Text(turned(text.q), turned(text.k), text.x, text.reach), i, tau, pos)


def formulas(pos: list[int], heads: int = HEADS, **params: Any) -> list[Formula]:
    chosen = {"tau": 10.0, "base": 1024.0, "fraction": 0.5, "layout": "interleaved", **params}
    return [partial(formula, pos=pos, **chosen)] * heads


@pytest.mark.parametrize(
    "params",
    [{}, {"tau": 0.5, "layout": "half"}, {"fraction": 0}, {"fraction": 1.0, "base": 10000.0, "tau": 100.0}],
)
@pytest.mark.parametrize("heads, reach, wanted", [(HEADS, TOKENS, TOKENS), (1, 5, TOKENS), (2, TOKENS, 3)])
@torch.no_grad()
def test_formula(params: dict[str, object], heads: int, reach: int, wanted: int) -> None:
    example = Example(heads=heads)
    encoding = example.encoding("scale_invariant", **params)
    got = example.weights(encoding, 1, reach=reach, wanted=wanted)
    want = example.formula(formulas(example.pos.tolist(), heads, **params), reach, wanted)
    assert apart(got, want) < 2e-6


@torch.no_grad()
def test_distances_are_those_of_the_positions() -> None:
    example = Example()
    chosen = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:TOKENS].sort().values
    example.pos = chosen
    encoding = example.encoding("scale_invariant")
    got = example.weights(encoding, 0)
    assert apart(got, example.formula(formulas(chosen.tolist()))) < 5e-6
    example.pos = chosen + 500
    assert apart(example.weights(encoding, 0), got) < 5e-6


@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 4])
@torch.no_grad()
def test_blocks_of_queries(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = example.encoding("scale_invariant")
    whole = example.weights(encoding, 1)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.weights(encoding, 1), whole) < 1e-6


def changed(encoding: Encoding, z: float, r: int) -> float:
    s = torch.full((1, 1, 1, 1), z)
    return encoding.scores(s, s, s, torch.tensor([r + 7]), torch.tensor([7]), None, 0).item()


def test_near_scores_are_left_and_far_ones_lowered() -> None:
    encoding = Example().encoding("scale_invariant")
    assert changed(encoding, 1.25, 0) == 1.25  # a_0 = 1, m_0 = 0
    assert changed(encoding, 0.0, 10) == pytest.approx(-2 * math.log(2))
    assert changed(encoding, 1.0, 10) == pytest.approx(math.sqrt(2 * math.log(2) + 1) - 2 * math.log(2))
    assert changed(encoding, 0.0, 65536) == pytest.approx(-2 * math.log(6554.6))


def test_each_decade_weighs_the_same() -> None:
    """For Gaussian z, E exp(a z + m) = exp(m + a^2/2) is e^(1/2) / (r/tau + 1)."""
    encoding = Example().encoding("scale_invariant")
    r = torch.arange(100_000)
    s = torch.zeros(1, 1, 1, len(r))
    m = encoding.scores(s, s, s, r[-1:], r[-1] - r, None, 0)[0, 0, 0].double()
    expected = (m + (1 - m) / 2).exp()
    assert apart(expected, math.exp(0.5) / (r / 10 + 1)) < 1e-5
    near, far = expected[1000:10_000].sum(), expected[10_000:100_000].sum()
    assert far / near == pytest.approx(1, rel=0.01)


def test_the_future_stays_finite() -> None:
    encoding = Example().encoding("scale_invariant")
    pos = torch.arange(30)  # r = -29 < -tau: log1p of it would be nan
    s = torch.full((1, 1, 30, 30), 1e4, requires_grad=True)
    scores = encoding.scores(s, s, s, pos, pos, None, 0)
    scores.sum().backward()
    assert scores.isfinite().all() and s.grad is not None and s.grad.isfinite().all()


def test_the_rotation_is_p_rope_with_half_of_the_pairs_still() -> None:
    encoding = Example().encoding("scale_invariant")
    assert isinstance(encoding, ScaleInvariant) and isinstance(encoding, Rotary)
    whole = Example().encoding("rope", base=1024.0**2, drop_low=0.5)
    assert isinstance(whole, RoPE)
    theta = whole.frequencies()
    assert apart(encoding.frequencies(), theta[: WIDTH // 4]) < 1e-12
    assert not theta[WIDTH // 4 :].any()


def test_a_sum_may_bring_another_rotation() -> None:
    example = Example()
    parts: list[object] = [{"name": "scale_invariant", "fraction": 0}, {"name": "rope", "fraction": 1.0}]
    summed = example.encoding("sum", parts=parts)
    alone = example.encoding("scale_invariant", fraction=1, base=10000.0)
    assert torch.equal(example.weights(summed, 0), example.weights(alone, 0))
    assert "rotate" not in example.encoding("scale_invariant", fraction=0).hooks
    with pytest.raises(UserError, match="rotate"):
        example.encoding("sum", parts=["scale_invariant", "rope"])


def test_a_scale_is_refused() -> None:
    encoding = Example().encoding("scale_invariant")
    with pytest.raises(UserError, match="scale_invariant"):
        build_options(encoding.shape, encoding, positions={"name": "contiguous"}, window=None, scale="ssmax")


@pytest.mark.parametrize(
    "params",
    [
        {"tau": 0.0},
        {"tau": 1e-40},
        {"tau": math.inf},
        {"fraction": -0.1},
        {"fraction": 0.02},
        {"fraction": 1.5},
        {"base": 1.0},
        {"layout": "other"},
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        Example().encoding("scale_invariant", **params)
