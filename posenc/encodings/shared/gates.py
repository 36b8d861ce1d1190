"""Biases by what lies between query and key: each token has a number, its gate, and the bias is their sum."""

from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, float64


class CumulativeGates(Encoding):
    """Add -g_i * sum over l = j+1..i of f_l to score_ij; a subclass computes f_l >= 0 and g_i of each token.

    The sum between two tokens is a difference of two sums from the beginning of the text. `prepare` computes
    these once in each layer.
    """

    acts_on = "scores"
    relative = True
    uses_positions = False
    cumulates_gates = True

    def steps(self, x: Tensor, layer: int) -> Tensor:
        """Return f_l >= 0 of every token and head: (B, S, d_model) -> (B, S, H)."""
        raise NotImplementedError

    def weight(self, x: Tensor, layer: int) -> Tensor | None:
        """Return g_i of every token and head: (B, S, d_model) -> (B, S, H); None stands for 1."""
        return None

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return the sums of f up to each token, (B, H, S) float64, and g (B, H, S)."""
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(next(self.parameters()).dtype)  # a bf16 product would round every step
            # float64: a float32 sum of 65 536 steps near 1 is off by thousandths
            sums = float64(self.steps(exact, layer)).cumsum(1).transpose(1, 2)  # (B, H, S)
            weight = self.weight(exact, layer)
            return sums, None if weight is None else weight.transpose(1, 2)

    def gates_of(self, state: Any) -> tuple[Tensor, Tensor | None]:
        sums, weight = state
        return sums, weight

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        sums, weight = state
        queries, keys = s.shape[-2:]
        # float32 is finest near 0, so the sum at the block's first query is subtracted from all others first.
        # With the sum at its last query the rounding of an earlier query would depend on a later token.
        start = keys - queries  # index of the block's first query
        since_start = (sums[..., :keys] - sums[..., start, None]).float().to(s.device)  # (B, H, S)
        difference = since_start[..., None, :] - since_start[..., start:, None]  # (B, H, T, S)
        if weight is None:
            # In place: the difference is a tensor of the size of the scores that nobody else has.
            return difference.add_(s)
        return torch.addcmul(s, weight[..., start:keys, None].float(), difference)
