"""NoPE: no positional encoding; order comes from the causal mask alone.

Formula: score_ij as it is. Nothing is added, rotated or biased.
"""

from posenc.encodings.base import Encoding


class NoPE(Encoding):
    name = "nope"
    paper = "Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466"
    formula = "nothing: the causal mask alone"
    acts_on = "nothing"
    past_training = "no parameter depends on the length; attention spreads over more keys than in training"
    learned = "0"
    relative = True
    uses_positions = False
    decouples = True

    def learned_parameters(self) -> int:
        return 0
