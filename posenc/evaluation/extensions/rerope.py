"""ReRoPE: distances are capped, or grow more slowly beyond a window."""

from dataclasses import dataclass
from typing import ClassVar

from posenc.encodings.base import float64
from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.redistanced import FarPairs, Redistancing, cap_distance


@dataclass(eq=False, kw_only=True)
class ReRoPE(Redistancing):
    """Cap the distance i - j at w = `window` (T - 1). With `leak` = a it is w + (i - j - w)/a beyond w.

    It costs a second product of queries and keys. A window that the model was trained with hides keys by
    their true distances.
    """

    name = "rerope"
    paper = "Su 2023 (blog posts on ReRoPE)"
    formula = "min(i - j, w), or w + (i - j - w)/leak beyond w"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    window: Length
    leak: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        # T - 1 is the largest distance that training showed, so no query gets an unseen one.
        self.w = self.tokens("window", self.window, self.reach - 1)
        if self.leak is not None:
            self.check_range("leak", self.leak, 1)
            for part in self.parts:
                if "distance_bias" in part.hooks:
                    raise self.refusal(f"{part.name} has no bias at the broken distances of extend.leak")

    def far_pairs(self, window: int) -> list[FarPairs]:
        w = self.w
        leak = self.leak
        # With leak = 1 every distance is the true one.
        if self.span(window) - 1 <= w or leak == 1:
            return []
        far = cap_distance(w)
        if leak is None:
            return [far]
        # In float32 a far position would lose digits of its fraction, and the distance with it.
        return [
            FarPairs(
                far.pairs,
                query=lambda pos: w + (float64(pos) - w) / leak,
                key=lambda pos: float64(pos) / leak,
            )
        ]
