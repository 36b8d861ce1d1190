"""Encodings with the faults that circulate: each says what it is, and names the law that catches it.

Each overrides a hook of a healthy one. `law` is None where a fault is consistent in itself: only the formula
that tests/encodings rebuild by another route sees that.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding

BROKEN = []


class Broken(Encoding):
    """`says` is part of the law's reason. Parameters have standard deviation 1, which is seen."""

    name = paper = formula = acts_on = past_training = "broken"
    law: ClassVar[str | None]
    says: ClassVar[str]

    def __init_subclass__(cls, law=None, says=""):
        cls.law, cls.says = law, says
        BROKEN.append(cls)

    def learned_parameters(self):
        return 0

    def initialize(self, name, parameter, generator):
        nn.init.normal_(parameter, generator=generator)


# --- rotations
class Turned(Broken):
    """Healthy: halves of queries and keys turned by t * 10000^(-2k/D)."""

    relative = True

    def frequencies(self):
        width = self.shape.head_dim
        return 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

    def angles(self, pos):
        angle = pos.double()[:, None] * self.frequencies()  # (T, D/2)
        return angle.cos().float(), angle.sin().float()

    def turn(self, x, pos):
        cos, sin = self.angles(pos)
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)

    def rotate(self, q, k, q_pos, k_pos, layer):
        return self.turn(q, q_pos), self.turn(k, k_pos)


class SineTwice(Turned, law="shift", says="all positions move by 1"):
    """Public snippets turn pairs by [sin, sin] instead of [cos, sin]."""

    def angles(self, pos):
        _, sin = super().angles(pos)
        return sin, sin


class Bf16Tables(Turned, law="float32", says="differs from float64"):
    """Tables kept in bf16: cosines with three digits, whatever the angle was made in."""

    def angles(self, pos):
        cos, sin = super().angles(pos)
        return cos.bfloat16(), sin.bfloat16()


class Float32Angles(Turned, law="float32", says="differs from float64"):
    """Angles in float32: off by up to 0.004 radians at position 65 535."""

    def angles(self, pos):
        angle = pos.float()[:, None] * self.frequencies().float()  # (T, D/2)
        return angle.cos(), angle.sin()


class DrawnFrequencies(Turned):
    """Healthy: frequencies that are drawn once, by a function that follows the default precision."""

    drawn = staticmethod(lambda n: torch.empty(n).uniform_())

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("theta", self.drawn(shape.head_dim // 2), persistent=False)

    def frequencies(self):
        return self.theta.double()


class DrawnFloat32Angles(DrawnFrequencies, law="float32", says="differs from float64"):
    """A table of the angles of drawn frequencies, computed in float32."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("table", torch.arange(65_536).float()[:, None] * self.theta, persistent=False)

    def angles(self, pos):
        angle = self.table[pos].double()
        return angle.cos().float(), angle.sin().float()


class PositionsLikeQueries(Turned, law="bf16", says="at positions to 65535"):
    """Positions cast to the queries' type: exact in float32, and in bf16 up to 256."""

    def rotate(self, q, k, q_pos, k_pos, layer):
        return super().rotate(q, k, q_pos.to(q.dtype), k_pos.to(q.dtype), layer)


class CachedByLength(Turned, law="positions", says="no change of positions changes logits"):
    """Tables kept by the number of tokens, whatever their positions are."""

    def angles(self, pos):
        tables = self.__dict__.setdefault("tables", {})
        if len(pos) not in tables:
            tables[len(pos)] = super().angles(pos)
        return tables[len(pos)]


class SharedTable(Turned, law="trace", says="before and after another model"):
    """One table for the process, made anew when a longer one is wanted, by the settings of who wants it."""

    shared: ClassVar[list[Tensor]] = []

    def angles(self, pos):
        longest = int(pos[-1]) + 1
        if not self.shared or len(self.shared[0]) < longest:
            everywhere = torch.arange(longest) * 64 / self.shape.train_length  # interpolated by T
            self.shared[:] = super().angles(everywhere)
        cos, sin = self.shared
        return cos[pos], sin[pos]


# --- biases
class Linear(Broken):
    """Healthy: a penalty of slope times distance."""

    relative = penalty = True

    def slope(self):
        heads = self.shape.n_heads
        return 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)  # (H,)

    def distance_bias(self, r, layer):
        return -self.slope()[:, None] * r.float()  # (H, R)


class Rewarding(Linear, law="penalty", says="rises with the distance"):
    """slope * (i - j) added with a plus: distance is rewarded."""

    def distance_bias(self, r, layer):
        return -super().distance_bias(r, layer)


class BatchOfQueries(Linear, law="blocks", says="blocks of three queries"):
    """Temperature by the number of queries at hand instead of the keys that each sees."""

    def scores(self, s, q, k, q_pos, *others):
        return s * math.log(1 + len(q_pos)) / math.log(1 + self.shape.train_length)


class Slopes(Broken):
    """Healthy: a learned slope for the logarithm of the distance."""

    relative = True

    def __init__(self, shape):
        super().__init__(shape)
        self.learnt = nn.Parameter(torch.empty(shape.n_heads))

    def learned_parameters(self):
        return self.shape.n_heads

    def distance_bias(self, r, layer):
        return -self.learnt.exp()[:, None] * r.float().log1p()


class LogOfZero(Slopes, law="gradient", says="learnt is not finite"):
    """log(0) in the branch that `where` leaves out: its value is dropped, its gradient is nan."""

    def distance_bias(self, r, layer):
        scaled = self.learnt.exp()[:, None] * r.float()
        return -torch.where(scaled > 0, scaled.log(), torch.zeros(())).clamp_min(0)


class CountsTwice(Slopes, law="count", says="is not what it has"):
    """Declares two parameters a head and has one."""

    def learned_parameters(self):
        return 2 * self.shape.n_heads


class OwnDraws(Slopes, law="seeds", says="starts elsewhere the second time"):
    """Initial values from the process's random stream instead of the generator that is given."""

    def initialize(self, name, parameter, generator):
        nn.init.normal_(parameter)


class SameDraws(Slopes, law="seeds", says="is drawn by a generator of its own"):
    """Initial values from a generator of its own, so that all seeds of a sweep begin alike."""

    def initialize(self, name, parameter, generator):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))


class LeftEmpty(Slopes, law="seeds", says="nothing sets all values of learnt"):
    """Initial values written into a copy, so that a parameter keeps what its memory held."""

    def initialize(self, name, parameter, generator):
        nn.init.normal_(parameter.clone(), generator=generator)


class LostStart(Linear, law="initial", says="__init__ sets strength, and initialize replaces it"):
    """A strength that `__init__` sets and an inherited `initialize` replaces: a head may reward distance."""

    def __init__(self, shape):
        super().__init__(shape)
        self.strength = nn.Parameter(torch.ones(shape.n_heads))

    def distance_bias(self, r, layer):
        return self.strength[:, None] * super().distance_bias(r, layer)


class IdleSetting(Linear, law="effect", says="encoding.start changes no number"):
    """A setting that is taken and never used, so that another value is the same model."""

    def __init__(self, shape, *, start: float = 1.0):
        super().__init__(shape)


class IdleRows(Slopes, law="effect", says="learnt[1] changes no number"):
    """A slope for each head, of which the first one serves them all."""

    def distance_bias(self, r, layer):
        return super().distance_bias(r, layer)[:1].expand(self.shape.n_heads, -1)


class DeadParameter(Slopes, law="gradient", says="no gradient reaches encoding.unread"):
    """A parameter that nothing reads."""

    def __init__(self, shape):
        super().__init__(shape)
        self.unread = nn.Parameter(torch.empty(shape.n_heads))


class OneLayerOnly(Broken, law="gradient", says="slope[0] is zero"):
    """Slopes for every layer, of which the last one's alone are read."""

    def __init__(self, shape):
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))

    def distance_bias(self, r, layer):
        return -self.slope[-1].exp()[:, None] * r.float().log1p()


# --- rows
class Waves(Broken):
    """Healthy: sines and cosines of the position, added to the input."""

    def rows(self, pos):
        half = self.shape.d_model // 2
        angle = pos.double()[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        return torch.cat((angle.sin(), angle.cos()), dim=-1).float()  # (T, d_model)

    def embed(self, x, pos, layer):
        return x * self.shape.d_model**0.5 + self.rows(pos) if layer == 0 else x


class Undeclared(Waves, law="prefix", says="a text of 33 tokens moves"):
    """Positions as a share of the window's length, without declaring that a longer text changes them."""

    def rows(self, pos):
        return (pos / pos[-1].clamp_min(1))[:, None].expand(-1, self.shape.d_model)


class SavedTable(Waves, law="load", says="saved buffers"):
    """A table of T rows in the state dict, grown where a longer text comes: checkpoints take its length."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("table", super().rows(torch.arange(shape.train_length)))

    def rows(self, pos):
        longest = int(pos[-1]) + 1
        if len(self.table) < longest:
            self.table = super().rows(torch.arange(longest))
        return self.table[pos]


class StaysBehind(Waves, law="load", says="stay on the CPU: constant"):
    """A constant as a plain attribute: on a GPU it is on the CPU still."""

    def __init__(self, shape):
        super().__init__(shape)
        self.constant = torch.ones(shape.d_model)


class StaysBehindInAList(Waves, law="load", says="stay on the CPU: constants"):
    """A constant of each layer in a list, which torch does not look into."""

    def __init__(self, shape):
        super().__init__(shape)
        self.constants = [torch.ones(shape.d_model) for _ in range(shape.n_layers)]


class StaysBehindInADict(Waves, law="load", says="stay on the CPU: constants"):
    """Constants by name in a dictionary inside a tuple."""

    def __init__(self, shape):
        super().__init__(shape)
        self.constants = ({"one": torch.ones(shape.d_model)},)


class Dropped(Waves, law="batch", says="other logits the second time in training"):
    """Dropout from the process's own stream of random numbers, which no checkpoint holds."""

    def rows(self, pos):
        return F.dropout(super().rows(pos), 0.1, self.training)


class Rows(Broken, law="prefix", says="IndexError"):
    """One learned row a position, and nothing past the last one: an IndexError, on a GPU an assert."""

    def __init__(self, shape):
        super().__init__(shape)
        self.table = nn.Parameter(torch.empty(shape.positions, shape.d_model))

    def embed(self, x, pos, layer):
        return x + self.table[pos] if layer == 0 else x


# --- of the text
class OfTheWindow(Broken, law="causal", says="tokens changed from 1 on move logits before them"):
    """Adds what stands in the whole window to each of its tokens."""

    def embed(self, x, pos, layer):
        return x + x.mean(1, keepdim=True)


class OfTheBatch(Broken, law="batch", says="other texts in the batch"):
    """Adds the mean over the texts of a batch: a loss then depends on how many are measured at once."""

    def embed(self, x, pos, layer):
        return x + x.mean(0, keepdim=True)


class SelfOnly(Broken, law="order", says="leaves the last output as it is"):
    """A window that leaves a token nothing but itself."""

    def visible(self, q_pos, k_pos, layer):
        return q_pos[:, None] - k_pos[None, :] < 1


class Bf16Sums(Broken, law="bf16", says="bf16 and float32 differ"):
    """A forget gate whose cumulative sum takes the type that autocast gives it."""

    def __init__(self, shape):
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_heads, shape.d_model))

    def prepare(self, x, q, k, layer):
        return F.logsigmoid(F.linear(x, self.gate)).cumsum(1).transpose(1, 2)  # (B, H, S)

    def scores(self, s, q, k, q_pos, k_pos, state, layer):
        queries, keys = s.shape[-2:]
        passed = state[..., :keys]
        return s + (passed[..., keys - queries :, None] - passed[..., None, :])
