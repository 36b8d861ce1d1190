"""KERPLE, power kernel: a learned penalty by a power of the distance.

Formula: score_ij - a_h (i - j)^b_h.
  a_h, b_h  learned for each head, shared by the layers; a_h > 0, 0 < b_h <= 2
With b = 1 it is ALiBi with learned slopes.
Initialisation: a is uniform in (0, 1), b in (0, 2).
Departure: a is 0.01 + softplus(parameter), and b is 0.01 + 1.99 sigmoid(parameter), so that they stay in
their ranges. The released code clamps them.
"""

from typing import ClassVar

from torch import Tensor

from posenc.encodings.base import StepCost
from posenc.encodings.shared.bounded import inverse_soft_range, soft_floor, soft_range
from posenc.encodings.shared.kerple import KERPLE_FLOOR, Kerple

LARGEST_EXPONENT = 2.0  # above it the kernel is not conditionally positive definite


class KerplePower(Kerple):
    name = "kerple_power"
    formula = "score_ij - a_h (i - j)^b_h, a_h > 0, 0 < b_h <= 2 learned"
    past_training = "defined everywhere; heads with a large exponent see a short past only"
    starts_below: ClassVar = {"a": 1.0, "b": LARGEST_EXPONENT}
    cost = StepCost(at_64=1.07, at_512=1.24)

    def raw(self, name: str, value: Tensor) -> Tensor:
        if name == "b":
            return inverse_soft_range(value, KERPLE_FLOOR, LARGEST_EXPONENT)
        return super().raw(name, value)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        a = soft_floor(self.a, KERPLE_FLOOR)[:, None]  # (H, 1)
        b = soft_range(self.b, KERPLE_FLOOR, LARGEST_EXPONENT)[:, None]
        # exp(b log r) would be off by a relative 1e-6 at r = 65 536
        power = r.clamp_min(1).float().pow(b)  # (H, R)
        return -a * power * (r > 0)  # the clamp has made distance 0 a 1
