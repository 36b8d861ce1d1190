from functools import partial

import pytest
import torch
from formulas_content import HEADS, LAYERS, TOKENS, Example, Formula, apart, stick_breaking
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.options import build_options
from posenc.encodings.stick_breaking import StickBreaking
from posenc.model import kernels

remainders = pytest.mark.parametrize("remainder", ["none", "self"])


def built(remainder: str = "none") -> StickBreaking:
    encoding = Example().encoding("stick_breaking", remainder=remainder)
    assert isinstance(encoding, StickBreaking)
    return encoding


def formulas(heads: int, remainder: str) -> list[Formula]:
    return [partial(stick_breaking, remainder=remainder)] * heads


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


@remainders
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(
    "heads, reach, wanted", [(HEADS, TOKENS, TOKENS), (1, 5, TOKENS), (2, TOKENS, 3), (2, 1, TOKENS)]
)
@torch.no_grad()
def test_formula(remainder: str, layer: int, heads: int, reach: int, wanted: int) -> None:
    example = Example(heads=heads)
    encoding = example.encoding("stick_breaking", remainder=remainder)
    got = example.weights(encoding, layer, reach=reach, wanted=wanted)
    assert apart(got, example.formula(formulas(heads, remainder), reach, wanted)) < 1e-6
    sums = got.sum(-1)
    if remainder == "self":
        assert apart(sums, torch.ones_like(sums)) < 1e-6
    else:
        assert (sums <= 1 + 1e-6).all()
        assert (got.diagonal(TOKENS - wanted, -2, -1) == 0).all()  # its own token


@remainders
@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 4])
@torch.no_grad()
def test_blocks_of_queries(remainder: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example, encoding = Example(), built(remainder)
    whole = example.weights(encoding, 0)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.weights(encoding, 0), whole) < 1e-6


@remainders
def test_gradients(remainder: str) -> None:
    example = Example()
    s = torch.einsum("hid,hjd->hij", example.q, example.k).float()[None] / 8**0.5
    s.requires_grad_()
    (built(remainder).weights(s, causal(TOKENS), 0)[0] * example.loss).sum().backward()
    assert s.grad is not None
    # moved along a query, so that every score of its row moves
    want = example.numeric_gradient(lambda: formulas(HEADS, remainder), example.q, (1, 9, 4))
    got = (s.grad[0, 1, 9].double() @ example.k[1, :, 4]) / 8**0.5
    assert got.item() == pytest.approx(want, rel=1e-3)


@torch.no_grad()
def test_shares_of_one_half() -> None:
    weights = built().weights(torch.zeros(1, 1, 5, 5), causal(5), 0)[0, 0]
    assert weights[4].tolist() == pytest.approx([1 / 16, 1 / 8, 1 / 4, 1 / 2, 0])
    assert weights[0].tolist() == [0] * 5
    rest = built("self").weights(torch.zeros(1, 1, 5, 5), causal(5), 0)[0, 0]
    assert rest[4, 4].item() == pytest.approx(1 / 16)
    assert rest[0].tolist() == [1, 0, 0, 0, 0]  # no key at all


@remainders
@pytest.mark.parametrize("garbage", [1e4, -1e4, 1e30])
def test_nothing_comes_from_what_is_not_seen(remainder: str, garbage: float) -> None:
    allowed = causal(6) & ~causal(6).tril(-3)  # a window of 3
    s = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    dirty = s.masked_fill(~allowed, garbage).requires_grad_()
    weights = built(remainder).weights(dirty, allowed, 0)
    assert torch.equal(weights, built(remainder).weights(s, allowed, 0))
    weights.square().sum().backward()
    assert dirty.grad is not None and dirty.grad.isfinite().all()
    assert not dirty.grad[:, :, ~allowed].any()


@remainders
def test_large_scores(remainder: str) -> None:
    for scale in (-200.0, 200.0):
        s = torch.full((1, 1, 4, 4), scale, requires_grad=True)
        weights = built(remainder).weights(s, causal(4), 0)
        weights.sum().backward()
        assert s.grad is not None and s.grad.isfinite().all()
        nearest = 1.0 if scale > 0 else 0.0
        assert weights[0, 0, 3, 2].item() == nearest
        if remainder == "self":
            assert weights[0, 0, 3, 3].item() == 1 - nearest


@torch.no_grad()
def test_the_nearest_of_65536_keys_are_exact() -> None:
    far = 1 << 16
    weights = built().weights(torch.zeros(1, 1, 1, far), torch.ones(1, far, dtype=torch.bool), 0)[0, 0, 0]
    want = 0.5 ** torch.arange(1, 21)
    # log weights as the total less a cumsum would be off by 4e-3
    assert (weights[-21:-1].flip(0) / want - 1).abs().max() < 1e-5


def test_a_scale_is_refused_and_a_window_is_not() -> None:
    encoding = built()
    with pytest.raises(UserError, match="stick_breaking"):
        build_options(encoding.shape, encoding, positions={"name": "contiguous"}, window=None, scale="logn")
    build_options(encoding.shape, encoding, positions={"name": "contiguous"}, window=4, scale="none")


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="remainder"):
        Example().encoding("stick_breaking", remainder="first")
