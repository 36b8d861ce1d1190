"""Norm, activation and loss with their backward passes written out: a CPU waits for element-wise work.

A training step at the nano shape is matrix products (28 ms of bf16 work on two cores) and passes over tensors
that fit a cache. PyTorch's own composite gradients make two to three times as many passes as these. Under
torch.compile the plain formula runs, since the compiler fuses it better. N targets, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Largest number of float32 logits at once. Of 2048 targets, d_model 128 and V = 4096 in bf16, two cores:
# 27 ms a forward and backward pass in blocks, 88 ms in one piece (which also keeps 100 MB).
MAX_LOGITS = 1 << 22
MAX_LOGITS_GPU = 1 << 27
NORM_EPS = torch.finfo(torch.float32).eps  # in float64 too: nn.RMSNorm's default depends on the dtype


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Divide x (..., d) by its root mean square and multiply by weight (d,), as nn.RMSNorm; in x's dtype."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)  # one kernel there
    return _RmsNorm.apply(x, weight, x.dtype)


def rms_norm_for_product(x: Tensor, weight: Tensor) -> Tensor:
    """Norm a product's input and round it to the autocast's dtype once: the loss's products have `out=`."""
    x, device = x.to(weight.dtype), x.device.type  # mixed dtypes (a bf16 latent) are slow and warn
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
    """Return relu(x)^2. With autograd's own gradient an fp32 step of nano takes 1.08 times as long."""
    return F.relu(x).square() if torch.compiler.is_compiling() else _SquaredRelu.apply(x)


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


def next_token_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss in nats per token: hidden (N, d), output map (V, d), targets (N,) -> float32.

    Logits are made in blocks of rows and used up in turn, never copied to float32 as a whole. Products in the
    dtype that both have (cast them before), softmax and sums in float32. PyTorch 2.13's own blockwise
    `linear_cross_entropy` sums in bf16: its mean loss was 0.014 nats off at V = 260 and 0.25 at V = 32000.
    """
    if torch.compiler.is_compiling():
        return F.cross_entropy(F.linear(hidden, weight).float(), targets)
    loss: Tensor = _NextTokenLoss.apply(hidden, weight, targets, None)[0]
    return loss


def weighted_loss(hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of loss times `weights` (N,), and the losses (N,), which have no gradient; as above."""
    if torch.compiler.is_compiling():
        losses = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
        return (losses * weights).mean(), losses.detach()
    loss, losses = _NextTokenLoss.apply(hidden, weight, targets, weights)
    return loss, losses


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each target in nats, (N,) float32."""
    blocks = ((F.linear(hidden[rows], weight).float(), targets[rows]) for rows in _blocks(hidden, weight))
    return torch.cat([F.cross_entropy(*block, reduction="none") for block in blocks])


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    count = max(1, (MAX_LOGITS_GPU if hidden.is_cuda else MAX_LOGITS) // len(weight))
    return (slice(start, start + count) for start in range(0, len(hidden), count))


class _NextTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total, every = torch.zeros((), device=hidden.device), []
        d_hidden, d_weight = torch.empty_like(hidden), None
        for rows in _blocks(hidden, weight):
            some, of = hidden[rows], targets[rows, None]  # (n, d), (n, 1)
            logits = (some @ weight.t()).float()  # (n, V)
            p = torch.softmax(logits, dim=-1)
            # log of the sum of exp: the largest logit has the weight 1 / sum exp(logit - largest)
            log_sum = logits.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()  # (n, 1)
            losses = log_sum - logits.gather(1, of)  # (n, 1)
            every.append(losses[:, 0])
            p.scatter_add_(1, of, p.new_full(of.shape, -1.0))
            if weights is not None:
                losses, p = losses * weights[rows, None], p.mul_(weights[rows, None])
            total += losses.sum()
            d_logits = p.div_(len(hidden)).to(hidden.dtype)
            torch.mm(d_logits, weight, out=d_hidden[rows])
            of_block = d_logits.t() @ some  # (V, d)
            # float32 sums where there is more than one block
            d_weight = of_block if d_weight is None else d_weight.float().add_(of_block)
        ctx.save_for_backward(d_hidden, d_weight)
        of_each = torch.cat(every)
        ctx.mark_non_differentiable(of_each)
        return total / len(hidden), of_each

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden.mul_(grad), d_weight.mul_(grad), None, None
