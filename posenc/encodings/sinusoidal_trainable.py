"""Sinusoidal absolute positions whose frequencies and phases are learned.

Formula: sqrt(d) x_t + PE_t.
  PE_{t,2k}    sin(w_k t + f_k)
  PE_{t,2k+1}  cos(w_k t + f_k)
  w_k, f_k     learned frequencies in radians a token, and phases; each place where positions enter has its
               own. They start at base^(-2k/d) and 0, as in `sinusoidal`.
Paper: none; the tutorials' variant of Vaswani et al. 2017, arXiv 1706.03762. Not the learnable Fourier
features of Li et al. 2021, arXiv 2106.02795, which add an MLP.
Precision: the product is computed in float64, but parameters are float32. At position 65 536 the rounding of
a frequency changes the angle by up to 0.002 radians.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape, float64
from posenc.encodings.shared.absolute import JOINED, PLACES, Absolute, Combine
from posenc.encodings.shared.sinusoids import (
    check_base,
    check_even_width,
    sines_and_cosines,
    sinusoid_frequencies,
)


class SinusoidalTrainable(Absolute):
    name = "sinusoidal_trainable"
    paper = "none (tutorials); starts as Vaswani et al. 2017, arXiv 1706.03762"
    formula = "x_t sqrt(d) + PE_t, PE_{t,2k} = sin(w_k t + f_k), PE_{t,2k+1} = cos(same), w and f learned"
    past_training = "defined everywhere; the error of a fitted frequency grows with the position"
    learned = f"(d + {JOINED})*{PLACES}"

    def __init__(self, shape: Shape, *, base: float, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        check_base(base)
        check_even_width(shape.d_model)
        self.base = base
        self.input_scale = shape.d_model**0.5
        # Parameters are float32 as all others are, so a checkpoint rounds nothing further.
        theta = sinusoid_frequencies(shape.d_model, base).float()  # (d/2,)
        self.frequency = nn.Parameter(theta.repeat(self.places, 1))  # (places, d/2)
        self.phase = nn.Parameter(torch.zeros(self.places, shape.d_model // 2))  # (places, d/2)

    def learned_in_a_place(self) -> int:
        return self.shape.d_model

    def rows(self, pos: Tensor, place: int) -> Tensor:
        angle = float64(pos)[:, None] * float64(self.frequency[place])  # (T, d/2)
        return sines_and_cosines(angle + float64(self.phase[place])).float().to(pos.device)  # (T, d_model)
