"""Multi-head and latent attention, and the settings that choose between them (the group `attention`).

B batch, T queries, S keys, H heads, D head width. In latent attention each head has D content numbers and
D_R rotary ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.attention_options import option_keys, options_signature
from posenc.encodings.base import Encoding
from posenc.model.inputs import Heads, Layer
from posenc.model.kernels import attend
from posenc.model.norm import rms_norm_for_product
from posenc.settings.base import Choice
from posenc.settings.signature import check_arguments, check_choice

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Attention(nn.Module):
    """Compute the multi-head attention of one layer, with the hooks of any encoding."""

    is_decoupled = False  # see LatentAttention

    def __init__(self, d_model: int, n_heads: int, layer: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.layer = layer
        self.derived: dict[str, int] = {}  # values that replace null in the YAML: none here
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim) if qk_norm else None

    @property
    def key_value_width(self) -> int:
        """Return the width of a token's key plus that of its value, summed over the heads of this layer."""
        return self.n_heads * 2 * self.head_dim

    @staticmethod
    def encoded_width(head_dim: int, **parameters: object) -> int:
        """Return the width of the queries and keys that the hook `rotate` gets: the whole head.

        `parameters` are the settings of the attention. They are ignored, but callers pass them since latent
        attention needs one of them.
        """
        return head_dim

    def forward(
        self, x: Tensor, pos: Tensor, encoding: Encoding, n_targets: int, mask: BlockMask | None = None
    ) -> Tensor:
        """Attend from the last T = `n_targets` tokens: x (B, S, d_model), pos (S,) -> (B, T, d_model)."""
        batch, length, d_model = x.shape
        if n_targets == length:
            q, k, v = self._by_head(self.qkv(x), n_tensors=3)  # (B, H, S, D) each
        else:  # queries only of the last tokens
            w_q, w_kv = self.qkv.weight.split((d_model, 2 * d_model))
            (q,) = self._by_head(F.linear(x[:, -n_targets:], w_q), n_tensors=1)  # (B, H, T, D)
            k, v = self._by_head(F.linear(x, w_kv), n_tensors=2)  # (B, H, S, D) each
        if "shift" in encoding.hooks:
            k, v = encoding.shift(k, v, x, self.layer)
        if self.q_norm is not None and self.k_norm is not None:
            # in float32, and rounded once: a norm of bf16 inputs by float32 weights is slow and warns
            q = self.q_norm(q.to(self.q_norm.weight.dtype)).to(v.dtype)
            k = self.k_norm(k.to(self.k_norm.weight.dtype)).to(v.dtype)
        y = attend(Heads(q, k, v), x, Layer(encoding, self.layer, pos, mask))  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, n_targets, d_model))  # (B, T, d_model)

    def _by_head(self, x: Tensor, n_tensors: int) -> tuple[Tensor, ...]:
        """Split x (B, S, n_tensors * d_model) into tensors (B, H, S, D)."""
        by_head = x.view(*x.shape[:2], n_tensors, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        if x.device.type == "cpu":
            by_head = by_head.contiguous()  # one copy here is quicker than one in each product that reads it
        return by_head.unbind(0)


class LatentAttention(nn.Module):
    """Compute latent attention (`attention=mla`): keys and values of all heads come from one narrow latent.

    Formula: score_ij = (qC_i . kC_j + qR_i . kR_j) / sqrt(D + D_R).
      c_t     norm(W_DKV x_t), the latent of token t, `kv_rank` numbers
      kC, v   W_UK c_t and W_UV c_t, D numbers for each head: the content of a key, and its value
      kR      W_KR x_t, D_R = `rope_dim` numbers that the heads share
      qC, qR  D and D_R numbers for each head, made in the same way from a latent of `q_rank` numbers
    The encoding rotates qR and kR, and nothing else.
    A key-value cache needs only c and kR, (kv_rank + rope_dim) numbers a token and layer: W_UK can be
    multiplied into the map of the queries. If kC were rotated too, a rotation by i - j would stand between
    the two maps.
    Paper: DeepSeek-V2, arXiv 2405.04434.
    Departures: the published ranks are 4 D and 12 D. Where that is more than d_model, in models of few heads,
    they are d_model.
    """

    is_decoupled = True  # positions act on a separate part of each head, qR and kR

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        layer: int,
        *,
        kv_rank: int | None,
        q_rank: int | None,
        rope_dim: int | None,
    ) -> None:
        super().__init__()
        head_dim = d_model // n_heads
        if kv_rank is None:
            kv_rank = min(4 * head_dim, d_model)
        if q_rank is None:
            q_rank = min(12 * head_dim, d_model)
        for key, rank in (("kv_rank", kv_rank), ("q_rank", q_rank)):
            if not 1 <= rank <= d_model:
                raise ValueError(f"{key}={rank}: must be in 1..d_model={d_model}")
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.layer = layer
        self.rope_dim = self.encoded_width(head_dim, rope_dim=rope_dim)  # D_R
        self.kv_rank = kv_rank
        self.derived = {"kv_rank": kv_rank, "q_rank": q_rank, "rope_dim": self.rope_dim}
        self.q_down = nn.Linear(d_model, q_rank, bias=False)
        self.q_norm = nn.RMSNorm(q_rank)
        self.q_up = nn.Linear(q_rank, n_heads * (head_dim + self.rope_dim), bias=False)
        self.kv_down = nn.Linear(d_model, kv_rank + self.rope_dim, bias=False)  # the latent c, then kR
        self.kv_norm = nn.RMSNorm(kv_rank)
        self.kv_up = nn.Linear(kv_rank, 2 * d_model, bias=False)  # kC of every head, then v
        self.out = nn.Linear(d_model, d_model, bias=False)

    @property
    def key_value_width(self) -> int:
        """Return the width of a token's key plus that of its value, summed over the heads of this layer.

        It is the width in the products of the attention. The cache is narrower.
        """
        return self.n_heads * (2 * self.head_dim + self.rope_dim)

    @staticmethod
    def encoded_width(head_dim: int, *, rope_dim: int | None, **parameters: object) -> int:
        """Return D_R, the width of the rotary part that each head has in addition to its D numbers."""
        width = head_dim // 2 if rope_dim is None else rope_dim
        if width < 2 or width % 2:
            raise ValueError(f"rope_dim={width}: must be even and at least 2, since it is turned in pairs")
        return width

    def forward(
        self, x: Tensor, pos: Tensor, encoding: Encoding, n_targets: int, mask: BlockMask | None = None
    ) -> Tensor:
        """Attend from the last T = `n_targets` tokens: x (B, S, d_model), pos (S,) -> (B, T, d_model)."""
        batch, length, d_model = x.shape
        heads = self.n_heads
        head_dim = self.head_dim

        latent, k_rotary = self.kv_down(x).split((self.kv_rank, self.rope_dim), dim=-1)
        kv = self.kv_up(rms_norm_for_product(latent, self.kv_norm.weight))  # (B, S, 2 * d_model)
        kv_by_head = kv.view(batch, length, 2, heads, head_dim).permute(2, 0, 3, 1, 4)  # (2, B, H, S, D)
        k_content, v = kv_by_head.unbind(0)
        k_rotary = k_rotary[:, None]  # (B, 1, S, D_R)

        q_latent = self.q_down(x[:, -n_targets:])  # (B, T, q_rank)
        q = self.q_up(rms_norm_for_product(q_latent, self.q_norm.weight))  # (B, T, H * (D + D_R))
        q_by_head = q.view(batch, n_targets, heads, head_dim + self.rope_dim).transpose(1, 2)
        q_content, q_rotary = q_by_head.split((head_dim, self.rope_dim), dim=-1)  # (B, H, T, D and D_R)

        if "rotate" in encoding.hooks:
            # If all tokens are queries, q_pos is the very tensor pos: `rotate` then computes the angles once.
            q_pos = pos if n_targets == length else pos[-n_targets:]
            q_rotary, k_rotary = encoding.rotate(q_rotary, k_rotary, q_pos, pos, self.layer)
        q = torch.cat((q_content, q_rotary), dim=-1)
        k = torch.cat((k_content, k_rotary.expand(-1, heads, -1, -1)), dim=-1)  # (B, H, S, D + D_R)
        # The rotary parts are turned already. A second `rotate` would turn the content, too.
        y = attend(Heads(q, k, v), x, Layer(encoding, self.layer, pos, mask), is_rotated=True)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, n_targets, d_model))  # (B, T, d_model)


ATTENTIONS: dict[str, type[Attention] | type[LatentAttention]] = {"mha": Attention, "mla": LatentAttention}


def resolve_attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `attention` group and return it as a run stores it. Raises UserError."""
    options = {key: value for key, value in settings.items() if key in option_keys()}
    choice = Choice.model_validate({"name": settings["name"], **own_parameters(settings)})
    parameters = check_choice("attention", choice, ATTENTIONS, "there is no such attention")
    return {
        "name": choice.name,
        **parameters,
        **check_arguments(options_signature(), options, "attention"),
    }


def own_parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that only the chosen attention has, without the options that all of them share."""
    shared = {"name", *option_keys()}
    return {key: value for key, value in settings.items() if key not in shared}
