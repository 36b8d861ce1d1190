"""FoPE: each rotary pair turns by a Fourier series over the frequencies that complete a period within T.

Formula: pair m < n of q_t and k_t, taken as a complex number, is multiplied by c_m(t) + sqrt(-1) s_m(t).
  c_m(t)   sum over k < n of a_mk cos(t theta_k)
  s_m(t)   sum over k < n of b_mk sin(t theta_k)
  theta_k  base^(-2k/D), RoPE's frequencies, the highest first
  n        how many of them have a period within T: 2 pi / theta_k <= T
  a, b     (n, n) for each layer and head: the identity plus normal numbers of standard deviation
           gain / sqrt(n), which are drawn from the seed and not trained
Pairs m >= n carry no position.
Setting:
  gain  0.3 to 0.6 in the released configurations, larger for larger models; with 0 it is encoding=hope
Source: the authors' code; of the paper only summaries were at hand.
Departures from the authors' code:
- It keeps at most D/4 pairs; here all n are kept. Pairs are (2m, 2m + 1).
- Its numbers have the deviation gain sqrt(2 / (n^2 + H n)), since it applies Xavier's rule to the matrices of
  all heads at once, (H, n, n). Here the rule is applied to the matrix of each head, and stored runs rely on
  it. In the model `nano`, with H = 4, and n = 5 at T = 64, that is 2.1 times as much; gain=0.14 gives theirs.
- It sets cos = sin = 1 for pairs m >= n, which doubles their part of the score; here they stay as they are.
"""

import functools
import math

import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape, check_at_least
from posenc.encodings.shared.rotary import check_pairs, rotate_pairs
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies


class FoPE(Encoding):
    name = "fope"
    paper = "Hua et al. 2024, arXiv 2412.17739"
    formula = "pairs of q, k times c(t) + i s(t), Fourier series over RoPE's theta_k >= 2 pi / T"
    acts_on = "rotate"
    past_training = "each frequency went through a whole period in training; their sums are new"
    learned = "0"

    def __init__(self, shape: Shape, *, base: float, gain: float) -> None:
        super().__init__(shape)
        check_pairs(shape)
        check_base(base)
        check_at_least(0, gain=gain)
        self.base = base
        self.gain = gain
        # On the CPU, since the model may be built on the meta device, which has no values.
        theta = sinusoid_frequencies(shape.head_dim, base, torch.device("cpu"))
        # Frequencies fall with k, so those with a period within T are the first n.
        self.pairs = int((theta >= 2 * math.pi / shape.train_length).sum())  # n
        if not self.pairs:
            raise ValueError(f"base={base}: no frequency has a period within T={shape.train_length}")

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies with a period within T, in radians a token, highest first: (n,) float64."""
        return sinusoid_frequencies(self.shape.head_dim, self.base, device)[: self.pairs]

    def series(self, layer: int, like: Tensor) -> Tensor:
        """Return the matrices a and b, (2, H, n, n), in the dtype and on the device of `like`.

        They are transposed: rows are the frequencies k of the sum, columns the pairs m.
        """
        # No buffer holds it: it follows from the seed of the run, which is not known when the class is built.
        drawn = drawn_series(self.seed, layer, self.shape.n_heads, self.pairs).to(like)
        return torch.eye(self.pairs).to(like) + drawn * self.gain * self.pairs**-0.5

    def unrotated_numbers(self, layer: int) -> list[int]:
        return list(range(2 * self.pairs, self.shape.head_dim))

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._rotated(q, q_pos, layer), self._rotated(k, k_pos, layer)

    def _rotated(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        # Autocast would round cosines and sines to bf16 for their product with the matrices.
        with torch.autocast(x.device.type, enabled=False):
            waves = torch.stack(cos_sin(pos, self.frequencies)).to(x.device)  # cos and sin, (2, T, n)
            matrices = self.series(layer, waves)  # (2, H, n, n)
            c, s = (waves[:, None] @ matrices).unbind(0)  # (H, T, n) each
        width = 2 * self.pairs
        rotated = rotate_pairs(x[..., :width], c, s, "interleaved")
        return torch.cat((rotated, x[..., width:]), dim=-1)


@torch.compiler.disable  # a generator cannot be traced
@functools.lru_cache(64)
def drawn_series(seed: int, layer: int, heads: int, frequencies: int) -> Tensor:
    """Return standard normal numbers of a layer: (2, H, n, n)."""
    generator = generator_for(seed, "encoding.series", layer)
    return torch.randn(2, heads, frequencies, frequencies, generator=generator)
