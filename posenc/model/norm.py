"""RMSNorm with its backward pass written out, since a CPU waits for element-wise work.

A training step of nano consists of matrix products (28 ms of bf16 work on two cores) and of passes over
tensors that fit a cache. PyTorch's own gradient makes two to three times as many passes. Under torch.compile
the plain formula runs, since the compiler fuses it better.

A step of nano takes 1.02 to 1.09 times as long with the plain formula (scripts/bench/backward_passes.py).
That alone would not be worth the code, but the plain formula rounds differently: the numbers of every run
would change.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NORM_EPS = torch.finfo(torch.float32).eps  # in float64 too: nn.RMSNorm's default depends on the dtype


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide x (..., d) by its root mean square and multiply by weight (d,), as nn.RMSNorm, in x's dtype."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)  # a GPU has one kernel for it
    return _RmsNorm.apply(x, weight, x.dtype)


def rms_norm_for_product(x: Tensor, weight: Tensor) -> Tensor:
    """Normalize the input of a product and round it to the dtype of autocast, once.

    Autocast would round it, too, but not for the products of the loss, which are made with `out=`.
    """
    device = x.device.type
    x = x.to(weight.dtype)  # PyTorch is slow with mixed dtypes (a bf16 latent) and warns of them
    if torch.compiler.is_compiling() or not torch.is_autocast_enabled(device):
        return rms_norm(x, weight)
    dtype = torch.get_autocast_dtype(device)
    if device == "cpu":
        return _RmsNorm.apply(x, weight, dtype)
    return rms_norm(x, weight).to(dtype)


class _RmsNorm(torch.autograd.Function):
    """Compute x / sqrt(mean(x^2) + eps) * weight in few passes over x, and its gradients likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1), one pass
        inverse = norm.mul_(norm).div_(x.shape[-1]).add_(NORM_EPS).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight).to(dtype)  # (..., d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        # (..., d), a copy in any case, since it is changed in place below
        d_y = grad.to(x.dtype) if grad.dtype != x.dtype else grad.clone()
        product = d_y * x  # (..., d)
        d_weight = inverse.reshape(1, -1).mm(product.reshape(-1, width)).view(width)
        # the part of the gradient along x, which the norm takes out
        along_x = (product @ weight)[..., None] * (inverse * inverse * inverse).div_(width)  # (..., 1)
        d_x = d_y.mul_(weight).mul_(inverse).addcmul_(x, along_x, value=-1.0)  # (..., d)
        return d_x, d_weight, None
