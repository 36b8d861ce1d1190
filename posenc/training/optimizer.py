"""The optimizer: AdamW, or Muon for hidden matrices and AdamW for the rest; and the learning rate by step."""

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
from posenc.settings.tree import OptimizerName


@dataclass(frozen=True)
class Optimization:
    """Settings of the optimizer. Its precision is that of the model, which the training plan has."""

    name: OptimizerName
    lr: float  # the peak learning rate
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_clip: float  # largest norm of the gradient
    warmup_fraction: float  # share of the updates in which the learning rate rises
    final_lr_fraction: float  # the learning rate at the end, as a share of the peak


def learning_rate(step: int, steps: int, optimization: Optimization) -> float:
    """Return the learning rate of update `step`, which counts from 0.

    It rises linearly, then falls linearly. One update after the last it would be lr * final_lr_fraction.
    """
    warmup = max(1, round(optimization.warmup_fraction * steps))
    if step < warmup:
        return optimization.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return optimization.lr * (1 - progress * (1 - optimization.final_lr_fraction))


def build_optimizer(model: Decoder, optimization: Optimization, precision: str) -> AdamW:
    """Build the optimizer of a training in `precision` (fp32 | bf16).

    Matrices of the model decay. Parameters of an encoding decay only if the encoding says so: decay would
    pull its slopes and tables towards those of another encoding.
    """
    decay_of_encodings: dict[torch.nn.Parameter, bool] = {}
    # modules() yields outer modules before inner ones, so a part of a sum overrides the sum
    for module in model.modules():
        if isinstance(module, Encoding):
            for parameter in module.parameters():
                decay_of_encodings[parameter] = module.decayed

    def is_decayed(parameter: torch.nn.Parameter) -> bool:
        """Tell whether weight decay acts on a parameter."""
        if parameter in decay_of_encodings:
            return decay_of_encodings[parameter]
        return parameter.ndim > 1

    def groups_of(parameters: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        """Return the parameters as two groups: with and without weight decay."""
        decayed = [parameter for parameter in parameters if is_decayed(parameter)]
        not_decayed = [parameter for parameter in parameters if not is_decayed(parameter)]
        return [
            {"params": decayed, "weight_decay": optimization.weight_decay},
            {"params": not_decayed, "weight_decay": 0.0},
        ]

    parameters = list(model.parameters())
    if optimization.name != "muon":
        return AdamW(groups_of(parameters), optimization)
    # Muon is made for maps between hidden states (Jordan et al.). AdamW moves what encodings learn, and the
    # embedding, which is also the output map.
    matrices = {parameter for parameter in model.blocks.parameters() if parameter.ndim == 2}
    hidden = matrices - decay_of_encodings.keys()
    by_muon = [parameter for parameter in parameters if parameter in hidden]
    by_adamw = [parameter for parameter in parameters if parameter not in hidden]
    return MuonAdamW(by_muon, groups_of(by_adamw), optimization, precision)


class AdamW:
    """Run torch's fused AdamW by calling its function.

    torch's own class gives the same weights bit for bit and would save 45 lines here. But it imports torch's
    compiler, which takes 1.2 s at every start.
    """

    def __init__(self, groups: list[dict[str, Any]], optimization: Optimization) -> None:
        """Take groups as torch's optimizers do: dictionaries with `params` and `weight_decay`."""
        self.param_groups = [{**group, "lr": optimization.lr} for group in groups]
        self.betas = optimization.betas
        self.eps = optimization.eps
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
        """Update the parameters of one group."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                # a tensor beside the weights, as torch's fused function wants it
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        adam(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],  # largest second moments, which amsgrad alone has
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


# The usual root mean square of an update by AdamW, divided by the learning rate. An orthogonal update has the
# same size if it is multiplied by this and by sqrt(max(rows, columns)) (Liu et al., arXiv 2502.16982).
ADAMW_SIZE = 0.2


class MuonAdamW(AdamW):
    """Move hidden matrices by Muon (Jordan et al. 2024), as torch has it, and the rest by AdamW.

    Updates of both have the same size, so one learning rate and one weight decay serve both. torch's own
    class always computes in bfloat16. On a CPU without bfloat16 that took 0.80 s of a step of 1.05 s (nano,
    one thread, AVX2), where float32 takes 0.04 s.
    """

    def __init__(
        self,
        hidden: list[torch.nn.Parameter],
        rest: list[dict[str, Any]],
        optimization: Optimization,
        precision: str,
    ) -> None:
        """Take the matrices for Muon, and the groups for AdamW. Muon multiplies in `precision`."""
        hidden_group = {"params": hidden, "weight_decay": optimization.weight_decay}
        super().__init__([hidden_group, *rest], optimization)
        self.dtype = torch.float32 if precision == "fp32" else torch.bfloat16

    @torch.no_grad()
    def step(self) -> None:
        """Make one update: hidden matrices by Muon, all other parameters by AdamW."""
        hidden, *rest = self.param_groups
        for parameter in hidden["params"]:
            self._update_hidden(parameter, hidden["lr"], hidden["weight_decay"])
        for group in rest:
            self._update(group)

    def _update_hidden(self, parameter: torch.nn.Parameter, lr: float, weight_decay: float) -> None:
        """Move a hidden matrix by Muon: along its momentum, made orthogonal."""
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = self.betas[0]
        buffer = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - momentum)
        direction = orthogonal(gradient.lerp(buffer, momentum), self.dtype)  # Nesterov's look ahead
        parameter.mul_(1 - lr * weight_decay)
        parameter.add_(direction, alpha=-lr * ADAMW_SIZE * math.sqrt(max(parameter.shape)))


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring all singular values of a matrix near 1, by five steps of Newton-Schulz (Jordan et al. 2024)."""
    # As published: small singular values grow fast, and in the end all lie only roughly at 1.
    a, b, c = 3.4445, -4.775, 2.0315
    is_tall = matrix.shape[0] > matrix.shape[1]
    # A copy, since it is divided in place below: in float32 `to` alone would return the matrix itself.
    x = matrix.to(dtype, copy=True)
    wide = x.T if is_tall else x  # so that the Gram matrix below is as small as possible
    # The largest singular value is at most the norm, so it is at most 1 now. From there the steps converge.
    # The clamp is for a matrix of zeros.
    wide.div_(wide.norm().clamp(min=1e-7))
    for _ in range(5):
        gram = wide @ wide.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G^2
        wide = torch.addmm(wide, polynomial, wide, beta=a)  # a X + (b G + c G^2) X
    return wide.T if is_tall else wide
