"""Gradients written out against those that autograd makes of the plain formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.model import fused


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def gradients(f: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    out = f(*inputs)
    torch.manual_seed(1)
    weights = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    return out, list(torch.autograd.grad(out, [x for x in inputs if x.requires_grad], weights))


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight)


def plain_square(x: Tensor) -> Tensor:
    return F.relu(x).square()


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


CASES = {
    "norm": (
        fused.rms_norm,
        plain_norm,
        lambda dtype: (drawn(3, 4, 8, dtype=torch.float32), drawn(8).float()),
    ),
    "square": (fused.squared_relu, plain_square, lambda dtype: (drawn(3, 9, dtype=dtype),)),
    "loss": (
        fused.next_token_loss,
        plain_loss,
        lambda dtype: (drawn(9, 8, dtype=dtype), drawn(11, 8, dtype=dtype), torch.arange(9)),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients_are_those_of_the_plain_formula(name: str, dtype: torch.dtype) -> None:
    f, plain, make = CASES[name]
    made = make(dtype)
    out, grads = gradients(f, *made)
    expected, expected_grads = gradients(plain, *made)
    assert out.dtype == expected.dtype and out.shape == expected.shape
    assert len(grads) == len(expected_grads) > 0
    for got, wanted in zip((out, *grads), (expected, *expected_grads), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        off = (got.double() - wanted.double()).norm() / wanted.double().norm()
        assert off < (1e-6 if dtype == torch.float32 else 1e-2)


def test_a_norm_for_a_product_is_rounded_once() -> None:
    x, weight = drawn(4, 16, dtype=torch.float32), drawn(16).float()
    assert fused.rms_norm_for_product(x, weight).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        rounded = fused.rms_norm_for_product(x, weight)
        assert fused.rms_norm(x, weight).dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, fused.rms_norm(x, weight).to(torch.bfloat16))


@pytest.mark.parametrize("most", [1, 3 * 11, 1 << 20])
def test_blocks_of_logits(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = CASES["loss"][2](torch.float32)
    expected, expected_grads = gradients(plain_loss, hidden, weight, targets)
    monkeypatch.setattr(fused, "MAX_LOGITS", most)
    sizes = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, dim: (sizes.append(x.numel()), softmax(x, dim))[1])
    out, grads = gradients(fused.next_token_loss, hidden, weight, targets)
    assert max(sizes) <= max(most, 11) and sum(sizes) == 9 * 11
    for got, wanted in zip((out, *grads), (expected, *expected_grads), strict=True):
        assert torch.allclose(got, wanted, atol=1e-6)
    each = fused.token_losses(hidden, weight, targets)
    assert each.shape == (9,) and torch.allclose(each.mean(), expected, atol=1e-6)


def test_a_hopeless_target_has_a_finite_loss() -> None:
    """Its weight is 0 in float32, its loss 300 nats."""
    hidden, weight = torch.tensor([[300.0]]).requires_grad_(), torch.tensor([[1.0], [0.0]])
    out = fused.next_token_loss(hidden, weight, torch.tensor([1]))
    out.backward()
    assert out.item() == pytest.approx(300) and hidden.grad.item() == pytest.approx(1)
