"""CoPE: contextual position encoding. Positions are sums of gates: a head counts the tokens it selects.

Formula: score_ij + q_i . E[p_ij].
  g_ij  sigmoid(q_i . k_j / sqrt(D)), the gates
  p_ij  min(sum over l = j..i of g_il, p_max), the position of key j as query i counts it
  E     a learned table of p_max + 1 rows. Between whole positions it is interpolated linearly, and through
        the interpolation the gradient reaches the gates.
The added product is not divided by sqrt(D).
Settings:
  p_max   largest position; null: min(64, T/4)
  shared  one E for all layers instead of one for each; the heads of a layer always share it
Gates and their sums are float32. The future is masked before the sum.
Departures: the paper has p_max = 64, at T = 1024. Gates start near 1/2, so at a short T rows above T/2 would
stay untrained. In a sum of encodings the gates read the score with the biases and rotations of the other
parts, while E meets the unrotated q.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.blocks import reversed_cumsum, rows_of_block

PUBLISHED_P_MAX = 64


class CoPE(Encoding):
    name = "cope"
    paper = "Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv 2405.18719"
    formula = "score_ij + q_i . E[min(p_ij, p_max)], p_ij = sum over l=j..i of sigmoid(q_i . k_l / sqrt(D))"
    acts_on = "scores"
    past_training = "counts above p_max share the last row; closed gates keep counts low at any length"
    zero_init = ("table",)
    learned = "((max(1, min(64, T//4)) if p_max is None else p_max) + 1)*D*(1 if shared else L)"
    relative = True
    uses_positions = False
    cost = StepCost(at_64=1.53, at_512=2.73)

    def __init__(self, shape: Shape, *, p_max: int | None, shared: bool) -> None:
        super().__init__(shape)
        if p_max is None:
            p_max = max(1, min(PUBLISHED_P_MAX, shape.train_length // 4))
            self.derived["p_max"] = p_max
        check_at_least(1, p_max=p_max)
        self.p_max = p_max
        self.tables = 1 if shared else shape.n_layers
        sizes = (self.tables, p_max + 1, shape.head_dim)
        self.table = nn.Parameter(torch.empty(sizes))  # (1 or L, p_max + 1, D)

    def learned_parameters(self) -> int:
        return self.tables * (self.p_max + 1) * self.shape.head_dim

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, int]:
        """Return q_i . E[p] of whole positions, (B, H, queries, p_max + 1), and the window's length."""
        with torch.autocast(q.device.type, enabled=False):
            table = self.table[layer % len(self.table)]  # (p_max + 1, D)
            return F.linear(q.to(table.dtype), table).float(), k.shape[2]

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        past = torch.ones(queries, keys, dtype=s.dtype, device=s.device).tril(keys - queries)  # (T, S)
        position = reversed_cumsum(s.sigmoid() * past)  # (B, H, T, S)
        prepared, window = state
        at_whole = rows_of_block(prepared, window, s)  # (B, H, T, p_max + 1)
        # Past p_max the step is zero, and so is the gradient to the gates.
        to_next = F.pad(at_whole.diff(dim=-1), (0, 1))
        # An int32 index into one flat table takes half the memory of `gather`, which dominates on a CPU.
        row = torch.arange(position[..., 0].numel(), dtype=torch.int32, device=s.device)
        row_start = row.view(*s.shape[:-1], 1) * (self.p_max + 1)  # (B, H, T, 1)
        # Both bounds: nan in a diverging training casts to any integer, which would raise here.
        index = position.detach().int().clamp_(0, self.p_max).add_(row_start).flatten()
        start = at_whole.flatten().index_select(0, index).view_as(s)
        step = to_next.flatten().index_select(0, index).view_as(s)
        return torch.addcmul(start, position.frac_(), step).add_(s)
