"""KERPLE, logarithmic kernel: a learned penalty by the logarithm of the distance.

Formula: score_ij - a_h log(1 + b_h (i - j)).
  a_h, b_h  learned for each head, shared by the layers; both are above 0
Initialisation: a is uniform in (0, 2), b in (0, 1).
Departure: a and b are kept positive as 0.01 + softplus(parameter). The released code clamps them to 0.01.
"""

from typing import ClassVar

import torch
from torch import Tensor

from posenc.encodings.base import StepCost
from posenc.encodings.shared.bounded import soft_floor
from posenc.encodings.shared.kerple import KERPLE_FLOOR, Kerple


class KerpleLog(Kerple):
    name = "kerple_log"
    formula = "score_ij - a_h log(1 + b_h (i - j)), a_h, b_h > 0 learned"
    past_training = "defined everywhere; the penalty grows with the logarithm of the distance"
    starts_below: ClassVar = {"a": 2.0, "b": 1.0}
    cost = StepCost(at_64=1.06, at_512=1.17)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        a = soft_floor(self.a, KERPLE_FLOOR)[:, None]  # (H, 1)
        b = soft_floor(self.b, KERPLE_FLOOR)[:, None]
        # `log1p` keeps the digits of a small b r, which a sum with 1 would round away.
        return -a * torch.log1p(b * r.float())  # (H, R)
