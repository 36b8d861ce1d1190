"""The loss of the next token, in blocks of logits, with its backward pass written out.

N targets, V vocabulary. Under torch.compile the plain formula runs.

At V = 260 a step of nano takes 0.93 to 1.07 times as long with the plain formula
(scripts/bench/backward_passes.py). The blocks are for large vocabularies, below; and the plain formula rounds
differently, so that the numbers of every run would change.
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
    losses: list[Tensor] = []
    for rows in _blocks(hidden, weight):
        logits = F.linear(hidden[rows], weight).float()
        losses.append(F.cross_entropy(logits, targets[rows], reduction="none"))
    return torch.cat(losses)


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Yield the rows of hidden (N, d) whose logits are made at once."""
    largest = MAX_LOGITS_GPU if hidden.is_cuda else MAX_LOGITS
    rows = max(1, largest // len(weight))
    for start in range(0, len(hidden), rows):
        yield slice(start, start + rows)


class _NextTokenLoss(torch.autograd.Function):
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
            target = targets[rows, None]  # (n, 1)
            logits = (hidden_block @ weight.t()).float()  # (n, V)
            p = torch.softmax(logits, dim=-1)
            # log of the sum of exp: the largest logit has the weight 1 / sum exp(logit - largest)
            log_sum = logits.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()  # (n, 1)
            losses = log_sum - logits.gather(1, target)  # (n, 1)
            all_losses.append(losses[:, 0])
            p.scatter_add_(1, target, p.new_full(target.shape, -1.0))
            if weights is not None:
                losses = losses * weights[rows, None]
                p = p.mul_(weights[rows, None])
            total += losses.sum()
            d_logits = p.div_(len(hidden)).to(hidden.dtype)
            torch.mm(d_logits, weight, out=d_hidden[rows])
            d_weight_block = d_logits.t() @ hidden_block  # (V, d)
            # float32 sums where there is more than one block
            d_weight = d_weight_block if d_weight is None else d_weight.float().add_(d_weight_block)
        ctx.save_for_backward(d_hidden, d_weight)
        by_target = torch.cat(all_losses)
        ctx.mark_non_differentiable(by_target)
        return total / len(hidden), by_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden.mul_(grad), d_weight.mul_(grad), None, None
