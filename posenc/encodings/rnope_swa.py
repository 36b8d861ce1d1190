"""RNoPE-SWA: most layers have RoPE and a window; every n-th layer has no encoding and sees everything.

Formula: of the layers l = 0, 1, ..., those with (l + 1) mod n = 0 have no encoding and full attention. The
others have RoPE, and see only keys with i - j < `window`.
Settings:
  every   n; in a model with fewer layers, the last one has no encoding
  window  null: T/2, or half the limit of the distances if positions are drawn with gaps
Departures: the paper trains at 8192 tokens with a window of 4096, which is where T/2 comes from. It then goes
on to train at longer contexts, which is no part of the encoding.
"""

from collections.abc import Mapping

from torch import Tensor

from posenc.encodings.base import Shape, check_at_least
from posenc.encodings.shared.rotary import Layout, Rotary


class RNoPESWA(Rotary):
    name = "rnope_swa"
    paper = "Yang et al. 2025 (RoPE to NoPE and back again), arXiv 2501.18795"
    formula = "every n-th layer no encoding and full attention, the others RoPE and a window"
    acts_on = "several"
    past_training = "rotary layers never see a distance beyond the window; the others spread over more keys"
    learned = "0"
    refuses: Mapping[str, str] = {"attention.window": "some of its layers have one: encoding.window"}

    def __init__(self, shape: Shape, *, base: float, layout: Layout, every: int, window: int | None) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        if window is None:
            window = max(1, shape.distances // 2)
            self.derived["window"] = window
        check_at_least(1, every=every, window=window)
        # A model with fewer layers would have no layer that sees everything.
        self.every = min(every, shape.n_layers)
        self.window = window

    def learned_parameters(self) -> int:
        return 0

    def warnings(self) -> list[str]:
        n_layers = self.shape.n_layers
        if not all(self.has_no_encoding(layer) for layer in range(n_layers)):
            return []
        return [f"none of the {n_layers} layers is rotated or has a window: every={self.every}"]

    def has_no_encoding(self, layer: int) -> bool:
        """Tell whether the layer has no encoding and full attention."""
        return (layer + 1) % self.every == 0

    def unrotated_numbers(self, layer: int) -> list[int]:
        if self.has_no_encoding(layer):
            return list(range(self.shape.head_dim))
        return super().unrotated_numbers(layer)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if self.has_no_encoding(layer):
            return q, k
        return super().rotate(q, k, q_pos, k_pos, layer)

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        if self.has_no_encoding(layer):
            return super().visible(q_pos, k_pos, layer)
        return q_pos[:, None] - k_pos[None, :] < self.window  # (T, S)
