"""Llama 3's rescaling: slow pairs are interpolated, by their turns within the original context."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.rescaled import Rescaled, by_turns


@dataclass(eq=False, kw_only=True)
class Llama3(Rescaled):
    """`ntk_by_parts` with `ramp: turns`, within `original_context` instead of T.

    Llama 3.1 has a factor of 8 at every window and an original context of 8192.
    """

    name = "llama3"
    paper = "Llama 3.1 (Meta 2024), in its released code"
    formula = "theta/s below 1 turn within the original context, theta above 4, a ramp over the turns between"
    grid: ClassVar = {"high_freq_factor": (2.0, 4.0, 8.0)}

    low_freq_factor: float
    high_freq_factor: float
    original_context: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range("low_freq_factor", self.low_freq_factor, 0)
        # The ramp divides by their difference.
        self.check_range("high_freq_factor", self.high_freq_factor, self.low_freq_factor, above=True)
        self.original = self.tokens("original_context", self.original_context, self.reach)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        turns = (self.low_freq_factor, self.high_freq_factor)
        return by_turns(x=theta, theta=theta, s=s, length=self.original, turns=turns)
