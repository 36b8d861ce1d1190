"""Encodings with the faults that circulate; each says what it is and which law catches it.

`healthy` is the shipped encoding, or the class here, that does the same without the fault. `caught_by` is
None where the fault is consistent in itself: only a formula rebuilt by a second route sees that.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape


class Broken(Encoding):
    """Parameters of standard deviation 1, so that what they do is seen."""

    name = paper = formula = acts_on = past_training = "broken"
    learned = "0"
    caught_by: ClassVar[str | None]
    says: ClassVar[str]  # part of the reason
    healthy: ClassVar[Any]

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter, generator=generator)


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


class SelfOnly(Broken):
    """A window that leaves a token nothing but itself."""

    caught_by = "order"
    says = "leaves the last output as it is"
    healthy = "nope"
    uses_positions = False

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return q_pos[:, None] - k_pos[None, :] < 1


class Ceiling(Linear):
    """Ends at 8 T positions by an error of its own, instead of refusing what draws them further out."""

    caught_by = "options"
    says = "too far out"

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        if int(q_pos[-1]) >= 8 * self.shape.train_length:
            raise ValueError("too far out")
        return super().bias(q_pos, k_pos, layer)


BROKEN: list[Any] = [
    cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Encoding) and "caught_by" in vars(cls)
]
