"""Encodings that count along the text: sums over the keys, in float32 or better.

`CumulativeGates` are those whose every token adds a step of its own; `reversed_cumsum` serves those whose
steps differ with the query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, float64

State = tuple[Tensor, Tensor | None]


class CumulativeGates(Encoding):
    """score_ij - g_i * sum over l = j+1..i of f_l; a subclass makes f_l >= 0, and g_i, of each token's input.

    The own token's step counts for every older key, so the nearest key (j = i) loses nothing.
    """

    acts_on = "scores"
    relative = True
    uses_positions = False

    def steps(self, x: Tensor, layer: int) -> Tensor:
        """f_l >= 0 of every token and head: (B, S, d_model) -> (B, S, H)."""
        raise NotImplementedError

    def weight(self, x: Tensor, layer: int) -> Tensor | None:
        """g_i of every token and head: (B, S, d_model) -> (B, S, H); None stands for 1."""
        return None

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> State:
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(next(self.parameters()).dtype)  # a bf16 product would round every step
            # float64: a float32 sum of 65 536 steps near 1 is off by thousandths
            passed = float64(self.steps(exact, layer)).cumsum(1).transpose(1, 2)  # (B, H, S)
            weight = self.weight(exact, layer)
            return passed, None if weight is None else weight.transpose(1, 2)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        passed, weight = state
        queries, keys = s.shape[-2:]
        # Counted from the block's first query, so that float32 holds what is near. Not from its last one:
        # a changed future token would then round its past anew.
        start = keys - queries
        counted = (passed[..., :keys] - passed[..., start, None]).float().to(s.device)  # (B, H, S)
        difference = counted[..., None, :] - counted[..., start:, None]  # (B, H, T, S)
        if weight is None:
            return difference.add_(s)
        return torch.addcmul(s, weight[..., start:keys, None].float(), difference)


class _ReversedCumsum(torch.autograd.Function):
    """In place where it can be, and its gradient is a plain cumsum: autograd's own would flip four times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1).cumsum_(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].cumsum(-1)


def reversed_cumsum(x: Tensor) -> Tensor:
    """Sums over this entry and all later ones of the last dimension.

    Added from the end on, so that a sum near the end is as exact as its few terms: the total less the
    cumsum would lose it in the total's rounding.
    """
    summed: Tensor = _ReversedCumsum.apply(x)
    return summed
