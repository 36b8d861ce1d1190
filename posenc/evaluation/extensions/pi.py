"""Position interpolation."""

from torch import Tensor

from posenc.evaluation.extensions.rescaled import Rescaled


class PI(Rescaled):
    """Position interpolation, theta_k / s, here without the fine-tuning that follows in the paper."""

    name = "pi"
    paper = "Chen, Wong, Chen, Tian 2023, arXiv 2306.15595"
    formula = "positions m / s, s = W/T"

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / s
