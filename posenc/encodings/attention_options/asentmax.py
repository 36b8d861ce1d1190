"""ASEntmax: entmax of scores that grow with the number of visible keys, by an amount that each query sets.

Formula: the weights are `entmax` (alpha = 1.5) of f_i q_i . k_j / sqrt(D) + the biases.
  f_i   1 + b_i (log(n_i + 1))^c_i
  b_i   softplus(w_h . x_i)
  c_i   2 tanh(v_h . x_i)
  n_i   the number of keys visible to query i
  x     the layer's normed input
  w, v  learned for each layer and head
Setting: `attention.normalizer=asentmax`.
Paper: Vasylenko, Pitorro, Martins, Treviso 2025, arXiv 2506.16640. The constants 1 and 2 and
log(n_i + 1) are those of the authors' code (`adapt-softplus-tanh`). So is the input x, in place of q.
Departures: every head has the factor f. The authors leave it out of heads with ALiBi's bias. w and v are
initialised like the model's other linear maps. They have no bias; in the authors' runs they have one
(`attn_scale_proj_bias=True`).
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings.attention_options.base import AttentionOption, CountingOption
from posenc.encodings.attention_options.entmax import Entmax
from posenc.encodings.base import Encoding, Shape, StepCost

LARGEST_EXPONENT = 2.0


class ASEntmax(Entmax, CountingOption):
    """Scale queries by 1 + b (log(visible keys + 1))^c, then take 1.5-entmax; b and c depend on the query."""

    name = "asentmax"
    key = "normalizer"
    choice = "asentmax"
    acts_on = "several"
    cost = StepCost(at_64=1.77, at_512=3.46)  # step time of rope over that without it, T = 64 and 512
    order = 2  # built after the scales, so that `for_value` sees a scale among `acting` and refuses it

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape, counted=counted)
        # Each head reads the whole input and not its own query, as the authors' code does.
        sizes = (shape.n_layers, shape.n_heads, shape.d_model)
        self.strength = nn.Parameter(torch.empty(sizes))  # w, (L, H, d_model)
        self.exponent = nn.Parameter(torch.empty(sizes))  # v, (L, H, d_model)

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        for encoding in acting:
            if isinstance(encoding, AttentionOption) and encoding.key == "scale":
                hint = f"attention.scale={encoding.off}"
                raise UserError("attention.normalizer", value, "has a scale of its own", hint=hint)
        return super().for_value(shape, value, acting)

    @classmethod
    def misfit(cls, encoding: Encoding) -> str | None:
        if not encoding.scales_with_q:
            return "its scores do not grow by the factor that queries are multiplied by"
        # this option scales too, so an encoding that refuses a scale refuses it
        return super().misfit(encoding) or encoding.refuses.get("attention.scale")

    def learned_parameters(self) -> int:
        return 2 * self.shape.n_layers * self.shape.n_heads * self.shape.d_model

    def weights_in_products(self) -> int:
        return self.learned_parameters()

    def adjust(
        self, q: Tensor, k: Tensor, x: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        # The factor multiplies all scores of a query, so an error of bf16 in it would move all its weights.
        with torch.autocast(x.device.type, enabled=False):
            # In evaluation the last layer has queries for the targets alone, while x has all tokens.
            at_queries = x[:, -q.shape[2] :].to(self.strength.dtype)  # (B, T, d_model)
            strength = F.softplus(F.linear(at_queries, self.strength[layer])).mT  # (B, H, T)
            exponent = LARGEST_EXPONENT * torch.tanh(F.linear(at_queries, self.exponent[layer])).mT
            # One is added, since log 1 = 0 to a negative power would be infinite for the first token.
            log_of_keys = (self.visible_keys(q_pos, k_pos, layer) + 1).log()  # (H or 1, T)
            factor = 1 + strength * log_of_keys**exponent  # (B, H, T)
            return (q * factor[..., None]).to(q.dtype), k
