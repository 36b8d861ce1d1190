"""AdamW, or Muon with AdamW for the rest; and the learning rate as a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

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


def learning_rate(step: int, steps: int, optimization: Optimization) -> float:
    """Return the learning rate of update `step` (from 0) of `steps`: linear warm-up, then linear decay.

    It would reach `final_lr_fraction` of the peak one update after the last, so that none is wasted at zero.
    """
    warmup = max(1, round(optimization.warmup_fraction * steps))
    if step < warmup:
        return optimization.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return optimization.lr * (1 - progress * (1 - optimization.final_lr_fraction))


def build_optimizer(model: Decoder, optimization: Optimization) -> torch.optim.Optimizer:
    """Build the optimizer, which decays the shared matrices, and an encoding's own parameters if it says so.

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
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": optimization.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    if optimization.name == "adamw":
        return _adamw(groups, optimization)
    hidden = {p for p in model.blocks.parameters() if p.ndim == 2 and p not in own}
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter not in hidden]
    return MuonAdamW([p for p in model.parameters() if p in hidden], groups, optimization)


class MuonAdamW(torch.optim.Optimizer):
    """Muon on hidden matrices, AdamW on embeddings, norms and encodings: torch's own two, with one state.

    Muon (Jordan et al. 2024) makes the update of a matrix orthogonal; its size is matched to AdamW's (Liu et
    al., arXiv 2502.16982), so that both take the same learning rate and weight decay.
    """

    def __init__(
        self, hidden: list[torch.nn.Parameter], rest: list[dict[str, Any]], optimization: Optimization
    ) -> None:
        muon = torch.optim.Muon(
            hidden,
            lr=optimization.lr,
            weight_decay=optimization.weight_decay,
            momentum=optimization.betas[0],
            adjust_lr_fn="match_rms_adamw",
        )
        self.parts = (muon, _adamw(rest, optimization))
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        for part in self.parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make one update with both."""
        self.parts[0].param_groups, self.parts[1].param_groups = self.param_groups[:1], self.param_groups[1:]
        for part in self.parts:
            part.step()


def _adamw(groups: list[dict[str, Any]], optimization: Optimization) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        groups, lr=optimization.lr, betas=optimization.betas, eps=optimization.eps, fused=True
    )
