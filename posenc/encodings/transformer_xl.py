"""Transformer-XL's relative positions: a mapped sinusoid of the distance beside every key.

Formula: score_ij = [(q_i + u) . k_j + (q_i + v) . W R_(i-j)] / sqrt(D), R sinusoids of the distance,
W (d, d) learned for each layer, u and v for each layer and head.
It acts on the scores. With g = W^T (q_i + v) the last term is a sum over frequencies of
g_sin sin((i-j) theta) + g_cos cos((i-j) theta), which is the inner product of g turned by i with a fixed
vector of j: so any positions will do, nothing is shifted, and no table of distances is made.
Paper: Dai et al. 2019, arXiv 1901.02860.
Departures: no recurrence over segments. u and v start at zero. In a sum with a rotation q and k are the
turned ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.families.absolute import check_base, sinusoid_frequencies


class TransformerXL(Encoding):
    """Content and position, each with a bias of its own, on every key."""

    name = "transformer_xl"
    paper = "Dai et al. 2019, arXiv 1901.02860"
    formula = "[(q_i + u) . k_j + (q_i + v) . W R_(i-j)] / sqrt(D), R sinusoids of the distance"
    acts_on = "scores"
    past_training = "defined everywhere; sinusoids of distances beyond T were never seen in training"
    learned = "L*(H*D*d + 2*H*D)"
    relative = True
    traps = ("What the relative shift leaves above the diagonal is garbage and must be masked.",)

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        check_base(base)
        if shape.d_model % 2:
            raise ValueError(f"d_model={shape.d_model}: must be even, sines and cosines come in pairs")
        self.base = base
        layers, heads, width = shape.n_layers, shape.n_heads, shape.head_dim
        self.w = nn.Parameter(torch.empty(layers, heads, width, shape.d_model))  # (L, H, D, d)
        self.u = nn.Parameter(torch.empty(layers, heads, width))  # (L, H, D)
        self.v = nn.Parameter(torch.empty(layers, heads, width))

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "w":
            super().initialize(name, parameter, generator)
        else:
            nn.init.zeros_(parameter)

    def waves(self, pos: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """sin and cos of the positions' angles, (T, d/2) each."""
        exact = float64(pos)[:, None]
        angle = exact * sinusoid_frequencies(self.shape.d_model, self.base, exact.device)
        return angle.sin().to(like.device, like.dtype), angle.cos().to(like.device, like.dtype)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        content = (k.float() * self.u[layer].float()[:, None]).sum(-1)  # (B, H, S)
        g = (q + self.v[layer].to(q.dtype)[:, None]) @ self.w[layer].to(q.dtype)  # (B, H, T, d)
        of_sin, of_cos = g.float()[..., 0::2], g.float()[..., 1::2]  # (B, H, T, d/2)
        sin, cos = self.waves(q_pos, s)  # (T, d/2)
        turned = torch.cat((of_sin * sin + of_cos * cos, of_cos * sin - of_sin * cos), dim=-1)
        k_sin, k_cos = self.waves(k_pos, s)
        keys = torch.cat((k_cos, k_sin), dim=-1)  # (S, d)
        position = (turned.to(q.dtype) @ keys.to(q.dtype).T).float()  # (B, H, T, S)
        scale = self.shape.head_dim**-0.5
        return torch.add(s + content[..., None, :] * scale, position, alpha=scale)
