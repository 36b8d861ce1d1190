from collections.abc import Callable
from typing import Any

import pytest
import torch
from formulas_bias import kerple_log, kerple_power, sigmoid, softplus, spread, started
from torch import Tensor

from posenc.encodings.families.bias import (
    KERPLE_FLOOR,
    NEAREST,
    Kerple,
    above,
    between,
    raw_above,
    raw_between,
)
from posenc.laws.precision import Float64

both = pytest.mark.parametrize("name", ["kerple_log", "kerple_power"])
DISTANCES = [0, 1, 2, 3, 63, 255, 256, 257, 8191, 65536]
MOST = {
    ("kerple_log", "a"): 2.0,
    ("kerple_log", "b"): 1.0,
    ("kerple_power", "a"): 1.0,
    ("kerple_power", "b"): 2.0,
}


def kerple(name: str, **sizes: Any) -> Kerple:
    encoding = started(name, **sizes)
    assert isinstance(encoding, Kerple)
    return encoding


def formula(name: str) -> Callable[[int, float, float], float]:
    """Of the distance and a head's two raw numbers."""
    if name == "kerple_log":
        return lambda r, a, b: kerple_log(r, 0.01 + softplus(a), 0.01 + softplus(b))
    return lambda r, a, b: kerple_power(r, 0.01 + softplus(a), 0.01 + 1.99 * sigmoid(b))


def values(encoding: Kerple) -> dict[str, Tensor]:
    """a and b as the formula takes them."""
    power = encoding.name == "kerple_power"
    b = between(encoding.b, KERPLE_FLOOR, 2.0) if power else above(encoding.b, KERPLE_FLOOR)
    return {"a": above(encoding.a, KERPLE_FLOOR).detach(), "b": b.detach()}


@both
@pytest.mark.parametrize("heads", [1, 4, 6])
@pytest.mark.parametrize("size", [None, 1.0, 4.0])  # None: as it starts
def test_formula(name: str, heads: int, size: float | None) -> None:
    encoding = kerple(name, heads=heads)
    if size is not None:
        spread(encoding, size)
    bias = encoding.distance_bias(torch.tensor(DISTANCES), 0)
    assert bias.shape == (heads, len(DISTANCES)) and bias.dtype == torch.float32
    for h in range(heads):
        for column, r in enumerate(DISTANCES):
            want = formula(name)(r, encoding.a[h].item(), encoding.b[h].item())
            # the exponent is float32's: 6e-8 of it are 1e-6 of a power of 65536
            assert bias[h, column].item() == pytest.approx(want, rel=3e-6, abs=1e-7)


@both
def test_the_matrix_is_causal_distance_on_any_positions(name: str) -> None:
    encoding = kerple(name)
    pos = torch.tensor([0, 3, 4, 90, 1023])
    bias = encoding.bias(pos[-3:], pos, 1)  # (H, T, S)
    for h in range(4):
        for t, i in enumerate(pos[-3:].tolist()):
            for s, j in enumerate(pos.tolist()):
                r = max(i - j, 0)
                want = formula(name)(r, encoding.a[h].item(), encoding.b[h].item())
                assert bias[h, t, s].item() == pytest.approx(want, rel=3e-6, abs=1e-7)


def test_an_exponent_of_one_is_alibi() -> None:
    encoding = kerple("kerple_power")
    slopes = torch.tensor([1.0, 0.5, 0.25, 0.0625])
    with torch.no_grad():
        encoding.a.copy_(raw_above(slopes, KERPLE_FLOOR))
        encoding.b.copy_(raw_between(torch.ones(4), KERPLE_FLOOR, 2.0))
    r = torch.arange(300)
    assert torch.allclose(encoding.distance_bias(r, 0), -slopes[:, None] * r, rtol=3e-6)


@both
@pytest.mark.parametrize("size", [-200.0, -5.0, 0.0, 5.0, 80.0])
def test_a_penalty_whatever_training_does(name: str, size: float) -> None:
    encoding = kerple(name)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.fill_(size)
    found = values(encoding)
    assert (found["a"] >= 0.01).all() and (found["b"] >= 0.01).all()
    if name == "kerple_power":
        assert (found["b"] <= 2).all()
    bias = encoding.distance_bias(torch.tensor(DISTANCES), 0)
    assert bias.isfinite().all() and (bias.diff(dim=-1) < 0).all()
    bias.sum().backward()
    for parameter in encoding.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()


def test_extremes_are_the_ends_of_the_ranges() -> None:
    low, high = torch.tensor([-200.0]), torch.tensor([200.0])
    assert above(low, KERPLE_FLOOR).item() == pytest.approx(0.01)
    assert above(high, KERPLE_FLOOR).item() == pytest.approx(200.01)
    assert between(low, KERPLE_FLOOR, 2.0).item() == pytest.approx(0.01)
    assert between(high, KERPLE_FLOOR, 2.0).item() == 2.0


@both
def test_parameters_leave_the_floor_again(name: str) -> None:
    """Of a clamped one the gradient is 0 there."""
    encoding = kerple(name)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.fill_(-5)
    assert all((value < 0.03).all() for value in values(encoding).values())
    (-encoding.distance_bias(torch.arange(64), 0).sum()).backward()
    for parameter in encoding.parameters():
        assert parameter.grad is not None and (parameter.grad > 0).all()


@both
def test_the_own_token_has_no_penalty_and_finite_gradients(name: str) -> None:
    encoding = kerple(name)
    with torch.autograd.set_detect_anomaly(True):
        bias = encoding.distance_bias(torch.zeros(3, dtype=torch.int64), 0)
        bias.sum().backward()
    assert (bias == 0).all()
    for parameter in encoding.parameters():
        assert parameter.grad is not None and (parameter.grad == 0).all()


@both
def test_gradients(name: str) -> None:
    weights = [0.3, -1.2, 0.7, 0.1, 0.02, 1e-3, -2e-3, 3e-3, 1e-4, 1e-6]  # of each distance in a loss
    with Float64():
        encoding = kerple(name).double()
        bias = encoding.distance_bias(torch.tensor(DISTANCES), 0)
        (bias * torch.tensor(weights)).sum().backward()

    def loss(a: float, b: float) -> float:
        return sum(w * formula(name)(r, a, b) for w, r in zip(weights, DISTANCES, strict=True))

    assert encoding.a.grad is not None and encoding.b.grad is not None
    step = 1e-6
    for h in range(4):
        a, b = encoding.a[h].item(), encoding.b[h].item()
        by_a = (loss(a + step, b) - loss(a - step, b)) / (2 * step)
        by_b = (loss(a, b + step) - loss(a, b - step)) / (2 * step)
        assert encoding.a.grad[h].item() == pytest.approx(by_a, rel=1e-6)
        assert encoding.b.grad[h].item() == pytest.approx(by_b, rel=1e-6)


@both
@pytest.mark.parametrize("parameter", ["a", "b"])
def test_start(name: str, parameter: str) -> None:
    """Uniform between 0 and its maximum; what would start below the floor starts just above it."""
    most = MOST[name, parameter]
    found = values(kerple(name, heads=4000))[parameter].sort().values
    assert found.min() >= 0.01 and found.max() <= most
    want = torch.linspace(0, most, 4000)
    assert (found - want).abs().max() < 0.03 * most  # Kolmogorov and Smirnov: 0.026 in 1 of 100 seeds
    nearest = KERPLE_FLOOR + NEAREST * (1.99 if (name, parameter) == ("kerple_power", "b") else 1)
    share = (found < nearest * 1.0001).float().mean().item()  # those drawn below it
    assert share == pytest.approx(nearest / most, abs=0.006) and share > 0


def test_raw_numbers_give_their_values_back() -> None:
    value = torch.tensor([0.011, 0.02, 0.1, 0.7, 1.0, 1.9, 30.0, 512.0, 1e5], dtype=torch.float64)
    with Float64():
        assert torch.allclose(above(raw_above(value, KERPLE_FLOOR), KERPLE_FLOOR), value, rtol=1e-12)
        inside = value[1:6]
        assert torch.allclose(between(raw_between(inside, KERPLE_FLOOR, 2.0), KERPLE_FLOOR, 2.0), inside, rtol=1e-12)
    for outside in (torch.tensor([-3.0]), torch.tensor([0.0]), torch.tensor([0.01])):
        assert above(raw_above(outside, KERPLE_FLOOR), KERPLE_FLOOR).item() == pytest.approx(0.011, rel=1e-5)
        assert between(raw_between(outside, KERPLE_FLOOR, 2.0), KERPLE_FLOOR, 2.0).item() == pytest.approx(
            0.01199, rel=1e-4
        )
    assert between(raw_between(torch.tensor([9.0]), KERPLE_FLOOR, 2.0), KERPLE_FLOOR, 2.0).item() < 2


@both
def test_layers_share_two_numbers_a_head_that_are_not_decayed(name: str) -> None:
    encoding, r = kerple(name, heads=6, layers=3), torch.arange(9)
    assert {key: p.numel() for key, p in encoding.named_parameters()} == {"a": 6, "b": 6}
    assert torch.equal(encoding.distance_bias(r, 0), encoding.distance_bias(r, 2))
    assert not encoding.decayed
    assert set(encoding.state_dict()) == {"a", "b"}


@both
def test_far_keys_stay_distinct_in_bf16(name: str) -> None:
    encoding, pos = kerple(name), torch.arange(8192)
    want = encoding.bias(pos[-1:], pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.bias(pos[-1:], pos, 0), want)
        assert torch.equal(encoding.bfloat16().distance_bias(pos, 0).diff() < 0, torch.ones(4, 8191).bool())
