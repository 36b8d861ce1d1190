"""Biases with the faults that circulate."""

from __future__ import annotations

import math
from typing import Any

import torch
from broken import Broken
from torch import Tensor, nn

from posenc.encodings.base import Shape


class Linear(Broken):
    """Healthy: a penalty of slope times distance."""

    caught_by = None
    healthy = "alibi"
    relative = True
    penalty = True

    def slope(self) -> Tensor:
        heads = self.shape.n_heads
        return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)  # (H,)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return -self.slope()[:, None] * r.float()  # (H, R)


class Rewarding(Linear):
    """slope * (i - j) added with a plus: distance is rewarded."""

    caught_by = "penalty"
    says = "rises with the distance"

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return -super().distance_bias(r, layer)


class Bf16KeyIndex(Linear):
    """slope times the key's index, in bf16: of the 64 nearest keys 3 distinct biases remain at 8k."""

    caught_by = "float32"
    says = "differs from float64"

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        row = (self.slope().bfloat16()[:, None] * k_pos.bfloat16()).float()  # (H, S)
        return row[:, None].expand(-1, len(q_pos), -1)


class ReadsPositions(Linear):
    """Declares that it reads no position, and does."""

    caught_by = "positions"
    says = "declared unused"
    uses_positions = False


class IndexInTheBlock(Linear):
    """The query's index counted from the block's start: right as long as there is one block."""

    caught_by = "tail"
    says = "the last 1 of 128 tokens"
    penalty = False
    relative = False

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = (torch.arange(len(q_pos))[:, None] - torch.arange(len(k_pos))).clamp_min(0)
        return self.distance_bias(torch.arange(len(k_pos)), layer)[:, r]


class BatchOfQueries(Linear):
    """Temperature by the number of queries at hand instead of the keys that each sees."""

    caught_by = "blocks"
    says = "blocks of three queries"

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * math.log(1 + len(q_pos)) / math.log(1 + self.shape.train_length)


class Slopes(Broken):
    """Healthy: a learned slope for the logarithm of the distance."""

    caught_by = None
    healthy = "t5"
    learned = "H"
    relative = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.learnt = nn.Parameter(torch.empty(shape.n_heads))

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return -self.learnt.exp()[:, None] * r.float().log1p()


class StaleSlopes(Slopes):
    """The bias made of learned slopes is kept, and not made anew when they change."""

    caught_by = "load"
    says = "before and after loading"
    healthy = Slopes

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        if torch.is_grad_enabled():
            return super().distance_bias(r, layer)
        kept: dict[tuple[int, int], Tensor] = self.__dict__.setdefault("kept", {})
        return kept.setdefault((len(r), int(r[0])), super().distance_bias(r, layer))


class LogOfZero(Slopes):
    """log(0) in the branch that `where` leaves out: its value is dropped, its gradient is nan."""

    caught_by = "gradient"
    says = "learnt is not finite"
    healthy = Slopes

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        scaled = self.learnt.exp()[:, None] * r.float()
        return -torch.where(scaled > 0, scaled.log(), torch.zeros(())).clamp_min(0)


class CountsTwice(Slopes):
    """Declares two parameters a head and has one."""

    caught_by = "count"
    says = "is not what it has"
    healthy = Slopes
    learned = "2*H"


class OwnDraws(Slopes):
    """Initial values from the process's random stream instead of the generator that is given."""

    caught_by = "seeds"
    says = "starts elsewhere the second time"
    healthy = Slopes

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter)


class LeftEmpty(Slopes):
    """Initial values written into a copy, so that a parameter keeps what its memory held."""

    caught_by = "seeds"
    says = "leaves values of learnt as they were"
    healthy = Slopes

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter.clone(), generator=generator)


class DeadParameter(Slopes):
    """A parameter that nothing reads."""

    caught_by = "gradient"
    says = "no gradient reaches encoding.unread"
    healthy = Slopes
    learned = "2*H"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.unread = nn.Parameter(torch.empty(shape.n_heads))


class Ceiling(Linear):
    """Ends at 8 T positions by an error of its own, instead of refusing what draws them further out."""

    caught_by = "options"
    says = "too far out"

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        if int(q_pos[-1]) >= 8 * self.shape.train_length:
            raise ValueError("too far out")
        return super().bias(q_pos, k_pos, layer)
