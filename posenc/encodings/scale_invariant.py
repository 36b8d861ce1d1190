"""Scale-invariant attention: every decade of distances gets a similar share of the attention.

Formula: a_r z + m_r in place of the scaled score z at distance r = i - j, on top of p-RoPE.
  a_r^2  2 [log(r / tau + 1) + 1/2]
  m_r    1 - a_r^2
For Gaussian z the expected exp(score) then falls as 1 / (r / tau + 1). So the distances from r to 10 r
together get the same attention for any r well above tau.
As in the paper, p-RoPE rotates the first D' = fraction * D numbers of a head, with theta_k = base^(-2k/D').
Settings:
  tau       distances below it are nearly unchanged
  base      of p-RoPE; the paper calls it the effective base
  fraction  share of D that is rotated; 0: none ("scale-invariant NoPE"), 1: all of it (RoPE)
  layout    interleaved: pairs (2k, 2k+1); half: pairs (k, k + D'/2)
Choose base by T. The paper's 1024 goes with T = 4096. At T = 64 most pairs then barely turn in training, and
meet new angles past it. A base of 16 = 1024 T / 4096 was better at T, and halved the loss at 8T
(docs/study.md).
Departures: there is no QK-norm; in the paper it keeps z near unit variance. In a sum of encodings the biases
of the other parts are scaled like the score.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Shape, StepCost, check_at_least
from posenc.encodings.shared.rotary import Layout, Rotary, even_share

SMALLEST_TAU = 1e-6  # with one such as 1e-40, r / tau overflows float32, and every score is nan


class ScaleInvariant(Rotary):
    name = "scale_invariant"
    paper = "Anson, Wang, Aitchison 2025, arXiv 2505.17083"
    formula = "a_r z + m_r, a_r^2 = 2 [log(r/tau + 1) + 1/2], m_r = 1 - a_r^2, on p-RoPE"
    acts_on = "several"
    past_training = "defined everywhere; each decade of distances gets about the same share"
    learned = "0"
    refuses: Mapping[str, str] = {"attention.scale": "its a_r is such a scale already"}
    cost = StepCost(at_64=1.2, at_512=1.52)

    def __init__(self, shape: Shape, *, tau: float, base: float, fraction: float, layout: Layout) -> None:
        check_at_least(SMALLEST_TAU, tau=tau)
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction={fraction}: must be in [0, 1]")
        self.rotates = fraction > 0
        width = even_share(shape, fraction) if self.rotates else 2  # any width: nothing will be rotated
        super().__init__(shape, base=base, layout=layout, width=width)
        self.tau = tau
        if not self.rotates:
            self.inert = dict.fromkeys(("base", "layout"), "used where fraction is above 0")

    def learned_parameters(self) -> int:
        return 0

    @cached_property
    def hooks(self) -> frozenset[str]:
        """Return the hooks, without `rotate` if fraction = 0, so that a sum may have another rotation."""
        if self.rotates:
            return super().hooks
        return super().hooks - {"rotate"}

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        # Clamped, since the logarithm of a negative r / tau + 1 is nan, also where the mask hides it.
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0).float()  # (T, S)
        a_squared = 2 * (r / self.tau).log1p() + 1  # (T, S)
        m = 1 - a_squared
        # One operation and one tensor: a s + m by itself would make two of the size of the scores.
        return torch.addcmul(m, a_squared.sqrt(), s)  # a s + m, (B, H, T, S)
