"""Encodings that exist to prove the seam: each uses hooks that the shipped ones leave alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape


class Double(Encoding):
    """Parameters of standard deviation 1, so that what they do is seen."""

    name = paper = formula = acts_on = past_training = "double"

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(parameter, generator=generator)


class Shaw(Double):
    """A key and a value table by clipped distance, per layer."""

    reach = 4

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.keys = nn.Parameter(torch.empty(shape.n_layers, self.reach + 1, shape.head_dim))
        self.added = nn.Parameter(torch.empty(shape.n_layers, self.reach + 1, shape.head_dim))

    def _clipped(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (q_pos[:, None] - k_pos[None, :]).clamp(0, self.reach)  # (T, S)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        by_distance = q @ self.keys[layer].T * self.shape.head_dim**-0.5  # (B, H, T, K + 1)
        index = self._clipped(q_pos, k_pos).expand(s.shape)
        return s + by_distance.gather(-1, index)

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return p @ v + torch.einsum("bhts,tsd->bhtd", p, self.added[layer][self._clipped(q_pos, k_pos)])


class ForgetGate(Double):
    """Scores lose what the gates between key and query forget."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_heads, shape.d_model))
        self.offset = nn.Parameter(torch.empty(shape.n_heads))

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Tensor:
        log_gate = F.logsigmoid((x @ self.gate.T + self.offset).float())  # (B, S, H)
        return log_gate.cumsum(1).transpose(1, 2)  # (B, H, S)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        queries, keys = s.shape[-2:]
        kept = state[..., :keys]
        return s + kept[..., keys - queries :, None] - kept[..., None, :]


class StickBreaking(Double):
    """From the nearest key on, each takes its share of what is left; the token itself takes none."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.shift = nn.Parameter(torch.empty(shape.n_heads, 1, 1))

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        queries, keys = s.shape[-2:]
        own = torch.ones(queries, keys, dtype=torch.bool, device=s.device).triu(keys - queries)
        z = s + self.shift
        passed = F.logsigmoid(-z).masked_fill(~allowed | own, 0.0)
        later = passed.flip(-1).cumsum(-1).flip(-1) - passed  # keys between this one and the query
        return (F.logsigmoid(z) + later).exp().masked_fill(~allowed | own, 0.0)


class LayerWindow(Double):
    """A window of 3 keys in layer 0, everything above; forgets that a token sees itself."""

    reach = 3

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = q_pos[:, None] - k_pos[None, :]
        return ((r < self.reach) & (r > 0)) | torch.tensor(layer > 0)


class Randomized(Double):
    """A sorted random subset of [0, 64), in training and evaluation; nothing else uses it."""

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        return torch.randperm(64, generator=generator)[:n].sort().values


class RandomizedSlopes(Randomized):
    """The same under a learned bias by distance."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.n_heads))

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return -self.slope[:, None] * (1 + layer) * (r.float() / 8)


class BothPositions(Double):
    """A bias that needs both positions, not their difference alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.weight = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = q_pos[:, None] - k_pos[None, :]
        psi = (1 + r.clamp_min(0).float()).log() / (2 + q_pos.float()).log()[:, None]
        psi = torch.where(r < 0, 1e4, psi)  # the future may hold anything finite
        return self.weight[layer][:, None, None] * psi


class EveryLayer(Double):
    """A learned direction times the position, added before every block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.direction = nn.Parameter(torch.empty(shape.n_layers, shape.d_model))

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + (pos.float()[:, None] / 8 * self.direction[layer]).to(x.dtype)


class Widened(Double):
    """Each number becomes a vector on a circle, so D doubles; the scale stays that of D."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.frequency = nn.Parameter(torch.empty(shape.head_dim))

    def _turn(self, x: Tensor, pos: Tensor) -> Tensor:
        angle = pos.float()[:, None] / 8 * self.frequency
        return torch.cat((x * angle.cos(), x * angle.sin()), dim=-1).to(x.dtype)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._turn(q, q_pos), self._turn(k, k_pos)


class OneKeyHead(Double):
    """All query heads look at the mean key, scaled by the position."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gain = nn.Parameter(torch.empty(1))

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return q, k.mean(1, keepdim=True) * (1 + self.gain * k_pos.float()[:, None] / 8).to(k.dtype)


class Everything(LayerWindow):
    """Window, bias by distance and changed scores at once."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.n_heads))
        self.heat = nn.Parameter(torch.empty(shape.n_layers))

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return -self.slope[:, None] * r.float() / 4

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.heat[layer].exp()


DOUBLES: list[type[Double]] = [
    Shaw,
    ForgetGate,
    StickBreaking,
    LayerWindow,
    Randomized,
    RandomizedSlopes,
    BothPositions,
    EveryLayer,
    Widened,
    OneKeyHead,
    Everything,
]
