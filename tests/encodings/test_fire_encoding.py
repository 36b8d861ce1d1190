"""FIRE: its formula, its gradients, its start, and what it takes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fires import FAR, fire, formula, plain
from formulas_bias import largest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.core.errors import UserError
from posenc.laws.precision import Float64


@pytest.mark.parametrize("heads, layers, shared", [(4, 2, False), (1, 1, False), (3, 3, True)])
@pytest.mark.parametrize("size", [None, 1.0])
def test_formula(heads: int, layers: int, shared: bool, size: float | None) -> None:
    encoding = fire(size, heads=heads, layers=layers, shared=shared)
    pos = torch.arange(40)  # the threshold is 16: both sides of it
    for layer in range(layers):
        bias = encoding.bias(pos, pos, layer)
        assert bias.shape == (heads, 40, 40) and bias.dtype == torch.float32
        want = formula(encoding, pos.tolist(), pos.tolist(), 0 if shared else layer)
        assert largest(bias, want) < 2e-5


@pytest.mark.parametrize("size", [None, 1.0])
def test_formula_on_far_and_scattered_positions(size: float | None) -> None:
    encoding, pos = fire(size), torch.tensor(FAR)
    want = formula(encoding, FAR[-8:], FAR, 1)
    assert largest(encoding.bias(pos[-8:], pos, 1), want) < 2e-5


def test_formula_in_float64() -> None:
    """With every number in float64, what is left is the order of the sums."""
    with Float64():
        encoding, pos = fire(1.0).double(), torch.tensor(FAR)
        bias = encoding.bias(pos, pos, 0)
    assert bias.dtype == torch.float64
    assert largest(bias, formula(encoding, FAR, FAR, 0)) < 1e-11


@pytest.mark.parametrize("threshold", [0.5, 16.0, 10.5, 512.0])
def test_the_threshold_replaces_a_shorter_past(threshold: float) -> None:
    encoding, pos = fire(threshold=threshold), torch.arange(40)
    share = encoding.share(pos, pos, 0)
    for i in range(40):
        whole = math.log(0.1 * i + 1) if i > threshold else math.log(0.1 * threshold + 1)
        for j in range(40):
            want = math.log(0.1 * max(i - j, 0) + 1) / whole
            assert share[i, j].item() == pytest.approx(want, rel=1e-5, abs=1e-7)
        assert share[i, 0].item() == pytest.approx(1.0) if i > threshold else share[i, 0].item() <= 1.00001


def test_the_input_stays_a_share_at_any_length() -> None:
    pos = torch.tensor(FAR)
    share = fire().share(pos, pos, 0)
    assert share.min() == 0 and share.max() <= 1 + 1e-6
    assert (share.diagonal() == 0).all() and (share.triu() == 0).all()


def test_is_not_shift_invariant_past_the_threshold() -> None:
    encoding, pos = fire(1.0), torch.arange(8)
    assert not encoding.relative
    assert torch.equal(encoding.bias(pos, pos, 0), encoding.bias(pos + 8, pos + 8, 0))  # below 16
    assert largest(encoding.bias(pos, pos, 0), encoding.bias(pos + 90, pos + 90, 0)) > 0.1


def test_a_longer_text_changes_nothing_before_it() -> None:
    encoding, pos = fire(1.0), torch.arange(100)
    whole = encoding.bias(pos, pos, 1)
    assert torch.equal(encoding.bias(pos[:30], pos[:30], 1), whole[:, :30, :30])
    assert torch.equal(encoding.bias(pos[30:50], pos[:50], 1), whole[:, 30:50, :50])


def test_gradients_of_c_and_the_threshold() -> None:
    """By finite differences of the formula, in float64; rows on both sides of the threshold."""
    with Float64():
        encoding = fire(1.0).double()
        pos = torch.arange(2, 40, 3)  # none at the threshold, where it has two slopes
        loss = torch.randn(4, 13, 13, generator=torch.Generator().manual_seed(3))
        (encoding.bias(pos, pos, 1) * loss).sum().backward()
    assert encoding.c.grad is not None and encoding.factor.grad is not None
    c, factor, step = encoding.c[1].item(), encoding.factor[1].item(), 1e-7

    def total(c: float, factor: float) -> float:
        return (formula(encoding, pos.tolist(), pos.tolist(), 1, (c, factor)) * loss).sum().item()

    by_c = (total(c + step, factor) - total(c - step, factor)) / (2 * step)
    by_factor = (total(c, factor + step) - total(c, factor - step)) / (2 * step)
    assert abs(by_c) > 1e-2 and abs(by_factor) > 1e-2
    assert encoding.c.grad[1].item() == pytest.approx(by_c, rel=1e-5)
    assert encoding.factor.grad[1].item() == pytest.approx(by_factor, rel=1e-5)
    assert encoding.c.grad[0] == 0 and encoding.factor.grad[0] == 0  # the other layer


def test_below_every_query_the_threshold_has_no_gradient_and_above_them_it_has() -> None:
    for low, wanted in ((0, True), (17, False)):
        encoding, pos = fire(1.0), torch.arange(low, low + 10)
        encoding.bias(pos, pos, 0)[:, 1:].sum().backward()
        assert encoding.factor.grad is not None and encoding.c.grad is not None
        assert bool(encoding.factor.grad[0]) is wanted
        assert encoding.c.grad[0]


def test_gradients_of_the_network_reach_all_its_numbers() -> None:
    encoding, pos = fire(), torch.arange(60)
    for layer in range(2):
        encoding.bias(pos, pos, layer).square().sum().backward()
    for name, parameter in encoding.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.flatten(1).any(1).all() if parameter.dim() > 1 else parameter.grad.all(), name


def test_the_first_token_and_the_own_have_finite_gradients() -> None:
    encoding, pos = fire(), torch.zeros(1, dtype=torch.int64)
    with torch.autograd.set_detect_anomaly(True):
        bias = encoding.bias(pos, pos, 0)
        bias.sum().backward()
    assert bias[:, 0, 0].tolist() == pytest.approx(plain(encoding, 0)(0.0), abs=1e-6)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoding.parameters())


@pytest.mark.parametrize("size", [-300.0, -20.0, 20.0, 300.0])
def test_c_and_the_threshold_stay_positive_whatever_training_does(size: float) -> None:
    encoding, pos = fire(), torch.tensor(FAR)
    with torch.no_grad():
        encoding.c.fill_(size)
        encoding.factor.fill_(size)
    share = encoding.share(pos, pos, 0)
    assert share.isfinite().all() and share.min() == 0 and 0 < share.max() <= 1 + 1e-5
    encoding.bias(pos, pos, 0).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoding.parameters())


@pytest.mark.parametrize(
    "train_length, params, start", [(64, {}, 16), (512, {}, 128), (64, {"threshold": 512.0}, 512)]
)
def test_start(train_length: int, params: dict[str, Any], start: float) -> None:
    encoding = fire(train_length=train_length, layers=50, **params)
    pos = torch.tensor([0, 7, 2000])
    for layer in (0, 49):
        share = encoding.share(pos, pos, layer)
        assert share[1, 0].item() == pytest.approx(math.log(1.7) / math.log(0.1 * start + 1), rel=1e-5)
        assert share[2, 0].item() == pytest.approx(1)
    for name, bound in (("w1", 1.0), ("b1", 1.0), ("w2", 32**-0.5), ("b2", 32**-0.5)):
        parameter = getattr(encoding, name)
        assert parameter.abs().max() <= bound
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert largest(encoding.w1[0], encoding.w1[1]) > 0.1  # layers differ


@pytest.mark.parametrize("threshold", [16.0, 512.0])
def test_a_step_of_training_moves_the_threshold_in_proportion(threshold: float) -> None:
    encoding, pos = fire(threshold=threshold, layers=1), torch.arange(10)
    optimiser = torch.optim.Adam([encoding.factor], lr=0.01)
    encoding.bias(pos, pos, 0).sum().backward()
    before = encoding.share(pos, pos, 0)[9, 0].item()
    optimiser.step()
    after = encoding.share(pos, pos, 0)[9, 0].item()
    reached = [threshold_of(share, 9) for share in (before, after)]
    assert reached[0] == pytest.approx(threshold, rel=1e-4)
    assert abs(reached[1] / reached[0] - 1) == pytest.approx(0.01 * (1 - math.exp(-1)), rel=0.02)


def threshold_of(share: float, r: int) -> float:
    """The threshold that makes the distance r this share, c = 0.1."""
    return math.expm1(math.log(1 + 0.1 * r) / share) / 0.1


@pytest.mark.parametrize(
    "heads, layers, shared, want", [(4, 2, False, 2 * 198), (4, 2, True, 198), (1, 3, False, 297)]
)
def test_parameters_for_each_layer_or_shared(heads: int, layers: int, shared: bool, want: int) -> None:
    encoding, pos = fire(1.0, heads=heads, layers=layers, shared=shared), torch.arange(20)
    assert sum(p.numel() for p in encoding.parameters()) == want
    assert set(encoding.state_dict()) == {"w1", "b1", "w2", "b2", "c", "factor"}
    same = torch.equal(encoding.bias(pos, pos, 0), encoding.bias(pos, pos, 1))
    assert same is shared and not encoding.decayed


class Largest(TorchDispatchMode):
    """The largest number of entries of a tensor that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, Tensor):
                self.numel = max(self.numel, one.numel())
        return out


def test_no_tensor_of_every_pair_and_hidden_unit() -> None:
    encoding, pos, heads = fire(heads=4), torch.arange(256), 4
    with Largest() as seen:
        encoding.bias(pos, pos, 0).sum().backward()
    assert 256 * 256 * heads <= seen.numel < 256 * 256 * heads * 2 < 256 * 256 * 32


def test_bf16_autocast_changes_nothing() -> None:
    encoding, pos = fire(1.0), torch.arange(300)
    want = encoding.bias(pos, pos, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = encoding.bias(pos, pos, 0)
    assert bias.dtype == torch.float32 and torch.equal(bias, want)


@pytest.mark.parametrize(
    "params",
    [
        {"threshold": 0.0},
        {"threshold": -1.0},
        {"threshold": 1e-50},
        {"threshold": math.inf},
        {"shared": "yes"},
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        fire(**params)
