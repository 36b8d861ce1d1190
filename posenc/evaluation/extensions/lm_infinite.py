"""LM-Infinite: the first keys and a window, distances capped."""

from typing import ClassVar

from posenc.evaluation.extensions.first_keys import FirstKeys
from posenc.evaluation.extensions.redistanced import FarPairs, cap_distance


class LMInfinite(FirstKeys):
    """The first n = `sinks` keys and those at i - j < w = `window` (T - 1) are seen, at most w away.

    Departures: the paper has T for w, n from 10 to 100, and attention to middle tokens of highest score.
    """

    name = "lm_infinite"
    paper = "Han et al. 2023, arXiv 2308.16137"
    formula = "the first n keys and those at i - j < w, at distance min(i - j, w)"
    grid: ClassVar = {"sinks": (1, 4, 10)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hide_middle_keys(max(1, self.reach - 1))

    def far_pairs(self, window: int) -> list[FarPairs]:
        if self.span(window) - 1 <= self.w:
            return []
        return [cap_distance(self.w, self.sinks)]
