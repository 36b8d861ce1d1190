import math
from typing import Any

import formulas
import pytest
import torch
from formulas_bias import sandwich, started

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding

DISTANCES = [0, 1, 2, 3, 63, 255, 256, 257, 8191, 65536]


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
@pytest.mark.parametrize("params", [{}, {"width": 2}, {"width": 30, "base": 500.0}])
def test_formula(heads: int, params: dict[str, Any]) -> None:
    bias = started("sandwich", heads, **params).distance_bias(torch.tensor(DISTANCES), 0)
    assert bias.shape == (heads, len(DISTANCES)) and bias.dtype == torch.float32
    for h in range(heads):
        for column, r in enumerate(DISTANCES):
            want = sandwich(r, h + 1, heads, **params)
            assert bias[h, column].item() == pytest.approx(want, rel=3e-7, abs=1e-6 * heads)


def test_is_the_inner_product_of_two_sinusoidal_positions() -> None:
    bias = started("sandwich", 8).distance_bias(torch.arange(2001), 0)
    for i, j in ((0, 0), (7, 2), (2000, 0), (2000, 1999), (1500, 33)):
        one, other = formulas.sinusoid(i, 128, 10000.0), formulas.sinusoid(j, 128, 10000.0)
        product = math.fsum(a * b for a, b in zip(one, other, strict=True))
        for h in range(8):
            assert bias[h, i - j].item() == pytest.approx(product / (h + 1), rel=1e-6)  # H / 8h = 1 / h


def test_the_matrix_is_causal_distance_on_any_positions() -> None:
    pos = torch.tensor([0, 3, 4, 90, 1023])
    bias = started("sandwich", 4).bias(pos[-3:], pos, 0)
    for h in range(4):
        for t, i in enumerate(pos[-3:].tolist()):
            for s, j in enumerate(pos.tolist()):
                assert bias[h, t, s].item() == pytest.approx(sandwich(max(i - j, 0), h + 1, 4), rel=1e-5)


def test_its_own_token_counts_most_and_the_first_head_is_the_steepest() -> None:
    bias = started("sandwich", 4).distance_bias(torch.arange(5000), 0)
    assert bias[:, 0].tolist() == pytest.approx([64 * 4 / (8 * h) for h in (1, 2, 3, 4)])
    assert (bias[:, 1:] < bias[:, :1]).all()
    fall = bias[:, 0] - bias[:, 100]
    assert (fall > 0).all() and (fall.diff() < 0).all()


def test_falls_on_the_whole_but_ripples() -> None:
    encoding = started("sandwich", 1)
    bias = encoding.distance_bias(torch.arange(4096), 0)[0]
    rises = (bias.diff() > 0).sum().item()
    assert rises > 100 and not encoding.penalty
    octaves = torch.stack([bias[2**n : 2 ** (n + 1)].mean() for n in range(12)])
    assert (octaves.diff() < 0).all()
    # as the logarithm: each doubling costs about as much, 64 log 2 / log 10000 = 4.8 frequencies, eighths
    assert (-octaves.diff()[2:]).tolist() == pytest.approx([4.816 / 8] * 9, rel=0.35)


def test_the_width_is_not_the_models() -> None:
    r = torch.arange(500)
    sizes: dict[str, Any] = {"n_heads": 4, "n_layers": 1, "train_length": 8}

    def built(head_dim: int) -> Encoding:
        return build_encoding("sandwich", d_model=4 * head_dim, head_dim=head_dim, **sizes)

    assert torch.equal(built(8).distance_bias(r, 0), built(64).distance_bias(r, 0))
    assert not torch.equal(started("sandwich", width=64).distance_bias(r, 0), built(8).distance_bias(r, 0))


def test_without_half_the_width_attention_is_the_same() -> None:
    """Some subtract it, so that the own token has no bias."""
    bias = started("sandwich", 4).distance_bias(torch.arange(50), 0)
    other = bias - torch.tensor([[64 * 4 / (8 * h)] for h in (1, 2, 3, 4)])
    assert (other[:, 0] == 0).all()
    assert torch.allclose(bias.softmax(-1), other.softmax(-1), atol=1e-6)


def test_numbers_are_float32_in_bf16_and_nothing_is_learned() -> None:
    encoding, pos = started("sandwich", 4), torch.arange(8192)
    want = encoding.bias(pos[-1:], pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.bfloat16().bias(pos[-1:], pos, 0), want)
    assert list(encoding.parameters()) == [] and encoding.state_dict() == {}


@pytest.mark.parametrize(
    "params", [{"width": 0}, {"width": 7}, {"width": -2}, {"base": 1.0}, {"base": math.inf}, {"width": "d"}]
)
def test_values_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        started("sandwich", **params)
