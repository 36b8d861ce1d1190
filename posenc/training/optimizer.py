"""AdamW and the learning rate as a pure function of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder


@dataclass(frozen=True)
class Optimization:
    """How the weights are trained; `lr` is the peak learning rate."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_clip: float
    warmup_fraction: float
    final_lr_fraction: float


def learning_rate(step: int, steps: int, optimization: Optimization) -> float:
    """Return the learning rate of update `step` (from 0) of `steps`: linear warm-up, then linear decay.

    It would reach `final_lr_fraction` of the peak one update after the last, so that none is wasted at zero.
    """
    warmup = max(1, round(optimization.warmup_fraction * steps))
    if step < warmup:
        return optimization.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return optimization.lr * (1 - progress * (1 - optimization.final_lr_fraction))


def build_optimizer(model: Decoder, optimization: Optimization) -> torch.optim.AdamW:
    """Build a fused AdamW that decays the shared matrices, and an encoding's own parameters if it says so.

    Norms are not decayed, and neither are an encoding's slopes and tables by default: decay would pull them
    towards another encoding.
    """
    own: dict[torch.nn.Parameter, bool] = {}
    for module in model.modules():  # outer ones first: a part of a sum has the last word on its own
        if isinstance(module, Encoding):
            own.update(dict.fromkeys(module.parameters(), module.decayed))
    decayed: list[torch.nn.Parameter] = []
    kept: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        (decayed if own.get(parameter, parameter.ndim > 1) else kept).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": optimization.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=optimization.lr, betas=optimization.betas, eps=optimization.eps, fused=True
    )


def moments_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the optimizer's state tensors: moments and step counts."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return (value for value in values if isinstance(value, Tensor))
