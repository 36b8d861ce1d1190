"""PI: position interpolation. All positions are squeezed into the training length.

Formula: theta_k / s, the same as positions m / s. s = `factor`, W/T with `auto`.
Paper: Chen, Wong, Chen, Tian 2023, arXiv 2306.15595, where a short fine-tune follows; here there is none.
"""

from __future__ import annotations

from torch import Tensor

from posenc.evaluation.extend._frequencies import Rescaled


class PI(Rescaled):
    """Every pair turns s times more slowly."""

    name = "pi"
    paper = "Chen, Wong, Chen, Tian 2023, arXiv 2306.15595"
    formula = "positions m / s, s = W/T"

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / s
