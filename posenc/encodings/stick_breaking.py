"""Stick-breaking attention: from the nearest key on, each takes its share of what is left.

Formula: A_ij = sigmoid(z_ij) * product over j < k < i of (1 - sigmoid(z_ik)), j < i, z the scaled score.
There is no softmax: weights sum below 1, and a token never looks at itself by its own score.
  remainder  none: what no key took goes nowhere, so the first token's output is zero
             self: it goes to the token's own value, and weights sum to 1
It acts on the weights, in log space and float32: log A_ij = z_ij - sum over j <= k < i of softplus(z_ik).
Paper: Tan, Yang, Courville, Panda, Shen 2024, arXiv 2410.17980. It has both; `none` did better there, and
its released 3B model has it.
Departures: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.gates import reversed_cumsum


class StickBreaking(Encoding):
    """A stick of length 1 is broken key by key, the nearest first."""

    name = "stick_breaking"
    paper = "Tan, Yang, Courville, Panda, Shen 2024, arXiv 2410.17980"
    formula = "A_ij = sigmoid(z_ij) * product over j<k<i of (1 - sigmoid(z_ik)), j < i"
    acts_on = "weights"
    past_training = "near keys keep their shares at any length; far ones get what is left"
    learned = "0"
    relative = True
    uses_positions = False
    refuses: Mapping[str, str] = {"attention.scale": "there is no softmax whose logits it could sharpen"}
    traps = (
        "The first token has no key: weights of zero, not a softmax over nothing (nan).",
        "Products of (1 - sigmoid) underflow: sums of their logarithms do not.",
        "Garbage scores of the future, exponentiated before the mask, are inf, and 0 * inf is nan.",
    )

    def __init__(self, shape: Shape, *, remainder: Literal["none", "self"]) -> None:
        super().__init__(shape)
        self.remainder = remainder

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        queries, keys = s.shape[-2:]
        older = allowed.tril(keys - queries - 1)  # (T, S) without the own token
        # -inf before anything else: such a key takes nothing (exp) and breaks nothing off (softplus)
        z = s + torch.zeros_like(older, dtype=s.dtype).masked_fill_(~older, float("-inf"))  # (B, H, T, S)
        taken = reversed_cumsum(F.softplus(z))  # minus the log of what this key and all nearer ones leave
        broken = (z - taken).exp_()
        if self.remainder == "none":
            return broken
        own = torch.ones_like(z[0, 0]).tril(keys - queries).triu_(keys - queries)  # (T, S)
        return torch.addcmul(broken, (-taken[..., :1]).exp(), own)  # (B, H, T, S)
