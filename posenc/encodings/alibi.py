"""ALiBi: attention with linear biases.

Formula: score_ij - m_h (i - j).
  m_h  the slope of head h = 1..H: 2^(-8h/H). If H is not a power of two, the first p heads get the slopes
       for p heads, p being the next lower power, and the others every other slope for 2p heads.
Setting:
  learned_slopes  true: log m_h is trained, from the same start
The scores are divided by sqrt(D), the bias is not.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape


def slopes(n_heads: int) -> list[float]:
    """Return m_h for h = 1..H."""
    power = 1 << (n_heads.bit_length() - 1)  # largest power of two <= H
    # A geometric row from 2^(-8/p) down to 2^-8, so that heads look back over lengths of every order.
    slopes_of_power = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    every_other_of_twice = [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes_of_power + every_other_of_twice[: n_heads - power]


class ALiBi(Encoding):
    name = "alibi"
    paper = "Press, Smith, Lewis 2021, arXiv 2108.12409"
    formula = "score_ij - m_h (i - j), m_h = 2^(-8h/H)"
    acts_on = "bias"
    past_training = "defined everywhere; far keys are penalised more and more, so the far past fades"
    learned = "H if learned_slopes else 0"
    relative = True
    penalty = True

    published: Tensor

    def __init__(self, shape: Shape, *, learned_slopes: bool) -> None:
        super().__init__(shape)
        published = torch.tensor(slopes(shape.n_heads))  # (H,)
        # A buffer moves to a GPU with the model. It follows from H, so no checkpoint needs it.
        self.register_buffer("published", published, persistent=False)
        # The logarithm is trained, so that a slope stays above 0: below it distance would be rewarded.
        self.slope = nn.Parameter(published.log()) if learned_slopes else None  # log m_h, (H,)

    def learned_parameters(self) -> int:
        return 0 if self.slope is None else self.shape.n_heads

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        slope = self.published if self.slope is None else self.slope.float().exp()  # (H,)
        # By distance. The slope times the key's index gives the same softmax, but in bf16 most neighbouring
        # biases would become equal.
        return -slope[:, None] * r.float()  # (H, R)
