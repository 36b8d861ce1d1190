"""STRING: far distances shifted towards those that training showed often."""

from dataclasses import dataclass
from typing import ClassVar

from posenc.core.errors import UserError
from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.redistanced import FarPairs, Redistancing, pairs_apart


@dataclass(eq=False, kw_only=True)
class Shifted(Redistancing):
    """Distances from S = `shift` (T/3) on become i - j - S + w, w = `near`, even in windows within T.

    Training shows few pairs with large distances, so smaller ones, which it shows often, take their place.
    Beyond T + S - w tokens there are unseen distances again.
    Departure: the released code multiplies cos and sin by 1.07.
    """

    name = "string"
    paper = "An et al. 2024 (STRING), arXiv 2410.18745"
    formula = "i - j below S, else i - j - S + w"
    grid: ClassVar = {"shift": ("0.25x", None, "0.5x")}

    shift: Length
    near: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shift_tokens = self.tokens("shift", self.shift, max(2, self.reach // 3))
        self.w = self.tokens("near", self.near, max(1, self.reach // 1024))
        # Otherwise far distances would grow, and the extension would do the reverse of its aim.
        if self.w >= self.shift_tokens:
            problem = f"no distance is left out below extend.near={self.w}"
            raise UserError("extend.shift", self.shift, problem, allowed=f"from {self.w + 1} tokens")

    def far_pairs(self, window: int) -> list[FarPairs]:
        shift = self.shift_tokens
        w = self.w
        if self.span(window) <= shift:
            return []
        return [FarPairs(pairs_apart(shift), query=lambda pos: pos - shift + w, key=lambda pos: pos)]
