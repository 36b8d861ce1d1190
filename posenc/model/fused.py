"""Steps of the model whose backward pass is written out, because element-wise work is what a CPU waits for.

A training step at the nano shape is matrix products (28 ms of bf16 work on two cores) and passes over
tensors that fit a cache. PyTorch's own composite gradients make two to three times the passes of those here.
Each is the plain formula in its first line, checked by `gradcheck` in the tests; under torch.compile the
plain formula itself runs, since the compiler fuses it better.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

NORM_EPS = torch.finfo(torch.float32).eps  # in float64 too: the type's own would be another norm


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., d) over its root mean square, times weight (d,), as nn.RMSNorm does it; in x's dtype."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)  # one kernel there
    return _RmsNorm.apply(x, weight, x.dtype)


def rms_norm_for_product(x: Tensor, weight: Tensor) -> Tensor:
    """The same for the input of a matrix product: rounded to the autocast's dtype here, once.

    The loss needs it so: autocast leaves products with `out=` alone, which would be made in float32.
    """
    device = x.device.type
    if torch.compiler.is_compiling() or not torch.is_autocast_enabled(device):
        return rms_norm(x, weight)
    dtype = torch.get_autocast_dtype(device)
    return _RmsNorm.apply(x, weight, dtype) if device == "cpu" else rms_norm(x, weight).to(dtype)


class _RmsNorm(torch.autograd.Function):
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
        own = grad.to(x.dtype) if grad.dtype != x.dtype else grad.clone()  # (..., d), changed in place below
        product = own * x  # (..., d)
        d_weight = inverse.reshape(1, -1).mm(product.reshape(-1, width)).view(width)
        along = (product @ weight)[..., None] * (inverse * inverse * inverse).div_(width)  # (..., 1)
        d_x = own.mul_(weight).mul_(inverse).addcmul_(x, along, value=-1.0)  # (..., d)
        return d_x, d_weight, None


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2."""
    if torch.compiler.is_compiling():
        return F.relu(x).square()
    return _SquaredRelu.apply(x)


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(grad.new_zeros(()), grad, positive, value=2.0)  # in one pass
