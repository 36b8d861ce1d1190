import math

import formulas
import pytest
import torch

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding
from posenc.encodings.sinusoidal import sinusoids

POSITIONS = [0, 1, 2, 63, 64, 255, 256, 257, 4096, 65535, 65536]


def sinusoidal(d_model: int = 16, **params: object) -> Encoding:
    return build_encoding(
        "sinusoidal", d_model=d_model, n_heads=2, head_dim=d_model // 2, n_layers=1, train_length=8, **params
    )


@pytest.mark.parametrize("width", [2, 16, 128])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_formula(width: int, base: float) -> None:
    x = torch.randn(2, len(POSITIONS), width, generator=torch.Generator().manual_seed(1))
    got = sinusoidal(width, base=base).embed(x, torch.tensor(POSITIONS), 0)
    rows = torch.tensor([formulas.sinusoid(t, width, base) for t in POSITIONS], dtype=torch.float64)
    want = x.double() * math.sqrt(width) + rows
    assert ((got.double() - want).abs() / want.abs().clamp_min(1)).max() < 5e-7
    table = sinusoids(torch.tensor(POSITIONS), width, base)
    assert table.dtype == torch.float32
    assert (table.double() - rows).abs().max() < 1e-7  # even at 65536


def test_position_zero_is_zero_one_zero_one() -> None:
    assert sinusoids(torch.tensor([0]), 8, 10000.0)[0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_wavelengths_run_from_two_pi_to_the_base() -> None:
    width, base = 8, 10000.0
    longest = 2 * math.pi * base ** ((width - 2) / width)  # 6283.19 tokens
    quarters = torch.tensor([round(longest * quarter / 4) for quarter in range(5)])
    slowest = sinusoids(quarters, width, base)[:, width - 2]
    assert slowest.tolist() == pytest.approx([0, 1, 0, -1, 0], abs=1e-3)
    fastest = sinusoids(torch.tensor([0, 22, 44]), width, base)[:, 0]  # 44 tokens are 7 turns
    assert fastest.tolist() == pytest.approx([0, 0, 0], abs=0.02)


def test_added_to_the_input_alone() -> None:
    x = torch.randn(1, 4, 16)
    assert sinusoidal().embed(x, torch.arange(4), 1) is x
    assert not torch.equal(sinusoidal().embed(x, torch.arange(4), 0), x)


def test_the_stream_is_scaled_at_the_input_alone() -> None:
    made, nothing = sinusoidal(per_layer=True), torch.zeros(1, 4, 16)
    x, pos = torch.randn(1, 4, 16), torch.arange(4)
    rows = made.embed(nothing, pos, 1)
    assert torch.equal(made.embed(nothing, pos, 0), rows)
    assert torch.equal(made.embed(x, pos, 0), 4 * x + rows)
    assert torch.equal(made.embed(x, pos, 1), x + rows)


def test_nothing_is_learned_unless_it_is_concatenated() -> None:
    assert not list(sinusoidal(per_layer=True).parameters())
    assert [name for name, _ in sinusoidal(combine="concat").named_parameters()] == ["joined"]


def test_positions_survive_bf16_inputs() -> None:
    added = sinusoidal().embed(torch.zeros(1, 2, 16, dtype=torch.bfloat16), torch.tensor([256, 257]), 0)
    assert added.dtype == torch.bfloat16
    assert (added[0, 0] - added[0, 1]).abs().max() > 0.3


def test_odd_width() -> None:
    table = sinusoids(torch.tensor([3]), 5, 10000.0)[0].tolist()
    assert table == pytest.approx(formulas.sinusoid(3, 5, 10000.0), abs=1e-7)


@pytest.mark.parametrize("base", [1.0, 0.0, math.nan, math.inf])
def test_base_out_of_range_is_refused(base: float) -> None:
    with pytest.raises(UserError, match="base"):
        sinusoidal(base=base)
