"""Options that any encoding can carry: positions, a window, and a scale that knows the number of keys.

Each is a small Encoding. An encoding lists in `refuses` the options that make no sense with it.

positions=contiguous  0..n-1.
positions=randomized  a sorted random subset of [0, max), in training and, as in the paper, in evaluation: 16
                      draws from the seed for each length, used in turn by its windows; `dense` evaluates at
                      0..n-1 instead. Ruoss et al. 2023, arXiv 2305.16843.
positions=offset      0..n-1 plus a random start below max - n in training; 0..n-1 in evaluation. CAPE's
                      global shift, Likhomanenko et al. 2021, arXiv 2106.03143; SHAPE, Kiyono et al. 2021,
                      arXiv 2109.05644.
positions=pose        a window is cut into chunks at random places, each further on by a random gap, the first
                      at 0; 0..n-1 in evaluation. PoSE, Zhu et al. 2023, arXiv 2309.10400.
positions=cream       three chunks: the first begins at 0, the last ends at max - 1, both h = n/3 long or, as
                      often, h = 4 max/n; the middle one of m ends in U(h + (m-1) a/2, a n/2 - h - 1), a from
                      N(1 + max/n, sigma) cut to [2, 2 max/n] and rounded down; 0..n-1 in evaluation. CREAM,
                      Wu, Zhao, Zheng 2024, arXiv 2406.07138, by its released code.
Departures: max is 16 T (randomized) or 8 T (the others) unless set; the papers choose it by their test
lengths. A step's windows share one draw, in pose and cream too, whose chunks are also neighbours in the text.
A short head of cream is never longer than n/3.

attention.window=W    key j is visible to query i where i - j < W, so W keys with the token itself.
                      Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150.
attention.scale       softmax_j(f_i z_ij), z the biased scores, n_i the number of keys visible to query i:
  logn                f_i = log(n_i) / log(T). Chiang, Cholak 2022, arXiv 2202.12172.
  ssmax               f_i = s_h log(n_i), s_h learned by layer and head. Nakanishi 2025, arXiv 2501.19399.
n_i counts keys, not the window's length, so a longer text does not change its prefix.
Departure: 1/log(T), constant in logn and the initial value of s in ssmax, so that training starts near
ordinary attention.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.core.signature import check_choice, parameters
from posenc.encodings.base import Encoding, Shape, at_least

Scale = Literal["none", "logn", "ssmax"]
LARGEST = 2**24  # positions to draw from: a draw makes all of them, 134 MB


class Drawn(Encoding):
    """Positions drawn below a limit."""

    acts_on = "positions"
    relative = True
    times = 8  # the limit is this many times T unless it is set
    gaps = False  # whether neighbours may lie more than 1 apart

    def __init__(self, shape: Shape, *, max: int | None) -> None:
        super().__init__(shape)
        if max is None:
            max = self.derived["max"] = self.times * shape.train_length
        self.limit = max
        if not shape.train_length <= self.limit <= LARGEST:
            allowed = f"from context_length={shape.train_length} to {LARGEST}"
            raise ValueError(f"positions.max={self.limit}: must be {allowed}")


class Randomized(Drawn):
    """A sorted random subset of [0, max)."""

    name = "randomized"
    times = 16
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, dense: bool) -> None:
        super().__init__(shape, max=max)
        self.dense = dense
        self.prefix_stable = dense  # else a longer window draws other positions

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if self.dense and not training:
            return torch.arange(n)
        if n > self.limit:
            raise ValueError(f"{n} positions cannot be drawn below positions.max={self.limit}")
        return torch.randperm(self.limit, generator=generator)[:n].sort().values  # (n,)


class Offset(Drawn):
    """Contiguous positions from a random start."""

    name = "offset"

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if not training:
            return torch.arange(n)
        start = torch.randint(self.limit - n + 1, (), generator=generator)
        return start + torch.arange(n)  # (n,)


class PoSE(Drawn):
    """Chunks of a window with random gaps between them in training."""

    name = "pose"
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, chunks: int) -> None:
        super().__init__(shape, max=max)
        if not 1 <= chunks <= shape.train_length:
            allowed = f"from 1 to context_length={shape.train_length}"
            raise ValueError(f"positions.chunks={chunks}: must be {allowed}")
        self.chunks = chunks

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        pos = torch.arange(n)
        if not training:
            return pos
        cuts = (torch.randperm(n - 1, generator=generator)[: self.chunks - 1] + 1).sort().values
        skips = torch.randint(self.limit - n + 1, (len(cuts),), generator=generator).sort().values
        chunk = torch.bucketize(pos, cuts, right=True)  # of each token
        return pos + torch.cat((skips.new_zeros(1), skips))[chunk]  # (n,)


class CREAM(Drawn):
    """Head, middle and tail of a window in training, the middle mostly from the middle of the range."""

    name = "cream"
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, sigma: float) -> None:
        super().__init__(shape, max=max)
        if not 0 < sigma < math.inf:
            raise ValueError(f"positions.sigma={sigma}: must be above 0")
        self.sigma = sigma

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        pos, factor = torch.arange(n), self.limit / n
        if not training:
            return pos
        short = torch.randint(2, (), generator=generator)
        head = min(int(4 * factor), n // 3) if short else n // 3
        middle, a = n - 2 * head, torch.empty(())
        nn.init.trunc_normal_(a, 1 + factor, self.sigma, 2, 2 * factor, generator=generator)
        half = math.floor(a.item()) / 2
        first, last = math.floor(head + (middle - 1) * half), math.floor(half * n) - head - 1
        end = torch.randint(first, last + 1, (), generator=generator)
        skips = torch.stack((end * 0, end - (head + middle - 1), end * 0 + self.limit - n))
        return pos + skips.repeat_interleave(torch.tensor([head, middle, head]))  # (n,)


class Window(Encoding):
    """The last `window` positions, in every layer."""

    name = "window"
    acts_on = "mask"
    relative = True

    def __init__(self, shape: Shape, *, window: int, first: int = 0) -> None:
        super().__init__(shape)
        at_least(1, window=window)
        self.window, self.first = window, first  # the text's first keys are seen as well

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        near = q_pos[:, None] - k_pos[None, :] < self.window  # (T, S)
        return near | (torch.arange(len(k_pos), device=k_pos.device) < self.first) if self.first else near


class LogN(Encoding):
    """Scores times log(visible keys) / log(T). `counted`: encodings whose masks decide what is visible."""

    name = "logn"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape)
        if shape.train_length < 2:
            raise ValueError(f"context_length={shape.train_length}: log(T) must be above zero")
        self.counted = tuple(counted)  # a tuple: modules in it are not registered twice

    def log_visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return log(n_i) of the last T of S tokens: (H or 1, T) float32."""
        queries, keys = len(q_pos), len(k_pos)
        row = torch.arange(keys - queries, keys, device=q_pos.device)  # (T,) index of the query's own key
        index = torch.arange(keys, device=q_pos.device)
        seen = (index <= row[:, None])[None]  # (1, T, S)
        for one in self.counted:
            if "visible" in one.hooks:
                seen = seen & one.visible(q_pos, k_pos, layer)
        return (seen | (index[None, :] == row[:, None])).sum(-1).float().log()

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return f_i for each head or for all: (H or 1, T) float32."""
        return self.log_visible(q_pos, k_pos, layer) / math.log(self.shape.train_length)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.factor(q_pos, k_pos, layer)[..., None]  # (B, H, T, S)


class SSMax(LogN):
    """Scalable softmax: scores times a learned s_h log(visible keys)."""

    name = "ssmax"

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape, counted=counted)
        self.s = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))  # (L, H)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.constant_(parameter, 1 / math.log(self.shape.train_length))

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return self.s[layer].float()[:, None] * self.log_visible(q_pos, k_pos, layer)  # (H, T)


POSITIONS: dict[str, type[Drawn]] = {"randomized": Randomized, "offset": Offset, "pose": PoSE, "cream": CREAM}
SCALES: dict[str, type[LogN]] = {"logn": LogN, "ssmax": SSMax}


def check_positions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `positions` group with names and types checked. Raises UserError."""
    choices: dict[str, type[Encoding]] = {"contiguous": Encoding, **POSITIONS}  # that has no parameters
    return check_choice("positions", settings, choices, "there are no such positions")


def position_limits(settings: Mapping[str, Any], train_length: int) -> tuple[int | None, int | None]:
    """Return the limits of training positions and, where they have gaps, of distances; None: below T."""
    cls = POSITIONS.get(settings["name"])
    if cls is None:
        return None, None
    limit = cls.times * train_length if settings["max"] is None else settings["max"]
    return limit, limit if cls.gaps else None


def build_options(
    shape: Shape, encoding: Encoding, *, positions: Mapping[str, Any], window: int | None, scale: Scale
) -> list[Encoding]:
    """Build the options beside `encoding`, in order. Raises UserError, also for one that it refuses."""
    options: list[Encoding] = []

    def add(key: str, value: object, cls: type[Encoding], **params: Any) -> None:
        reason = encoding.refuses.get(key)
        if reason is None and key == "positions" and not encoding.uses_positions:
            reason = "it reads no position, so nothing would change"
        if reason is not None:
            name = getattr(encoding, "name", type(encoding).__name__)
            raise UserError(key, value, f"makes no sense with encoding={name}: {reason}")
        try:
            options.append(cls(shape, **params))
        except ValueError as error:
            raise UserError(key, value, str(error)) from error

    if positions["name"] in POSITIONS:
        add("positions", positions["name"], POSITIONS[positions["name"]], **parameters(positions))
    if window is not None:
        add("attention.window", window, Window, window=window)
    if scale != "none":
        add("attention.scale", scale, SCALES[scale], counted=(encoding, *options))
    return options
