"""Gates, tables, rows and masks with the faults that circulate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from broken import Broken
from torch import Tensor, nn

from posenc.encodings.base import Shape


class Waves(Broken):
    """Healthy: sines and cosines of the position, added to the input."""

    caught_by = None
    healthy = "sinusoidal"

    def rows(self, pos: Tensor) -> Tensor:
        half = self.shape.d_model // 2
        angle = pos.double()[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        return torch.cat((angle.sin(), angle.cos()), dim=-1).float()  # (T, d_model)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x * self.shape.d_model**0.5 + self.rows(pos) if layer == 0 else x


class OfTheWindow(Broken):
    """Adds what stands in the whole window to each of its tokens."""

    caught_by = "causal"
    says = "tokens changed from 1 on move logits before them"
    healthy = "nope"
    uses_positions = False

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + x.mean(1, keepdim=True)


class FutureGates(Broken):
    """Gates summed from a key to the end of the window: the mask comes after the sum."""

    caught_by = "causal"
    says = "move logits before them"
    healthy = "cope"
    learned = "H*d"
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_heads, shape.d_model))

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Tensor:
        gates = (x.float() @ self.gate.T).sigmoid().transpose(1, 2)  # (B, H, S)
        return gates.flip(-1).cumsum(-1).flip(-1)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s - torch.log1p(state[..., None, : s.shape[-1]])


class Bf16Sums(Broken):
    """A forget gate whose cumulative sum takes the type that autocast gives it."""

    caught_by = "bf16"
    says = "bf16 and float32 differ"
    healthy = "fox"
    learned = "H*d"
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_heads, shape.d_model))

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Tensor:
        return F.logsigmoid(F.linear(x, self.gate)).cumsum(1).transpose(1, 2)  # (B, H, S)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        passed = state[..., :keys]
        return s + (passed[..., keys - queries :, None] - passed[..., None, :])


class Rows(Broken):
    """One learned row a position, and nothing past the last one: an IndexError, on a GPU an assert."""

    caught_by = "finite"
    says = "IndexError"
    healthy = "learned"
    learned = "T*d"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.table = nn.Parameter(torch.empty(shape.positions, shape.d_model))

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + self.table[pos] if layer == 0 else x


class RowOfACount(Broken):
    """A row chosen by a sum over gates: where scores are nan it is none of the table's, and raises."""

    caught_by = "diverged"
    says = "weights that are nan raise IndexError"
    healthy = "cope"
    learned = "(T+1)"
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.table = nn.Parameter(torch.empty(shape.train_length + 1))

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        past = torch.ones(queries, keys).tril(keys - queries)
        counted = (s.sigmoid() * past).flip(-1).cumsum(-1).flip(-1)
        return s + self.table[counted.long().clamp_max(self.shape.train_length)]


class FromTheEnd(Waves):
    """Positions counted back from the window's last token."""

    caught_by = "prefix"
    says = "a text of 33 tokens moves"
    healthy = "sinusoidal"

    def rows(self, pos: Tensor) -> Tensor:
        return super().rows(pos[-1] - pos)


class Undeclared(Waves):
    """Positions as a share of the window's length, without declaring that a longer text changes them."""

    caught_by = "prefix"
    says = "a text of 33 tokens moves"
    healthy = "normalized"

    def rows(self, pos: Tensor) -> Tensor:
        return (pos / pos[-1].clamp_min(1))[:, None].expand(-1, self.shape.d_model)


class SavedTable(Waves):
    """A table of T rows in the state dict, grown where a longer text comes: checkpoints take its length."""

    caught_by = "load"
    says = "saved buffers"
    healthy = "sinusoidal"

    table: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("table", super().rows(torch.arange(shape.train_length)))

    def rows(self, pos: Tensor) -> Tensor:
        longest = int(pos[-1]) + 1
        if len(self.table) < longest:
            self.table = super().rows(torch.arange(longest))
        return self.table[pos]


class SelfOnly(Broken):
    """A window that leaves a token nothing but itself."""

    caught_by = "order"
    says = "leaves the last output as it is"
    healthy = "nope"
    uses_positions = False

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return q_pos[:, None] - k_pos[None, :] < 1
