"""LM-Infinite: the first keys stay visible beside a window, at a distance that is capped.

Formula: the first n = `sinks` keys and those at i - j < w = `window` are seen, at distance min(i - j, w). By
default w = T - 1, the farthest distance that training shows, so that nothing changes up to T.
Paper: Han et al. 2023, arXiv 2308.16137. Departures: its window and cap are T, a distance that training does
not show; n is 10, the least of the 10 to 100 between which its authors see little difference. The attention
to middle tokens of highest score, for retrieval, is left out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from posenc.encodings.base import Encoding
from posenc.evaluation.extend._base import Extension, Length, check_range
from posenc.evaluation.extend._parts import together
from posenc.evaluation.extend._redistance import Far, redistanced
from posenc.evaluation.extend._sinks import APPLIES, FirstAndNear, check_sinks
from posenc.model.decoder import Decoder


class LMInfinite(Extension):
    """A mask in the shape of a Lambda, and a cap on the distance."""

    name = "lm_infinite"
    paper = "Han et al. 2023, arXiv 2308.16137"
    formula = "the first n keys and those at i - j < w, at distance min(i - j, w)"
    applies = APPLIES
    grid: ClassVar = {"sinks": (1, 4, 10)}

    def __init__(self, model: Decoder, *, sinks: int, window: Length) -> None:
        super().__init__(model)
        check_sinks(model, self.parts)
        check_range("sinks", sinks, 1)
        self.sinks = sinks
        self.window = max(1, self.reach - 1) if window is None else self.tokens("window", window)

    def acting(self, window: int) -> Encoding:
        first, w = self.sinks, self.window
        if self.span(window) - 1 <= w:
            return self.model.acting
        shape = self.model.acting.shape
        far = Far(
            pairs=lambda q_pos, k_pos: q_pos[:, None] - k_pos > w,
            query=lambda q_pos: torch.full_like(q_pos, w),
            key=torch.zeros_like,
            keys=first,
        )
        mask = FirstAndNear(shape, first=first, near=w)
        return together(shape, [*redistanced(shape, self.parts, far), mask])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"sinks": self.sinks, "window": self.window}
