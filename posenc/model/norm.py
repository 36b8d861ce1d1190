"""RMSNorm with its backward pass written out, for the CPU.

PyTorch's own gradient makes two to three times as many passes over the tensors. With it a training step of
the model `nano` takes 1.02 to 1.09 times as long (scripts/bench/backward_passes.py). That alone would not be
worth the code. But PyTorch's formula rounds differently, so the numbers of every run would change.

Under torch.compile PyTorch's formula runs, since the compiler fuses it better.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NORM_EPS = torch.finfo(torch.float32).eps  # for every dtype; nn.RMSNorm would have another one in float64


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide x (..., d) by its root mean square and multiply by weight (d,), as nn.RMSNorm, in x's dtype."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)  # a GPU has one kernel for it
    return _RmsNorm.apply(x, weight, x.dtype)


def rms_norm_for_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `rms_norm` for a matrix product to read: rounded to the dtype of autocast, if that is on.

    Autocast rounds the inputs of most products by itself, but not of those that are made with `out=`, as in
    the loss.
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
        # (..., d), always a copy, since it is changed in place below
        g = grad.to(x.dtype) if grad.dtype != x.dtype else grad.clone()
        product = g * x  # (..., d)
        d_weight = inverse.reshape(1, -1).mm(product.reshape(-1, width)).view(width)
        dot = (product @ weight)[..., None]  # (..., 1), <g x, w>
        cube = inverse * inverse * inverse
        along_x = dot * cube.div_(width)  # (..., 1)
        scaled = g.mul_(weight).mul_(inverse)  # (..., d)
        d_x = scaled.addcmul_(x, along_x, value=-1.0)
        return d_x, d_weight, None
