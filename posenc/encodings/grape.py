"""GRAPE: rotated queries and keys, and a penalty on the scores. The paper derives both as actions of groups.

Formula: q_i^T R(i)^T R(j) k_j / sqrt(D) + b_ij in place of score_ij. A setting chooses each of the two parts.

rotation=true: R(m) turns the pair (2k, 2k+1) by m theta_k, where theta_k = base^(-2k/D) exp(w_k / 16).
  w is learned for each layer and starts at 0, which is RoPE.

additive: what b_ij is; m_h are ALiBi's slopes.
  none    0
  gated   -(i - j) o_h m_h (softplus(v_h . q_i / sqrt(D)) + softplus(u_h . k_j / sqrt(D)))  (GRAPE-A-QK)
          o_h > 0 starts at 1. With u = v = 0 and o_h = 1 / (2 log 2) it is ALiBi.
  forget  the sum over l = j+1..i of log sigmoid(w_h . x_l + b_h), which is FoX
  path    m_h times the sum over l = j+1..i of log sigmoid(p_i . R^l p_l / W)  (GRAPE-AP)
          p_l = P_h x_l, scaled to mean square 1; it has W = path_width numbers.
          R turns each pair of them by one radian, R^l by l radians, so a shift of all positions changes
          the scores.
x is the layer's normed input; P, u, v, o, w, b are learned for each layer.

Departures from the released code: there is no QK-norm. p_i is scaled like p_l, as in the paper; the code
scales p_l alone. u and v are not scaled to length 1. W is 8 as in the released configurations. Two things are
left out: learned planes, which the maps of q and k already give, and GRAPE-M-ctx, whose angles are summed up
from the text (`selective_rope` does that).
"""

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

FACTOR_SCALE = 16  # divides w, so that theta changes more slowly in training; as in the released code
# log(e - 1); on the CPU, since models may be built on the meta device, which has no values
INVERSE_SOFTPLUS_OF_1 = torch.ones((), device="cpu").expm1().log().item()


class GRAPE(Encoding):
    name = "grape"
    paper = "Zhang et al. 2025, arXiv 2512.07805"
    formula = "q_i^T R(i)^T R(j) k_j / sqrt(D) + b_ij; b: gated slopes, forget gates, or sums along a path"
    acts_on = "several"
    past_training = "defined everywhere; a path's penalty grows by 0.3 to 1.3 times m_h a token"
    learned = (
        "L*((D//2 if rotation else 0) + "
        "{'none': 0, 'gated': H*(2*D + 1), 'forget': H*(d + 1), 'path': H*path_width*d}[additive])"
    )
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
        layers = shape.n_layers
        heads = shape.n_heads
        head_dim = shape.head_dim
        parameters: dict[str, Tensor] = {}
        if rotation:
            check_pairs(shape)
            parameters["log_factor"] = torch.zeros(layers, head_dim // 2)  # w
        if additive == "gated":
            parameters["rate"] = torch.full((layers, heads), INVERSE_SOFTPLUS_OF_1)  # o, before a softplus
            parameters["query"] = torch.empty(layers, heads, head_dim)  # v
            parameters["key"] = torch.empty(layers, heads, head_dim)  # u
        if additive == "path":
            parameters["map"] = torch.empty(layers, heads * path_width, shape.d_model)  # P
        # Initial values are drawn by the parameter's name, so another name would be another model.
        self.own = nn.ParameterDict(parameters)
        self.fox = FoX(shape) if additive == "forget" else None
        self.register_buffer("slope", torch.tensor(slopes(heads))[:, None], persistent=False)  # (H, 1)
        self.relative = additive != "path"
        self.scales_with_q = additive != "gated"  # its slopes read q through a softplus
        self.uses_positions = rotation or additive != "forget"

    @cached_property
    def hooks(self) -> frozenset[str]:
        unused: set[str] = set()
        if not self.rotation:
            unused |= {"rotate"}
        if self.additive == "none":
            # Without these hooks a fused kernel may serve, as for `rope`.
            unused |= {"prepare", "scores"}
        return super().hooks - unused

    def learned_parameters(self) -> int:
        heads = self.shape.n_heads
        head_dim = self.shape.head_dim
        d_model = self.shape.d_model
        in_rotation = head_dim // 2 if self.rotation else 0
        in_additive = {
            "none": 0,
            "gated": heads * (2 * head_dim + 1),
            "forget": heads * (d_model + 1),
            "path": heads * self.path_width * d_model,
        }
        return self.shape.n_layers * (in_rotation + in_additive[self.additive])

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("own.query", "own.key"):
            # By the width of a head, which they are multiplied with, and not by d_model as the default would.
            nn.init.normal_(parameter, std=self.shape.head_dim**-0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        q_cos, q_sin = cos_sin(q_pos, lambda device: self._theta(layer))  # (T, D/2)
        k_cos, k_sin = cos_sin(k_pos, lambda device: self._theta(layer))  # (S, D/2)
        return rotate_pairs(q, q_cos, q_sin, "interleaved"), rotate_pairs(k, k_cos, k_sin, "interleaved")

    def _theta(self, layer: int) -> Tensor:
        """Return theta_k, in radians a token: (D/2,) float64."""
        factor = (float64(self.own["log_factor"][layer]) / FACTOR_SCALE).exp()  # (D/2,)
        # In float64 like the base frequencies, so that a learned factor loses no angle at far positions.
        return sinusoid_frequencies(self.shape.head_dim, self.base, factor.device) * factor

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Any:
        """Return the gates of queries and keys, or the state of FoX, or p, by `additive`; None without it."""
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
        mapped = F.linear(x.to(self.own["map"].dtype), self.own["map"][layer])  # (B, S, H * W)
        by_head = mapped.unflatten(-1, (self.shape.n_heads, -1)).transpose(1, 2)  # (B, H, S, W)
        # With mean square 1 the product of two p is within -W and W. So a token takes off m_h times 0.3 to
        # 1.3: log sigmoid of 1 is -0.3, and that of -1 is -1.3.
        return F.rms_norm(by_head, by_head.shape[-1:])

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
        if self.additive == "gated":
            return s - self._gated_penalty(s, q_pos, k_pos, state)
        return s + self.slope[:, None] * self._path_sums(s, k_pos, state)

    def _gated_penalty(self, s: Tensor, q_pos: Tensor, k_pos: Tensor, gates: tuple[Tensor, Tensor]) -> Tensor:
        """Return the distance times the gates of query and key: (B, H, T, S)."""
        q_gate, k_gate = gates  # (B, H, S of the window) each
        # Not clamped: the future is hidden afterwards, and no logarithm is taken of it.
        r = q_pos[:, None] - k_pos  # (T, S)
        q_gate_of_block = rows_of_block(q_gate, k_gate.shape[2], s)  # (B, H, T)
        k_gate_of_block = k_gate[..., : len(k_pos)]  # (B, H, S)
        return r * (q_gate_of_block[..., None] + k_gate_of_block[..., None, :])

    def _path_sums(self, s: Tensor, k_pos: Tensor, p: Tensor) -> Tensor:
        """Return the sums over l = j+1..i of log sigmoid(p_i . R^l p_l / W), (B, H, T, S).

        p is (B, H, S, W), of the whole window.
        """
        queries, keys = s.shape[-2:]
        with torch.autocast(s.device.type, enabled=False):
            cos, sin = cos_sin(k_pos, self._one_radian)
            rotated = rotate_pairs(p[:, :, :keys], cos, sin, "interleaved")  # (B, H, S, W)
            p_of_block = rows_of_block(p, p.shape[2], s)  # (B, H, T, W)
            products = p_of_block @ rotated.mT / self.path_width  # (B, H, T, S)
        steps = F.logsigmoid(products).tril(keys - queries)  # [i, l], 0 where token l comes after query i
        sums_with_own = reversed_cumsum(steps)  # [i, j]: the sum over l = j..i
        return F.pad(sums_with_own[..., 1:], (0, 1))  # [i, j]: over l = j+1..i, which is 0 for the last key

    def _one_radian(self, device: torch.device) -> Tensor:
        """Return the angles of the pairs of p per token: (W/2,)."""
        return torch.ones(self.path_width // 2, device=device)
