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
    """Return the normalized input of a product, rounded to the dtype of autocast.

    Autocast would round it for most products by itself, but not for those of the loss: they are made with
    `out=`.
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
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1), one pass over x
        # inverse = 1 / sqrt(mean(x^2) + eps); all four names are one tensor, which is changed in place
        squares = norm.mul_(norm)
        mean_square = squares.div_(x.shape[-1])
        inverse = mean_square.add_(NORM_EPS).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight).to(dtype)  # (..., d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # With r = 1 / sqrt(mean(x^2) + eps), y = x r w, and g the gradient of y:
        #   d_w = sum over all rows of g x r
        #   d_x = g w r - x along_x, where along_x = <g x, w> r^3 / d
        # The second term of d_x is the part along x, which the norm takes out.
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        # (..., d): g, a copy in any case, since it is changed in place below
        d_y = grad.to(x.dtype) if grad.dtype != x.dtype else grad.clone()
        product = d_y * x  # (..., d)
        d_weight = inverse.reshape(1, -1).mm(product.reshape(-1, width)).view(width)
        dot = (product @ weight)[..., None]  # (..., 1)
        cube = inverse * inverse * inverse
        along_x = dot * cube.div_(width)  # (..., 1)
        scaled = d_y.mul_(weight).mul_(inverse)  # (..., d)
        d_x = scaled.addcmul_(x, along_x, value=-1.0)
        return d_x, d_weight, None
