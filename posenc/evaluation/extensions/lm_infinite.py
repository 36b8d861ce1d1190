"""LM-Infinite: queries see the first keys and a window, at capped distances."""

from typing import ClassVar

from posenc.evaluation.extensions.first_keys import FirstKeys
from posenc.evaluation.extensions.redistanced import FarPairs, cap_distance


class LMInfinite(FirstKeys):
    """Show the first n = `sinks` keys and those at i - j < w = `window` (T - 1), none farther than w away.

    Departures: in the paper w is T, n is 10 to 100, and middle keys with the highest scores are seen, too.
    """

    name = "lm_infinite"
    paper = "Han et al. 2023, arXiv 2308.16137"
    formula = "the first n keys and those at i - j < w, at distance min(i - j, w)"
    grid: ClassVar = {"sinks": (1, 4, 10)}

    def __post_init__(self) -> None:
        super().__post_init__()
        # T - 1 is the largest distance in a window of T tokens. At the distance T of the paper no model was
        # trained.
        self.hide_middle_keys(max(1, self.reach - 1))

    def far_pairs(self, window: int) -> list[FarPairs]:
        # Here the only pair w apart is the last query and the first key, which is visible at its true
        # distance.
        if self.span(window) - 1 <= self.w:
            return []
        return [cap_distance(self.w, self.sinks)]
