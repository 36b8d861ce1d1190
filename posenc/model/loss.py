"""The loss of the next token, in blocks of logits, with its backward pass written out.

N targets, V vocabulary. Under torch.compile the plain formula runs.

The blocks are for large vocabularies (MAX_LOGITS). With few tokens, V = 260, the plain formula is as quick: a
step of the model `nano` takes 0.93 to 1.07 times as long (scripts/bench/backward_passes.py). It rounds
differently, so that the numbers of every run would change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Largest number of float32 logits at once. A forward and backward pass of 2048 targets (d_model 128, V =
# 4096, bf16, two cores) takes 27 ms in blocks and 88 ms in one piece, which also keeps 100 MB.
MAX_LOGITS = 1 << 22
MAX_LOGITS_GPU = 1 << 27


def next_token_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss in nats per token: hidden (N, d), output map (V, d), targets (N,) -> float32.

    Logits are made in blocks of rows, each of which is float32 while it is used. `hidden` and `weight` have
    the dtype of their product; softmax and sums are float32. PyTorch 2.13's own blockwise
    `linear_cross_entropy` sums in bf16: its mean loss was wrong by 0.014 nats at V = 260, by 0.25 at V =
    32000.
    """
    if torch.compiler.is_compiling():
        return F.cross_entropy(F.linear(hidden, weight).float(), targets)
    loss: Tensor = _NextTokenLoss.apply(hidden, weight, targets, None)[0]
    return loss


def weighted_loss(hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of each loss times its weight (N,), over N; and the losses (N,), without gradient.

    Otherwise as `next_token_loss`.
    """
    if torch.compiler.is_compiling():
        losses = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
        return (losses * weights).mean(), losses.detach()
    loss, losses = _NextTokenLoss.apply(hidden, weight, targets, weights)
    return loss, losses


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each target in nats, (N,) float32."""
    losses: list[Tensor] = []
    for rows in _blocks(hidden, weight):
        logits = F.linear(hidden[rows], weight).float()
        losses.append(F.cross_entropy(logits, targets[rows], reduction="none"))
    return torch.cat(losses)


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Yield the rows of hidden (N, d) whose logits are made at once."""
    max_logits = MAX_LOGITS_GPU if hidden.is_cuda else MAX_LOGITS
    rows = max(1, max_logits // len(weight))
    for start in range(0, len(hidden), rows):
        yield slice(start, start + rows)


class _NextTokenLoss(torch.autograd.Function):
    """Compute the loss and, already in the forward pass, its gradients: the logits are not kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=hidden.device)
        all_losses: list[Tensor] = []
        d_hidden = torch.empty_like(hidden)
        d_weight: Tensor | None = None
        for rows in _blocks(hidden, weight):
            hidden_block = hidden[rows]  # (n, d)
            targets_block = targets[rows, None]  # (n, 1)
            logits = (hidden_block @ weight.t()).float()  # (n, V)
            p = torch.softmax(logits, dim=-1)
            # log p = logit - log_sum holds for every token, so the likeliest one tells log_sum
            largest_logit = logits.amax(-1, keepdim=True)  # (n, 1)
            log_sum = largest_logit - p.amax(-1, keepdim=True).log()  # (n, 1)
            losses = log_sum - logits.gather(1, targets_block)  # (n, 1)
            all_losses.append(losses[:, 0])
            # the gradient of the logits takes the memory of p: p, and p - 1 at the target
            minus_one = p.new_full(targets_block.shape, -1.0)
            gradient = p.scatter_add_(1, targets_block, minus_one)  # (n, V)
            if weights is not None:
                losses = losses * weights[rows, None]
                gradient.mul_(weights[rows, None])
            total += losses.sum()
            d_logits = gradient.div_(len(hidden)).to(hidden.dtype)
            torch.mm(d_logits, weight, out=d_hidden[rows])
            d_weight_block = d_logits.t() @ hidden_block  # (V, d)
            # A single block keeps its dtype. Several are summed in float32.
            d_weight = d_weight_block if d_weight is None else d_weight.float().add_(d_weight_block)
        ctx.save_for_backward(d_hidden, d_weight)
        by_target = torch.cat(all_losses)
        ctx.mark_non_differentiable(by_target)
        return total / len(hidden), by_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        # in place, as `once_differentiable` allows no second backward pass over the graph
        return d_hidden.mul_(grad), d_weight.mul_(grad), None, None
