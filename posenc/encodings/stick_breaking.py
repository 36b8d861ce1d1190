"""Stick-breaking attention: the nearest key takes a share of the weight, the next one a share of the rest.

Formula: the weight of key j < i is A_ij = sigmoid(z_ij) * product over j < k < i of (1 - sigmoid(z_ik)).
  z  the scaled score
There is no softmax. Weights sum to less than 1, and a token's score with itself is not used.
Setting:
  remainder  none: the rest of the weight is dropped, so the first token's output is zero
             self: the rest goes to the token's own value, and weights sum to 1
Weights are computed through their logarithms: log A_ij = z_ij - sum over j <= k < i of softplus(z_ik).
The paper has both remainders. `none` did better there, and the released 3B model has it.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, StepCost
from posenc.encodings.shared.blocks import reversed_cumsum


class StickBreaking(Encoding):
    name = "stick_breaking"
    paper = "Tan, Yang, Courville, Panda, Shen 2024, arXiv 2410.17980"
    formula = "A_ij = sigmoid(z_ij) * product over j<k<i of (1 - sigmoid(z_ik)), j < i"
    acts_on = "weights"
    past_training = "near keys keep their weights at any length; far ones get what is left"
    learned = "0"
    relative = True
    uses_positions = False
    refuses: Mapping[str, str] = {"attention.scale": "there is no softmax to scale"}
    cost = StepCost(at_64=1.2, at_512=2.39)

    def __init__(self, shape: Shape, *, remainder: Literal["none", "self"]) -> None:
        super().__init__(shape)
        self.remainder = remainder

    def learned_parameters(self) -> int:
        return 0

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        queries, keys = s.shape[-2:]
        is_used = allowed.tril(keys - queries - 1)  # (T, S): allowed keys before the query's own token
        # Other keys get the score -inf. So their weight is exp(-inf) = 0, and they take softplus(-inf) = 0 of
        # the rest.
        mask = torch.zeros_like(is_used, dtype=s.dtype).masked_fill_(~is_used, float("-inf"))  # ([H,] T, S)
        z = s + mask  # (B, H, T, S)
        minus_log_rest = reversed_cumsum(F.softplus(z))  # of what is left after key j, (B, H, T, S)
        # By logarithms, since a product of hundreds of factors below 1 would underflow.
        weights = (z - minus_log_rest).exp_()  # (B, H, T, S)
        if self.remainder == "none":
            return weights
        first_query = keys - queries  # its index among the keys, so that of its diagonal
        is_itself = torch.ones_like(z[0, 0]).tril(first_query).triu_(first_query)  # (T, S), as 0 and 1
        rest = (-minus_log_rest[..., :1]).exp()  # after the first token of the text
        return torch.addcmul(weights, rest, is_itself)  # (B, H, T, S)
