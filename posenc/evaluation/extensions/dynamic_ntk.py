"""Dynamic NTK: a base that grows with the window."""

from dataclasses import dataclass
from typing import ClassVar

from posenc.evaluation.extensions.ntk import NTK


@dataclass(eq=False, kw_only=True)
class DynamicNTK(NTK):
    """Act as `ntk` at s = a W/T - (a - 1), where a = `factor`. With a = 1 that is `ntk` with `factor: auto`.

    As written in YaRN, section 3.3, whose current length is the window here.
    """

    name = "dynamic_ntk"
    paper = "u/emozilla 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = a W/T - (a - 1)"
    grid: ClassVar = {"factor": (1.0, 2.0, 4.0)}

    # With any a above 0 the factor s stays at 1 or above, so a may be below 1.
    least: ClassVar = 0
    factor: float

    def s(self, window: int) -> float:
        return 1 + self.factor * (max(1.0, self.span(window) / self.reach) - 1)
