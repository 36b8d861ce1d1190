import math
from typing import Any

import pytest
import torch
from formulas_bias import Network, largest, network, spread, started

from posenc.core.errors import UserError
from posenc.encodings.dynamic_bias import DynamicBias
from posenc.laws.precision import Float64

DISTANCES = [0, 1, 2, 3, 63, 64, 255, 256, 257, 8191, 65536]


def dynamic(filled: bool = True, **params: Any) -> DynamicBias:
    encoding = started("dynamic_bias", **params)
    assert isinstance(encoding, DynamicBias)
    if filled:
        spread(encoding, 0.5)
    return encoding


def plain(encoding: DynamicBias) -> Network:
    return network(encoding.w1, encoding.b1, encoding.w2, encoding.b2, encoding.w3, encoding.b3)


def entry(r: int, log_distance: bool, train_length: int) -> float:
    return math.log(1 + r) if log_distance else r / train_length


@pytest.mark.parametrize("log_distance", [True, False])
@pytest.mark.parametrize("heads, hidden, train_length", [(4, 32, 64), (1, 1, 64), (6, 5, 100)])
def test_formula(log_distance: bool, heads: int, hidden: int, train_length: int) -> None:
    encoding = dynamic(heads=heads, hidden=hidden, log_distance=log_distance, train_length=train_length)
    bias = encoding.distance_bias(torch.tensor(DISTANCES), 0)
    assert bias.shape == (heads, len(DISTANCES)) and bias.dtype == torch.float32
    rows = [plain(encoding)(entry(r, log_distance, train_length)) for r in DISTANCES]
    want = torch.tensor(rows, dtype=torch.float64).T
    assert ((bias.double() - want).abs() <= 1e-7 * (1 + want.abs())).all()  # float32's last digit


def test_the_matrix_is_causal_distance_on_any_positions() -> None:
    encoding = dynamic()
    pos = torch.tensor([0, 3, 4, 90, 1023])
    bias = encoding.bias(pos[-3:], pos, 1)
    for t, i in enumerate(pos[-3:].tolist()):
        for s, j in enumerate(pos.tolist()):
            want = plain(encoding)(math.log(1 + max(i - j, 0)))
            assert bias[:, t, s].tolist() == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_gradients() -> None:
    r = torch.tensor(DISTANCES)
    with Float64():
        encoding = dynamic(hidden=5).double()
        loss = torch.linspace(-1, 1, 4 * len(r)).view(4, -1)
        (encoding.distance_bias(r, 0) * loss).sum().backward()

    def total() -> float:
        rows = [plain(encoding)(math.log(1 + n)) for n in DISTANCES]
        return (torch.tensor(rows, dtype=torch.float64).T * loss).sum().item()

    for parameter in encoding.parameters():
        assert parameter.grad is not None
        flat, step = parameter.data.view(-1), 1e-6
        for n in range(len(flat)):
            kept = flat[n].item()
            flat[n] = kept + step
            up = total()
            flat[n] = kept - step
            down = total()
            flat[n] = kept
            want = (up - down) / (2 * step)
            assert parameter.grad.view(-1)[n].item() == pytest.approx(want, rel=1e-6, abs=1e-7)


def test_training_starts_without_a_bias_and_learns_from_there() -> None:
    encoding, r = dynamic(filled=False), torch.arange(64)
    optimiser = torch.optim.SGD(encoding.parameters(), lr=1e-2)
    bias = encoding.distance_bias(r, 0)
    assert (bias == 0).all()
    for _ in range(2):  # the first step reaches the last layer alone
        optimiser.zero_grad()
        ((encoding.distance_bias(r, 0) - r / 64) ** 2).mean().backward()
        optimiser.step()
    assert (encoding.distance_bias(r, 0).std(dim=-1) > 0).all()
    for parameter in encoding.parameters():
        assert parameter.grad is not None and parameter.grad.any()


def test_start() -> None:
    encoding = dynamic(filled=False, hidden=500)
    for parameter, std in ((encoding.w1, 1.0), (encoding.b1, 1.0), (encoding.w2, (2 / 500) ** 0.5)):
        assert parameter.std().item() == pytest.approx(std, rel=0.15)
        assert parameter.mean().item() == pytest.approx(0, abs=0.2 * std)
    for parameter in (encoding.b2, encoding.w3, encoding.b3):
        assert not parameter.any()


@pytest.mark.parametrize("hidden, heads, want", [(32, 4, 1024 + 96 + 128 + 4), (3, 1, 9 + 9 + 3 + 1)])
def test_layers_share_one_network(hidden: int, heads: int, want: int) -> None:
    encoding, r = dynamic(hidden=hidden, heads=heads, layers=3), torch.arange(9)
    assert sum(p.numel() for p in encoding.parameters()) == want
    assert torch.equal(encoding.distance_bias(r, 0), encoding.distance_bias(r, 2))
    assert not encoding.decayed and not encoding.penalty


def test_the_input_is_the_distance_over_the_training_length_not_the_windows() -> None:
    encoding = dynamic(log_distance=False)
    short, long = torch.arange(10), torch.arange(1000)
    assert largest(encoding.bias(short, short, 0), encoding.bias(long, long, 0)[:, :10, :10]) < 1e-6


def test_bf16_autocast_changes_nothing() -> None:
    encoding, pos = dynamic(), torch.arange(300)
    want = encoding.bias(pos, pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = encoding.bias(pos, pos, 0)
    assert bias.dtype == torch.float32 and torch.equal(bias, want)


@pytest.mark.parametrize("params", [{"hidden": 0}, {"hidden": -1}, {"hidden": 1.5}, {"log_distance": "yes"}])
def test_values_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        started("dynamic_bias", **params)
