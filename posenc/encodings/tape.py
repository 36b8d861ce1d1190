"""TAPE: each token's position is a vector. It starts as RoPE's rotation, and every layer updates it.

Formula: pairs (2k, 2k+1) of q_i and k_i, taken as complex numbers, are multiplied by e_ih.
  e_ih     the position of token i for head h: D/2 complex numbers, exp(sqrt(-1) i theta_k) in the first layer
  theta_k  base^(-2k/D)
After each layer but the last:
  e_ih <- e_ih + sum over g of A_hg sum over j of p_ij^g e_jg
  e_ih <- e_ih + sum over m of V_hm silu(w_m . x_i) sum over g of U_mg e_ig
with
  p^g            the attention weights of head g in that layer
  x              the next layer's normed input
  A, U, V and w  learned for each of these updates
A shift of all positions turns the e of all tokens alike. A, U and V are real, so it changes no score.
Setting:
  width  the number of m; null: 4 H, as in the released configuration
Source: the authors' code; of the paper only abstracts and summaries were at hand.
Departures: in the authors' code x is the output of the MLP before the next layer. Here the first update mixes
heads, by A; in the published code each head adds only its own sum.
Each forward pass has a copy of the module, which carries e from layer to layer. The hooks that do it are not
compiled, since e would lose its gradient between two compiled blocks.
"""

import copy
from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.rotary import check_pairs, rotate_pairs
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies


@dataclass
class CarriedPositions:
    """What a forward pass carries from layer to layer."""

    # cosines and sines side by side, (B or 1, H or 1, S, D); None before the first layer and in the last
    e: Tensor | None = None
    # sum over j of p_ij e_j in the layer before: a tensor for each block of queries, the last block first
    mixed: list[Tensor] = field(default_factory=list)


class TAPE(Encoding):
    name = "tape"
    paper = "Zhu et al. 2025, arXiv 2501.00712"
    formula = (
        "pairs of q_i, k_i times e_i; layer by layer e_i += A sum_j p_ij e_j, += V diag(silu(W x_i)) U e_i"
    )
    acts_on = "several"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "(L - 1)*(H*H + (4*H if width is None else width)*(2*H + d))"
    relative = True
    cost = StepCost(at_64=1.27, at_512=1.4)

    def __init__(self, shape: Shape, *, base: float, width: int | None) -> None:
        super().__init__(shape)
        check_pairs(shape)
        check_base(base)
        if width is None:
            width = 4 * shape.n_heads
            self.derived["width"] = width
        check_at_least(1, width=width)
        self.base = base
        self.width = width
        updates = shape.n_layers - 1
        heads = shape.n_heads
        self.mix = nn.Parameter(torch.empty(updates, heads, heads))  # A
        self.up = nn.Parameter(torch.empty(updates, width, heads))  # U
        self.gate = nn.Parameter(torch.empty(updates, width, shape.d_model))  # w
        self.down = nn.Parameter(torch.empty(updates, heads, width))  # V
        self.carried = CarriedPositions()

    def learned_parameters(self) -> int:
        heads = self.shape.n_heads
        d_model = self.shape.d_model
        update = heads * heads + self.width * (2 * heads + d_model)
        return (self.shape.n_layers - 1) * update

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        # Small maps, so that a layer changes the positions little at first, and e stays near RoPE's.
        std = self.shape.d_model**-0.5 if name == "gate" else 0.02
        nn.init.normal_(parameter, std=std, generator=generator)

    def for_one_pass(self) -> Self:
        """Return a copy that shares the parameters and carries nothing yet."""
        # Shallow, so that gradients reach the parameters of the model.
        copied = copy.copy(self)
        copied.carried = CarriedPositions()
        return copied

    @torch.compiler.disable
    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> None:
        """Update e by what the layer before has left in `carried.mixed`, and by this layer's input x."""
        e = self.carried.e
        mixed_blocks = self.carried.mixed
        if layer == 0 or e is None or not mixed_blocks:
            self.carried = CarriedPositions()
            return
        update = layer - 1
        # Autocast would round e to bf16 in every layer.
        with torch.autocast(x.device.type, enabled=False):
            # The attention computes its last block first.
            mixed = torch.cat(mixed_blocks[::-1], dim=2)  # (B, H, S, D)
            e = e + torch.einsum("gh,bhtd->bgtd", self.mix[update], mixed)  # (B, H, S, D)
            gates = F.silu(F.linear(x.to(e.dtype), self.gate[update])).mT[..., None]  # (B, width, S, 1)
            gated = gates * torch.einsum("mh,bhtd->bmtd", self.up[update], e)  # (B, width, S, D)
            e = e + torch.einsum("hm,bmtd->bhtd", self.down[update], gated)  # (B, H, S, D)
        self.carried = CarriedPositions(e)

    @torch.compiler.disable
    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        e = self.carried.e
        if e is None or layer == 0:
            e = self._first_positions(k_pos)
        # No layer comes after the last one, which could read its positions.
        is_last = layer == self.shape.n_layers - 1
        self.carried.e = None if is_last else e
        cos = e[..., 0::2]  # (B or 1, H or 1, S, D/2)
        sin = e[..., 1::2]
        start = k.shape[2] - q.shape[2]  # the token of the first query
        rotated_q = rotate_pairs(q, cos[:, :, start:], sin[:, :, start:], "interleaved")
        return rotated_q, rotate_pairs(k, cos, sin, "interleaved")

    @torch.compiler.disable
    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        e = self.carried.e
        if e is not None:  # in the last layer nothing needs it
            with torch.autocast(p.device.type, enabled=False):
                self.carried.mixed.append(p.float() @ e[:, :, : p.shape[-1]])  # (B, H, T, D)
        return p @ v

    def _first_positions(self, pos: Tensor) -> Tensor:
        """Return e of the first layer: (1, 1, S, D), cosine and sine of each frequency side by side."""
        head_dim = self.shape.head_dim
        base = self.base
        waves = cos_sin(pos, lambda device: sinusoid_frequencies(head_dim, base, device))
        side_by_side = torch.stack(waves, dim=-1).flatten(-2)  # (S, D)
        return side_by_side[None, None]
