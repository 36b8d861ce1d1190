"""One update of the weights, in two halves: gradients, then AdamW. A benchmark times what training does.

B windows, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc.model.decoder import Decoder
from posenc.model.fused import next_token_loss
from posenc.training.precision import autocast


class NextTokenLoss(nn.Module):
    """Inputs and targets (B, T) to the mean loss in nats per token: what several processes wrap as one."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor) -> Tensor:
        """Scalar float32. Products in the precision of the autocast around it, the softmax in float32."""
        hidden = self.model.hidden(inputs, pos)  # (B, T, d_model)
        weight = self.model.embedding.weight.to(hidden.dtype)  # (V, d_model)
        return next_token_loss(hidden.flatten(0, 1), weight, targets.flatten())


def gradients(
    loss_of: nn.Module, inputs: Tensor, targets: Tensor, pos: Tensor, *, precision: str, grad_clip: float
) -> tuple[Tensor, Tensor]:
    """Loss of a batch and the norm of its gradient, which is left clipped in the parameters; both scalar.

    `loss_of` is a NextTokenLoss, or a wrapper of one.
    """
    with autocast(precision, inputs.device):
        loss: Tensor = loss_of(inputs, targets, pos)
    loss.backward()
    return loss.detach(), torch.nn.utils.clip_grad_norm_(loss_of.parameters(), grad_clip)


def update(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Move the weights along the gradients at learning rate `lr`, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
