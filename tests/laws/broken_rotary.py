"""Rotary encodings with the faults that circulate."""

from __future__ import annotations

from typing import ClassVar

import torch
from broken import Broken
from torch import Tensor


class Turned(Broken):
    """Healthy: halves of queries and keys turned by t * 10000^(-2k/D)."""

    caught_by = None
    healthy = "rope"
    relative = True

    def frequencies(self) -> Tensor:
        width = self.shape.head_dim
        return 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        angle = pos.double()[:, None] * self.frequencies()  # (T, D/2)
        return angle.cos().float(), angle.sin().float()

    def turn(self, x: Tensor, pos: Tensor) -> Tensor:
        cos, sin = self.angles(pos)
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self.turn(q, q_pos), self.turn(k, k_pos)


class SineTwice(Turned):
    """Public snippets turn pairs by [sin, sin] instead of [cos, sin]."""

    caught_by = "shift"
    says = "all positions move by 1"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        _, sin = super().angles(pos)
        return sin, sin


class BlocksByTwo(Turned):
    """A table [sin | cos] in two blocks, read as if the two alternated."""

    caught_by = "shift"
    says = "all positions move by 1"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().angles(pos)
        table = torch.cat((sin, cos), dim=-1)  # (T, D)
        return table[:, 1::2], table[:, 0::2]


class ClockwiseKeys(Turned):
    """Queries turned one way and keys the other, so that scores depend on i + j."""

    caught_by = "shift"
    says = "all positions move by 1"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, q_pos, -k_pos, layer)


class Bf16Tables(Turned):
    """Tables kept in bf16: cosines with three digits, whatever the angle was made in."""

    caught_by = "float32"
    says = "differs from float64"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().angles(pos)
        return cos.bfloat16(), sin.bfloat16()


class Bf16Positions(Turned):
    """Positions in bf16 before the product: 256 and 257 are one."""

    caught_by = "float32"
    says = "differs from float64"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        return super().angles(pos.bfloat16())


class Float32Angles(Turned):
    """Position times frequency in float32: off by 0.004 radians at 65 536."""

    caught_by = "float32"
    says = "differs from float64"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        angle = pos.float()[:, None] * self.frequencies().float()
        return angle.cos(), angle.sin()


class PositionsLikeQueries(Turned):
    """Positions cast to the queries' type: exact in float32, and in bf16 up to 256."""

    caught_by = "bf16"
    says = "at positions to 65535"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, q_pos.to(q.dtype), k_pos.to(q.dtype), layer)


class DoubledExponents(Turned):
    """10000 ** (-2*arange(0, D, 2)/D): a rotary law with other frequencies. Only the second route sees it."""

    caught_by = None

    def frequencies(self) -> Tensor:
        return super().frequencies() ** 2


class FrequenciesFromOne(Turned):
    """Indices 1..D/2 instead of 0..D/2-1: again consistent. Only the second route sees it."""

    caught_by = None

    def frequencies(self) -> Tensor:
        return super().frequencies() * 10000.0 ** (-2 / self.shape.head_dim)


class CachedByLength(Turned):
    """Tables kept by the number of tokens, whatever their positions are."""

    caught_by = "positions"
    says = "no change of positions changes logits"

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        tables: dict[int, tuple[Tensor, Tensor]] = self.__dict__.setdefault("tables", {})
        if len(pos) not in tables:
            tables[len(pos)] = super().angles(pos)
        return tables[len(pos)]


class SharedTable(Turned):
    """One table for the process, made anew when a longer one is wanted, by the settings of who wants it."""

    caught_by = "trace"
    says = "before and after another model"
    shared: ClassVar[list[Tensor]] = []

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(pos[-1]) + 1
        if not self.shared or len(self.shared[0]) < longest:
            everywhere = torch.arange(longest) * 64 / self.shape.train_length  # interpolated by T
            self.shared[:] = super().angles(everywhere)
        cos, sin = self.shared
        return cos[pos], sin[pos]


class NotCentred(Turned):
    """xPos with z^(i/512) on queries and z^(-j/512) on keys: the second is infinite from about 36 000 on."""

    caught_by = "finite"
    says = "not finite at positions to 65535"

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, q_pos, k_pos, layer)
        pair = torch.arange(0, self.shape.head_dim, 2)
        z = ((pair / self.shape.head_dim + 0.4) / 1.4).repeat(2)  # (D,)
        return q * z ** (q_pos[:, None] / 512), k * z ** (-k_pos[:, None] / 512)
