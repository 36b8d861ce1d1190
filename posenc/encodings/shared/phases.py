"""Rotations by angles that are summed up over the text."""

from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.shared.blocks import rows_of_block
from posenc.encodings.shared.rotary import rotate_pairs


class PhaseSums(Encoding):
    """Rotate pairs (2k, 2k+1) of q and k by angles that grow along the text, by `increments` of a subclass.

    The hook `rotate` does not see the text. So `prepare` rotates q and k, and `scores` replaces their plain
    product by the product of the rotated ones.
    """

    acts_on = "scores"
    relative = True
    uses_positions = False
    replaces_product = True

    def unrotated_numbers(self, layer: int) -> list[int]:
        return []

    def increments(self, x: Tensor, layer: int) -> Tensor:
        """Return what each token adds to its angles, (B, S, d_model) -> (B, H, S, D/2) float64."""
        raise NotImplementedError

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return [rotated q; -q] and [rotated k; k]: their product is what the rotation adds to q . k."""
        # bf16 products would round every increment, and the sums would pile the errors up.
        with torch.autocast(x.device.type, enabled=False):
            phase = self.increments(x.to(next(self.parameters()).dtype), layer).cumsum(2)  # float64
            cos = phase.cos().float().to(x.device)  # (B, H, S, D/2)
            sin = phase.sin().float().to(x.device)
            start = cos.shape[2] - q.shape[2]  # the token of the first query
            # The difference of two products that are nearly equal for small angles would be lost in bf16.
            q = q.float()
            k = k.float()
            q_rotated = rotate_pairs(q, cos[:, :, start:], sin[:, :, start:], "interleaved")
            k_rotated = rotate_pairs(k, cos, sin, "interleaved")
            q_both = torch.cat((q_rotated, -q), dim=-1)  # (B, H, T, 2D)
            k_both = torch.cat((k_rotated, k), dim=-1)  # (B, H, S, 2D)
            return q_both, k_both

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        q_both, k_both = state
        keys = s.shape[-1]
        with torch.autocast(s.device.type, enabled=False):
            q_block = rows_of_block(q_both, k_both.shape[2], s)  # (B, H, T, 2D)
            difference = q_block @ k_both[:, :, :keys].transpose(-1, -2)  # (B, H, T, S)
        # Added to s, which may hold biases of other parts of a sum.
        return s + difference * self.shape.head_dim**-0.5  # (B, H, T, S)
