"""The loss of the next token, in blocks of logits, with its backward pass written out.

N targets, V vocabulary, n targets of a block, d width of the model.

The blocks are for large vocabularies (see MAX_LOGITS). With a small one, V = 260, the plain formula is as
quick: a training step of the model `nano` takes 0.93 to 1.07 times as long
(scripts/bench/backward_passes.py). But it rounds differently, so the numbers of every run would change, and
small and large V would need a path each. So the loss is computed in blocks at every V. The plain formula
runs only under torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# The largest number of float32 logits in a block: 16 MB. A forward and backward pass over 2048 targets
# (d_model 128, V = 4096, bf16, two cores) takes 27 ms in such blocks. In one piece it takes 88 ms, and 100 MB
# stay in memory between the passes.
MAX_LOGITS = 1 << 22
MAX_LOGITS_GPU = 1 << 27  # 512 MB: a GPU wants large blocks, and has the memory for them


def next_token_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss in nats per token: hidden (N, d), targets (N,) -> float32.

    `weight` (V, d) is that of the output map. Logits are made in blocks of targets. Their product is made in
    the dtype of `hidden` and `weight`; logits, softmax and sums are float32.

    PyTorch 2.13 has a blockwise `linear_cross_entropy` too, but it sums in bf16: its mean loss was wrong by
    0.014 nats at V = 260, and by 0.25 at V = 32000.
    """
    if torch.compiler.is_compiling():
        return F.cross_entropy(F.linear(hidden, weight).float(), targets)
    loss: Tensor = _NextTokenLoss.apply(hidden, weight, targets, None)[0]
    return loss


def weighted_loss(hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted loss, and the unweighted losses (N,), which have no gradient.

    `weight` (V, d) is that of the output map, and `weights` (N,) has a number for each target. The weighted
    loss is the sum of weights times losses, divided by the number of targets N, not by the sum of the
    weights. It is computed as `next_token_loss` is.
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


@torch.no_grad()
def token_losses_and_choices(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (N,) of `token_losses`, and the likeliest token at each target: (N,) int64."""
    losses: list[Tensor] = []
    choices: list[Tensor] = []
    for rows in _blocks(hidden, weight):
        logits = F.linear(hidden[rows], weight)
        losses.append(F.cross_entropy(logits.float(), targets[rows], reduction="none"))
        # Of the logits in their own dtype, as in greedy decoding.
        choices.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(choices)


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Yield the blocks of rows of hidden (N, d) whose logits are made at once."""
    max_logits = MAX_LOGITS_GPU if hidden.is_cuda else MAX_LOGITS
    rows_per_block = max(1, max_logits // len(weight))
    for start in range(0, len(hidden), rows_per_block):
        yield slice(start, start + rows_per_block)


class _NextTokenLoss(torch.autograd.Function):
    """Compute the loss and, already in the forward pass, its gradients, so that no logits are kept."""

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
            # log p = logit - log_sum, so log_sum = logit - log p for every token. It is taken from the
            # likeliest token, whose logit and p are the largest. logsumexp would compute all exponentials
            # again.
            largest_logit = logits.amax(-1, keepdim=True)  # (n, 1)
            log_sum = largest_logit - p.amax(-1, keepdim=True).log()  # (n, 1)
            losses = log_sum - logits.gather(1, targets_block)  # (n, 1)
            all_losses.append(losses[:, 0])  # before weighting: the losses that are returned have no weights
            # The gradient of a loss by its logits is p, minus 1 at the target. It overwrites p.
            minus_one = p.new_full(targets_block.shape, -1.0)
            d_logits = p.scatter_add_(1, targets_block, minus_one)  # (n, V)
            if weights is not None:
                losses = losses * weights[rows, None]
                d_logits.mul_(weights[rows, None])
            total += losses.sum()
            d_logits = d_logits.div_(len(hidden)).to(hidden.dtype)
            torch.mm(d_logits, weight, out=d_hidden[rows])
            d_weight_block = d_logits.t() @ hidden_block  # (V, d)
            # The gradient of a single block keeps its dtype. Several are summed in float32.
            d_weight = d_weight_block if d_weight is None else d_weight.float().add_(d_weight_block)
        ctx.save_for_backward(d_hidden, d_weight)
        by_target = torch.cat(all_losses)
        ctx.mark_non_differentiable(by_target)
        return total / len(hidden), by_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        # In place, which saves a copy of (V, d). A second backward pass over the same graph (retain_graph)
        # would scale them once more, but autograd refuses it, since saved tensors have changed.
        return d_hidden.mul_(grad), d_weight.mul_(grad), None, None
