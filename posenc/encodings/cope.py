"""CoPE, contextual position encoding: a head counts only tokens that it selects, by a gate for each.

Formula: score_ij + q_i . E[p_ij].
  g_ij  sigmoid(q_i . k_j / sqrt(D)), the gates
  p_ij  min(sum over l = j..i of g_il, p_max), the position of key j as query i counts it
  E     a learned table with a vector for each position 0..p_max. Between whole positions it is interpolated
        linearly, so that the gates get a gradient.
The added product is not divided by sqrt(D).
Settings:
  p_max   largest position; null: min(64, T/4)
  shared  true: one E for all layers, instead of one for each; the heads of a layer always share it
Gates and their sums are float32. The future is masked before the sum.
Departures: the paper has p_max = 64, at T = 1024. Gates start near 1/2, so at a short T the vectors of
positions above T/2 would stay untrained. In a sum of encodings the gates read scores that have the biases and
rotations of the other parts, while E is multiplied by the unrotated q.
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
    learned = "((max(1, min(64, T//4)) if p_max is None else p_max) + 1)*D*(1 if shared else L)"
    relative = True
    uses_positions = False
    cost = StepCost(at_64=1.53, at_512=2.73)

    def __init__(self, shape: Shape, *, p_max: int | None, shared: bool) -> None:
        super().__init__(shape)
        if p_max is None:
            # At T = 64 and p_max = 64 the rows above 32 were never trained, as gates are near 1/2 at first.
            p_max = max(1, min(PUBLISHED_P_MAX, shape.train_length // 4))
            self.derived["p_max"] = p_max
        check_at_least(1, p_max=p_max)
        self.p_max = p_max
        self.tables = 1 if shared else shape.n_layers
        sizes = (self.tables, p_max + 1, shape.head_dim)
        self.table = nn.Parameter(torch.zeros(sizes))  # E, (1 or L, p_max + 1, D)

    def learned_parameters(self) -> int:
        return self.tables * (self.p_max + 1) * self.shape.head_dim

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, int]:
        """Return q_i . E[p] of whole positions, (B, H, queries, p_max + 1), and the window's length."""
        with torch.autocast(q.device.type, enabled=False):
            # A shared table has one row of layers, so every layer takes it.
            table = self.table[layer % len(self.table)]  # (p_max + 1, D)
            # For whole positions only: p_max + 1 products a query, where every pair of tokens would need its
            # own.
            return F.linear(q.to(table.dtype), table).float(), k.shape[2]

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        # Gates of future tokens would let a query see how many of them there are.
        is_past = torch.ones(queries, keys, dtype=s.dtype, device=s.device).tril(keys - queries)  # (T, S)
        # From the query backwards, so that near keys, whose counts are small, have the smallest error.
        position = reversed_cumsum(s.sigmoid() * is_past)  # (B, H, T, S)
        # q_i . E[p] between whole positions: the product at floor(p), plus frac(p) times the step to the next
        # one. Past p_max the step is zero, and so is the gradient to the gates.
        prepared, window = state
        products = rows_of_block(prepared, window, s)  # q_i . E of each whole position, (B, H, T, p_max + 1)
        # The step after the last row is 0, so that counts above p_max all have its product.
        steps = F.pad(products.diff(dim=-1), (0, 1))  # (B, H, T, p_max + 1)
        # Both are looked up by one int32 index into a flat table. `gather` would need an int64 index of twice
        # the memory, and on a CPU this memory takes most of the time.
        query = torch.arange(position[..., 0].numel(), dtype=torch.int32, device=s.device)
        first_of_query = query.view(*s.shape[:-1], 1) * (self.p_max + 1)  # (B, H, T, 1)
        # Clamped from below too: in a diverging training nan becomes any integer.
        index = position.detach().int().clamp_(0, self.p_max)  # floor(p)
        index = index.add_(first_of_query).flatten()
        product_at_floor = products.flatten().index_select(0, index).view_as(s)  # (B, H, T, S)
        step_at_floor = steps.flatten().index_select(0, index).view_as(s)  # (B, H, T, S)
        # In place where the numbers are not needed again: a block has several tensors of the size of its
        # scores.
        return torch.addcmul(product_at_floor, position.frac_(), step_at_floor).add_(s)
