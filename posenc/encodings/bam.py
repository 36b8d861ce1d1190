"""BAM: a learned generalized Gaussian over distances (Bayesian attention mechanism).

Formula: score_ij - a_h |i - j - m_h|^b_h.
  a_h, b_h  learned for each head, shared by the layers; a_h > 0. The smaller b, the more slowly the penalty
            grows with the distance.
  m_h       0 as in the released code, unless `learned_location`
With m = 0 and b = 1 this is ALiBi. Training starts there, with ALiBi's slopes for a.
Setting:
  learned_location  true: m_h is learned too, as 2 sinh of a parameter that starts at 0
As in the released code, 1e-5 is added to |i - j - m| before it is raised to the power.
The paper combines it with scalable softmax: `attention.scale=ssmax`.
Source: the authors' code.
Departure: all parameters have one learning rate. The authors have others for a, b and m.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.alibi import slopes
from posenc.encodings.base import Encoding, Shape, StepCost

SMALLEST_DISTANCE = 1e-5  # is added to every distance: at 0 the gradient of the power is not finite


class BAM(Encoding):
    name = "bam"
    paper = "Bianchessi, Aguirre, Barros, Kupssinsku 2025, arXiv 2505.22842"
    formula = "score_ij - a_h |i - j - m_h|^b_h, a and b learned (m too, if learned_location)"
    acts_on = "bias"
    past_training = "defined everywhere; heads with a small exponent keep the far past"
    learned = "H*(3 if learned_location else 2)"
    relative = True
    cost = StepCost(at_64=1.13, at_512=1.41)

    def __init__(self, shape: Shape, *, learned_location: bool) -> None:
        super().__init__(shape)
        # Its logarithm, as in `alibi` with learned slopes, so that a stays above 0.
        self.scale = nn.Parameter(torch.tensor(slopes(shape.n_heads)).log())  # log a, (H,)
        self.exponent = nn.Parameter(torch.ones(shape.n_heads))  # b, (H,)
        self.location = nn.Parameter(torch.zeros(shape.n_heads)) if learned_location else None  # (H,)

    def learned_parameters(self) -> int:
        kinds = 2 if self.location is None else 3
        return kinds * self.shape.n_heads

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        distance = r.float()[None]  # (1, R)
        if self.location is not None:
            distance = distance - 2 * self.location.float().sinh()[:, None]  # (H, R)
        power = (distance.abs() + SMALLEST_DISTANCE).pow(self.exponent.float()[:, None])  # (H, R)
        return -self.scale.float().exp()[:, None] * power
