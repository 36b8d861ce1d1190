"""AdamW, or Muon with AdamW for the rest; and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from posenc.encodings.base import Encoding
from posenc.model.decoder import Decoder

OPTIMIZERS = ("adamw", "muon")


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
    name: str = "adamw"  # of OPTIMIZERS
    precision: str = "fp32"  # of the training


def learning_rate(step: int, steps: int, optimization: Optimization) -> float:
    """Return the rate of update `step` (from 0): linear warm-up, then decay that ends one past the last."""
    warmup = max(1, round(optimization.warmup_fraction * steps))
    if step < warmup:
        return optimization.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return optimization.lr * (1 - progress * (1 - optimization.final_lr_fraction))


def build_optimizer(model: Decoder, optimization: Optimization) -> AdamW:
    """Build the optimizer. It decays the shared matrices, and an encoding's own parameters if that says so:
    decay would pull slopes and tables towards another encoding.
    """
    own: dict[torch.nn.Parameter, bool] = {}
    for module in model.modules():  # outer ones first: a part of a sum has the last word on its own
        if isinstance(module, Encoding):
            own.update(dict.fromkeys(module.parameters(), module.decayed))
    muon = optimization.name == "muon"
    hidden = {p for p in model.blocks.parameters() if p.ndim == 2 and p not in own} if muon else set()
    rest = [p for p in model.parameters() if p not in hidden]
    groups = [
        {"params": [p for p in rest if own.get(p, p.ndim > 1) == is_decayed], "weight_decay": decay}
        for is_decayed, decay in ((True, optimization.weight_decay), (False, 0.0))
    ]
    if not muon:
        return AdamW(groups, optimization.lr, optimization.betas, optimization.eps, fused=True)
    return MuonAdamW([p for p in model.parameters() if p in hidden], groups, optimization)


class MuonAdamW(AdamW):
    """Muon (Jordan et al. 2024) as torch has it on hidden matrices, AdamW on the rest, with one state.

    Updates are matched in size (Liu et al., arXiv 2502.16982): one learning rate and weight decay for both.
    torch's own class always computes in bfloat16, where the CPU has none 20 times as slowly as in float32.
    """

    def __init__(
        self, hidden: list[torch.nn.Parameter], rest: list[dict[str, Any]], optimization: Optimization
    ) -> None:
        group = {"params": hidden, "weight_decay": optimization.weight_decay}
        super().__init__([group, *rest], optimization.lr, optimization.betas, optimization.eps, fused=True)
        self.dtype = torch.float32 if optimization.precision == "fp32" else torch.bfloat16

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one update with both; `closure` is torch's, and not used."""
        hidden = self.param_groups[0]
        for parameter in hidden["params"]:
            gradient, state = parameter.grad, self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = hidden["betas"][0]
            state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            update = orthogonal(gradient.lerp(state["momentum_buffer"], momentum), self.dtype)
            parameter.mul_(1 - hidden["lr"] * hidden["weight_decay"])
            parameter.add_(update, alpha=-hidden["lr"] * 0.2 * math.sqrt(max(parameter.shape)))
            parameter.grad = None  # AdamW moves what has a gradient
        super().step()


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring all singular values of a matrix near 1, by five steps of Newton-Schulz."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrix.to(dtype, copy=True)
    wide = x.T if matrix.shape[0] > matrix.shape[1] else x
    wide.div_(wide.norm().clamp(min=1e-7))
    for _ in range(5):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
