"""Transformer-XL's relative positions: a score also has the query times a map of the distance's sinusoids.

Formula: [(q_i + u) . k_j + (q_i + v) . W R_(i-j)] / sqrt(D) in place of score_ij.
  R     the sinusoids of the distance, d numbers
  W     (D, d) for each head, learned for each layer
  u, v  learned for each layer and head
It is computed without a table of distances and without the paper's relative shift. With g_i = W^T (q_i + v)
the last term is the sum over frequencies theta of g_sin sin((i-j) theta) + g_cos cos((i-j) theta). That is
the inner product of g_i, rotated by i theta, with the sines and cosines of j theta.
Departures: there is no recurrence over segments. Each layer has its own u and v; the paper has one of each.
The paper gives no initial values: here u and v start at zero, and W like the model's other linear maps. In a
sum with a rotation the added terms use the unrotated q and k: with the rotated ones they would depend on
single positions, not on the distance.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost
from posenc.encodings.shared.blocks import rows_of_block
from posenc.encodings.shared.sinusoids import check_base, check_even_width, sinusoids


class TransformerXL(Encoding):
    name = "transformer_xl"
    paper = "Dai et al. 2019, arXiv 1901.02860"
    formula = "[(q_i + u) . k_j + (q_i + v) . W R_(i-j)] / sqrt(D), R sinusoids of the distance"
    acts_on = "scores"
    past_training = "defined everywhere; sinusoids of distances beyond T were never seen in training"
    learned = "L*(H*D*d + 2*H*D)"
    relative = True
    cost = StepCost(at_64=1.69, at_512=2.1)

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        check_base(base)
        check_even_width(shape.d_model)
        self.base = base
        sizes = (shape.n_layers, shape.n_heads, shape.head_dim)
        self.w = nn.Parameter(torch.empty(*sizes, shape.d_model))  # (L, H, D, d)
        self.u = nn.Parameter(torch.zeros(sizes))  # (L, H, D)
        self.v = nn.Parameter(torch.zeros(sizes))

    def learned_parameters(self) -> int:
        heads_and_width = self.shape.n_heads * self.shape.head_dim
        return self.shape.n_layers * heads_and_width * (self.shape.d_model + 2)

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return u . k_j, (B, H, S) float32, and g_i, (B, H, queries, d)."""
        # u . k_j is the same for all queries, so it is one number a key and no product of pairs.
        content = (k.float() * self.u[layer].float()[:, None]).sum(-1)  # (B, H, S)
        g = (q + self.v[layer].to(q.dtype)[:, None]) @ self.w[layer].to(q.dtype)  # (B, H, queries, d)
        return content, g

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        content, g_of_window = state
        waves = sinusoids(k_pos, self.shape.d_model, self.base).to(s.dtype)  # (S, d)
        k_sin = waves[:, 0::2]  # (S, d/2)
        k_cos = waves[:, 1::2]
        k_waves = torch.cat((k_cos, k_sin), dim=-1)  # (S, d)
        q_sin = k_sin[-queries:]  # (T, d/2): the queries are the last tokens
        q_cos = k_cos[-queries:]
        g = rows_of_block(g_of_window, content.shape[-1], s)  # (B, H, T, d)
        g_sin = g[..., 0::2].float()  # (B, H, T, d/2)
        g_cos = g[..., 1::2].float()
        # by the addition theorems of sin((i-j) theta) and cos((i-j) theta); (B, H, T, d)
        g_rotated = torch.cat((g_sin * q_sin + g_cos * q_cos, g_cos * q_sin - g_sin * q_cos), dim=-1)
        # In the dtype of the queries, as the product of queries and keys is.
        position = (g_rotated.to(g.dtype) @ k_waves.to(g.dtype).T).float()  # (B, H, T, S)
        scale = self.shape.head_dim**-0.5
        return torch.add(s + content[:, :, None, :keys] * scale, position, alpha=scale)
