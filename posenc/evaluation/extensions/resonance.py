"""Resonance: wavelengths are rounded to whole tokens."""

from dataclasses import dataclass

from torch import Tensor

from posenc.encodings.shared.frequencies import with_whole_wavelengths
from posenc.evaluation.extensions.rescaled import OtherFrequencies


@dataclass(eq=False, kw_only=True)
class ResonanceBeyond(OtherFrequencies):
    """Round wavelengths beyond T. The paper trains or tunes with them, as `encoding=resonance_rope` does."""

    name = "resonance"
    paper = "Wang, Kobyzev, Lu, Rezagholizadeh, Liu 2024, arXiv 2403.00071"
    formula = "theta becomes 2 pi / round(2 pi / theta)"

    def changed(self, theta: Tensor) -> Tensor:
        return with_whole_wavelengths(theta)
