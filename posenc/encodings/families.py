"""What several encodings share: absolute rows, rotations, learned biases, attention by content."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape, float64

# --- absolute: a vector for each position, added to or concatenated with the residual stream

Combine = Literal["add", "concat"]
Beyond = Literal["untrained", "clamp", "truncate", "refuse"]

# Terms of `Encoding.learned`: what `concat` learns in a place, and how many places there are.
JOINED = "(2*d*d if combine == 'concat' else 0)"
PLACES = "(L if per_layer else 1)"


class Absolute(Encoding):
    """Add or concatenate `rows(pos, place)`; parameters for each place have `places` as their first size.

    per_layer  false: once, at the input. true: before every block, each with parameters of its own
    combine    add: x_t + e_t. concat: W [x_t; e_t] with a learned W (d_model, 2 d_model) in each place,
               initialised as a linear map: normal, fan_in^-1/2, no bias
    Paper of per_layer: Dehghani et al. 2018 (Universal Transformer), arXiv 1807.03819, which also adds a
    sinusoid of the layer's index; that one is left out.
    """

    acts_on = "embed"

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape)
        self.per_layer, self.combine = per_layer, combine
        self.places = shape.n_layers if per_layer else 1
        self.input_scale = 1.0  # factor on the token embeddings
        if combine == "concat":
            self.joined = nn.Parameter(torch.empty(self.places, shape.d_model, 2 * shape.d_model))

    def rows(self, pos: Tensor, place: int) -> Tensor:
        """Return the vectors of positions, (T,) int64 -> (T, d_model) float32; `place`: 0 or the layer."""
        raise NotImplementedError

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "joined":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        if layer == 0 and self.input_scale != 1:
            x = x * self.input_scale
        if layer > 0 and not self.per_layer:
            return x
        rows = self.rows(pos, layer)  # (T, d_model)
        if self.combine == "add":
            return x + rows.to(x.dtype)  # (B, T, d_model)
        on_x, on_rows = self.joined[layer].chunk(2, dim=-1)  # (d, d) each
        # Autocast would round the rows to bf16 before the product, where t = 256 and 257 are equal.
        with torch.autocast(x.device.type, enabled=False):
            mapped = F.linear(rows, on_rows.to(rows.dtype))  # (T, d_model)
        return F.linear(x, on_x) + mapped.to(x.dtype)


class Tabled(Absolute):
    """A table of trained rows of `width` numbers for each place; `beyond` is explained in `learned`."""

    def __init__(
        self, shape: Shape, *, width: int, beyond: Beyond, per_layer: bool, combine: Combine
    ) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(self.places, shape.positions, width))  # (places, T, width)

    def look_up(self, pos: Tensor, place: int) -> Tensor:
        """Return rows of increasing positions, (T,) int64 -> (T, width). Raises ValueError past the end."""
        table = self.table[place]  # (positions, width)
        last = int(pos[-1])  # on the host, before any table is indexed
        if last < len(table):
            return table[pos]
        if self.beyond == "clamp":
            return table[pos.clamp_max(len(table) - 1)]
        if self.beyond == "untrained":
            trained = int((pos < len(table)).sum())
            past = [drawn_row(self.seed, place, t, table.shape[-1]) for t in pos[trained:].tolist()]
            return torch.cat((table[pos[:trained]], (torch.stack(past) * self.shape.d_model**-0.5).to(table)))
        end = f"rows end at {len(table)}, beyond={self.beyond} has none for position {last}"
        raise ValueError(f"{self.name}: {end}")


@functools.lru_cache(1 << 20)  # a row takes 20 us
def drawn_row(seed: int, place: int, position: int, width: int) -> Tensor:
    """Return a normal row past the end of a table, (width,), by its own generator whatever else is drawn."""
    generator = generator_for(seed, f"encoding.table[{position}]", *([place] if place else []))
    return torch.randn(width, generator=generator)


def check_base(base: float) -> None:
    """Raise ValueError for a base of wavelengths that is not a finite number above 1."""
    if not 1 < base < math.inf:
        raise ValueError(f"base={base}: must be a finite number above 1")


def sinusoid_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """Return base^(-2k/width) in radians a token, highest first: (ceil(width/2),) float64."""
    k = torch.arange(0, width, 2, dtype=torch.float64, device=device)  # 2k
    return base ** (-k / width)


def waves(angle: Tensor) -> Tensor:
    """Interleave sines (even columns) and cosines (odd ones) of angles, (T, n) -> (T, 2n)."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """Return the sinusoids of positions, (n,) int64 -> (n, width) float32, sines on even columns.

    Angles in float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    exact = float64(pos)[:, None]  # (n, 1)
    angle = exact * sinusoid_frequencies(width, base, exact.device)  # (n, ceil(width/2))
    return waves(angle)[:, :width].float().to(pos.device)  # (n, width)


# --- rotations: pairs of numbers of queries and keys rotated by angles that grow with the position

Layout = Literal["interleaved", "half"]


def cos_sin(pos: Tensor, frequencies: Callable[[torch.device], Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of pos * theta for (T,) int64 and n frequencies: (T, n) float32 each.

    The product in float64: in float32 it is off by up to 0.004 radians at position 65 536.
    """
    exact = float64(pos)[:, None]  # (T, 1)
    angle = exact * frequencies(exact.device)  # (T, n)
    cos, sin = angle.cos().float().to(pos.device), angle.sin().float().to(pos.device)
    if pos.device.type == "cpu" and torch.compiler.is_compiling():
        # a compiler would recompute them for every head and window; complex numbers it leaves alone
        cos, sin = torch.view_as_real(torch.complex(cos, sin)).unbind(-1)
    return cos, sin


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate x (..., T, D') by the angles of cos and sin (T, D'/2), in float32, back to x's dtype."""
    if x.device.type == "cpu":
        return _as_complex(x.float(), torch.complex(cos, sin), layout).to(x.dtype)
    return _as_real(x.float(), cos, sin, layout).to(x.dtype)


def _as_real(f: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate f (..., T, D') float32 by the formula; a compiler for GPUs makes one kernel of it."""
    if layout == "interleaved":
        a, b = f[..., 0::2], f[..., 1::2]  # (..., T, D'/2)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    a, b = f.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def _as_complex(f: Tensor, turn: Tensor, layout: str) -> Tensor:
    """Rotate (..., T, D') by complex64 (T, D'/2): 130 us instead of 530 for 262144 numbers, two cores."""
    if layout == "interleaved":
        pairs = torch.view_as_complex(f.contiguous().unflatten(-1, (-1, 2)))  # (..., T, D'/2)
        return torch.view_as_real(pairs * turn).flatten(-2)
    turned = torch.view_as_real(torch.complex(*f.chunk(2, dim=-1)) * turn)  # (..., T, D'/2, 2)
    return turned.transpose(-1, -2).flatten(-2)


def check_pairs(head_dim: int) -> None:
    """Raise ValueError for a head that is not made of pairs."""
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim}: rotary pairs need an even width")


def even_share(head_dim: int, fraction: float) -> int:
    """Return the even width nearest to a share of a head's. Raises ValueError where it is 0."""
    width = 2 * round(head_dim * fraction / 2)
    if width == 0:
        raise ValueError(f"fraction={fraction}: rotates nothing of head_dim={head_dim}")
    return width


class Rotary(Encoding):
    """Rotate the first `width` numbers of each head by pos * frequencies()."""

    acts_on = "rotate"
    relative = True
    turns_only: ClassVar[bool] = True  # False: it changes pairs by position in another way too

    def __init__(self, shape: Shape, *, base: float, layout: Layout, width: int) -> None:
        super().__init__(shape)
        if width % 2 or not 0 < width <= shape.head_dim:
            raise ValueError(f"{width} of head_dim={shape.head_dim}: rotary pairs need an even width above 0")
        check_base(base)
        self.base, self.layout, self.width = base, layout, width

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_k = base^(-2k/width) in radians a token, highest first: (width/2,) float64."""
        return sinusoid_frequencies(self.width, self.base, device)

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of pos * theta, each (T, width/2) float32."""
        return cos_sin(pos, self.frequencies)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        k_cos, k_sin = self.angles(k_pos)  # (S, width/2)
        q_cos, q_sin = (k_cos, k_sin) if q_pos is k_pos else self.angles(q_pos)  # (T, width/2)
        return self.turn(q, q_cos, q_sin), self.turn(k, k_cos, k_sin)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first `width` numbers of x (..., T, D)."""
        cos, sin = cos.to(x.device), sin.to(x.device)  # fractional positions lie on the CPU for MPS
        if self.width == x.shape[-1]:
            return rotate_pairs(x, cos, sin, self.layout)
        turned = rotate_pairs(x[..., : self.width], cos, sin, self.layout)
        return torch.cat((turned, x[..., self.width :]), dim=-1)


# --- learned biases by distance: positive parameters, KERPLE's kernels, a ReLU network of one input

NEAREST = 1e-3  # how close to the end of its range a parameter may start
KERPLE_FLOOR = 0.01  # lower bound of KERPLE's parameters, as in the released code


def above(raw: Tensor, floor: float) -> Tensor:
    """Return floor + softplus(raw), float32. A clamp through `.data` would stop the gradient instead."""
    return floor + F.softplus(raw.float())


def raw_above(value: Tensor, floor: float) -> Tensor:
    """Invert `above`; values at or below the floor start just above it."""
    rest = (value.double() - floor).clamp_min(NEAREST)
    return (rest + (-(-rest).expm1()).log()).to(value.dtype)  # log(e^rest - 1), never inf


def between(raw: Tensor, low: float, high: float) -> Tensor:
    """Return low + (high - low) sigmoid(raw), float32."""
    return low + (high - low) * raw.float().sigmoid()


def raw_between(value: Tensor, low: float, high: float) -> Tensor:
    """Invert `between`; values outside start just inside."""
    share = ((value.double() - low) / (high - low)).clamp(NEAREST, 1 - NEAREST)
    return share.logit().to(value.dtype)


class Kerple(Encoding):
    """- a k(r; b), a and b learned for each head, shared by the layers, kept above 0.01 and not decayed."""

    paper = "Chi, Fan, Ramadge, Rudnicky 2022 (KERPLE), arXiv 2205.09921"
    acts_on = "bias"
    learned = "2*H"
    relative = True
    penalty = True
    starts_below: ClassVar[dict[str, float]]  # a, b: upper ends of their uniform initial distributions

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.a = nn.Parameter(torch.empty(shape.n_heads))  # (H,), before its reparametrisation
        self.b = nn.Parameter(torch.empty(shape.n_heads))  # (H,)

    def raw(self, name: str, value: Tensor) -> Tensor:
        """Return the parameter `name` before its reparametrisation to this value."""
        return raw_above(value, KERPLE_FLOOR)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        value = torch.rand(parameter.shape, generator=generator) * self.starts_below[name]
        parameter.copy_(self.raw(name, value))


def relu_network(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 relu(w1 u + b1) + b2 for u (...) with w1, b1 (K,), w2 (H, K), b2 (H,) -> (H, ...).

    With one input it is a piecewise linear function of K + 1 pieces, so a value costs a look-up, and n^2
    inputs never become n^2 x K numbers. The gradient is that of the network.
    """
    slopes, offsets, borders = _pieces(w1, b1, w2, b2)
    piece = torch.searchsorted(borders, u.detach().contiguous()).flatten()  # (n,), borders below u
    slope, offset = slopes.index_select(1, piece), offsets.index_select(1, piece)  # (H, n)
    return torch.addcmul(offset, slope, u.flatten()).unflatten(1, u.shape)


def _pieces(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope and offset of every piece, (H, K + 1) each, ascending, and the borders (K,) between."""
    with torch.no_grad():
        border, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()  # a unit without slope never turns
        sign = w1.sign()
        at_first = (w1 < 0) | ((w1 == 0) & (b1 > 0))  # units that are on below every border
    # Passing its border upwards, a rising unit goes on and a falling one off.
    turned = torch.stack((sign * w1, sign * b1))[:, None, order] * w2[:, order]  # (2, H, K)
    first = torch.stack((w1, b1))[:, None, :] * w2 * at_first  # (2, H, K)
    pieces = torch.cat((first.sum(-1, keepdim=True), turned), dim=-1).cumsum(-1)  # (2, H, K + 1)
    return pieces[0], pieces[1] + b2[:, None], border


# --- scores that depend on the text: gates summed along it, a network over the heads at every pair

# Pairs of tokens in a chunk of the network over heads. One CPU core is fastest from 8000 to 16 000.
PAIRS, PAIRS_GPU = 1 << 14, 1 << 22
LEAK = 0.01  # slope of the leaky ReLU below zero


def of_block(prepared: Tensor, window: int, s: Tensor) -> Tensor:
    """Select the rows of `prepared` (B, H, queries, ...) that belong to a block with scores s (B, H, T, S).

    `prepared` holds the last queries of a window of `window` tokens; s the last T of its first S.
    """
    queries, keys = s.shape[-2:]
    stop = prepared.shape[2] - window + keys
    return prepared[:, :, stop - queries : stop]  # (B, H, T, ...)


class CumulativeGates(Encoding):
    """score_ij - g_i * sum over l = j+1..i of f_l; a subclass computes f_l >= 0 and g_i from each token."""

    acts_on = "scores"
    relative = True
    uses_positions = False

    def steps(self, x: Tensor, layer: int) -> Tensor:
        """Return f_l >= 0 of every token and head: (B, S, d_model) -> (B, S, H)."""
        raise NotImplementedError

    def weight(self, x: Tensor, layer: int) -> Tensor | None:
        """Return g_i of every token and head: (B, S, d_model) -> (B, S, H); None means 1."""
        return None

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(next(self.parameters()).dtype)  # a bf16 product would round every step
            # float64: a float32 sum of 65 536 steps near 1 is off by thousandths
            passed = float64(self.steps(exact, layer)).cumsum(1).transpose(1, 2)  # (B, H, S)
            weight = self.weight(exact, layer)
            return passed, None if weight is None else weight.transpose(1, 2)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        passed, weight = state
        queries, keys = s.shape[-2:]
        # Sums start at the block's first query, so that float32 resolves the nearest tokens. Not at its last
        # query: a changed future token would then change how the past is rounded.
        start = keys - queries
        counted = (passed[..., :keys] - passed[..., start, None]).float().to(s.device)  # (B, H, S)
        difference = counted[..., None, :] - counted[..., start:, None]  # (B, H, T, S)
        if weight is None:
            return difference.add_(s)
        return torch.addcmul(s, weight[..., start:keys, None].float(), difference)


class PhaseSums(Encoding):
    """Rotate pairs (2k, 2k+1) of q and k by running sums over the text; a subclass computes the increments.

    The hook `rotate` sees no text, so the product of the rotated replaces the plain one among the scores.
    """

    acts_on = "scores"
    relative = True
    uses_positions = False

    def increments(self, x: Tensor, layer: int) -> Tensor:
        """Return what each token adds to its angles, (B, S, d_model) -> (B, H, S, D/2) float64."""
        raise NotImplementedError

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            phase = self.increments(x.to(next(self.parameters()).dtype), layer).cumsum(2)  # float64
            cos, sin = phase.cos().float().to(x.device), phase.sin().float().to(x.device)  # (B, H, S, D/2)
            start = cos.shape[2] - q.shape[2]
            q, k = q.float(), k.float()
            of_q = rotate_pairs(q, cos[:, :, start:], sin[:, :, start:], "interleaved")
            of_k = rotate_pairs(k, cos, sin, "interleaved")
            return torch.cat((of_q, -q), dim=-1), torch.cat((of_k, k), dim=-1)  # (B, H, T or S, 2D)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        of_q, of_k = state
        keys = s.shape[-1]
        with torch.autocast(s.device.type, enabled=False):
            difference = of_block(of_q, of_k.shape[2], s) @ of_k[:, :, :keys].transpose(-1, -2)
        return s + difference * self.shape.head_dim**-0.5  # (B, H, T, S)


def reversed_cumsum(x: Tensor) -> Tensor:
    """Sum each entry and all later ones of the last dimension.

    Added from the end, so that a sum near the end is as exact as its few terms; total minus cumsum is not.
    """
    return x.flip(-1).cumsum(-1).flip(-1)


def over_heads(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 leaky_relu(w1 [z; b] + b1) + b2 for z (B, H, T, S), b (H, T, S) -> (B, H, T, S), future zero.

    w1 (K, 2H), b1 (K,), w2 (H, K), b2 (H,); the queries are the last T of the S keys' tokens. Hidden numbers
    of all pairs would be 130 MB a layer (K = 32, 512 tokens, batch 4): they are computed a chunk at a time,
    and again in the backward pass.
    """
    with torch.autocast(z.device.type, enabled=False):  # products of 2H numbers: casts would cost more
        out: Tensor = _OverHeads.apply(z, b, w1.float(), b1.float(), w2.float(), b2.float())
    return out


def _chunks(z: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield rows start..stop of a chunk, and the number of keys that its last row sees."""
    batch, _, queries, keys = z.shape
    most = PAIRS_GPU if z.is_cuda else PAIRS
    stop = queries
    while stop > 0:  # the last first: it sees the most keys, so the others reuse its memory
        rows = max(1, most // (batch * (keys - queries + stop)))
        start = max(0, stop - rows)
        yield start, stop, keys - queries + stop
        stop = start


def _pairs(z: Tensor, b: Tensor, start: int, stop: int, seen: int) -> Tensor:
    """Return [z; b] of a chunk: (2H, B * rows * seen)."""
    of_z = z[:, :, start:stop, :seen].transpose(0, 1)  # (H, B, rows, seen)
    of_b = b[:, None, start:stop, :seen].expand_as(of_z)
    return torch.cat((of_z, of_b)).flatten(1)


def _network(pairs: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Apply the network to every pair, (2H, n) -> (H, n)."""
    return torch.addmm(b2[:, None], w2, F.leaky_relu(torch.addmm(b1[:, None], w1, pairs), LEAK))


class _OverHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        z, b, *weights = given
        out = torch.zeros_like(z)
        for start, stop, seen in _chunks(z):
            mixed = _network(_pairs(z, b, start, stop, seen), *weights)  # (H, n)
            size = (z.shape[1], z.shape[0], stop - start, seen)
            out[:, :, start:stop, :seen] = mixed.view(size).transpose(0, 1)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        z, b, *given = ctx.saved_tensors
        to_z, to_b = torch.zeros_like(z), torch.zeros_like(b)
        weights = [one.detach().requires_grad_() for one in given]
        to_weights = [torch.zeros_like(one) for one in given]
        for start, stop, seen in _chunks(z):
            pairs = _pairs(z, b, start, stop, seen).requires_grad_()  # (2H, n)
            g = gradients[0][:, :, start:stop, :seen].transpose(0, 1).flatten(1)  # (H, n)
            # a caller may still be inside its autocast here
            with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
                found = torch.autograd.grad(_network(pairs, *weights), (pairs, *weights), g)
            for total, part in zip(to_weights, found[1:], strict=True):
                total += part
            of_pairs = found[0].view(2, z.shape[1], z.shape[0], stop - start, seen)
            to_z[:, :, start:stop, :seen] = of_pairs[0].transpose(0, 1)
            to_b[:, start:stop, :seen] = of_pairs[1].sum(1)
        return to_z, to_b, *to_weights
