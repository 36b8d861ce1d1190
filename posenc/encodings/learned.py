"""Learned absolute positions: a trained row for each position of the training window.

Formula: x_t + E[t].
  E  a learned table with a row for each position of training: 0..T-1, or up to the limit of drawn positions.
     Each place where positions enter has its own (see `per_layer` in shared/absolute.py).
Setting:
  beyond  what is used past the end of the table
          untrained  random rows with the initial distribution, drawn from (seed, t); never trained or saved
          clamp      the last row, E[T-1], for every t >= T
          truncate   an evaluation cuts longer windows to their last T tokens
          refuse     nothing: there is no number past T
Departure: rows start with the standard deviation of the token embeddings, d^-1/2. In GPT-2 as released that
of positions is half as large as that of tokens (0.01 and 0.02).
"""

from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Beyond, Combine, Tabled


class Learned(Tabled):
    name = "learned"
    paper = "Gehring et al. 2017, arXiv 1705.03122; BERT, arXiv 1810.04805; GPT-2 (Radford et al. 2019)"
    formula = "x_t + E[t]"
    past_training = "no trained row exists; `beyond` decides what is used"
    is_whole = True
    learned = f"(T*d + {JOINED})*{PLACES}"

    def __init__(self, shape: Shape, *, beyond: Beyond, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, width=shape.d_model, beyond=beyond, per_layer=per_layer, combine=combine)

    def learned_in_a_place(self) -> int:
        return self.shape.positions * self.shape.d_model

    def rows(self, pos: Tensor, place: int) -> Tensor:
        return self.look_up(pos, place)
