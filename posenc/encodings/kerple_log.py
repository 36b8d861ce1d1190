"""KERPLE, logarithmic kernel: a learned penalty by the logarithm of the distance.

Formula: score_ij - a_h log(1 + b_h r), r = i - j, a_h, b_h > 0 learned for each head, shared by the layers.
It acts on the scores as a bias by distance. a starts uniform in (0, 2), b in (0, 1).
Paper: Chi, Fan, Ramadge, Rudnicky 2022, arXiv 2205.09921.
Departures: 0.01 + softplus(.) keeps a and b positive, where the released code clamps them to 0.01.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.families.kerple import FLOOR, Kerple
from posenc.encodings.families.positive import above, raw_above


class KerpleLog(Kerple):
    """- a log(1 + b r)."""

    name = "kerple_log"
    formula = "score_ij - a_h log(1 + b_h (i - j)), a_h, b_h > 0 learned"
    past_training = "defined everywhere; the penalty grows ever more slowly with the distance"
    traps = (
        "Clamped through `.data`, a and b get no gradient back from the floor.",
        "Weight decay would pull a to no penalty at all: it is left out.",
    )

    def raw(self, name: str, value: Tensor) -> Tensor:
        return raw_above(value, FLOOR)

    def drawn_up_to(self, name: str) -> float:
        return {"a": 2.0, "b": 1.0}[name]

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        a, b = above(self.a, FLOOR)[:, None], above(self.b, FLOOR)[:, None]  # (H, 1)
        return -a * torch.log1p(b * r.float())  # (H, R)
