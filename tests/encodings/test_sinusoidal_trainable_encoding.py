import math

import formulas
import formulas_absolute
import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding

POSITIONS = [0, 1, 2, 63, 64, 255, 256, 257, 4096, 65535, 65536]


def trainable(width: int = 16, *, moved: bool = False, **params: object) -> Encoding:
    """At its start, or with frequencies and phases all over the place."""
    made = build_encoding(
        "sinusoidal_trainable",
        d_model=width,
        n_heads=1,
        head_dim=width,
        n_layers=2,
        train_length=8,
        **params,
    )
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            made.initialize(name, parameter, generator_for(0, name))
            if moved:
                parameter += torch.randn(parameter.shape, generator=generator_for(1, name))
    return made


def rows(made: Encoding, positions: list[int], layer: int = 0) -> Tensor:
    nothing = torch.zeros(1, len(positions), made.shape.d_model)
    return made.embed(nothing, torch.tensor(positions), layer)[0]


@pytest.mark.parametrize("width", [2, 16, 128])
def test_formula(width: int) -> None:
    made = trainable(width, moved=True)
    x = torch.randn(2, len(POSITIONS), width, generator=torch.Generator().manual_seed(1))
    frequencies = made.get_parameter("frequency")[0].tolist()
    phases = made.get_parameter("phase")[0].tolist()
    table = [formulas_absolute.turning(t, frequencies, phases) for t in POSITIONS]
    want = torch.tensor(table, dtype=torch.float64)
    assert (rows(made, POSITIONS).double() - want).abs().max() < 1e-7  # even at 65536
    got, whole = made.embed(x, torch.tensor(POSITIONS), 0), x.double() * math.sqrt(width) + want
    assert ((got.double() - whole).abs() / whole.abs().clamp_min(1)).max() < 5e-7


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_starts_as_sinusoidal(base: float) -> None:
    made = trainable(128, base=base, per_layer=True)
    want = torch.tensor([formulas.sinusoid(t, 128, base) for t in POSITIONS], dtype=torch.float64)
    # A frequency below 1 is stored with an error of at most 2^-25.
    allowed = 1e-7 + torch.tensor(POSITIONS).double()[:, None] * 2.0**-25
    for layer in (0, 1):
        assert ((rows(made, POSITIONS, layer).double() - want).abs() <= allowed).all()
    assert (made.get_parameter("frequency")[:, 0] == 1).all()  # pairs from the fastest on
    assert rows(made, [0])[0].tolist() == [0, 1] * 64


def test_starts_as_the_encoding_sinusoidal_does() -> None:
    fixed = build_encoding("sinusoidal", d_model=16, n_heads=1, head_dim=16, n_layers=2, train_length=8)
    x, pos = torch.randn(2, 64, 16), torch.arange(64)
    assert (trainable().embed(x, pos, 0) - fixed.embed(x, pos, 0)).abs().max() < 3e-6


def test_a_phase_shifts_and_a_frequency_turns() -> None:
    made = trainable(2)
    with torch.no_grad():
        made.get_parameter("frequency").fill_(math.pi / 2)
        made.get_parameter("phase").fill_(math.pi)
    want = torch.tensor([[0, -1], [-1, 0], [0, 1], [1, 0], [0, -1]])
    assert (rows(made, [0, 1, 2, 3, 4]).detach() - want).abs().max() < 1e-6


def test_gradients_are_those_of_the_formula() -> None:
    made, positions = trainable(4, moved=True), [0, 3, 1000]
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    (rows(made, positions) * weight).sum().backward()
    for name, inner in (("frequency", lambda t: t), ("phase", lambda t: 1)):
        for k in range(2):
            w = made.get_parameter("frequency")[0, k].item()
            f = made.get_parameter("phase")[0, k].item()
            want = sum(
                inner(t)
                * (
                    weight[n, 2 * k].item() * math.cos(w * t + f)
                    - weight[n, 2 * k + 1].item() * math.sin(w * t + f)
                )
                for n, t in enumerate(positions)
            )
            gradient = made.get_parameter(name).grad
            assert gradient is not None
            assert gradient[0, k].item() == pytest.approx(want, rel=1e-5)


def test_neighbours_far_out_stay_apart_under_autocast() -> None:
    made = trainable(64)
    exact = rows(made, [65535, 65536])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rows(made, [65535, 65536]), exact)
    assert (exact[0] - exact[1]).abs().max() > 0.3


def test_places_have_frequencies_of_their_own() -> None:
    made = trainable(per_layer=True, moved=True)
    assert made.get_parameter("frequency").shape == made.get_parameter("phase").shape == (2, 8)
    assert not torch.equal(rows(made, [5]), rows(made, [5], layer=1))


def test_odd_width_and_base_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="d_model=5: must be even"):
        trainable(5)
    with pytest.raises(UserError, match=r"base=1\.0: must be"):
        trainable(base=1.0)
