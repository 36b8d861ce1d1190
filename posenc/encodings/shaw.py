"""Shaw's relative positions: a learned vector by clipped distance for the keys, and one for the values.

Formula: score_ij = q_i . (k_j + aK[c]) / sqrt(D) and output_i = sum over j of p_ij (v_j + aV[c]).
  c       min(i - j, clip)
  aK, aV  learned tables of clip + 1 rows of D numbers for each layer
Settings:
  clip      distances from here on share one vector; 16 as in the paper
  per_head  true: tables for each head; false: the heads of a layer share them
Departures: only the past has rows; the paper's tables have 2 clip + 1 rows for both directions. The paper
gives no initial values: here they are normal with deviation D^-1/2. In a sum with a rotation aK is multiplied
by the unrotated query: with the rotated one the score would depend on the query's own position.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.blocks import rows_of_block


class Shaw(Encoding):
    name = "shaw"
    paper = "Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155"
    formula = "q_i . (k_j + aK[min(i-j, clip)]) / sqrt(D); sum_j p_ij (v_j + aV[min(i-j, clip)])"
    acts_on = "scores"
    past_training = "every distance from clip on shares the last vectors"
    learned = "2*(clip + 1)*D*L*(H if per_head else 1)"
    relative = True
    cost = StepCost(at_64=1.38, at_512=1.76)

    def __init__(self, shape: Shape, *, clip: int, per_head: bool) -> None:
        super().__init__(shape)
        check_at_least(1, clip=clip)
        self.clip = clip
        self.tables = shape.n_heads if per_head else 1  # in each layer
        sizes = (shape.n_layers, self.tables, clip + 1, shape.head_dim)
        self.keys = nn.Parameter(torch.empty(sizes))  # aK, (L, H or 1, clip + 1, D)
        self.added = nn.Parameter(torch.empty(sizes))  # aV

    def learned_parameters(self) -> int:
        numbers = (self.clip + 1) * self.shape.head_dim
        return 2 * self.shape.n_layers * self.tables * numbers

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter, std=self.shape.head_dim**-0.5, generator=generator)

    def _near(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return three facts on the last K = `clip` keys of each query, (T, K) each.

        They are a key's index, its clipped distance, and whether it exists. Positions increase, so every key
        nearer than `clip` is among these. All other keys use the last row of the tables.
        """
        queries = len(q_pos)
        keys = len(k_pos)
        index_of_query = torch.arange(keys - queries, keys, device=k_pos.device)[:, None]
        index = index_of_query - torch.arange(min(self.clip, keys), device=k_pos.device)
        exists = index >= 0  # the first queries have fewer keys
        index = index.clamp_min(0)
        r = (q_pos[:, None] - k_pos[index]).clamp_max(self.clip)
        return index, r, exists

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, int]:
        """Return q_i . aK / sqrt(D) by distance, (B, H, queries, clip + 1), and the window's length."""
        # By distance and not by pair: clip + 1 products a query instead of one for each key.
        by_distance = q @ self.keys[layer].to(q.dtype).mT
        return by_distance.float() * self.shape.head_dim**-0.5, k.shape[2]

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        index, r, exists = self._near(q_pos, k_pos)
        prepared, window = state
        by_distance = rows_of_block(prepared, window, s)  # (B, H, T, clip + 1)
        # All keys get the product of the last row, and near ones the difference to their own.
        far = by_distance[..., -1:]  # (B, H, T, 1)
        size = (*s.shape[:-1], index.shape[-1])
        near = (by_distance.gather(-1, r.expand(size)) - far) * exists  # (B, H, T, K)
        return (s + far).scatter_add(-1, index.expand(size), near)

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # The weights of keys at one distance are summed first, and multiplied by the row of that distance.
        index, r, exists = self._near(q_pos, k_pos)
        size = (*p.shape[:-1], index.shape[-1])
        near = p.gather(-1, index.expand(size)).float() * exists  # (B, H, T, K)
        # float32, since the sum of bf16 weights of a long text would lose the far ones.
        far = p.sum(-1, dtype=torch.float32) - near.sum(-1)  # all other weights, (B, H, T)
        by_distance = near.new_zeros((*p.shape[:-1], self.clip + 1))
        by_distance = by_distance.scatter_add(-1, r.expand(size), near)
        at_clip = by_distance[..., -1] + far  # (B, H, T)
        by_distance = torch.cat((by_distance[..., :-1], at_clip[..., None]), dim=-1)  # (B, H, T, clip + 1)
        return p @ v + (by_distance.to(p.dtype) @ self.added[layer].to(p.dtype))  # (B, H, T, D)
