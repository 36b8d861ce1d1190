"""GRAPE: positions act on queries and keys as a group, by rotations or by unipotent maps that add to scores.

Formula: score_ij = q_i^T G(j - i) k_j / sqrt(D) + b_ij.
  rotation  true: G(n) = exp(n L), L the sum of rank-2 generators of the pairs (2k, 2k+1), which it turns by
            theta_k = base^(-2k/D) e^(w_k/16) a token, w learned for each layer; w = 0, the start, is RoPE
  additive  what products of maps 1 + a E, E^2 = 0, add up to; m_h ALiBi's slopes
            gated: b_ij = -(i - j) o_h m_h (softplus(v_h . q_i / sqrt(D)) + softplus(u_h . k_j / sqrt(D))),
            o > 0 from 1 (GRAPE-A-QK); ALiBi is u = v = 0, o = 1/(2 log 2)
            forget: sum over l = j+1..i of log sigmoid(w_h . x_l + b_h), which is FoX
            path: m_h sum over l = j+1..i of log sigmoid(p_i . R^l p_l / W), p_l = P_h x_l of W numbers,
            mean square 1, R a turn of its pairs by one radian (GRAPE-AP); l is absolute, so not relative
  path_width  W; 8 as in the released configurations
x is the layer's normed input; P, u, v, o, w, b are learned for each layer.
Departures: no QK-norm; p_i is scaled like p_l, as in the paper (its code scales p_l alone); u and v are not
scaled to length 1. Left out: learned planes, which the maps of q and k already give, and GRAPE-M-ctx, angles
summed up from the text, for which see `selective_rope`.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.alibi import slopes
from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least, float64
from posenc.encodings.fox import FoX
from posenc.encodings.shared.blocks import reversed_cumsum, rows_of_block
from posenc.encodings.shared.rotary import check_pairs, rotate_pairs
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies

SLOWER = 16  # of log theta's learning, as in the released code


class GRAPE(Encoding):
    name = "grape"
    paper = "Zhang et al. 2025, arXiv 2512.07805"
    formula = "q_i^T exp((j - i) L) k_j / sqrt(D) + b_ij; b: gated slopes, forget gates, or sums along a path"
    acts_on = "several"
    past_training = "defined everywhere; a path's penalty grows by 0.3 to 1.3 times m_h a token"
    learned = (
        "L*((D//2 if rotation else 0) + "
        "{'none': 0, 'gated': H*(2*D + 1), 'forget': H*(d + 1), 'path': H*path_width*d}[additive])"
    )
    zero_init = ("own.log_factor",)
    inert: Mapping[str, str] = {
        "base": "used where rotation=true",
        "path_width": "used where additive=path",
    }
    cost = StepCost(at_64=1.24, at_512=1.66)

    slope: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        rotation: bool,
        additive: Literal["none", "gated", "forget", "path"],
        base: float,
        path_width: int,
    ) -> None:
        super().__init__(shape)
        check_base(base)
        check_at_least(2, path_width=path_width)
        if path_width % 2:
            raise ValueError(f"path_width={path_width}: must be even, for pairs")
        if additive == "none" and not rotation:
            raise ValueError("additive=none, rotation=false: nothing is left")
        self.base = base
        self.additive = additive
        self.rotation = rotation
        self.path_width = path_width
        layers, heads, head_dim = shape.n_layers, shape.n_heads, shape.head_dim
        parameters: dict[str, Tensor] = {}
        if rotation:
            check_pairs(shape)
            parameters["log_factor"] = torch.empty(layers, head_dim // 2)
        if additive == "gated":
            one = torch.ones(()).expm1().log().item()  # before the softplus
            parameters["rate"] = torch.full((layers, heads), one)
            parameters["query"] = torch.empty(layers, heads, head_dim)
            parameters["key"] = torch.empty(layers, heads, head_dim)
        if additive == "path":
            parameters["map"] = torch.empty(layers, heads * path_width, shape.d_model)
        self.own = nn.ParameterDict(parameters)
        self.fox = FoX(shape) if additive == "forget" else None
        self.register_buffer("slope", torch.tensor(slopes(heads))[:, None], persistent=False)  # (H, 1)
        self.relative = additive != "path"
        self.uses_positions = rotation or additive != "forget"

    @cached_property
    def hooks(self) -> frozenset[str]:
        unused: set[str] = set()
        if not self.rotation:
            unused |= {"rotate"}
        if self.additive == "none":
            unused |= {"prepare", "scores"}
        return super().hooks - unused

    def learned_parameters(self) -> int:
        heads, head_dim, d_model = self.shape.n_heads, self.shape.head_dim, self.shape.d_model
        rotation = head_dim // 2 if self.rotation else 0
        additive = {
            "none": 0,
            "gated": heads * (2 * head_dim + 1),
            "forget": heads * (d_model + 1),
            "path": heads * self.path_width * d_model,
        }
        return self.shape.n_layers * (rotation + additive[self.additive])

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("own.query", "own.key"):
            nn.init.normal_(parameter, std=self.shape.head_dim**-0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        factor = (float64(self.own["log_factor"][layer]) / SLOWER).exp()  # (D/2,)
        theta = sinusoid_frequencies(self.shape.head_dim, self.base, factor.device) * factor
        q = rotate_pairs(q, *cos_sin(q_pos, lambda device: theta), "interleaved")
        k = rotate_pairs(k, *cos_sin(k_pos, lambda device: theta), "interleaved")
        return q, k

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Any:
        if self.additive == "none":
            return None
        if self.fox is not None:
            return self.fox.prepare(x, q, k, layer)
        with torch.autocast(x.device.type, enabled=False):
            if self.additive == "path":
                return self._path(x, layer)
            strength = F.softplus(self.own["rate"][layer])[:, None] * self.slope  # (H, 1)
            return strength * self._gate(q, "query", layer), strength * self._gate(k, "key", layer)

    def _path(self, x: Tensor, layer: int) -> Tensor:
        """Return p of every token: (B, S, d_model) -> (B, H, S, W)."""
        p = F.linear(x.to(self.own["map"].dtype), self.own["map"][layer])  # (B, S, H * W)
        p = p.unflatten(-1, (self.shape.n_heads, -1)).transpose(1, 2)  # (B, H, S, W)
        return F.rms_norm(p, p.shape[-1:])

    def _gate(self, x: Tensor, parameter: str, layer: int) -> Tensor:
        """Return softplus(v . x / sqrt(D)) of queries or keys: (B, H, T, D) -> (B, H, T)."""
        product = (x.float() * self.own[parameter][layer][:, None]).sum(-1)
        return F.softplus(product * self.shape.head_dim**-0.5)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        if self.additive == "none":
            return s
        if self.fox is not None:
            return self.fox.scores(s, q, k, q_pos, k_pos, state, layer)
        queries, keys = s.shape[-2:]
        if self.additive == "gated":
            q_gate, k_gate = state
            r = q_pos[:, None] - k_pos  # (T, S)
            q_gate_of_block = rows_of_block(q_gate, k_gate.shape[2], s)
            return s - r * (q_gate_of_block[..., None] + k_gate[..., None, :keys])
        p = state  # (B, H, S, W)
        with torch.autocast(s.device.type, enabled=False):
            cos, sin = cos_sin(k_pos, lambda device: torch.ones(self.path_width // 2, device=device))
            rotated = rotate_pairs(p[:, :, :keys], cos, sin, "interleaved")  # (B, H, S, W)
            z = rows_of_block(p, p.shape[2], s) @ rotated.mT / self.path_width  # (B, H, T, S)
        edges = F.logsigmoid(z).tril(keys - queries)  # of the path from a key to the query, both included
        return s + self.slope[:, None] * F.pad(reversed_cumsum(edges)[..., 1:], (0, 1))
