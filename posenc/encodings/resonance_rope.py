"""Resonance RoPE: every pair turns once in a whole number of tokens.

Formula: RoPE with theta_k = 2 pi / round(2 pi / base^(-2k/D)).
A pair whose wavelength is below T meets all of its angles in training, and no others later. The test-time
extension `extend=resonance` makes the same change in a model that was trained with RoPE. The paper also
combines it with YaRN.
Source: the authors' code.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.frequencies import with_whole_wavelengths
from posenc.encodings.shared.rotary import Layout, Rotary


class ResonanceRoPE(Rotary):
    name = "resonance_rope"
    paper = "Wang, Kobyzev, Lu, Rezagholizadeh, Liu 2024, arXiv 2403.00071"
    formula = "RoPE, wavelengths 2 pi / theta_k rounded to whole tokens"
    past_training = "fast pairs repeat their angles of training exactly; slow ones reach new angles"
    learned = "0"

    def __init__(self, shape: Shape, *, base: float, layout: Layout) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies with whole wavelengths: (D/2,) float64."""
        return with_whole_wavelengths(super().frequencies(device))
