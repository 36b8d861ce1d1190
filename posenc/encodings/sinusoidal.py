"""Sinusoidal absolute positions.

Formula: sqrt(d) x_t + PE_t.
  PE_{t,2k}    sin(t / base^(2k/d))
  PE_{t,2k+1}  cos(t / base^(2k/d))
Token embeddings start with standard deviation d^-1/2, so that sqrt(d) x_t is about as large as PE_t. With
`per_layer` the factor sqrt(d) is applied at the input alone.
Departure: an odd d is allowed; its last sine has no cosine.
"""

from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Absolute, Combine
from posenc.encodings.shared.sinusoids import check_base, sinusoids


class Sinusoidal(Absolute):
    name = "sinusoidal"
    paper = "Vaswani et al. 2017, arXiv 1706.03762"
    formula = "x_t sqrt(d) + PE_t, PE_{t,2k} = sin(t/base^(2k/d)), PE_{t,2k+1} = cos(same)"
    past_training = "defined everywhere; combinations of phases beyond T were never seen in training"
    learned = f"{JOINED}*{PLACES}"

    def __init__(self, shape: Shape, *, base: float, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        check_base(base)
        self.base = base
        self.input_scale = shape.d_model**0.5

    def rows(self, pos: Tensor, place: int) -> Tensor:
        return sinusoids(pos, self.shape.d_model, self.base)
