"""KERPLE, power kernel: a learned penalty by a power of the distance.

Formula: score_ij - a_h r^b_h, r = i - j, a_h > 0, 0 < b_h <= 2 learned for each head, shared by layers.
b = 1 is ALiBi with learned slopes. It acts on the scores as a bias by distance. a starts uniform in (0, 1),
b in (0, 2).
Paper: Chi, Fan, Ramadge, Rudnicky 2022, arXiv 2205.09921.
Departures: 0.01 + softplus(.) and 0.01 + 1.99 sigmoid(.) keep a and b in their ranges, where the released
code clamps them.
"""

from __future__ import annotations

from torch import Tensor

from posenc.encodings.families.kerple import FLOOR, Kerple
from posenc.encodings.families.positive import above, between, raw_above, raw_between

LARGEST_EXPONENT = 2.0  # beyond it the kernel is not conditionally positive definite


class KerplePower(Kerple):
    """- a r^b."""

    name = "kerple_power"
    formula = "score_ij - a_h (i - j)^b_h, a_h > 0, 0 < b_h <= 2 learned"
    past_training = "defined everywhere; heads with a large exponent see a short past only"
    traps = (
        "An exponent above 2 is no kernel any more: it is held below by a reparametrisation.",
        "Written as exp(b log r), the own token (r = 0) has a nan for a gradient.",
    )

    def raw(self, name: str, value: Tensor) -> Tensor:
        return raw_above(value, FLOOR) if name == "a" else raw_between(value, FLOOR, LARGEST_EXPONENT)

    def drawn_up_to(self, name: str) -> float:
        return {"a": 1.0, "b": LARGEST_EXPONENT}[name]

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        a, b = above(self.a, FLOOR)[:, None], between(self.b, FLOOR, LARGEST_EXPONENT)[:, None]  # (H, 1)
        # not exp(b log r), which in float32 is off by 1e-6 of itself at r = 65 536
        power = r.clamp_min(1).float().pow(b)  # (H, R)
        return -a * power * (r > 0)
