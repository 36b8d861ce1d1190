"""AdamW, or Muon with AdamW for the rest; and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

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
        return AdamW(groups, optimization)
    return MuonAdamW([p for p in model.parameters() if p in hidden], groups, optimization)


class AdamW:
    """torch's fused AdamW as a function: its class imports torch's compiler, 1.2 s before the first step."""

    def __init__(self, groups: list[dict[str, Any]], optimization: Optimization) -> None:
        self.param_groups = [{**group, "lr": optimization.lr} for group in groups]
        self.betas, self.eps = optimization.betas, optimization.eps
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        """Make one update of the parameters that have gradients."""
        for group in self.param_groups:
            self._update(group)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _update(self, group: dict[str, Any]) -> None:
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self.state[parameter] for parameter in moved]
        for parameter, state in zip(moved, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        adam(
            moved,
            [parameter.grad for parameter in moved],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            decoupled_weight_decay=True,
            amsgrad=False,
            maximize=False,
            lr=group["lr"],
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=group["weight_decay"],
            eps=self.eps,
        )


class MuonAdamW(AdamW):
    """Muon (Jordan et al. 2024) as torch has it on hidden matrices, AdamW on the rest, with one state.

    Updates are matched in size (Liu et al., arXiv 2502.16982): one learning rate and weight decay for both.
    torch's own class always computes in bfloat16, where the CPU has none 20 times as slowly as in float32.
    """

    def __init__(
        self, hidden: list[torch.nn.Parameter], rest: list[dict[str, Any]], optimization: Optimization
    ) -> None:
        group = {"params": hidden, "weight_decay": optimization.weight_decay}
        super().__init__([group, *rest], optimization)
        self.dtype = torch.float32 if optimization.precision == "fp32" else torch.bfloat16

    @torch.no_grad()
    def step(self) -> None:
        """Make one update with both."""
        hidden, *rest = self.param_groups
        for parameter in hidden["params"]:
            gradient, state = parameter.grad, self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = self.betas[0]
            state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            update = orthogonal(gradient.lerp(state["momentum_buffer"], momentum), self.dtype)
            parameter.mul_(1 - hidden["lr"] * hidden["weight_decay"])
            parameter.add_(update, alpha=-hidden["lr"] * 0.2 * math.sqrt(max(parameter.shape)))
        for group in rest:
            self._update(group)


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
